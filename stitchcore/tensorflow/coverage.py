"""What a step's memory-intensive operations move, and how much of it kernels save.

A node's bytes are what its operation reads and writes. Library calls, control flow, views, and
lists that hand tensors on by reference are not memory-intensive; refused operations are. A lookup
reads as much of its table as it returns; an assignment takes the tensor over and moves none.

*Saveable* is what one kernel over each region could save if nothing were refused: the graph is cut
again with every refused memory-intensive operation as a member, and a region could save what its
operations move less what enters it (once) and leaves it. It counts regions that were too small or
were dropped, so it is what *saved* is told as a share of, everywhere. Unknown dimensions count at
GraphIndex's nominal size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stitchcore.errors import Reason
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.node_roles import Part
from stitchcore.tensorflow.partition import Partition, grouped, is_view
from stitchcore.tensorflow.variables import resolve

NOT_INTENSIVE = frozenset({Reason.LIBRARY_CALL, Reason.CONTROL_FLOW})
BY_REFERENCE = frozenset(
    """
    TensorListPushBack TensorListPopBack TensorListGetItem TensorListSetItem OptionalFromValue
    OptionalGetValue
    """.split()
)
"""Lists and optionals hold references: these move no elements. Making a list from a tensor and
stacking one do (tensorflow/core/kernels/list_kernels.h)."""

LOOKUPS = ("Gather", "ResourceGather", "SparseSegment")
TAKES_OVER = "AssignVariableOp"


@dataclass(frozen=True)
class Coverage:
    """Bytes of a step: what all memory-intensive operations move; of these what moved in operations
    that are in kernels of two or more; what could be saved, and what is."""

    intensive: int
    stitched: int
    saveable: int
    saved: int


def coverage(
    partition: Partition, shares: Mapping[str, float], moved: Mapping[str, int]
) -> Coverage:
    """The bytes of a step of which the regions named in `moved` are stitched: their kernels move so
    many bytes, and those of two operations or more took over that share of the region's traffic.
    All other regions stay as they were and save nothing.
    """
    graph = partition.graph
    share = {
        i: shares.get(region.name, 0.0)
        for region in partition.regions
        for i in region.members
        if region.name in moved
    }
    sizes = {i: node_bytes(graph, i) for i in _intensive(partition)}
    at_best = _at_best(partition, (region.members for region in partition.regions))
    saved = {
        region.name: sum(region_bytes(graph, region.members)) - moved[region.name]
        for region in partition.regions
        if region.name in moved
    }
    best = {region.name: most for region, most in zip(partition.regions, at_best, strict=True)}
    return Coverage(
        intensive=sum(sizes.values()),
        stitched=round(sum(size * share.get(i, 0.0) for i, size in sizes.items())),
        # Another cut than the regions' own, which in rare graphs has more levels.
        saveable=max(sum(_at_best(partition, _unrefused_regions(partition))), sum(at_best)),
        saved=sum(max(0, min(amount, best[name])) for name, amount in saved.items()),
    )


def region_bytes(graph: GraphIndex, members: Iterable[int]) -> list[int]:
    """Bytes that the framework's own operations of a region read and write, one entry per operation
    that does work; unknown dimensions at the framework's nominal size."""
    return [node_bytes(graph, node) for node in members if not is_view(graph, node)]


def node_bytes(graph: GraphIndex, i: int) -> int:
    """Bytes that node i's operation reads and writes."""
    reads, writes = _moves(graph, i)
    return sum(size for _, size in (*reads, *writes))


Moves = Sequence[tuple[Edge, int]]


def _moves(graph: GraphIndex, i: int) -> tuple[Moves, Moves]:
    """The tensors and variables (by their handles) that node i reads and writes, and bytes."""
    operation = graph.nodes[i].op
    outputs = [
        (tensor := Edge(i, port), graph.byte_size(tensor))
        for port in range(len(graph.output_types[i]))
    ]
    if operation == TAKES_OVER:
        return [], []
    if operation.startswith(LOOKUPS):
        return [(graph.data[i][0], sum(size for _, size in outputs))], outputs
    inputs = [(t, graph.byte_size(t)) for t in graph.data[i] if graph.dtype(t) != "resource"]
    if outputs:
        return inputs, outputs
    # An update: each variable, or its rows, is as large as the gradient.
    size = max((size for _, size in inputs), default=0)
    handles = [resolve(graph, t) for t in graph.data[i] if graph.dtype(t) == "resource"]
    changed = [(handle, size) for handle in handles]
    return [*inputs, *changed], changed


def _intensive(partition: Partition) -> list[int]:
    """Members of regions and whatever else moves bytes and was refused."""
    graph, classes = partition.graph, partition.classes
    intensive = []
    for i, part in enumerate(classes.parts):
        refused = classes.reasons.get(i)
        counted = refused is not None and refused not in NOT_INTENSIVE
        if (part is Part.MEMBER or counted) and not is_view(graph, i):
            if graph.nodes[i].op not in BY_REFERENCE:
                intensive.append(i)
    return intensive


def _unrefused_regions(partition: Partition) -> list[tuple[int, ...]]:
    """The graph's regions if nothing memory-intensive were refused."""
    parts = list(partition.classes.parts)
    for i in _intensive(partition):
        parts[i] = Part.MEMBER
    classes = replace(partition.classes, parts=tuple(parts))
    return grouped(partition.graph, classes, partition.variables)[0]


def _at_best(partition: Partition, regions: Iterable[Sequence[int]]) -> list[int]:
    """What one kernel over each region (members in topological order) would save."""
    preserved = {partition.graph.number.get(name, -1) for name in partition.preserve}
    return [_saves(partition, members, preserved) for members in regions]


def _saves(partition: Partition, members: Sequence[int], preserved: set[int]) -> int:
    graph, inside = partition.graph, set(members)
    parts, variables = partition.classes.parts, partition.variables

    def memory(tensor: Edge) -> Edge:
        while tensor.node in inside and is_view(graph, tensor.node):
            tensor = graph.data[tensor.node][0]
        if parts[tensor.node] is not Part.READ:
            return tensor
        write = variables.before[tensor.node]
        return variables.handle[tensor.node] if write is None else Edge(write, 0)

    entering: dict[Edge, int] = {}
    leaving: dict[Edge, int] = {}
    escaped: set[Edge] = set()
    for i in reversed(members):
        ports = (
            set(range(len(graph.output_types[i])))
            if i in preserved
            else _leaving(partition, i, inside)
        )
        escaped |= {memory(Edge(i, port)) for port in ports}
        if is_view(graph, i):
            continue
        reads, writes = _moves(graph, i)
        leaving |= {t: size for t, size in writes if t.node != i or t in escaped}
        for tensor, size in reads:
            source = memory(tensor)
            if source.node not in inside:
                rows = graph.nodes[i].op.startswith(LOOKUPS)  # of its own, whatever else reads it
                entering[Edge(i, -1) if rows else source] = size
    moved = sum(entering.values()) + sum(leaving.values())
    return max(0, sum(region_bytes(graph, members)) - moved)


def _leaving(partition: Partition, i: int, inside: set[int]) -> set[int]:
    """Outputs of node i whose elements something outside reads, or a variable takes over."""
    graph = partition.graph
    return {
        graph.data[consumer][position].port
        for consumer, position in graph.consumers[i]
        if position >= 0
        and (consumer not in inside or graph.nodes[consumer].op == TAKES_OVER)
        and partition.classes.parts[consumer] is not Part.CLONE
    }
