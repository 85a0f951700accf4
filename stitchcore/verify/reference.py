"""The exact reference of a module, and judging all its outputs with what it takes to be fair.

Where a comparison or rounding falls the other way in float64, the reference is computed again with
the storage run's decisions forced, and the elements that only then agree are counted. Where the
exact result itself moves far when the inputs move by their rounding (a division by what is nearly
zero), that movement is allowed too: a computation in the storage type is at best the exact one of
inputs that far off. Both are computed only when the plain judgement fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stitchcore.hlo.evaluator.evaluate import decisions, evaluate, evaluate_all
from stitchcore.hlo.ir.module import Module
from stitchcore.verify.accuracy import Judgement, informative, judge
from stitchcore.verify.inputs import FAMILIES, arguments, integer_limit, placed, whole_numbers
from stitchcore.verify.rounding import movement
from stitchcore.verify.tolerance import unit

Array = np.ndarray[Any, np.dtype[Any]]

DRAWN = 6
"""Inputs a rounding away in which a decision that rounding can turn is looked for."""


def telling(
    module: Module, bindings: Mapping[str, int], seed: int, outside: bool = False
) -> tuple[str, list[Array], list[Array]]:
    """(family, inputs, float64 outputs) of the first family of drawn data on which every output is
    finite and not constant, else of the one with most such outputs: other data proves nothing.
    With `outside` some places to look up or update are in no table (inputs.placed): for a
    framework that raises an error for these, without."""
    best: tuple[int, str, list[Array], list[Array]] | None = None
    integers, whole = integer_limit(module, bindings), whole_numbers(module)
    for family in FAMILIES:
        drawn = arguments(module.entry.parameters, bindings, seed, family, integers, whole)
        inputs = placed(module, drawn, seed, integers, outside)
        exact = evaluate(module, inputs, bindings, "float64")
        informative_outputs = sum(informative(array) for array in exact)
        if best is None or informative_outputs > best[0]:
            best = (informative_outputs, family, inputs, exact)
        if informative_outputs == len(exact):
            break
    assert best is not None
    return best[1:]


def judge_all(
    module: Module,
    ours: Sequence[Array],
    exact: Sequence[Array],
    theirs: Sequence[Array],
    limits: Sequence[float],
    inputs: Sequence[Array],
    bindings: Mapping[str, int],
) -> tuple[Judgement, ...]:
    """One judgement per output. `limits` are the composed relative tolerances."""
    judgements = tuple(judge(*four) for four in zip(ours, exact, theirs, limits, strict=True))
    if all(judgement.passed for judgement in judgements):
        return judgements
    forced = _forced(module, inputs, bindings) or exact
    moved = _sensitivity(module, inputs, bindings, exact)
    again = []
    for o, e, f, t, limit, move, output in zip(
        ours, exact, forced, theirs, limits, moved, module.outputs, strict=True
    ):
        step = unit(output.shape.dtype)
        allowed = move * max(1.0, limit / step) if step else None
        again.append(judge(o, e, t, limit, _agrees(o, e, f, t, limit), allowed))
    return tuple(again)


def well_conditioned(
    module: Module,
    exact: Sequence[Array],
    limits: Sequence[float],
    inputs: Sequence[Array],
    bindings: Mapping[str, int],
) -> list[Array]:
    """By output, the elements on which these inputs can tell right from wrong: finite, the same
    whichever way decisions within rounding fall, and moved by the rounding of inputs and operations
    by no more than the composed tolerance; of whole numbers and truths, the same in the storage
    type from every input that is a rounding away."""
    forced = _forced(module, inputs, bindings) or exact
    moved = map(np.maximum, _sensitivity(module, inputs, bindings, exact),
                movement(module, inputs, bindings, exact))  # fmt: skip
    near = (
        [evaluate(module, close, bindings, "storage") for close in _close(module, inputs, DRAWN)]
        if any(array.dtype.kind != "f" for array in exact)
        else []
    )
    told = []
    for n, (e, f, move, limit) in enumerate(zip(exact, forced, moved, limits, strict=True)):
        if e.dtype.kind != "f":
            told.append(np.logical_and.reduce([e == f, *(e == other[n] for other in near)]))
            continue
        with np.errstate(all="ignore"):
            finite = e[np.isfinite(e)]
            scale = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
            allowed = limit * (np.abs(e) + scale)
            told.append(np.isfinite(e) & (move <= allowed) & (np.abs(f - e) <= allowed))
    return told


def _forced(
    module: Module, inputs: Sequence[Array], bindings: Mapping[str, int]
) -> list[Array] | None:
    """The float64 outputs with the storage run's decisions; None where nothing is decided."""
    deciding = decisions(module)
    if not deciding:
        return None
    values = evaluate_all(module, inputs, bindings, "storage", set(deciding))
    return evaluate(module, inputs, bindings, "float64", {node: values[node] for node in deciding})


def _sensitivity(
    module: Module, inputs: Sequence[Array], bindings: Mapping[str, int], exact: Sequence[Array]
) -> list[Array]:
    """How far each element moves when every float input moves by one unit in the last place: up,
    down, or each by chance. No decision turns: what one moves is counted, not allowed."""
    deciding = decisions(module)
    taken = evaluate_all(module, inputs, bindings, "float64", set(deciding)) if deciding else {}
    widest = [np.zeros(array.shape) for array in exact]
    for moved in _close(module, inputs, 1):
        for number, array in enumerate(evaluate(module, moved, bindings, "float64", taken)):
            if array.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    change = np.abs(array - exact[number])
                widest[number] = np.fmax(widest[number], change)
    return widest


def _close(module: Module, inputs: Sequence[Array], drawn: int) -> Iterator[list[Array]]:
    """The inputs with every float one unit in the last place up, down, and `drawn` times either
    way by chance."""
    random = np.random.default_rng(1)
    for direction in (1.0, -1.0, *[None] * drawn):
        moved = []
        for parameter, array in zip(module.entry.parameters, inputs, strict=True):
            step = unit(parameter.shape.dtype)
            sign = random.choice([-1.0, 1.0], array.shape) if direction is None else direction
            wide = array.astype(np.float64) * (1.0 + sign * step) if step else array
            moved.append(np.asarray(wide).astype(array.dtype))
        yield moved


def _agrees(ours: Array, exact: Array, forced: Array, theirs: Array, tolerance: float) -> Array:
    """Elements that agree with the reference once decisions are forced. The framework's error is
    that from the reference it decided like."""
    if ours.dtype.kind in "iub":
        return np.asarray(ours == forced.astype(ours.dtype))
    wide, expected, framework = (x.astype(np.float64) for x in (ours, forced, theirs))
    finite = expected[np.isfinite(expected)]
    scale = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    with np.errstate(all="ignore"):
        error = np.fmin(np.abs(framework - expected), np.abs(framework - exact))
        allowed = tolerance * (np.abs(expected) + scale) + 2.0 * error
        return np.asarray((np.abs(wide - expected) <= allowed) | (wide == expected))
