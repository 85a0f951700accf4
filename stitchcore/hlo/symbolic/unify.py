"""One symbolic module from lowerings of the same graph at several sizes (docs/decisions.md 15).

The modules are walked together from their roots: every group of corresponding instructions must
agree in opcode and in everything but integers, which become polynomials in the symbols, and scalar
constants, which become quotients of polynomials (`ratio`: the mean's 1/B). Array constants whose
size varies are recognised where they are tables of one value or of indices. Whatever does not fit
is refused by name and attribute. Unify before simplifying: simplification may act on one size's
numbers (256 is a power of two, 384 is not).

Instructions are paired as groups, not one to one: two values that differ symbolically may be one
interned instruction at a size where their shapes happen to agree.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.evaluator.evaluate import apply
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import (
    Computation,
    Instruction,
    computation,
    instruction,
    topological,
)
from stitchcore.hlo.ir.literal import Literal, from_array
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.symbolic.iota_tables import table
from stitchcore.hlo.symbolic.polynomial_fit import fit_dim, fit_scalar
from stitchcore.hlo.text.printer import names

Group = tuple[Instruction, ...]

_EXTENTS = frozenset(
    {"slice", "padding", "dynamic_slice_sizes", "slice_sizes", "window", "value", "k"}
)
"""Attributes that hold extents; integers in any other must be equal at all points."""

_GROUPS_PER_INSTRUCTION = 8
"""Coincidences pair an instruction more than once; far more than this is not a coincidence."""


@dataclass
class _Walk:
    """What is known while the modules are walked together."""

    bindings: tuple[Mapping[str, int], ...]
    labels: Mapping[Instruction, str]
    unified: dict[Group, Instruction] = field(default_factory=dict)
    called: dict[tuple[Computation, ...], Computation] = field(default_factory=dict)
    splats: dict[Instruction, Literal | None] = field(default_factory=dict)
    limit: int = 0


def unify(points: Sequence[tuple[Mapping[str, int], Module]]) -> Module:
    """The symbolic module that is each point's module at its bindings.

    `points` are (symbol values, module lowered at them), at least one more than there are symbols;
    give one further point with all symbols changed to have the result verified there. Sizes of 1
    are a specialisation of their own and must not be among them (ValueError). Raises
    Refused(DOES_NOT_UNIFY) naming the instruction and the attribute.
    """
    bindings = tuple(dict(point) for point, _ in points)
    modules = [module for _, module in points]
    symbols = tuple(bindings[0])
    if len(points) < 1 + len(symbols) or any(tuple(b) != symbols for b in bindings):
        raise ValueError(f"{len(points)} points for symbols {symbols}")
    if any(value < 2 for point in bindings for value in point.values()):
        raise ValueError("sizes of 0 and 1 cannot stand for others")
    first = modules[0]
    walk = _Walk(bindings, names(first))
    walk.limit = _GROUPS_PER_INSTRUCTION * max(len(names(module)) for module in modules)
    if any(module.aliases != first.aliases for module in modules):
        raise _refused(walk, first.entry.root, "input_output_alias differs")
    entry = _computation(walk, tuple(module.entry for module in modules))
    provenance = {
        unified: first.provenance[group[0]]
        for group, unified in walk.unified.items()
        if group[0] in first.provenance
    }
    return Module(first.name, entry, symbols, first.aliases, provenance)


def _refused(walk: _Walk, node: Instruction, detail: str) -> Refused:
    subject = walk.labels.get(node, node.opcode)
    return Refused(subject, Reason.DOES_NOT_UNIFY, detail)


def _computation(walk: _Walk, bodies: tuple[Computation, ...]) -> Computation:
    if bodies in walk.called:
        return walk.called[bodies]
    roots = tuple(body.root for body in bodies)
    if len({len(body.parameters) for body in bodies}) > 1:
        raise _refused(walk, roots[0], "numbers of parameters differ")
    parameters = [
        _group(walk, tuple(group))
        for group in zip(*(body.parameters for body in bodies), strict=True)
    ]
    unified = computation(parameters, _group(walk, roots))
    walk.called[bodies] = unified
    return unified


def _group(walk: _Walk, root: Group) -> Instruction:
    stack = [root]
    while stack:
        group = stack[-1]
        if group in walk.unified:
            stack.pop()
            continue
        first = group[0]
        if any(n.opcode != first.opcode for n in group):
            walk.unified[group] = _one_value(walk, group)
            stack.pop()
            continue
        if any(len(n.operands) != len(first.operands) for n in group):
            raise _refused(walk, first, "numbers of operands differ")
        operands = list(zip(*(n.operands for n in group), strict=True))
        pending = [operand for operand in operands if operand not in walk.unified]
        if pending:
            stack.extend(reversed(pending))
            continue
        stack.pop()
        walk.unified[group] = _symbolic(
            walk, group, [walk.unified[operand] for operand in operands]
        )
        if len(walk.unified) > walk.limit:
            raise _refused(walk, first, "the modules do not correspond instruction by instruction")
    return walk.unified[root]


def _symbolic(walk: _Walk, group: Group, operands: list[Instruction]) -> Instruction:
    first = group[0]
    if all(node is first for node in group) and tuple(operands) == first.operands:
        return first
    shape = _shape(walk, first, [node.shape for node in group])
    if first.opcode == op.CONSTANT:
        return _constant(walk, group, shape)
    if any([k for k, _ in n.attributes] != [k for k, _ in first.attributes] for n in group):
        raise _refused(walk, first, "attribute names differ")
    attributes = {
        name: _value(walk, first, name, [node[name] for node in group])
        for name, _ in first.attributes
    }
    unified = instruction(first.opcode, shape, operands, **attributes)
    _check(walk, first, unified)
    return unified


def _shape(walk: _Walk, node: Instruction, shapes: Sequence[Shape]) -> Shape:
    first = shapes[0]
    if first.elements is not None:
        if any(s.elements is None or len(s.elements) != len(first.elements) for s in shapes):
            raise _refused(walk, node, "tuple shapes differ")
        members = zip(*(shape.elements or () for shape in shapes), strict=True)
        return replace(first, elements=tuple(_shape(walk, node, list(m)) for m in members))
    if any(
        (s.dtype, s.rank, s.bounded) != (first.dtype, first.rank, first.bounded) for s in shapes
    ):
        raise _refused(walk, node, f"shapes {', '.join(map(str, shapes))}")
    extents = zip(*(shape.dims for shape in shapes), strict=True)
    return replace(first, dims=tuple(_extent(walk, node, "shape", list(e)) for e in extents))


def _extent(walk: _Walk, node: Instruction, where: str, values: Sequence[Dim]) -> Dim:
    numbers = [value for value in values if isinstance(value, int)]
    fitted = fit_dim(numbers, walk.bindings) if len(numbers) == len(values) else None
    if fitted is None:
        raise _refused(walk, node, f"{where}: {list(map(str, values))} at {list(walk.bindings)}")
    return fitted


def _value(walk: _Walk, node: Instruction, name: str, values: Sequence[Hashable]) -> Hashable:
    first = values[0]
    if isinstance(first, Computation):
        return _computation(walk, tuple(v for v in values if isinstance(v, Computation)))
    if isinstance(first, tuple):
        if any(not isinstance(v, tuple) or len(v) != len(first) for v in values):
            raise _refused(walk, node, f"{name} differs in length")
        parts = zip(*(v for v in values if isinstance(v, tuple)), strict=True)
        return tuple(_value(walk, node, name, list(part)) for part in parts)
    if all(value == first for value in values):
        return first
    if isinstance(first, WindowDim):
        windows = [v for v in values if isinstance(v, WindowDim)]
        if any(
            replace(w, size=0, pad_low=0, pad_high=0)
            != replace(first, size=0, pad_low=0, pad_high=0)
            for w in windows
        ):
            raise _refused(walk, node, name)
        return replace(
            first,
            size=_extent(walk, node, name, [w.size for w in windows]),
            pad_low=_extent(walk, node, name, [w.pad_low for w in windows]),
            pad_high=_extent(walk, node, name, [w.pad_high for w in windows]),
        )
    numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
    if name not in _EXTENTS or len(numbers) != len(values):
        raise _refused(walk, node, f"{name}: {values}")
    return _extent(walk, node, name, numbers)


def _one_value(walk: _Walk, group: Group) -> Instruction:
    """Tensors of one value each, which the importer has folded where they are small alone: it folds
    no more than 10 MiB."""
    first, folded = group[0], [_splat(walk, node) for node in group]
    values = [value for value in folded if value is not None]
    if len(values) < len(group):
        raise _refused(walk, first, f"opcodes {sorted({n.opcode for n in group})}")
    shape = _shape(walk, first, [node.shape for node in group])
    return builder.broadcast(_scalar(walk, first, values), shape.dims, ())


def _splat(walk: _Walk, root: Instruction) -> Literal | None:
    """What every element of a tensor made of constants is, if it is made element by element. No
    recursion: a stranger's graph may be deep."""
    known = walk.splats
    for node in topological((root,)):
        if node not in known:
            known[node] = _splat_of(node, [known[operand] for operand in node.operands])
    return known[root]


