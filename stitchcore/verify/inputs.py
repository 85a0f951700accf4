"""Inputs for checks: captured from a whole-module run, or drawn where no run exists.

A check on data that could not show an error proves nothing (docs/decisions.md 24), so drawn inputs
come in families tried in turn, until the reference is finite and not constant: an optimizer's
second moment must be positive, a logit must not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stitchcore.errors import CheckFailed, Reason, Refused
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.evaluator.evaluate import evaluate, evaluate_all
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, computation, reachable, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES, Shape
from stitchcore.hlo.transforms.keep_checks import checks

Array = np.ndarray[Any, np.dtype[Any]]
Family = Callable[[np.random.Generator, tuple[int, ...]], Array]


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape)


def _positive(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.uniform(0.05, 1.5, shape)


def _small(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.uniform(0.001, 0.02, shape)


def _binary(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return (random.random(shape) < 0.7).astype(np.float64)


FAMILIES: Mapping[str, Family] = {
    "normal": _normal,
    "positive": _positive,
    "small": _small,
    "binary": _binary,  # masks that multiply something enormous
}
"""Ordinary data by name, most telling first."""


INTEGERS = 8
"""Drawn integers are below this, and not negative."""


def draw(
    shape: Shape,
    bindings: Mapping[str, int],
    seed: int,
    family: str = "normal",
    integers: int = INTEGERS,
) -> Array:
    """One array for a value of `shape`; integers are in [0, `integers`), pred is mixed."""
    random = np.random.default_rng(seed)
    extents = tuple(dims.evaluate(dim, bindings) for dim in shape.dims)
    dtype = DTYPES[shape.dtype]
    if dtype.kind == "pred":
        return np.asarray(random.random(extents) < 0.7)
    if dtype.kind != "float":
        return random.integers(0, integers, extents).astype(dtype.numpy)
    return np.asarray(FAMILIES[family](random, extents)).astype(dtype.numpy)


def arguments(
    values: Sequence[Instruction],
    bindings: Mapping[str, int],
    seed: int,
    family: str = "normal",
    integers: int = INTEGERS,
    whole: Collection[Instruction] = (),
) -> list[Array]:
    """One array per value, each from a seed of its own; floats that are `whole` as integers are."""
    arrays = []
    for number, value in enumerate(values):
        own_seed = seed + 7919 * number
        counted = replace(value.shape, dtype="s32") if value in whole else value.shape
        array = draw(counted, bindings, own_seed, family, integers)
        arrays.append(array.astype(DTYPES[value.shape.dtype].numpy, copy=False))
    return arrays


def whole_numbers(module: Module) -> frozenset[Instruction]:
    """Parameters of floats that are turned into integers as they are or masked, as labels that were
    read as floats: only whole numbers among them mean something."""

    def sources(value: Instruction) -> Sequence[Instruction]:
        if value.opcode == op.SELECT:
            return value.operands[1:]
        return value.operands if value.opcode in _MOVED else ()

    converted = [
        value.operands[0]
        for value in topological((module.entry.root,))
        if value.opcode == op.CONVERT and DTYPES[value.shape.dtype].kind in ("signed", "unsigned")
    ]
    return frozenset(
        value
        for value in reachable(converted, operands=sources)
        if value.opcode == op.PARAMETER and DTYPES[value.shape.dtype].kind == "float"
    )


def integer_limit(module: Module, bindings: Mapping[str, int]) -> int:
    """The `integers` for arguments on which the checks of `module` hold: labels below their number
    of classes, wherever that is known. Where labels beyond make a row NaN (TensorFlow on a GPU, and
    under XLA) the same, if it can be. Where there are lookups or scatters, rows that all their
    tables have: the framework raises an error for others, and fewer would leave rows, and the tasks
    that own them, untried. Raises Refused(DATA_DEPENDENT_ERROR) where no drawn data passes the
    checks."""
    return min([*_rows(module, bindings), *_passing(module, bindings)], default=INTEGERS)


def _rows(module: Module, bindings: Mapping[str, int]) -> list[int]:
    """Of each gather and scatter, by dimension, how many places its slices may begin at."""
    counts: list[dims.Dim] = []
    for value in topological((module.entry.root,)):
        if value.opcode == op.GATHER:
            whole, sizes = value.operands[0].shape.dims, value["slice_sizes"]
            counts += [whole[d] - sizes[d] + 1 for d in value["start_index_map"]]
        elif value.opcode == op.SCATTER:
            whole = value.operands[0].shape.dims
            counts += [whole[d] for d in value["scatter_dims_to_operand_dims"]]
    return [max(dims.evaluate(count, bindings), 1) for count in counts]


def placed(
    module: Module, drawn: Sequence[Array], seed: int, integers: int, outside: bool
) -> list[Array]:
    """`given` where places are looked up or updated: half of the integers below INTEGERS, so that
    updates meet; with `outside` some on either side of what is there, where HLO says what becomes
    of them and nothing checks them."""
    if not _rows_named(module):
        return list(drawn)
    outside = outside and not checks(module) and not _guards(module)
    random, arrays = np.random.default_rng(seed), []
    for array in drawn:
        if array.dtype.kind in "iu":
            few = random.random(array.shape) < 0.5
            array = np.where(few, array % INTEGERS, array).astype(array.dtype)
            if outside:
                away = random.choice([-1, integers], array.shape).astype(array.dtype)
                array = np.where(random.random(array.shape) < 0.125, away, array)
        arrays.append(array)
    return arrays


def _rows_named(module: Module) -> bool:
    values = topological((module.entry.root,))
    return any(value.opcode in (op.GATHER, op.SCATTER) for value in values)


def _passing(module: Module, bindings: Mapping[str, int]) -> list[int]:
    """The largest limit known to pass; none where there is nothing to pass."""
    conditions, guards = checks(module), _guards(module)
    if not conditions and not guards:
        return []
    root = builder.tuple_([*conditions, *guards])
    checked = replace(module, entry=computation(module.entry.parameters, root), aliases=())
    passing, whole = [], whole_numbers(module)
    for limit in sorted({*_counts(root), INTEGERS, 2, 1}, reverse=True):
        drawn = arguments(module.entry.parameters, bindings, 0, "normal", limit, whole)
        try:
            outcomes = evaluate(checked, drawn, bindings)[len(conditions) :]
        except CheckFailed:
            continue
        if all(np.all(guard) for guard in outcomes):
            return [limit]
        passing.append(limit)
    if not passing:
        raise Refused(module.name, Reason.DATA_DEPENDENT_ERROR, "no drawn data passes its checks")
    return passing[:1] if conditions else []


def _guards(module: Module) -> list[Instruction]:
    """What integers alone decide, and without which a value is NaN."""
    guards = []
    for node in topological((module.entry.root,)):
        if node.opcode != op.SELECT or not any(map(_is_nan, node.operands[1:])):
            continue
        predicate, guarded, _ = node.operands
        if all(DTYPES[v.shape.dtype].kind != "float" for v in topological((predicate,))):
            negated = builder.elementwise(op.NOT, predicate)
            guards.append(negated if _is_nan(guarded) else predicate)
    return guards


def _is_nan(value: Instruction) -> bool:
    """Whether `value` is nothing but NaN."""
    source = value.operands[0] if value.opcode == op.BROADCAST else value
    known = source.get("value") if source.opcode == op.CONSTANT else None
    if known is None or known.array.dtype.kind != "f":
        return False
    return bool(np.isnan(known.array).all()) and known.array.size > 0


LARGEST_COUNT = 1 << 20


def _counts(root: Instruction) -> set[int]:
    """Positive integer constants that may be a number of classes."""
    values = (v["value"] for v in topological((root,)) if v.get("value") is not None)
    scalars = (v.scalar for v in values if v.array.size == 1 and v.array.dtype.kind in "iu")
    return {int(scalar) for scalar in scalars if 0 < scalar <= LARGEST_COUNT}


def plausible(
    module: Module, bindings: Mapping[str, int], seed: int, integers: int = INTEGERS
) -> list[Array]:
    """Arguments on which a whole training step stays finite: matrices are normal and scaled by
    what flows into them; vectors and scalars (scales, rates) are positive, and so is what a root
    is taken of (an optimizer's second moments)."""
    arrays, positive = [], _under_roots(module)
    for number, value in enumerate(module.entry.parameters):
        own_seed = seed + 7919 * number
        extents = [dims.evaluate(dim, bindings) for dim in value.shape.dims]
        if DTYPES[value.shape.dtype].kind != "float" or len(extents) < 2 or value in positive:
            arrays.append(draw(value.shape, bindings, own_seed, "positive", integers))
            continue
        scale = max(float(np.prod(extents[:-1])) ** -0.5, 0.02)
        array = draw(value.shape, bindings, own_seed)
        arrays.append(np.asarray(array * scale).astype(array.dtype))
    return arrays


_ROOTS = frozenset({op.SQRT, op.RSQRT, op.LOG})
_SUMS = frozenset({op.ADD, op.SUBTRACT, op.MAXIMUM})
_MOVED = frozenset({op.RESHAPE, op.BITCAST, op.COPY, op.CONVERT, op.TRANSPOSE})


def _under_roots(module: Module) -> set[Instruction]:
    """Parameters of which a root or logarithm is taken, times a scalar and beside other terms."""
    values = topological((module.entry.root,))
    roots = [value.operands[0] for value in values if value.opcode in _ROOTS]

    def terms(value: Instruction) -> Sequence[Instruction]:
        if value.opcode in _SUMS or value.opcode in _MOVED:
            return value.operands
        if value.opcode in (op.MULTIPLY, op.DIVIDE):
            return [v for v, by in _pairs(value) if by.opcode in (op.BROADCAST, op.CONSTANT)]
        return ()

    under = reachable(roots, operands=terms)
    return {value for value in under if value.opcode == op.PARAMETER}


def _pairs(value: Instruction) -> list[tuple[Instruction, Instruction]]:
    left, right = value.operands
    return [(left, right), (right, left)] if value.opcode == op.MULTIPLY else [(left, right)]


def capture(
    module: Module,
    inputs: Sequence[Array],
    patterns: Sequence[Pattern],
    bindings: Mapping[str, int] | None = None,
) -> dict[Instruction, Array]:
    """Every input of `patterns` as a run of `module` on `inputs` (storage precision) makes it."""
    keep = {value for pattern in patterns for value in pattern.inputs}
    return evaluate_all(module, inputs, bindings, "storage", keep)
