"""The report of one optimization: what every node of the graph became, and why.

`Report` is plain data (`report.json`); `html` draws it as one self-contained page, the graph
coloured by kernel. Names of the user's nodes stay in the store of the user.
"""

from __future__ import annotations

import html as escaping
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import msgspec

NO_KERNEL = -1
NO_REGION = -1
DRAWN_NODES = 12000
"""Larger graphs are listed but not drawn: a browser would not scroll them."""

CELL_WIDTH, CELL_HEIGHT, ROW_CELLS = 14, 14, 90
PAGE = Path(__file__).with_name("report_page.html")


class ReportNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node (or instruction): its kernel's number, or NO_KERNEL and the reason why not.

    `inputs` are positions in Report.nodes. A node with neither kernel nor reason is a source or a
    view, which needs no work. `written` is the name the script gave it, where the graph has
    another. `region` is a position in Report.regions. What one region's nodes share: `level`
    (between which nodes outside regions it can run), `device`, while `frame`, `branches` taken, and
    whether they are `small`.
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


class ReportKernel(msgspec.Struct, frozen=True):
    """A launch of a kernel: estimates of one call in bytes and nanoseconds; `text` is loop IR. On a
    GPU also registers of a thread, as used and as predicted, bytes spilled, and how many blocks a
    multiprocessor holds; `refused` where it has no binary, and why."""

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


class ReportRegion(msgspec.Struct, frozen=True):
    """A region that was cut out: whether it is stitched, bytes one by one and as planned, and what
    its proof said (errors, intervals of the time over the framework's and XLA's).

    `first_kernel` is the number of its first launch in Report.kernels. `origins[k]` is the position
    in Report.nodes of the node called n{k} in its module (modules.json, by `key`)."""

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


class Report(msgspec.Struct, frozen=True):
    """`seconds` are wall times by stage; `figures` are further named results, shown as given.

    Bytes are off-chip traffic of the memory-intensive part; `bytes_saveable` of `bytes_before` are
    what one kernel over each region would save at best (rulings.md 26).
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


class ReportModule(msgspec.Struct, frozen=True):
    """A region's module as it was planned, and the plan (plan/text.py): enough to ask again why."""

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


def html(report: Report) -> str:
    """The report as one HTML page, without scripts or anything to fetch."""
    page = Template(PAGE.read_text(encoding="utf-8"))
    return page.substitute(
        title=_text(report.title),
        target=_text(report.target),
        figures=_figures(report),
        graph=_graph(report),
        kernels=_kernels(report),
        refusals=_refusals(report),
        regions=_regions(report),
        loops=_rows(loop.partition(": ")[::2] for loop in report.scalar_loops),
        seconds=_rows((name, f"{value:.3f} s") for name, value in report.seconds.items()),
    )


def colour(kernel: int) -> str:
    """A CSS colour per kernel: neighbouring numbers differ most (golden angle)."""
    return f"hsl({kernel * 137.508 % 360:.0f} 65% {45 + 12 * (kernel // 8 % 3)}%)"


def _text(value: object) -> str:
    return escaping.escape(str(value), quote=True)


def _rows(pairs: Iterable[Sequence[str]]) -> str:
    return "".join(f"<tr><td>{_text(a)}</td><td>{_text(b)}</td></tr>" for a, b in pairs)


def _figures(report: Report) -> str:
    pairs: list[tuple[str, str]] = [
        ("Kernels before, after", f"{report.kernels_before} → {report.kernels_after}"),
        ("Bytes before, after", f"{report.bytes_before:,} → {report.bytes_after:,}"),
    ]
    saved = report.bytes_before - report.bytes_after
    if report.bytes_saveable:
        share = f" ({saved / report.bytes_saveable:.1%} of what could be saved)"
        pairs.append(("Bytes saved", f"{saved:,}{share}"))
    if report.seconds_before:
        both = f"{report.seconds_before * 1e3:.3f} ms → {report.seconds_after * 1e3:.3f} ms"
        pairs.append(("Memory-intensive time, estimated or measured", both))
    return _rows([*pairs, *report.figures.items()])


def _refusals(report: Report) -> str:
    examples: dict[str, list[str]] = defaultdict(list)
    for node in report.nodes:
        if node.reason and len(examples[node.reason]) < 3:
            examples[node.reason].append(f"{node.name} ({node.op})")
    counted = report.refusals or count_reasons(report.nodes)
    return "".join(
        f"<tr><td>{_text(reason)}</td><td>{count}</td>"
        f"<td>{_text(', '.join(examples.get(reason, ())))}</td></tr>"
        for reason, count in counted.items()
    )


