"""Which products of matrices are a region's, and which stay library calls.

Those of one row, one column or one contracted element, and those that the kernels of a device are
quicker with than its library (fusion/contraction.py), are lowered as multiplications and sums
(hlo/transforms/expand_dot.py). What a call costs depends on TensorFlow's operation: one for many
pairs of matrices wakes all cores, whatever it has to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from stitchcore.device.records import Device
from stitchcore.fusion import contraction
from stitchcore.fusion.contraction import Product
from stitchcore.tensorflow import op_allowlist, placement
from stitchcore.tensorflow.graph import NOMINAL_SIZE, Edge, GraphIndex

PRICED: Mapping[str, Mapping[str, int]] = {
    placement.CPU: {"float32": 4, "bfloat16": 4, "float64": 8},
    placement.GPU: {"float32": 4},
}
"""Types whose products the prices hold for, by kind of device, and the bytes of what is added up.
A CPU's library widens bfloat16, or rounds to it first; a GPU's multiplies it in tensor cores, of
which the records have no price, and what float64 costs there differs from one GPU to the next."""

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
    width = PRICED[kind].get(graph.dtype(Edge(i, 0)))
    if node.op == "Einsum":
        labels = _of_equation(node.attr["equation"].s, left, right)
        if labels is None:
            return False
        if labels.is_small:
            return True
        rows, contracted = (*labels.pairs, *labels.rows), math.prod(labels.contracted)
        columns, batched = math.prod(labels.columns), True
    else:
        transposed = [node.attr[name].b for name in op_allowlist.CONTRACTIONS[node.op]]
        if min(len(left), len(right)) < 2:
            return False
        last, contracted = left[-2:] if not transposed[0] else left[:-3:-1]
        columns = right[-2 if transposed[1] else -1]
        if 1 in (last, columns, contracted) and left[:-2] == right[:-2]:
            return True  # not where a batch is broadcast: tf2xla makes rows of it
        batch = _broadcast(left[:-2], right[:-2])
        if batch is None:
            return False
        rows, batched = (*batch, last), node.op.startswith("BatchMatMul")
    if width is None or multiplies is None or min(contracted, columns) < 0:
        return False  # what lanes add up or lie along is not known
    results = columns * math.prod(NOMINAL_SIZE if size < 0 else size for size in rows)
    known = min(rows, default=1) >= 0
    return contraction.pays(
        Product(results, contracted, columns, batched, known, width), multiplies
    )


def _broadcast(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...] | None:
    """The sizes of both batches broadcast together; None where that is not known to go, and where
    only the right one has an unknown size: tf2xla makes columns of it, and lanes lie along them."""
    pairs = list(zip_longest(reversed(left), reversed(right), fillvalue=1))
    if any(a != b and (1 not in (a, b) or b < 0) for a, b in pairs):
        return None
    return tuple(b if a == 1 else a for a, b in reversed(pairs))


@dataclass(frozen=True)
class _Labels:
    """Sizes of an Einsum's labels: of pairs of matrices, of rows, of what is summed, of columns."""

    pairs: tuple[int, ...]
    rows: tuple[int, ...]
    contracted: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def is_small(self) -> bool:
        """Whether there is one row, one column or one element to sum."""
        groups = (self.rows, self.contracted, self.columns)
        return any(all(size == 1 for size in group) for group in groups)


def _of_equation(equation: bytes, left: Sequence[int], right: Sequence[int]) -> _Labels | None:
    """An Einsum of two operands as products of many pairs, which TensorFlow's kernel makes of it.
    None where an operand has a dimension twice, or one that is summed over alone, and where how
    many columns or summed elements there are is not known."""
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
    kept, both = [label for label in first if label in result], set(first) & set(second)
    groups = (
        [label for label in kept if label in both],
        [label for label in kept if label not in both],
        [label for label in first if label not in result],
        [label for label in second if label not in first],
    )
    labels = _Labels(*(tuple(sizes[label] for label in group) for group in groups))
    return None if min((*labels.contracted, *labels.columns), default=1) < 0 else labels
