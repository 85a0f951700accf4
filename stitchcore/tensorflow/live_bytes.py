"""Live bytes of a step, as it was and stitched: regions that would raise them far are left.

Both graphs are run in the order of TensorFlow's executor: each of its threads goes on with what it
has just made ready, so that chains beside each other are run one after the other. Tensors are
counted from the operation that makes them until the last that reads them, views as what they show.
The framework's operations hand an input on to their output where its last reader is of the same
size, as TensorFlow's do; launches where their table says so. What a launch reads is held until it
ends, which is how one kernel of many operations can hold more than they did. Unknown dimensions
count at the nominal size, but a tensor for no more than it is made of (graph.py); variables are
where they are, whoever updates them.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence, Set
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
from stitchcore.tensorflow import op_allowlist, placement
from stitchcore.tensorflow.graph import NOMINAL_SIZE, Edge
from stitchcore.tensorflow.lower import Subgraph
from stitchcore.tensorflow.partition import Partition, Region, waits
from stitchcore.tensorflow.variables import resolve

GROWTH = 0.05
"""How much the process's peak may grow. The job measures its peak and goes back at as much
(inject/memory.py)."""

PROCESS_BYTES = 384 * 2**20
"""What a process on a CPU holds besides, at the least: it has imported TensorFlow (resident after a
function's first call: 401 MiB of 2.15, 677 MiB of 2.21). Of a GPU only the allocator's bytes
count."""

SLACK_BYTES = 2**20
"""Below this nobody's memory is short, and the nominal size of unknown dimensions is a guess."""

WORKERS = 2
"""Threads of the executor: what it holds grows with the chains that it runs at a time."""

INLINE_BYTES = 16384
"""Operations that move less are cheap to the executor: it runs them where they become ready."""

START = 1000
"""What an operation takes beside moving its bytes, in bytes."""

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


def allowed_bytes(partition: Partition, untouched: int, more: int = 0) -> int:
    """The live bytes that a stitched step may hold, where the untouched holds `untouched`: the
    process's peak may grow by GROWTH, or by `more` bytes if the user allows that."""
    graph = partition.graph
    variables = {
        resolve(graph, graph.data[read][0]): graph.byte_size(Edge(read, 0))
        for read, node in enumerate(graph.nodes)
        if node.op == op_allowlist.READ
    }
    process = PROCESS_BYTES if partition.kind == placement.CPU else 0
    held = untouched + process + sum(variables.values())
    return untouched + max(round(GROWTH * held), more, SLACK_BYTES)


def limited(
    partition: Partition, chosen: Sequence[Chosen], more: int = 0
) -> tuple[dict[str, Refusal], Peak, Peak]:
    """Regions (by name) that stay as they were because the step would hold too much (`more` is the
    user's leave, in bytes), the peak of the untouched step, and that of the step with the rest
    stitched."""
    before = peak(partition, ())
    allowed = allowed_bytes(partition, before.bytes, more)
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
    moves = [sum(size.get(b, 0) for b in {*step.reads, *step.makes}) for step in steps]
    readers = Counter(buffer for step in steps for buffer in step.reads)
    launches = [number for number, step in enumerate(steps) if step.region]
    queues = _Queues(steps, maker, moves)
    alive: dict[Buffer, int] = {}
    running: list[tuple[int, int, int]] = []  # when it ends, its worker, the step
    finished = [False] * len(steps)
    live, most, now, regions = 0, 0, 0, {}
    while True:
        for worker in set(range(WORKERS)) - {worker for _, worker, _ in running}:
            number = queues.next(worker)
            if number is None:
                continue
            step = steps[number]
            moved = _moved(step, readers, alive)
            made = {buffer: size[buffer] for buffer in step.makes}
            alive |= made
            alive |= dict.fromkeys(moved.values(), 0)
            live += sum(made.values()) - sum(made[taker] for taker in moved) + step.scratch
            heapq.heappush(running, (now + moves[number] + START, worker, number))
            if live > most:
                most = live
                left = [n for n in launches if not finished[n]]
                regions = _by_region(steps, left, {n for _, _, n in running}, alive, maker)
        if not running:
            stuck = next((n for n, done in enumerate(finished) if not done), None)
            if stuck is None:
                break
            queues.force(stuck)
            continue
        now, worker, number = heapq.heappop(running)
        step = steps[number]
        finished[number] = True
        live -= step.scratch
        for buffer in step.reads:
            readers[buffer] -= 1
        for buffer in (*step.reads, *step.makes):
            if not readers[buffer]:
                live -= alive.pop(buffer, 0)
        queues.finish(worker, number)
    return Peak(most, regions)


class _Queues:
    """What is ready, by worker. One that moves little runs before anything else of its worker, in
    turn; of the rest the newest first, and a worker that has none takes another's oldest."""

    def __init__(
        self, steps: Sequence[Step], maker: Mapping[Buffer, int], moves: Sequence[int]
    ) -> None:
        waits = [
            {maker[b] for b in step.reads if b in maker} | step.waits - {number}
            for number, step in enumerate(steps)
        ]
        self._users: dict[int, list[int]] = defaultdict(list)
        for number, sources in enumerate(waits):
            for source in sources:
                self._users[source].append(number)
        self._missing = [len(sources) for sources in waits]
        self._moves = moves
        self._inline: list[deque[int]] = [deque() for _ in range(WORKERS)]
        self._others: list[deque[int]] = [deque() for _ in range(WORKERS)]
        for number, count in enumerate(self._missing):
            if not count:
                self._add(0, number)

    def _add(self, worker: int, number: int) -> None:
        queues = self._inline if self._moves[number] < INLINE_BYTES else self._others
        queues[worker].append(number)

    def force(self, number: int) -> None:
        """A circle is for the check of the patched graph's structure to find; here all runs."""
        self._missing[number] = 0
        self._add(0, number)

    def finish(self, worker: int, number: int) -> None:
        for user in self._users[number]:
            self._missing[user] -= 1
            if not self._missing[user]:
                self._add(worker, user)

    def next(self, worker: int) -> int | None:
        if self._inline[worker]:
            return self._inline[worker].popleft()
        if self._others[worker]:
            return self._others[worker].pop()
        return next((queue.popleft() for queue in self._others if queue), None)


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
    left: Sequence[int],
    running: Set[int],
    alive: Mapping[Buffer, int],
    maker: Mapping[Buffer, int],
) -> dict[str, int]:
    region_bytes: dict[str, int] = defaultdict(int)
    for buffer, count in alive.items():
        region_bytes[steps[maker[buffer]].region] += count if buffer in maker else 0
    for number in left:
        step = steps[number]
        region_bytes[step.region] += sum(alive.get(buffer, 0) for buffer in step.reads)
        region_bytes[step.region] += step.scratch if number in running else 0
    region_bytes.pop("", None)
    return dict(region_bytes)


