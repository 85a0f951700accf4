"""How much of a step's memory-intensive work is stitched, in the framework's own bytes.

A node's bytes are what its operation reads and writes. Library calls, control flow, views, and
lists that hand tensors on by reference are not memory-intensive; refused operations are, and stay
in the denominator. A lookup reads as much of its table as it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stitchcore.errors import Reason
from stitchcore.tensorflow import allow
from stitchcore.tensorflow.allow import ALLOWED
from stitchcore.tensorflow.classify import Part
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.partition import Partition

NOT_INTENSIVE = frozenset({Reason.LIBRARY_CALL, Reason.CONTROL_FLOW})
BY_REFERENCE = frozenset(
    {"TensorListPushBack", "TensorListPopBack", "TensorListGetItem", "TensorListSetItem"}
)
"""A tensor list holds references: these move no elements. Making a list from a tensor and stacking
one do (tensorflow/core/kernels/list_kernels.h)."""

LOOKUPS = ("Gather", "Resource", "Sparse")


def coverage(partition: Partition, shares: Mapping[str, float]) -> tuple[int, int]:
    """(bytes inside kernels of two operations or more, bytes of all memory-intensive nodes).

    `shares` gives, by name of a stitched region, the share of its traffic that such kernels took
    over; regions that are not named stay as they were. Unknown dimensions count at GraphIndex's
    nominal size.
    """
    graph, classes = partition.graph, partition.classes
    share = {
        i: shares[region.name]
        for region in partition.regions
        if region.name in shares
        for i in region.members
    }
    covered, everything = 0.0, 0
    for i, part in enumerate(classes.parts):
        refused = classes.reasons.get(i)
        counted = refused is not None and refused not in NOT_INTENSIVE
        if part is not Part.MEMBER and not counted:
            continue
        operation = graph.nodes[i].op
        rule = allow.ALLOWED.get(operation)
        if operation in BY_REFERENCE or (rule is not None and rule.view):
            continue
        size = node_bytes(graph, i)
        everything += size
        covered += size * share.get(i, 0.0)
    return round(covered), everything


def region_bytes(graph: GraphIndex, members: Iterable[int]) -> list[int]:
    """Bytes that the framework's own operations of a region read and write, one entry per operation
    that moves data; unknown dimensions at the framework's nominal size."""
    return [
        node_bytes(graph, node)
        for node in members
        if not ((rule := ALLOWED.get(graph.nodes[node].op)) is not None and rule.view)
    ]


def node_bytes(graph: GraphIndex, i: int) -> int:
    """Bytes that node i's operation reads and writes."""
    outputs = sum(graph.byte_size(Edge(i, p)) for p in range(len(graph.output_types[i])))
    if graph.nodes[i].op.startswith(LOOKUPS):
        return 2 * outputs
    inputs = [t for t in graph.data[i] if graph.dtype(t) != "resource"]
    return outputs + sum(graph.byte_size(tensor) for tensor in inputs)
