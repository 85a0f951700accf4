"""Live bytes of a step, as it was and stitched: regions that would raise them far are left.

Both graphs are run in the executor's order (first ready, first run), tensors are counted from the
operation that makes them until the last that reads them, views as what they show. The framework's
operations hand an input on to their output where its last reader is of the same size, as
TensorFlow's do; launches where their table says so. What a launch reads is held until it ends,
which is how one kernel of many operations can hold more than they did. Unknown dimensions count at
the nominal size; variables are where they are, whoever updates them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorflow.python.framework import dtypes

from stitchcore.errors import Reason, Refusal
from stitchcore.hlo.ir import dim as dims
from stitchcore.inject import digest
from stitchcore.inject.structure import SWITCHES
from stitchcore.launch.place import Constant, Input, Place, Temporary
from stitchcore.launch.region_program import RegionProgram
from stitchcore.loop_ir import index
from stitchcore.loop_ir.layout import bytes_of
from stitchcore.tensorflow import op_allowlist
from stitchcore.tensorflow.graph import NOMINAL_SIZE, Edge
from stitchcore.tensorflow.lower import Subgraph
from stitchcore.tensorflow.partition import Partition, Region

LIMIT = 1.25
"""The stitched step's live bytes over the untouched step's. An estimate refuses what is far beyond
the bar; the job measures its peak and goes back at 1.05 (inject/memory.py)."""

SLACK_BYTES = 2**20
"""Below this nobody's memory is short, and the nominal size of unknown dimensions is a guess."""

TRIED = 4
"""Regions that are tried in turn as the one whose removal helps most."""

_HANDED_ON = SWITCHES | {"Merge", "RefMerge", "Enter", "Exit"}
_HELD_ANYWAY = frozenset(
    {"Const", "VarHandleOp", "VariableV2", "Placeholder", "_Arg", op_allowlist.READ}
)
_NEW_MEMORY = frozenset(
    """
    Transpose ReverseV2 Tile BroadcastTo Pad PadV2 FusedBatchNormV3 FusedBatchNormGradV3
    _FusedBatchNormEx _MklSwish _MklLayerNorm ConcatV2 Pack StridedSliceGrad Cumsum Cumprod Roll
    MirrorPad MirrorPadGrad DepthToSpace SpaceToDepth SpaceToBatchND BatchToSpaceND MatrixDiag
    MatrixDiagV3 MatrixDiagPart MatrixDiagPartV3
    """.split()
) | frozenset(op_allowlist.CONTRACTIONS)
"""Allow-listed operations that never write over an input."""

Chosen = tuple[Region, Subgraph, RegionProgram]
Buffer = tuple[str, int, int]
"""("tensor", node, port), or (region's name, temporary, 0)."""


@dataclass
class Step:
    """One operation or launch. `region` is the launch's; bytes are at nominal sizes."""

    region: str = ""
    reads: set[Buffer] = field(default_factory=set)
    makes: dict[Buffer, int] = field(default_factory=dict)
    forwards: list[tuple[Buffer, Buffer]] = field(default_factory=list)
    scratch: int = 0
    waits: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Peak:
    """The most live bytes, and how many of them each region's launches made or still wait to
    read."""

    bytes: int
    by_region: Mapping[str, int]


def limited(
    partition: Partition, chosen: Sequence[Chosen], limit: float = LIMIT
) -> tuple[dict[str, Refusal], Peak, Peak]:
    """Regions (by name) that stay as they were because the step would hold too much, the peak of
    the untouched step, and that of the step with the rest stitched."""
    before = peak(partition, ())
    allowed = max(round(before.bytes * limit), before.bytes + SLACK_BYTES)
    stitched = {region.name: (region, function, program) for region, function, program in chosen}
    refused: dict[str, Refusal] = {}
    after = peak(partition, tuple(stitched.values()))
    while after.bytes > allowed and stitched:
        suspects = sorted(
            (name for name in after.by_region if name in stitched), key=after.by_region.__getitem__
        )
        tried = {}
        for name in suspects[-TRIED:] or list(stitched)[:1]:
            others = tuple(parts for other, parts in stitched.items() if other != name)
            tried[name] = peak(partition, others)
        name = min(reversed(tried), key=lambda region_name: tried[region_name].bytes)
        detail = (
            f"{after.bytes:,} live bytes in a stitched step, {before.bytes:,} in the untouched; "
            f"{tried[name].bytes:,} without this region"
        )
        refused[name] = Refusal(name, Reason.MEMORY, detail)
        del stitched[name]
        after = tried[name]
    return refused, before, after


