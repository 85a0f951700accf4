"""What is known of one graph (by digest), and of each place that runs it (by caller)."""

from __future__ import annotations

import base64
import os
import threading
import zlib
from dataclasses import dataclass, field
from typing import Any, Collection, Dict, FrozenSet, List, Mapping, Optional, Protocol, Tuple

from . import (
    collectives,
    contract,
    graphs,
    loops,
    memory,
    patch,
    reasons,
    savings,
    settings,
    timer,
    verdicts,
)
from .client import Artifact
from .digest import Numbering
from .plugin import Interval, Plugin
from .structure import Types

ORIGINAL, STITCHED = 0, 1
FOREVER = 2**62
HISTORY = 4096  # intervals kept for comparison
FIRST_BLOCK, ORIGINAL_BLOCK, STITCHED_BLOCK = 3, 3, 6  # calls; those at a switch do not count
SHORT_MEAN = 3  # calls of the stitched blocks after the first one: 3 or 4, at random
WIDE_BLOCK = 6  # calls of both, where the short ones have brought no verdict: four of them count
CANARY_BLOCK, CANARY_FIRST = 4, 4  # calls, where savings are reported: two of a block are compared
FEW_CALLS = 3  # of what is called for its results: then a compilation may pay
WARM_UP = 2  # steps before those that count as baseline


@dataclass(frozen=True)
class Submission:
    """What is handed in of a graph: its structure, and the names that must stay."""

    graph: Any
    preserve: FrozenSet[str]
    under_xla: bool


@dataclass
class Program:
    """A graph and the worker's answer. `reason` is set when it will not be stitched (any more)."""

    digest: str
    target: str = ""  # what its artifact must be made for
    refused_late: Optional[str] = None  # why it may only be swapped in before the first step
    artifact: Optional[Artifact] = None
    kernels: FrozenSet[str] = frozenset()
    reason: Optional[str] = None
    swapped: bool = False  # swap_begin has been written
    settled: bool = False  # swap_ok has been written
    joined: bool = False  # it meets other replicas: they swap together (swap_group_member.py)
    enlisted: bool = False  # one caller is their member
    kind: str = graphs.TRAINING  # what it is for
    for_results: bool = False  # its time is that of its calls; handed in after FEW_CALLS of them
    unsubmitted: Optional[Submission] = None  # while it has been called too few times for that
    devices: float = 1.0  # that its graph uses: GPUs, or cores
    gpus: FrozenSet[int] = frozenset()  # those GPUs, by CUDA's numbers
    unfit: bool = False  # a call's sizes were not those of its kernels, and that has been told
    left_out: Mapping[str, str] = field(default_factory=dict)  # regions, why: by the job's data
    failure: Optional[str] = None  # why a stitched operation of it could not run its kernel
    earlier: Optional[verdicts.Verdict] = None  # of an earlier start, by which it begins stitched
    bodies: Optional[List[str]] = None  # functions that XLA compiles; this graph only calls them
    variables: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)  # of those bodies
    parts: List["Program"] = field(default_factory=list)  # those bodies, once they have been seen
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def ready(self) -> bool:
        if self.reason is not None:
            return False
        if self.bodies is not None:
            return bool(self.parts) and all(part.ready for part in self.parts)
        return self.artifact is not None

    @property
    def unproved(self) -> bool:
        """Whether its artifact was made where there was no GPU to prove it on."""
        return self.artifact is not None and self.artifact.manifest.get("measured") is False

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a GPU."""
        return (self.parts or [self])[0].target.startswith("sm_")

    @property
    def live_bytes(self) -> int:
        """What its stitched step holds at most beside variables, as the worker estimates."""
        made = [part.artifact for part in self.parts or [self] if part.artifact is not None]
        return sum(int(one.manifest.get("expect", {}).get("live_bytes", 0)) for one in made)

    @property
    def reported(self) -> str:
        """The digest that events name: the compiled body's, where this graph only calls one."""
        return self.parts[0].digest if len(self.parts) == 1 else self.digest

    @property
    def key(self) -> Optional[str]:
        """Of its artifact, once that is there."""
        artifact = self.parts[0].artifact if len(self.parts) == 1 else self.artifact
        return artifact.key if artifact is not None else None


@dataclass(frozen=True)
class View:
    """One graph as Grappler showed it."""

    graph: Any
    numbering: Numbering
    preserve: FrozenSet[str]
    types: Types


class Member(Protocol):
    """What makes this instance swap together with other replicas' (swap_group_member.py)."""

    def ask_back(self, reason: str, detail: str) -> None: ...

    def release(self) -> None: ...

    def tick(self) -> None: ...


