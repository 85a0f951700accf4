"""Rebuilding computations instruction by instruction, and symbolic modules at given sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import numpy as np

from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.dim import Dim, Polynomial
from stitchcore.hlo.ir.instruction import (
    Computation,
    Instruction,
    computation,
    instruction,
    topological,
)
from stitchcore.hlo.ir.literal import from_array
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.shape import DTYPES, Shape

Rebuild = Callable[[Instruction, tuple[Instruction, ...]], Instruction]
"""(old instruction, its new operands) -> new instruction."""


def rebuild(
    body: Computation, build: Rebuild
) -> tuple[Computation, dict[Instruction, Instruction]]:
    """`body` with every instruction passed through `build`, and the map from old to new."""
    rebuilt: dict[Instruction, Instruction] = {}
    for node in topological((*body.parameters, body.root)):
        rebuilt[node] = build(node, tuple(rebuilt[operand] for operand in node.operands))
    return computation((rebuilt[p] for p in body.parameters), rebuilt[body.root]), rebuilt


def renew(
    module: Module, entry: Computation, rebuilt: Mapping[Instruction, Instruction]
) -> dict[Instruction, tuple[str, ...]]:
    """Provenance of the rebuilt instructions: that of the old ones that became them, merged.

    An instruction that no old one became (a step of an expansion) takes that of its users.
    """
    order = list(topological((entry.root,)))
    live = set(order)
    provenance: dict[Instruction, tuple[str, ...]] = {}
    for old, names in module.provenance.items():
        new = rebuilt.get(old)
        if new is not None and new in live:
            provenance[new] = _merged(provenance.get(new, ()), names)
    borrowed: dict[Instruction, tuple[str, ...]] = {}
    for user in reversed(order):
        names = provenance.get(user) or borrowed.get(user, ())
        for operand in user.operands:
            if names and operand not in provenance and op.record(operand.opcode).kind in _BORROWERS:
                borrowed[operand] = _merged(borrowed.get(operand, ()), names[:1])
    return {**borrowed, **provenance}


_BORROWERS = frozenset(
    {
        "elementwise",
        "reduce",
        "movement",
        "library",
        "lookup",
        "update",
        "scatter",
        "scan",
        "indexed",
    }
)


def _merged(names: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return names + tuple(name for name in more if name not in names)


def substitute(value: Hashable, convert: Callable[[Dim], Dim]) -> Hashable:
    """An attribute value with every Dim in it converted; computations are left alone."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, Polynomial)):
        return convert(value)
    if isinstance(value, tuple):
        return tuple(substitute(item, convert) for item in value)
    if isinstance(value, WindowDim):
        return replace(
            value,
            size=convert(value.size),
            pad_low=convert(value.pad_low),
            pad_high=convert(value.pad_high),
        )
    return value


def substitute_shape(shape: Shape, convert: Callable[[Dim], Dim]) -> Shape:
    if shape.elements is not None:
        return replace(shape, elements=tuple(substitute_shape(e, convert) for e in shape.elements))
    return replace(shape, dims=tuple(convert(d) for d in shape.dims))


def specialize(module: Module, bindings: Mapping[str, int]) -> Module:
    """`module` at the sizes of `bindings`, static. Raises KeyError for an unbound symbol."""
    return specialize_with_map(module, bindings)[0]


def specialize_with_map(
    module: Module, bindings: Mapping[str, int]
) -> tuple[Module, Mapping[Instruction, Instruction]]:
    """`specialize`, with the map from symbolic to static instructions of the entry."""

    def convert(dim: Dim) -> Dim:
        return dims.evaluate(dim, bindings)

    inner: dict[Computation, Computation] = {}
    entry, specialized = rebuild(module.entry, lambda n, o: _specialized(n, o, convert, inner))
    provenance = renew(module, entry, specialized)
    return Module(module.name, entry, (), module.aliases, provenance), specialized


def _specialized(
    node: Instruction,
    operands: tuple[Instruction, ...],
    convert: Callable[[Dim], Dim],
    inner: dict[Computation, Computation],
) -> Instruction:
    shape = substitute_shape(node.shape, convert)
    ratio = node.get("ratio")
    if ratio is not None:
        value = quotient(convert(ratio[0]), convert(ratio[1]), shape.dtype)
        return instruction(op.CONSTANT, shape, value=from_array(value, shape.dtype))
    attributes = {
        name: map_computations(substitute(value, convert), lambda c: _inner(c, convert, inner))
        for name, value in node.attributes
    }
    return instruction(node.opcode, shape, operands, **attributes)


def quotient(numerator: Dim, denominator: Dim, dtype: str) -> Array:
    """What a symbolic constant holds: the exact quotient rounded to `dtype` (through float64)."""
    if not isinstance(numerator, int) or not isinstance(denominator, int):
        raise ValueError(f"{numerator}/{denominator} is not bound")
    target = DTYPES[dtype].numpy
    if target.kind in "iub":
        if numerator % denominator:
            raise ValueError(f"{numerator}/{denominator} is not an integer")
        return np.asarray(numerator // denominator, target)
    return np.asarray(np.float64(numerator) / np.float64(denominator)).astype(target)


def map_computations(value: Hashable, convert: Callable[[Computation], Computation]) -> Hashable:
    """An attribute value with the computations in it converted."""
    if isinstance(value, Computation):
        return convert(value)
    if isinstance(value, tuple) and any(isinstance(item, Computation) for item in value):
        return tuple(convert(item) if isinstance(item, Computation) else item for item in value)
    return value


def _inner(
    body: Computation, convert: Callable[[Dim], Dim], inner: dict[Computation, Computation]
) -> Computation:
    if body not in inner:
        inner[body] = rebuild(body, lambda n, o: _specialized(n, o, convert, inner))[0]
    return inner[body]
