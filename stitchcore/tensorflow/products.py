"""Which products of matrices are a region's, and which stay library calls.

Those of one row, one column or one contracted element, and those that the kernels of a device are
quicker with than its library (fusion/contraction.py), are lowered as multiplications and sums
(hlo/transforms/expand_dot.py). What a call costs depends on TensorFlow's operation: one for many
pairs of matrices wakes all cores, whatever it has to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import zip_longest

from stitchcore.device.records import Device
from stitchcore.fusion import contraction
from stitchcore.fusion.contraction import Product
from stitchcore.tensorflow import op_allowlist, placement
from stitchcore.tensorflow.graph import NOMINAL_SIZE, Edge, GraphIndex

PRICED = {placement.CPU: frozenset({"float32", "bfloat16"}), placement.GPU: frozenset({"float32"})}
"""Types whose products the prices hold for, by kind of device. A CPU's library widens bfloat16, or
rounds to it first; a GPU's multiplies it in tensor cores, of which the records have no price."""

_EQUATION = re.compile(rb"([a-zA-Z]*),([a-zA-Z]*)->([a-zA-Z]*)")


def left_to_library(graph: GraphIndex, kind: str, multiplies: Device | None) -> frozenset[int]:
    """The products of matrices that are not computed in kernels of `multiplies`, of a device of
    this kind; without it those of one row, one column or one contracted element are."""
    every = (i for i, node in enumerate(graph.nodes) if node.op in op_allowlist.CONTRACTIONS)
    return frozenset(i for i in every if not _is_small(graph, i, kind, multiplies))


def _is_small(graph: GraphIndex, i: int, kind: str, multiplies: Device | None) -> bool:
    """A node that has not the inputs of its operation is none."""
    node = graph.nodes[i]
    fused = node.op == "_FusedMatMul"
    if len(graph.data[i]) != 2 + fused:
        return False
    done = tuple(node.attr["fused_ops"].list.s) if fused else ()
    if fused and done not in op_allowlist.FUSED_INTO_PRODUCTS[kind]:
        return False
    left, right = (graph.shape(tensor) for tensor in graph.data[i][:2])
    if left is None or right is None or 0 in (*left, *right):
        return False
    if node.op == "Einsum":
        product = _of_equation(node.attr["equation"].s, left, right)
    else:
        transposed = [node.attr[name].b for name in op_allowlist.CONTRACTIONS[node.op]]
        if min(len(left), len(right)) < 2:
            return False
        rows, contracted = left[-2:] if not transposed[0] else left[:-3:-1]
        columns = right[-2 if transposed[1] else -1]
        if 1 in (rows, columns, contracted) and left[:-2] == right[:-2]:
            return True  # not where a batch is broadcast: tf2xla makes rows of it
        batch = _broadcast(left[:-2], right[:-2])
        batched = node.op.startswith("BatchMatMul")
        product = None if batch is None else _product((*batch, rows), contracted, columns, batched)
    return (
        product is not None
        and graph.dtype(Edge(i, 0)) in PRICED[kind]
        and multiplies is not None
        and contraction.pays(product, multiplies)
    )


def _product(rows: Sequence[int], contracted: int, columns: int, batched: bool) -> Product | None:
    """`rows` are those of all pairs. None where what lanes add up or lie along is not known."""
    if min(contracted, columns) < 0:
        return None
    results = columns * math.prod(NOMINAL_SIZE if size < 0 else size for size in rows)
    return Product(results, contracted, columns, batched, known=min(rows, default=1) >= 0)


def _broadcast(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...] | None:
    """The sizes of both batches broadcast together; None where that is not known to go, and where
    only the right one has an unknown size: tf2xla makes columns of it, and lanes lie along them."""
    pairs = list(zip_longest(reversed(left), reversed(right), fillvalue=1))
    if any(a != b and (1 not in (a, b) or b < 0) for a, b in pairs):
        return None
    return tuple(b if a == 1 else a for a, b in reversed(pairs))


def _of_equation(equation: bytes, left: Sequence[int], right: Sequence[int]) -> Product | None:
    """An Einsum of two operands as one product: TensorFlow's kernel for it is that of many pairs.
    None where an operand has a dimension twice, or one that is summed over alone."""
    found = _EQUATION.fullmatch(equation)
    if found is None:
        return None
    first, second, result = found.groups()
    if (len(first), len(second)) != (len(left), len(right)):
        return None
    sizes: dict[int, int] = {}
    for label, size in zip((*first, *second), (*left, *right), strict=True):
        if min(size, sizes.get(label, size)) >= 0 and sizes.get(label, size) != size:
            return None
        sizes[label] = max(size, sizes.get(label, size))
    alone = set(first) ^ set(second)
    if any(len(set(labels)) < len(labels) for labels in found.groups()):
        return None
    if not alone <= set(result) <= set(sizes):
        return None
    contracted = [sizes[label] for label in set(first) - set(result)]
    columns = [sizes[label] for label in set(second) - set(first)]
    if min((*contracted, *columns), default=1) < 0:
        return None
    rows = [sizes[label] for label in first if label in result]
    return _product(rows, math.prod(contracted), math.prod(columns), batched=True)