def _regions(report: Report) -> str:
    lines = []
    for region in report.regions:
        proof = ", ".join(f"{name} {value}" for name, value in region.proof.items())
        cells = (
            region.name,
            "stitched" if region.stitched else "left",
            region.operations,
            region.kernels,
            f"{region.bytes_before:,} → {region.bytes_after:,}",
            proof,
        )
        lines.append("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>")
    return "".join(lines)


def _kernels(report: Report) -> str:
    lines = []
    for number, kernel in enumerate(report.kernels):
        text = f"<details><summary>loop IR</summary><pre>{_text(kernel.text)}</pre></details>"
        lines.append(
            f'<tr id="k{number}"><td><span class="swatch" style="background:{colour(number)}">'
            f"</span>{number}</td><td>{_text(kernel.name)}</td><td>{kernel.operations}</td>"
            f"<td>{kernel.phases}</td><td>{kernel.bytes_saved:,}</td>"
            f"<td>{kernel.estimate_ns / 1e3:,.1f}</td><td>{_text(_resources(kernel))}</td>"
            f"<td>{text if kernel.text else ''}</td></tr>"
        )
    return "".join(lines)


def _resources(kernel: ReportKernel) -> str:
    if kernel.refused or not kernel.registers:
        return kernel.refused
    spilled = f", {kernel.spill_bytes} bytes spilled" if kernel.spill_bytes else ""
    predicted = f"{kernel.registers} ({kernel.registers_predicted} predicted)"
    return f"{predicted}{spilled}; {kernel.blocks} blocks a multiprocessor"


def levels(nodes: Sequence[ReportNode]) -> list[int]:
    """Longest distance of each node from a source; a loop's back edge is not counted."""
    found: list[int] = [0] * len(nodes)
    state = bytearray(len(nodes))  # 0 new, 1 entered, 2 done
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            v = stack[-1]
            if state[v] == 0:
                state[v] = 1
                stack.extend(u for u in nodes[v].inputs if state[u] == 0)
                continue
            stack.pop()
            if state[v] == 1:
                done = [found[u] + 1 for u in nodes[v].inputs if state[u] == 2]
                found[v] = max(done, default=0)
                state[v] = 2
    return found


def _graph(report: Report) -> str:
    """The graph as SVG: a band of rows per level, sources at the top, coloured by kernel."""
    if len(report.nodes) > DRAWN_NODES:
        return f"<p>{len(report.nodes)} nodes: too many to draw; report.json lists them.</p>"
    rows: Mapping[int, list[int]] = defaultdict(list)
    for number, level in enumerate(levels(report.nodes)):
        rows[level].append(number)
    places: dict[int, tuple[int, int]] = {}
    top = 0
    for level in sorted(rows):
        ordered = sorted(rows[level], key=lambda v: (report.nodes[v].kernel, v))
        for i, v in enumerate(ordered):
            places[v] = (i % ROW_CELLS * CELL_WIDTH, top + i // ROW_CELLS * CELL_HEIGHT)
        top += (len(ordered) + ROW_CELLS - 1) // ROW_CELLS * CELL_HEIGHT + 6
    lines = [
        f'<path d="M{places[u][0] + 5} {places[u][1] + 10}L{places[v][0] + 5} {places[v][1]}"/>'
        for v, node in enumerate(report.nodes)
        for u in node.inputs
    ]
    boxes = [_box(node, places[v]) for v, node in enumerate(report.nodes)]
    size = f'width="{ROW_CELLS * CELL_WIDTH}" height="{top}"'
    return f"<svg {size}><g class='edges'>{''.join(lines)}</g>{''.join(boxes)}</svg>"


def _box(node: ReportNode, place: tuple[int, int]) -> str:
    if node.kernel != NO_KERNEL:
        fill, where = colour(node.kernel), f"kernel {node.kernel}"
    elif node.reason:
        fill, where = "#777", node.reason + (f": {node.detail}" if node.detail else "")
    else:
        fill, where = "#ddd", "no work"
    tip = f"<title>{_text(node.name)} ({_text(node.op)})\n{_text(where)}</title>"
    shape = f'<rect x="{place[0]}" y="{place[1]}" width="10" height="10" fill="{fill}">{tip}</rect>'
    return f'<a href="#k{node.kernel}">{shape}</a>' if node.kernel != NO_KERNEL else shape
