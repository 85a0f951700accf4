"""The report of one optimization: what every node of the graph became, and why.

`Report` is plain data (`report.json`); stitchcore/page draws it. Names of the user's nodes stay in
the store of the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

NO_KERNEL = -1
NO_REGION = -1
SOURCE_BYTES = 4 * 2**20
"""Of kernels' sources in one report; those that do not fit are left out whole."""


class ReportNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node (or instruction): its kernel's number, or NO_KERNEL and the reason why not.

    `inputs` are positions in Report.nodes. A node with neither kernel nor reason is a source or a
    view, which needs no work. `written` is the name the script gave it, where the graph has
    another. `region` is a position in Report.regions. What one region's nodes share: `level`
    (between which nodes outside regions it can run), `device`, while `frame`, `branches` taken, and
    whether they are `small`. `bytes`: what one that was left as it was reads and writes (0: not
    told).
    """

    name: str
    op: str
    kernel: int = NO_KERNEL
    reason: str = ""
    detail: str = ""
    inputs: tuple[int, ...] = ()
    written: str = ""
    region: int = NO_REGION
    level: int = 0
    device: str = ""
    frame: str = ""
    branches: tuple[str, ...] = ()
    small: bool = False
    bytes: int = 0


class ReportKernel(msgspec.Struct, frozen=True):
    """A launch of a kernel: estimates of one call in bytes and nanoseconds; `text` is loop IR. On a
    GPU also registers of a thread, as used and as predicted, bytes spilled, and how many blocks a
    multiprocessor holds; `refused` where it has no binary, and why.

    `bytes_before` is off-chip traffic of its operations one by one, `bytes_after` the kernel's own
    (both 0: not told); `measured_ns` a call's median time (0: not timed). `schemes` counts values
    by where they live (`local`, `regional`, `global`: loop_ir/scheme_counts.py)."""

    name: str
    operations: int
    bytes_saved: int = 0
    estimate_ns: int = 0
    phases: int = 0
    text: str = ""
    registers: int = 0
    registers_predicted: int = 0
    spill_bytes: int = 0
    blocks: int = 0
    refused: str = ""
    bytes_before: int = 0
    bytes_after: int = 0
    measured_ns: int = 0
    schemes: dict[str, int] = {}


class ReportRegion(msgspec.Struct, frozen=True):
    """A region that was cut out: whether it is stitched, bytes one by one and as planned, and what
    its proof said (errors, the interval of the time over the framework's).

    `seconds_before` and `seconds_after` are estimates of all its operations and of its kernels.
    `first_kernel` is the number of its first launch in Report.kernels. `origins[k]` is the position
    in Report.nodes of the node called n{k} in its module (modules.json, by `key`). `cut_from` is
    the region that was cut, for memory, of which it is a part."""

    name: str
    key: str
    operations: int
    stitched: bool
    kernels: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    proof: dict[str, Any] = {}
    first_kernel: int = NO_KERNEL
    origins: tuple[int, ...] = ()
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    cut_from: str = ""


class ReportPlanner(msgspec.Struct, frozen=True):
    """A planner's plan: its kernels and their time as estimated, how long planning took, and the
    share of the proven bound that it leaves (None: there is no bound)."""

    name: str
    kernels: int
    seconds: float
    took: float = 0.0
    gap: float | None = None
    chosen: bool = False


class Report(msgspec.Struct, frozen=True):
    """`seconds` are wall times by stage; `figures` are further named results, shown as given.
    `sources` are C or CUDA texts by name of a kernel; `bound` says what is proved of the plans.

    Of a module bytes are off-chip traffic of its memory-intensive part. Of a graph `bytes_before`
    and `bytes_after` are of the stitched regions alone, and `bytes_saved` is told as a share of
    `bytes_saveable`: of all its memory-intensive operations (tensorflow/coverage.py).
    """

    title: str
    target: str
    nodes: tuple[ReportNode, ...] = ()
    kernels: tuple[ReportKernel, ...] = ()
    refusals: dict[str, int] = {}
    kernels_before: int = 0
    kernels_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_saveable: int = 0
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    seconds: dict[str, float] = {}
    figures: dict[str, str] = {}
    regions: tuple[ReportRegion, ...] = ()
    scalar_loops: tuple[str, ...] = ()
    planners: tuple[ReportPlanner, ...] = ()
    bound: str = ""
    sources: dict[str, str] = {}
    bytes_saved: int = 0


class ReportModule(msgspec.Struct, frozen=True):
    """A region's module as it was planned, and the plan (fusion/text.py): enough to ask again
    why."""

    module: str
    plan: str
    planner: str


MODULES = "modules.json"
"""The file of an artifact that holds ReportModules by region key, for plans of several kernels."""


def decode_modules(data: bytes) -> dict[str, ReportModule]:
    """Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(data, type=dict[str, ReportModule])


def encode(report: Report) -> bytes:
    """Canonical JSON."""
    return msgspec.json.encode(report, order="sorted")


def decode(data: bytes) -> Report:
    """Raises msgspec.DecodeError for anything that is not a report."""
    return msgspec.json.decode(data, type=Report)


def count_reasons(nodes: Sequence[ReportNode]) -> dict[str, int]:
    """Nodes by reason, most first."""
    counted = Counter(node.reason for node in nodes if node.reason)
    return dict(counted.most_common())


def within_limit(sources: Mapping[str, str], limit: int = SOURCE_BYTES) -> dict[str, str]:
    """The first of `sources` that fit into `limit` bytes together."""
    texts: dict[str, str] = {}
    for name, text in sources.items():
        limit -= len(text.encode())
        if limit < 0:
            break
        texts[name] = text
    return texts