class _Steps:
    """The graph's operations and the chosen regions' launches."""

    def __init__(self, partition: Partition, chosen: Sequence[Chosen]) -> None:
        self._partition, self._graph, self._chosen = partition, partition.graph, chosen
        sizes = partition.sizes
        self._symbols = {**dict.fromkeys(sizes.symbols, NOMINAL_SIZE), **sizes.nominal}
        self._gone = {i for region, _, _ in chosen for i in self._replaced(region)}
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
                step.waits |= {self._after[i] for i in waits(self._partition, region)}
        for step in self._steps:
            step.reads = {self._root(buffer) for buffer in step.reads} - {_NOWHERE}
            step.forwards = [(self._root(donor), taker) for donor, taker in step.forwards]
        return self._steps

    def _replaced(self, region: Region) -> list[int]:
        """Members, and reads of what they write. Others read the old value where it stands."""
        written = set(region.updates.values())
        before = self._partition.variables.before
        own = (*region.members, *region.absorbed)
        return [*own, *(read for read in region.reads if before[read] in written)]

    def _operation(self, i: int, step: Step) -> None:
        graph, node = self._graph, self._graph.nodes[i]
        loop_back = node.op in ("Merge", "RefMerge")
        for tensor in graph.data[i]:
            if not (loop_back and graph.nodes[tensor.node].op.endswith(digest.LOOP_BACK)):
                step.reads.add(("tensor", tensor.node, tensor.port))
                step.waits.add(self._after[tensor.node])  # a view or a read may wait itself
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
        own = {name: dims.evaluate(dim, self._symbols) for name, dim in function.own.items()}
        symbols = self._symbols | own
        for launch in program.launches:
            step = Step(region.name)
            inputs = [self._buffer(region, function, place) for place in launch.inputs]
            outputs = [self._buffer(region, function, place) for place in launch.outputs]
            step.reads |= set(inputs)
            for output, (_, written) in zip(outputs, launch.written, strict=True):
                step.makes[output] = index.evaluate(bytes_of(written), symbols)
            for source, target in launch.kernel.aliases:
                if inputs[source] != _NOWHERE:
                    step.forwards.append((inputs[source], outputs[target]))
                elif not launch.kernel.errors:  # which takes a variable's new value elsewhere
                    step.makes[outputs[target]] = 0  # a variable written in place
            step.scratch = index.evaluate(launch.kernel.scratch_bytes, symbols)
            self._steps.append(step)
        last = len(self._steps) - 1
        self._after |= dict.fromkeys(self._replaced(region), last)
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
        known = [dim for dim in shape_dims if dim is not None]
        if len(known) < len(shape_dims):
            return self._graph.byte_size(tensor)
        count = math.prod(dims.evaluate(dim, self._symbols) for dim in known)
        return count * (dtypes.as_dtype(name).size if name else 0)


_NOWHERE: Buffer = ("", 0, 0)
"""What is in memory however the step runs: constants, arguments, variables."""
