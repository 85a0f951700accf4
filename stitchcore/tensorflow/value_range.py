"""What integers a tensor can hold, by interval arithmetic over the graph.

An index that is a constant, a remainder, a bucket or a clipped number is known to name a row of its
table before the step runs: such a lookup needs no verifier (lookups.py). Arithmetic that may leave
its type wraps around and is known no closer than its type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from stitchcore.inject.redact import GREATEST, LEAST
from stitchcore.tensorflow.constant_operands import value_of
from stitchcore.tensorflow.graph import Edge, GraphIndex

DEEPEST = 32
"""How many operations are followed from a tensor back to what it is made of."""


@dataclass(frozen=True)
class Range:
    """The integers from `least` to `greatest`."""

    least: int
    greatest: int

    def within(self, other: Range) -> bool:
        """Whether each of these is one of `other`."""
        return other.least <= self.least and self.greatest <= other.greatest


_TYPES = {
    **{name: np.iinfo(name) for name in ("int8", "int16", "int32", "int64")},
    **{name: np.iinfo(name) for name in ("uint8", "uint16", "uint32", "uint64")},
}

_MOVES = frozenset(
    """
    Identity Reshape ExpandDims Squeeze StopGradient PreventGradient Snapshot EnsureShape Transpose
    BroadcastTo Tile Slice StridedSlice ReverseV2 Roll GatherV2 Gather Unpack
    """.split()
)
"""Operations whose outputs hold elements of their first input."""

_UNIONS: Mapping[str, slice] = {
    "ConcatV2": slice(None, -1),
    "Pack": slice(None),
    "Select": slice(1, None),
    "SelectV2": slice(1, None),
    "Split": slice(1, None),
    "SplitV": slice(0, 1),
}
"""Operations whose outputs hold elements of these inputs."""

_BUCKETS = frozenset("StringToHashBucket StringToHashBucketFast StringToHashBucketStrong".split())
"""Operations that give each text one of so many numbers."""

_PLACES = {"ArgMax": 0, "ArgMin": 0, "TopK": 1, "TopKV2": 1}
"""Operations that say where along an axis of their first input something is, and the output."""


def _ends(left: Range, right: Range, combine: Callable[[int, int], int]) -> Range:
    ends = [combine(a, b) for a in _both(left) for b in _both(right)]
    return Range(min(ends), max(ends))


def _both(of: Range) -> tuple[int, int]:
    return of.least, of.greatest


def _union(left: Range | None, right: Range | None) -> Range | None:
    if left is None or right is None:
        return None
    return Range(min(left.least, right.least), max(left.greatest, right.greatest))


def _remainder(left: Range, right: Range) -> Range | None:
    """Of a floor division by a positive number."""
    if right.least < 1:
        return None
    divided_once = left.least >= 0 and left.greatest < right.least
    return left if divided_once else Range(0, right.greatest - 1)


_ARITHMETIC: Mapping[str, Callable[[Range, Range], Range | None]] = {
    **dict.fromkeys(("Add", "AddV2"), lambda a, b: _ends(a, b, int.__add__)),
    "Sub": lambda a, b: _ends(a, b, int.__sub__),
    "Mul": lambda a, b: _ends(a, b, int.__mul__),
    "Minimum": lambda a, b: _ends(a, b, min),
    "Maximum": lambda a, b: _ends(a, b, max),
    "FloorMod": _remainder,
}


def _of_type(graph: GraphIndex, tensor: Edge) -> Range | None:
    """All that the tensor's type can hold; None where it is none of integers."""
    kind = _TYPES.get(graph.dtype(tensor))
    return None if kind is None else Range(int(kind.min), int(kind.max))


def _told(graph: GraphIndex, tensor: Edge) -> Range | None:
    """What an operation that computes of no integer tensors says of its own; None: nothing."""
    node = graph.nodes[tensor.node]
    if LEAST in node.attr and GREATEST in node.attr:  # a constant whose values were taken out
        return Range(node.attr[LEAST].i, node.attr[GREATEST].i)
    if node.op in _BUCKETS:
        return Range(0, node.attr["num_buckets"].i - 1)
    if node.op == "Bucketize":
        return Range(0, len(node.attr["boundaries"].list.f))
    if node.op in ("RandomUniformInt", "StatelessRandomUniformInt", "StatelessRandomUniformIntV2"):
        bounds = [value_of(graph, operand) for operand in graph.data[tensor.node][-2:]]
        if all(bound is not None and bound.size == 1 for bound in bounds):
            least, end = (int(bound.reshape(())) for bound in bounds if bound is not None)
            return Range(least, end - 1)
    return None


def source(graph: GraphIndex, tensor: Edge) -> int:
    """The node whose elements `tensor` holds, through operations that only move them."""
    node = tensor.node
    while graph.nodes[node].op in _MOVES and graph.data[node]:
        node = graph.data[node][0].node
    return node


def value_range(graph: GraphIndex, tensor: Edge) -> Range | None:
    """The integers that `tensor`, of any shape, can hold; None where its type is none of them."""
    known: dict[Edge, Range | None] = {}

    def visit(tensor: Edge, depth: int) -> Range | None:
        if tensor not in known:
            whole = _of_type(graph, tensor)
            found = None if whole is None else _visited(graph, tensor, depth, visit)
            outside = whole is None or found is None or not found.within(whole)
            known[tensor] = whole if outside else found
        return known[tensor]

    return visit(tensor, 0)


def _visited(
    graph: GraphIndex,
    tensor: Edge,
    depth: int,
    visit: Callable[[Edge, int], Range | None],
) -> Range | None:
    node, data = graph.nodes[tensor.node], graph.data[tensor.node]
    told = _told(graph, tensor)
    if told is not None or depth == DEEPEST:
        return told
    if node.op == "Const":
        value = value_of(graph, tensor)
        if value is None or value.size == 0:
            return None
        return Range(int(value.min()), int(value.max()))
    if node.op in _PLACES and tensor.port == _PLACES[node.op]:
        shape = graph.shape(data[0]) or ()
        axis = value_of(graph, data[1]) if node.op in ("ArgMax", "ArgMin") else np.array(-1)
        named = axis is not None and axis.shape == () and -len(shape) <= axis < len(shape)
        extent = shape[int(axis)] if axis is not None and named else 0
        return Range(0, extent - 1) if extent > 0 else None
    if node.op == "Cast" and graph.dtype(data[0]) == "bool":
        return Range(0, 1)
    if node.op in _MOVES or node.op == "Cast":
        return visit(data[0], depth + 1) if data else None
    if node.op == "ClipByValue":
        lower, upper = (visit(operand, depth + 1) for operand in data[1:3])
        clipped = _combined("Minimum", visit(data[0], depth + 1), upper)
        return _combined("Maximum", clipped, lower)
    if node.op in _UNIONS:
        parts = [visit(operand, depth + 1) for operand in data[_UNIONS[node.op]]]
        return functools.reduce(_union, parts) if parts else None
    if node.op == "Range":
        begin, end, step = (visit(operand, depth + 1) for operand in data)
        if begin is None or end is None or step is None or step.least < 1:
            return None
        return Range(begin.least, max(begin.least, end.greatest - 1))
    if node.op in _ARITHMETIC:
        return _combined(node.op, *(visit(operand, depth + 1) for operand in data))
    return None


def _combined(operation: str, left: Range | None, right: Range | None) -> Range | None:
    return None if left is None or right is None else _ARITHMETIC[operation](left, right)