@dataclass
class Instance:
    """One caller of a program: a function name or a session's fetches. Two instantiations, arms;
    the stitched one may be built anew, without what the job's data has shown not to do."""

    program: Program
    step: int
    first_arm: int  # the arm of the caller's ordinary instantiation; the other one is marked
    arm: Any  # pointer; arm[0] is what the next call should run
    begun: Any  # pointer; begun[arm] counts calls of that arm that have begun to do something
    can_alternate: bool
    lifted: Optional[bytes] = None  # called instead of a bare XLA function, by the stitched arm
    member: Optional[Member] = None
    cursor: int = 0
    awaited: bool = False  # STITCH_WAIT has been kept: of what is called for its results
    swapped_late: bool = False
    raised: int = 0  # calls of the stitched arm that ended with an error
    handed: bool = False  # TensorFlow has been given the stitched graph
    renew: bool = False  # the stitched graph is to be built anew when it is the original's turn
    renewed: int = 0  # how often that was done
    begun_before: int = 0  # gates of the stitched arm that had been passed by then
    tried: bool = False  # it has just failed before it began, and the original is called instead
    place: Optional[int] = None  # of stitched calls (plugin.POOL and others), once it is known
    compared: int = -1  # the last block when blocks were compared: it was still running
    ignored: int = -1  # the last block that says nothing of the stitched calls as they are
    widened: bool = False
    compare_at: Optional[float] = None  # by time.monotonic, while it relies on an earlier verdict
    decided: Optional[bool] = None
    beside: Optional[Tuple[int, float]] = None  # steps before a late swap, and their median
    history: List[Interval] = field(default_factory=list)
    comparison: Optional[timer.Comparison] = None
    record: savings.Record = field(default_factory=savings.Record)
    watch: Optional[memory.Watch] = None  # while its memory is measured

    def runs(self, program: Program) -> bool:
        """True when `program` is this caller's, or a part of it."""
        return self.program is program or program in self.program.parts

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a GPU, whose clock then tells how long."""
        return self.program.on_gpu

    def watch_memory(self, plugin: Plugin, more: int) -> None:
        """Before its swap: from here on its peak memory is measured, where blocks alternate. The
        user lets it grow by `more` bytes."""
        if self.can_alternate and self.watch is None:
            before = plugin.passes(self.step, ORIGINAL)
            self.watch = memory.Watch(plugin, self.step, self.on_gpu, before, more)

    def has_begun(self) -> bool:
        """Whether a call of the present stitched instantiation has done something."""
        return bool(self.begun[STITCHED] > self.begun_before)

    def keep_original(self) -> None:
        """It is built once: what was to be the stitched instantiation is the original's."""
        if self.first_arm == STITCHED and not self.renewed:
            self.first_arm = ORIGINAL

    def arm_of(self, mark: int) -> int:
        if mark > 1:
            return STITCHED
        return 1 - self.first_arm if mark else self.first_arm

    def mark(self) -> int:
        """Of the instantiation that the next call must use: 0 the ordinary one, 1 the other, from 2
        on the stitched one, built anew."""
        # Amid stitched steps the time to build it would count as theirs.
        if self.renew and (self.arm[0] == ORIGINAL or not self.can_alternate):
            self.renew, self.begun_before = False, self.begun[STITCHED]
            self.renewed += 1
        if self.renewed and self.arm[0] == STITCHED:
            return 1 + self.renewed
        return int(self.arm[0] != self.first_arm)


def stitched_graph(view: View, program: Program, plugin: Plugin) -> patch.Patched:
    """The patched graph. Raises Refused(BAD_ARTIFACT, STRUCTURE, COLLECTIVE)."""
    if program.bodies is not None:
        return patch.Patched(graphs.lift_xla(view.graph))
    artifact = program.artifact
    if artifact is None:
        raise reasons.Refused(reasons.NO_ARTIFACT)
    new = patch.apply(
        view.graph,
        view.numbering,
        _without(artifact.manifest["patch"], program.left_out),
        artifact.key[:12],
        view.preserve,
        view.types,
        (lambda patched: graphs.check_fusions(patched, program.kernels, plugin.check_fusion),),
    )
    collectives.check(view.graph, new.graph)
    lean = loops.rewritten(new.graph, artifact.key[:12], view.preserve, view.types)
    return patch.Patched(lean.graph, new.taken_back)