def _splat_of(node: Instruction, operands: Sequence[Literal | None]) -> Literal | None:
    value = node.get("value")
    if isinstance(value, Literal) and value.array.size:
        element = from_array(value.array.reshape(-1)[0], value.dtype)
        return element if value.data == element.data * value.array.size else None
    known = [operand.array for operand in operands if operand is not None]
    if not operands or len(known) < len(operands):
        return None
    if node.opcode in (op.BROADCAST, op.RESHAPE):
        return operands[0]
    if op.record(node.opcode).kind not in op.POINTWISE:
        return None
    return from_array(np.asarray(apply(node, known)), node.shape.dtype)


def _constant(walk: _Walk, group: Group, shape: Shape) -> Instruction:
    literals = [node.get("value") for node in group]
    known = [value for value in literals if isinstance(value, Literal)]
    first = group[0]
    if len(known) != len(group):
        raise _refused(walk, first, "a symbolic constant")
    if all(value == known[0] for value in known):
        return first
    if not shape.dims:
        ratio = fit_scalar(known, walk.bindings)
        if ratio is None:
            raise _refused(walk, first, f"constant {[value.scalar for value in known]}")
        return instruction(op.CONSTANT, shape, ratio=ratio)
    expression = table(known, shape, lambda scalars: _scalar(walk, first, scalars))
    if expression is None:
        raise _refused(walk, first, f"an array constant of {shape} that is no table of indices")
    return expression