def peak(partition: Partition, chosen: Sequence[Chosen]) -> Peak:
    """The most live bytes of the step with `chosen` regions stitched."""
    return _run(_Steps(partition, chosen).build())


def _run(steps: Sequence[Step]) -> Peak:
    maker = {buffer: number for number, step in enumerate(steps) for buffer in step.makes}
    size = {buffer: count for step in steps for buffer, count in step.makes.items()}
    readers = Counter(buffer for step in steps for buffer in step.reads)
    waits = [
        {maker[b] for b in step.reads if b in maker} | step.waits - {number}
        for number, step in enumerate(steps)
    ]
    users = defaultdict(list)
    for number, sources in enumerate(waits):
        for source in sources:
            users[source].append(number)
    missing = [len(sources) for sources in waits]
    ready = deque(number for number, count in enumerate(missing) if count == 0)
    alive: dict[Buffer, int] = {}
    finished = [False] * len(steps)
    live, most, regions = 0, 0, {}
    while ready:
        number = ready.popleft()
        step = steps[number]
        finished[number] = True
        moved = _moved(step, readers, alive)
        alive.update({buffer: 0 if buffer in moved else size[buffer] for buffer in step.makes})
        live += sum(alive[buffer] for buffer in step.makes)
        if live + step.scratch > most:
            most, regions = live + step.scratch, _by_region(steps, finished, number, alive, maker)
        for taker, donor in moved.items():
            alive[taker], alive[donor] = alive[donor], 0
        for buffer in step.reads:
            readers[buffer] -= 1
        for buffer in (*step.reads, *step.makes):
            if not readers[buffer]:
                live -= alive.pop(buffer, 0)
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return Peak(most, regions)


def _moved(
    step: Step, readers: Mapping[Buffer, int], alive: Mapping[Buffer, int]
) -> dict[Buffer, Buffer]:
    """Outputs that take over an input's memory, each input once."""
    moved: dict[Buffer, Buffer] = {}
    for donor, taker in step.forwards:
        last = readers[donor] == 1 and alive.get(donor) == step.makes[taker]
        if last and taker not in moved and donor not in moved.values():
            moved[taker] = donor
    return moved


def _by_region(
    steps: Sequence[Step],
    finished: Sequence[bool],
    now: int,
    alive: Mapping[Buffer, int],
    maker: Mapping[Buffer, int],
) -> dict[str, int]:
    region_bytes: dict[str, int] = defaultdict(int)
    for buffer, count in alive.items():
        region_bytes[steps[maker[buffer]].region] += count if buffer in maker else 0
    for number, step in enumerate(steps):
        if step.region and (number == now or not finished[number]):
            region_bytes[step.region] += sum(alive.get(buffer, 0) for buffer in step.reads)
            region_bytes[step.region] += step.scratch if number == now else 0
    region_bytes.pop("", None)
    return dict(region_bytes)


