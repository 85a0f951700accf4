"""What an operation may raise an error for, or mean by another rule, where a constant of the graph
decides it: the operation is taken where the constant says that it does neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from tensorflow.python.framework import tensor_util

from stitchcore.errors import Reason
from stitchcore.tensorflow.graph import Edge, GraphIndex
from stitchcore.tensorflow.op_allowlist import INTEGERS


def value_of(graph: GraphIndex, tensor: Edge) -> np.ndarray[Any, Any] | None:
    """What a tensor holds, if it is a constant."""
    node = graph.nodes[tensor.node]
    if node.op != "Const" or "value" not in node.attr:
        return None
    return np.asarray(tensor_util.MakeNdarray(node.attr["value"].tensor))


def _division(graph: GraphIndex, i: int) -> Reason | None:
    """Of integers by zero it is an error, and the smallest has no quotient by -1."""
    divisor = graph.data[i][1]
    if graph.dtype(divisor) not in INTEGERS:
        return None
    value = value_of(graph, divisor)
    unsafe = value is None or bool(np.any((value == 0) | (value == -1)))
    return Reason.DATA_DEPENDENT_ERROR if unsafe else None


PHILOX = (1, 3)
"""Algorithms of random numbers that are Philox on a CPU: by name, and what TensorFlow selects."""


def _spread(graph: GraphIndex, i: int) -> bool:
    """Whether node i's elements, or what is made of them alone and of scalars, are broadcast."""
    size, pending, seen = graph.static_size(Edge(i, 0)), [i], {i}
    while pending:
        for consumer, position in graph.consumers[pending.pop()]:
            if position < 0 or consumer in seen or not graph.output_types[consumer]:
                continue
            if graph.static_size(Edge(consumer, 0)) > size:
                return True
            others = (t for n, t in enumerate(graph.data[consumer]) if n != position)
            if all(graph.static_size(other) == 1 for other in others):
                seen.add(consumer)
                pending.append(consumer)
    return False


def _drawn(graph: GraphIndex, i: int) -> Reason | None:
    """Kernels would draw again for each element that a mask (of whole channels) is broadcast to."""
    if _spread(graph, i):
        return Reason.NOT_PROFITABLE
    algorithm = value_of(graph, graph.data[i][3])
    known = algorithm is not None and algorithm.shape == () and int(algorithm) in PHILOX
    return None if known else Reason.RANDOM_STREAM


def _extreme(graph: GraphIndex, i: int) -> Reason | None:
    """Along an axis without elements there is none: an error."""
    shape, axis = graph.shape(graph.data[i][0]), value_of(graph, graph.data[i][1])
    if shape is None or axis is None or axis.shape or not -len(shape) <= axis < len(shape):
        return Reason.DATA_DEPENDENT_ERROR
    return None if shape[int(axis)] > 0 else Reason.DATA_DEPENDENT_ERROR


def _ensured(graph: GraphIndex, i: int) -> Reason | None:
    """Another shape is an error: it is taken where the shape is known to be right."""
    shape, demanded = graph.shape(graph.data[i][0]), graph.nodes[i].attr["shape"].shape
    if demanded.unknown_rank:
        return None
    sizes = [dim.size for dim in demanded.dim]
    fits = shape is not None and len(shape) == len(sizes)
    fits = fits and all(size in (-1, own) for size, own in zip(sizes, shape or (), strict=True))
    return None if fits else Reason.DATA_DEPENDENT_ERROR


def _mirrored(graph: GraphIndex, i: int) -> Iterable[int]:
    """A border is no wider than what it mirrors."""
    return np.flatnonzero(_constant(graph, i, 1).any(axis=1)).tolist()


def _blocks(graph: GraphIndex, i: int) -> Iterable[int]:
    """Blocks divide the image."""
    return range(1, _rank(graph, i))


def _batched_blocks(graph: GraphIndex, i: int) -> Iterable[int]:
    """Blocks divide the image with its borders, or the batch that is made of them."""
    first = 1 if graph.nodes[i].op == "SpaceToBatchND" else 0
    return range(first, 1 + _constant(graph, i, 1).size)


def _band(graph: GraphIndex, i: int) -> Iterable[int]:
    """A band is no wider than the matrix."""
    return [axis for axis, operand in ((-2, 1), (-1, 2)) if _constant(graph, i, operand) > 0]


def _diagonals(graph: GraphIndex, i: int) -> Iterable[int]:
    """Other diagonals than the main one lie in the matrix, and one of given size holds them."""
    k = _constant(graph, i, 2 if graph.nodes[i].op == "MatrixSetDiagV3" else 1)
    sizes = [2, 3] if graph.nodes[i].op == "MatrixDiagV3" else []
    plain = not k.any() and all((_constant(graph, i, n) == -1).all() for n in sizes)
    return () if plain else range(max(_rank(graph, i) - 2, 0), _rank(graph, i))


class _NotConstant(Exception):
    """An operand that decides is none."""


def _constant(graph: GraphIndex, i: int, position: int) -> np.ndarray[Any, Any]:
    value = value_of(graph, graph.data[i][position])
    if value is None:
        raise _NotConstant
    return value


def _rank(graph: GraphIndex, i: int) -> int:
    return len(graph.shape(graph.data[i][0]) or ())


def _unless_known(
    axes: Callable[[GraphIndex, int], Iterable[int]],
) -> Callable[[GraphIndex, int], Reason | None]:
    """What TensorFlow demands of these axes of the first input it has checked where their sizes
    are known; where they are not, a kernel would have to."""

    def rule(graph: GraphIndex, i: int) -> Reason | None:
        shape = graph.shape(graph.data[i][0]) or ()
        try:
            known = all(shape[axis] >= 0 for axis in axes(graph, i))
        except _NotConstant:
            known = False
        return None if known else Reason.DATA_DEPENDENT_ERROR

    return rule


_RULES: Mapping[str, Callable[[GraphIndex, int], Reason | None]] = {
    **dict.fromkeys(("Div", "FloorDiv", "FloorMod", "TruncateDiv", "Mod"), _division),
    **dict.fromkeys(("ArgMax", "ArgMin"), _extreme),
    "EnsureShape": _ensured,
    "StatelessRandomUniformV2": _drawn,
    **dict.fromkeys(("MirrorPad", "MirrorPadGrad"), _unless_known(_mirrored)),
    **dict.fromkeys(("SpaceToDepth", "DepthToSpace"), _unless_known(_blocks)),
    **dict.fromkeys(("SpaceToBatchND", "BatchToSpaceND"), _unless_known(_batched_blocks)),
    "MatrixBandPart": _unless_known(_band),
    **dict.fromkeys(
        ("MatrixDiagV3", "MatrixDiagPartV3", "MatrixSetDiagV3"), _unless_known(_diagonals)
    ),
}


def refuse(graph: GraphIndex, i: int) -> Reason | None:
    """Why node i stays TensorFlow's by the constants it is given; None where they say nothing."""
    rule = _RULES.get(graph.nodes[i].op)
    return rule(graph, i) if rule else None