def _scalar(walk: _Walk, node: Instruction, scalars: Sequence[Literal]) -> Instruction:
    if all(value == scalars[0] for value in scalars):
        return builder.literal(scalars[0])
    ratio = fit_scalar(scalars, walk.bindings)
    if ratio is None:
        raise _refused(walk, node, f"constant {[value.scalar for value in scalars]}")
    return instruction(op.CONSTANT, Shape(scalars[0].dtype), ratio=ratio)


def _check(walk: _Walk, node: Instruction, unified: Instruction) -> None:
    """A coincidental fit shows where shapes must agree symbolically and do not."""
    kind = op.record(unified.opcode).kind
    if kind in op.POINTWISE:
        operand_dims = [o.shape.dims for o in unified.operands if o.shape.dims]
        fits = (
            all(dims == unified.shape.dims for dims in operand_dims)
            or unified.opcode == op.BITCAST_CONVERT
        )
    elif unified.opcode == op.RESHAPE:
        fits = unified.operands[0].shape.size == unified.shape.size
    elif unified.opcode == op.BROADCAST:
        axes = unified["dimensions"]
        fits = tuple(unified.shape.dims[a] for a in axes) == unified.operands[0].shape.dims
    elif unified.opcode == op.TRANSPOSE:
        dims = unified.operands[0].shape.dims
        fits = tuple(dims[axis] for axis in unified["dimensions"]) == unified.shape.dims
    else:
        return
    if not fits:
        operands = ", ".join(str(operand.shape) for operand in unified.operands)
        raise _refused(
            walk, node, f"shapes only agree at these points: {operands} to {unified.shape}"
        )