class _Steps:
    """The graph's operations and the chosen regions' launches."""

    def __init__(self, partition: Partition, chosen: Sequence[Chosen]) -> None:
        self._partition, self._graph, self._chosen = partition, partition.graph, chosen
        sizes = partition.sizes
        self._symbols = {**dict.fromkeys(sizes.symbols, NOMINAL_SIZE), **sizes.nominal}
        self._gone = {i for region, _, _ in chosen for i in (*region.members, *region.reads)}
        self._alias: dict[Buffer, Buffer] = {}
        self._after: dict[int, int] = {}
        self._steps: list[Step] = []

    def build(self) -> list[Step]:
        for i in range(len(self._graph.nodes)):
            if i not in self._gone:
                self._after[i] = len(self._steps)
                self._steps.append(Step())
        first: dict[str, int] = {}
        for region, function, program in self._chosen:
            first[region.name] = len(self._steps)
            self._launches(region, function, program)
        for i, number in self._after.items():
            if i not in self._gone:
                self._operation(i, self._steps[number])
        for region, _, program in self._chosen:
            for number in range(len(program.launches)):
                step = self._steps[first[region.name] + number]
                step.waits |= {
                    self._after[c]
                    for i in region.members
                    for c in self._graph.control[i]
                    if c in self._after and c not in region.members
                }
        for step in self._steps:
            step.reads = {self._root(buffer) for buffer in step.reads} - {_NOWHERE}
            step.forwards = [(self._root(donor), taker) for donor, taker in step.forwards]
        return self._steps

    def _operation(self, i: int, step: Step) -> None:
        graph, node = self._graph, self._graph.nodes[i]
        loop_back = node.op in ("Merge", "RefMerge")
        for tensor in graph.data[i]:
            if not (loop_back and graph.nodes[tensor.node].op.endswith(digest.LOOP_BACK)):
                step.reads.add(("tensor", tensor.node, tensor.port))
        step.waits |= {self._after[c] for c in graph.control[i] if c in self._after}
        rule = op_allowlist.ALLOWED.get(node.op)
        for port in range(len(graph.output_types[i])):
            buffer = ("tensor", i, port)
            if node.op in _HELD_ANYWAY or graph.dtype(Edge(i, port)) == "resource":
                self._alias[buffer] = _NOWHERE
            elif node.op in _HANDED_ON or (rule is not None and rule.view):
                source = graph.data[i][0]
                self._alias[buffer] = ("tensor", source.node, source.port)
            else:
                step.makes[buffer] = self._bytes(Edge(i, port))
                if rule is not None and node.op not in _NEW_MEMORY:
                    step.forwards += [(donor, buffer) for donor in step.reads]

    def _launches(self, region: Region, function: Subgraph, program: RegionProgram) -> None:
        for launch in program.launches:
            step = Step(region.name)
            inputs = [self._buffer(region, function, place) for place in launch.inputs]
            outputs = [self._buffer(region, function, place) for place in launch.outputs]
            step.reads |= set(inputs)
            for output, (_, written) in zip(outputs, launch.written, strict=True):
                step.makes[output] = index.evaluate(bytes_of(written), self._symbols)
            for source, target in launch.kernel.aliases:
                if inputs[source] != _NOWHERE:
                    step.forwards.append((inputs[source], outputs[target]))
                elif not launch.kernel.errors:  # which takes a variable's new value elsewhere
                    step.makes[outputs[target]] = 0  # a variable written in place
            step.scratch = index.evaluate(launch.kernel.scratch_bytes, self._symbols)
            self._steps.append(step)
        last = len(self._steps) - 1
        self._after |= dict.fromkeys((*region.members, *region.reads), last)
        for tensor, result in zip(region.results, program.outputs, strict=False):
            buffer = ("tensor", tensor.node, tensor.port)
            self._alias[buffer] = self._buffer(region, function, result.place)

    def _buffer(self, region: Region, function: Subgraph, place: Place | Constant) -> Buffer:
        match place:
            case Input(position):
                argument = function.arguments[position]
                if argument.variable:
                    return _NOWHERE
                return ("tensor", argument.tensor.node, argument.tensor.port)
            case Temporary(position):
                return (region.name, position, 0)
            case _:
                return _NOWHERE

    def _root(self, buffer: Buffer) -> Buffer:
        seen = set()
        while buffer in self._alias and buffer not in seen:
            seen.add(buffer)
            buffer = self._alias[buffer]
        return buffer

    def _bytes(self, tensor: Edge) -> int:
        name = self._graph.dtype(tensor).removesuffix("_ref")
        shape = self._graph.shape(tensor) or ()
        shape_dims = [self._partition.sizes.dim(size) for size in shape]
        sizes = [
            NOMINAL_SIZE if dim is None else dims.evaluate(dim, self._symbols) for dim in shape_dims
        ]
        count = 1
        for size in sizes:
            count *= size
        return count * (dtypes.as_dtype(name).size if name else 0)


_NOWHERE: Buffer = ("", 0, 0)
"""What is in memory however the step runs: constants, arguments, variables."""