def _without(document: Mapping[str, Any], regions: Mapping[str, str]) -> Mapping[str, Any]:
    """A patch without some regions. Raises Refused where none is left, for the reason of one."""
    if not regions:
        return document
    try:
        left = [region for region in document["regions"] if region["name"] not in regions]
    except (KeyError, TypeError) as error:
        raise reasons.Refused(reasons.BAD_ARTIFACT, f"patch form: {error!r}") from error
    if not left:
        raise reasons.Refused(next(iter(regions.values())), "all of its regions")
    return {**document, "regions": left}


def regions_of_nodes(artifact: Artifact) -> Dict[str, str]:
    """The region of each node that an artifact adds, by the name that it has in the graph."""
    return {
        patch.name_of(artifact.key[:12], entry["name"]): str(region["name"])
        for region in artifact.manifest["patch"]["regions"]
        for entry in region["add"]
    }


def request(program: Program, tf: str, preserve: FrozenSet[str], under_xla: bool) -> Dict[str, Any]:
    """The `meta` of a graph's request (docs/contracts.md section 4)."""
    from tensorflow.python.framework import config

    return {
        "tf": tf,
        "target": program.target,
        "threads": len(os.sched_getaffinity(0)),
        "abi": contract.KERNEL_ABI,
        "preserve": sorted(preserve),
        "xla": under_xla,
        "deterministic": bool(config.is_op_determinism_enabled()),
    }


def admit(artifact: Artifact, program: Program, config: settings.Settings) -> None:
    """Raises Refused(UNMEASURED) for an artifact that nobody has proved or timed on its GPU: it is
    taken only where that was allowed, and where blocks of both kinds of steps judge it and roll it
    back."""
    if artifact.manifest.get("measured") is not False:
        return
    what = f"artifact {artifact.key[:12]} was neither proved nor timed on {program.target}"
    if not config.allow_unmeasured:
        mend = "it takes a worker on such a GPU, or STITCH_ALLOW_UNMEASURED=1 to try it as it is"
        raise reasons.Refused(reasons.UNMEASURED, f"{what}: {mend}")
    if program.refused_late is not None or config.control <= 0:
        why = "this step cannot run both ways in turn" if config.control > 0 else "STITCH_CONTROL=0"
        raise reasons.Refused(reasons.UNMEASURED, f"{what}, and {why}")


MOST_FUNCTION_BYTES = 256 * 2**20  # once decompressed


def _functions(artifact: Artifact) -> bytes:
    """The FunctionDefLibrary of an artifact. Raises Refused(BAD_ARTIFACT)."""
    packed = artifact.manifest.get("functions", "")
    try:
        data = base64.b64decode(packed, validate=True)
        unpacking = zlib.decompressobj()
        library = unpacking.decompress(data, MOST_FUNCTION_BYTES) if data else b""
    except (ValueError, TypeError, zlib.error) as error:
        raise reasons.Refused(reasons.BAD_ARTIFACT, f"functions: {error}") from error
    if data and not unpacking.eof:
        raise reasons.Refused(reasons.BAD_ARTIFACT, "functions are cut short or too large")
    return library


def load_kernels(plugin: Plugin, artifact: Artifact, gpus: Collection[int] = ()) -> FrozenSet[str]:
    """Loads every library and registers every kernel; those of a GPU on each of `gpus`, CUDA's
    numbers: a context on any other would take of its memory. Raises Refused: BAD_ARTIFACT, and
    what a device refuses."""
    functions = _functions(artifact)
    if functions:
        plugin.add_functions(functions)
    if str(artifact.manifest.get("target")).startswith("sm_"):
        return _load_programs(plugin, artifact, gpus)
    handles = [plugin.load_library(data) for data in artifact.libraries]
    keys = set()
    try:
        for kernel in artifact.manifest["kernels"]:
            for key in (kernel["key"], f"{kernel['key']}:{kernel['symbol']}"):
                plugin.register_kernel(key, handles[kernel["library"]], kernel["symbol"])
                keys.add(key)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise reasons.Refused(reasons.BAD_ARTIFACT, f"kernels: {error!r}") from error
    return frozenset(keys)


def _load_programs(plugin: Plugin, artifact: Artifact, gpus: Collection[int]) -> FrozenSet[str]:
    if not gpus:
        raise reasons.Refused(reasons.NO_DEVICE, "the graph is on none of this process's GPUs")
    plugin.open_gpu()
    keys = set()
    try:
        for kernel in artifact.manifest["kernels"]:
            table = artifact.libraries[kernel["library"]]
            for key in (kernel["key"], f"{kernel['key']}:{kernel['symbol']}"):
                for device in sorted(gpus):
                    plugin.register_program(key, table, device)
                keys.add(key)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise reasons.Refused(reasons.BAD_ARTIFACT, f"kernels: {error!r}") from error
    return frozenset(keys)
