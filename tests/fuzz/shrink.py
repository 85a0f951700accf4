"""A twin of a module with the same structure and small sizes (docs/decisions.md 25).

For interpreters and emulators, which cannot run a training step's billions of elements. Dimensions
that must be equal shrink together, order and divisibility are kept, factors of reshapes stay
factors; dimensions that a stitchable opcode ties to numbers (padding, concatenation, part of a
slice) keep their size. Opcodes that never enter a kernel and would tie more (loops, convolutions,
windows, bounded shapes) are cut out: their results become parameters of the twin, their operands
outputs. The twin computes something else than the module (its constants are cut to size, the
mean's count is not adjusted): it is compared with its own evaluation, never the original's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.builder import tuple_ as build_tuple
from stitchcore.hlo.ir.cumulative import scan_of, scan_refusal
from stitchcore.hlo.ir.instruction import Instruction, computation, instruction, topological
from stitchcore.hlo.ir.literal import from_array
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.rewrite import rebuild, renew
from stitchcore.hlo.ir.shape import Shape
from tests.fuzz.extents import Extents, ladder

SMALLEST = 8
"""Sizes up to this one stand for themselves, unless a larger one is asked for."""

Axes = tuple[Any, ...]
"""One extent per dimension of an array; one Axes per member of a tuple."""


@dataclass(frozen=True)
class Shrunk:
    """The twin, what each instruction became, and the stand-in of each size that shrank.

    `cuts` are the module's instructions that became the twin's further parameters, in order; the
    operands of what was cut out are the twin's further outputs. Aliases are dropped.
    """

    module: Module
    made: Mapping[Instruction, Instruction]
    sizes: Mapping[int, int]
    cuts: tuple[Instruction, ...]


@dataclass
class _Analysis:
    extents: Extents
    axes: dict[Instruction, Axes]
    prefixes: list[tuple[int, int]]


def shrink(module: Module, smallest: int = SMALLEST, part: int = 0) -> Shrunk:
    """The twin of a static module; sizes up to `smallest` stay, and with `part` none becomes
    smaller than that part of it. Raises ValueError for a symbolic one (specialize it first)."""
    if module.symbols:
        raise ValueError(f"{module.name} is symbolic")
    order = list(topological((*module.entry.parameters, module.entry.root)))
    opaque = _opaque(order)
    cuts = [n for n in order if n in opaque and n.shape.elements is None]
    if module.entry.root in opaque:
        raise ValueError(f"{module.name} returns what is cut out")
    analysis = _Analysis(Extents(), {}, [])
    for node in order:
        analysis.axes[node] = _new_axes(analysis.extents, node.shape)
        if node not in opaque:
            _constrain(analysis, node)
    _settle_prefixes(analysis)
    stand_in, sizes = _stand_ins(analysis.extents, smallest, part)
    numbers = {node: len(module.entry.parameters) + i for i, node in enumerate(cuts)}

    def build(node: Instruction, operands: tuple[Instruction, ...]) -> Instruction:
        if node in numbers:
            shape = replace(_shape(node.shape, analysis.axes[node], stand_in), bounded=())
            return instruction(op.PARAMETER, shape, number=numbers[node])
        return node if node in opaque else _rebuilt(analysis.axes, node, operands, stand_in)

    entry, made = rebuild(module.entry, build)
    into = dict.fromkeys(made[o] for n in order if n in opaque for o in n.operands
                         if o not in opaque and o.shape.elements is None)  # fmt: skip
    root = entry.root
    outputs = (*(root.operands if root.opcode == op.TUPLE else (root,)), *into)
    parameters = (*entry.parameters, *(made[cut] for cut in cuts))
    entry = computation(parameters, build_tuple(outputs))
    twin = replace(module, entry=entry, aliases=(), provenance=renew(module, entry, made))
    return Shrunk(twin, made, sizes, tuple(cuts))


def _opaque(order: Sequence[Instruction]) -> set[Instruction]:
    """What is cut out: opcodes without a rule, bounded shapes, and elements of such tuples."""
    found: set[Instruction] = set()
    for node in order:
        ruled = node.opcode in _RULES or op.record(node.opcode).kind in op.POINTWISE
        if op.record(node.opcode).kind == "scan":
            ruled = scan_refusal(node) is None
        inner = node.opcode == op.GET_TUPLE_ELEMENT and node.operands[0] in found
        carried = node.shape.elements is not None and any(
            o in found for o in node.operands if o.shape.elements is not None
        )
        bounded = node.shape.bounded or any(o.shape.bounded for o in node.operands)
        if not ruled or bounded or inner or carried:
            found.add(node)
    return found


def _stand_ins(
    extents: Extents, smallest: int, part: int
) -> tuple[Callable[[int], int], dict[int, int]]:
    free = [c for c in extents.classes() if not extents.pinned(c)]
    sizes = ladder([extents.size(c) for c in free], smallest, part)

    def stand_in(axis: int) -> int:
        product = 1
        for factor in extents.factors([axis]):
            size = extents.size(factor)
            product *= size if extents.pinned(factor) else sizes[size]
        return product

    return stand_in, sizes


def _new_axes(extents: Extents, shape: Shape) -> Axes:
    if shape.elements is not None:
        return tuple(_new_axes(extents, element) for element in shape.elements)
    return tuple(extents.new(size) for size in shape.static)


def _flat(axes: Axes) -> list[int]:
    found: list[int] = []
    for axis in axes:
        found.extend(_flat(axis) if isinstance(axis, tuple) else [axis])
    return found


def _settle_prefixes(analysis: _Analysis) -> None:
    """A prefix that keeps its size, or is no single factor, keeps the whole at its size."""
    extents, changed = analysis.extents, True
    while changed:
        changed = False
        for part, whole in analysis.prefixes:
            single = len(extents.factors([part])) == 1 == len(extents.factors([whole]))
            if single and not extents.pinned(part):
                continue
            everything = extents.factors([part, whole])
            if not all(extents.pinned(axis) for axis in everything):
                extents.pin(everything)
                changed = True


def _constrain(analysis: _Analysis, node: Instruction) -> None:
    rule = _RULES.get(node.opcode, _same_shape)
    rule(analysis, node, analysis.axes[node], [analysis.axes[o] for o in node.operands])


def _pin_everything(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    a.extents.pin(chain(_flat(result), *(_flat(axes) for axes in operands)))


def _free(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    """Parameters, constants and iotas take any size."""


def _unify(a: _Analysis, left: Sequence[int], right: Sequence[int]) -> None:
    for x, y in zip(left, right, strict=True):
        a.extents.unify([x], [y])


def _same_shape(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    if any(len(axes) not in (0, len(result)) for axes in operands):
        _pin_everything(a, node, result, operands)
        return
    for axes in operands:
        if axes:
            _unify(a, result, axes)


def _reshape(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    a.extents.unify(result, operands[0])


def _broadcast(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    _unify(a, [result[axis] for axis in node["dimensions"]], operands[0])


def _transpose(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    _unify(a, result, [operands[0][axis] for axis in node["dimensions"]])


def _reduce(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    arrays = operands[: len(operands) // 2]
    kept = [i for i in range(len(arrays[0])) if i not in node["dimensions"]]
    for array in arrays[1:]:
        _unify(a, arrays[0], array)
    for axes in result if node.shape.elements is not None else (result,):
        _unify(a, axes, [arrays[0][i] for i in kept])


def _slice(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    extents = node.operands[0].shape.static
    for i, (start, limit, stride) in enumerate(node["slice"]):
        pair = (result[i], operands[0][i])
        if (start, limit, stride) == (0, extents[i], 1):
            a.extents.unify([pair[0]], [pair[1]])
        elif (start, stride) == (0, 1):
            if limit > 1:
                a.prefixes.append(pair)
        else:
            a.extents.pin(pair)


def _pad(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    for i, triple in enumerate(node["padding"]):
        if triple == (0, 0, 0):
            a.extents.unify([result[i]], [operands[0][i]])
        else:
            a.extents.pin((result[i], operands[0][i]))


def _scan(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    """A window as long as its axis keeps it so."""
    scan = scan_of(node)
    for i, pair in enumerate(zip(result, operands[0], strict=True)):
        if scan is None or i == scan.dim:
            a.extents.pin(pair)
        else:
            a.extents.unify([pair[0]], [pair[1]])


def _concatenate(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    for axes in operands:
        for i, (x, y) in enumerate(zip(result, axes, strict=True)):
            if i in node["dimensions"]:
                a.extents.pin((x, y))
            else:
                a.extents.unify([x], [y])


def _dot(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    left, right = operands
    left_batch, right_batch = node.get("lhs_batch_dims", ()), node.get("rhs_batch_dims", ())
    left_inner, right_inner = node["lhs_contracting_dims"], node["rhs_contracting_dims"]
    _unify(a, [left[i] for i in left_inner], [right[i] for i in right_inner])
    _unify(a, [left[i] for i in left_batch], [right[i] for i in right_batch])
    outer = [left[i] for i in left_batch]
    outer += [x for i, x in enumerate(left) if i not in (*left_batch, *left_inner)]
    outer += [x for i, x in enumerate(right) if i not in (*right_batch, *right_inner)]
    _unify(a, result, outer)


def _gather(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    operand, indices = operands
    if node.get("operand_batching_dims"):
        _pin_everything(a, node, result, operands)
        return
    sizes, extents = node["slice_sizes"], node.operands[0].shape.static
    window = [i for i in range(len(operand)) if i not in node["collapsed_slice_dims"]]
    for i, axis in zip(window, node["offset_dims"], strict=True):
        if sizes[i] == extents[i]:
            a.extents.unify([operand[i]], [result[axis]])
        else:
            a.extents.pin((operand[i], result[axis]))
    batch = [x for axis, x in enumerate(result) if axis not in node["offset_dims"]]
    vector = node["index_vector_dim"]
    _unify(a, batch, [x for axis, x in enumerate(indices) if axis != vector])
    a.extents.pin(indices[vector : vector + 1])


def _scatter(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    if len(operands) != 3 or node.get("input_batching_dims"):
        _pin_everything(a, node, result, operands)
        return
    operand, indices, updates = operands
    _unify(a, result, operand)
    extents, sizes = node.operands[0].shape.static, node.operands[2].shape.static
    window = [i for i in range(len(operand)) if i not in node["inserted_window_dims"]]
    for i, axis in zip(window, node["update_window_dims"], strict=True):
        if sizes[axis] == extents[i]:
            a.extents.unify([operand[i]], [updates[axis]])
        else:
            a.extents.pin((operand[i], updates[axis]))
    batch = [x for axis, x in enumerate(updates) if axis not in node["update_window_dims"]]
    vector = node["index_vector_dim"]
    _unify(a, batch, [x for axis, x in enumerate(indices) if axis != vector])
    a.extents.pin(indices[vector : vector + 1])


def _sort(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    results = result if node.shape.elements is not None else (result,)
    for axes in (*results, *operands[1:]):
        _unify(a, operands[0], axes)


def _dynamic_slice(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    for i, size in enumerate(node["dynamic_slice_sizes"]):
        if size == node.operands[0].shape.dims[i]:
            a.extents.unify([result[i]], [operands[0][i]])
        else:
            a.extents.pin((result[i], operands[0][i]))


def _dynamic_update_slice(
    a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]
) -> None:
    _unify(a, result, operands[0])
    for i, size in enumerate(node.operands[1].shape.dims):
        if size == node.shape.dims[i]:
            a.extents.unify([result[i]], [operands[1][i]])
        else:
            a.extents.pin((result[i], operands[1][i]))


def _tuple(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    for member, axes in zip(result, operands, strict=True):
        _unify(a, _flat(member), _flat(axes))


def _element(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    _unify(a, _flat(result), _flat(operands[0][node["index"]]))


def _bits(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    """The state keeps its size, the bits take any."""
    a.extents.pin((*operands[0], *result[0]))


def _batch_norm(a: _Analysis, node: Instruction, result: Axes, operands: list[Axes]) -> None:
    whole = operands[0]
    results = result if node.shape.elements is not None else (result,)
    for axes in (*results, *operands[1:]):
        _unify(a, axes, whole if len(axes) == len(whole) else [whole[node["feature_index"]]])


_Rule = Callable[[_Analysis, Instruction, Axes, list[Axes]], None]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys((op.PARAMETER, op.CONSTANT, op.IOTA, op.RNG), _free),
    **dict.fromkeys((op.RESHAPE, op.BITCAST), _reshape),
    **dict.fromkeys((op.REVERSE, op.OPTIMIZATION_BARRIER, op.MAP), _same_shape),
    **dict.fromkeys(
        (op.BATCH_NORM_TRAINING, op.BATCH_NORM_INFERENCE, op.BATCH_NORM_GRAD), _batch_norm
    ),
    op.BROADCAST: _broadcast,
    op.TRANSPOSE: _transpose,
    op.REDUCE: _reduce,
    op.SLICE: _slice,
    op.PAD: _pad,
    op.REDUCE_WINDOW: _scan,
    op.CONCATENATE: _concatenate,
    op.DOT: _dot,
    op.GATHER: _gather,
    op.SCATTER: _scatter,
    op.SORT: _sort,
    op.DYNAMIC_SLICE: _dynamic_slice,
    op.DYNAMIC_UPDATE_SLICE: _dynamic_update_slice,
    op.TUPLE: _tuple,
    op.GET_TUPLE_ELEMENT: _element,
    op.RNG_BIT_GENERATOR: _bits,
}
"""What an opcode demands of its dimensions; elementwise ones demand the same shape."""


def _rebuilt(
    axes: Mapping[Instruction, Axes],
    node: Instruction,
    operands: tuple[Instruction, ...],
    stand_in: Callable[[int], int],
) -> Instruction:
    shape = _shape(node.shape, axes[node], stand_in)
    attributes: dict[str, Hashable] = dict(node.attributes)
    if node.opcode == op.CONSTANT and shape != node.shape:
        cut = tuple(slice(extent) for extent in shape.static)
        value = np.ascontiguousarray(node["value"].array[cut])
        attributes["value"] = from_array(value, shape.dtype)
    if node.opcode == op.SLICE:
        attributes["slice"] = tuple(
            (start, extent if (start, stride) == (0, 1) else limit, stride)
            for (start, limit, stride), extent in zip(node["slice"], shape.static, strict=True)
        )
    if node.opcode == op.DYNAMIC_SLICE:
        attributes["dynamic_slice_sizes"] = shape.dims
    if node.opcode == op.GATHER:
        before, after = node.operands[0].shape.dims, operands[0].shape.dims
        attributes["slice_sizes"] = tuple(
            new if size == old else size
            for size, old, new in zip(node["slice_sizes"], before, after, strict=True)
        )
    return instruction(node.opcode, shape, operands, **attributes)


def _shape(shape: Shape, axes: Axes, stand_in: Callable[[int], int]) -> Shape:
    if shape.elements is not None:
        members = zip(shape.elements, axes, strict=True)
        return replace(shape, elements=tuple(_shape(s, x, stand_in) for s, x in members))
    return replace(shape, dims=tuple(stand_in(axis) for axis in axes))
