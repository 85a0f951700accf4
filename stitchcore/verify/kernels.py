"""Each kernel against the instructions it replaces, on captured or drawn inputs.

The reference is the pattern evaluated in float64 by numpy; the allowance is twice the error of the
same evaluation in storage precision plus the composed tolerance (judge.py, tolerance.py). Where a
comparison or rounding inside the pattern falls the other way in float64, the reference is computed
again with the storage run's decisions forced, and the elements that only then agree are counted.
Where the exact result itself moves far when the inputs move by their rounding (a division by what
is nearly zero), that movement is allowed too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stitchcore.hlo.evaluate import decisions, evaluate, evaluate_all
from stitchcore.hlo.instruction import Instruction
from stitchcore.hlo.module import Module
from stitchcore.plan.canonical import pattern_module
from stitchcore.plan.pattern import Pattern
from stitchcore.verify.capture import FAMILIES, arguments
from stitchcore.verify.judge import Judgement, judge
from stitchcore.verify.tolerance import tolerances, unit

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True)
class KernelCheck:
    """One judgement per output, and the kind of data: "captured" or a family of capture.py."""

    judgements: tuple[Judgement, ...]
    data: str

    @property
    def passed(self) -> bool:
        return all(judgement.passed for judgement in self.judgements)

    @property
    def informative(self) -> bool:
        """Whether every output could have shown an error."""
        return all(judgement.informative for judgement in self.judgements)

    def __str__(self) -> str:
        return f"on {self.data} data: " + "; ".join(map(str, self.judgements))


def check_kernel(
    pattern: Pattern,
    module: Module,
    run: Run,
    bindings: Mapping[str, int],
    captured: Sequence[Array] | None = None,
    seed: int = 0,
) -> KernelCheck:
    """Judge `run` (the kernel: storage arrays in, storage arrays out) as `pattern` of `module`.

    Without `captured` inputs, families of drawn data are tried until one is informative; each that
    is tried must pass. The check returned is the first that fails, else the most telling one.
    """
    alone = pattern_module(pattern, module)
    if captured is not None:
        return _judged(pattern, alone, run, bindings, captured, "captured")
    best: KernelCheck | None = None
    for family in FAMILIES:
        given = arguments(pattern.inputs, bindings, seed, family)
        check = _judged(pattern, alone, run, bindings, given, family)
        if not check.passed or check.informative:
            return check
        if best is None or _told(check) > _told(best):
            best = check
    assert best is not None
    return best


def _told(check: KernelCheck) -> int:
    return sum(judgement.informative for judgement in check.judgements)


def _judged(
    pattern: Pattern,
    alone: Module,
    run: Run,
    bindings: Mapping[str, int],
    given: Sequence[Array],
    data: str,
) -> KernelCheck:
    ours = run(given)
    theirs = evaluate(alone, given, bindings)
    reference = evaluate(alone, given, bindings, "float64")
    tolerance = tolerances(pattern)
    names = list(pattern.outputs)
    found = [
        judge(o, r, t, tolerance[name])
        for o, r, t, name in zip(ours, reference, theirs, names, strict=True)
    ]
    if not all(judgement.passed for judgement in found):
        forced = _forced_reference(alone, given, bindings) or reference
        moved = _sensitivity(alone, given, bindings, reference)
        found = [
            judge(o, r, t, tolerance[n], _beyond(o, f, t, tolerance[n]), m * _units(n, tolerance))
            for o, r, f, t, n, m in zip(ours, reference, forced, theirs, names, moved, strict=True)
        ]
    return KernelCheck(tuple(found), data)


def _units(output: Instruction, tolerance: Mapping[Instruction, float]) -> float:
    """The composed tolerance in units in the last place of the output's type, at least one."""
    return max(1.0, tolerance[output] / (unit(output.shape.dtype) or 1.0))


def _sensitivity(
    alone: Module, given: Sequence[Array], bindings: Mapping[str, int], reference: Sequence[Array]
) -> list[Array]:
    """How far each reference element moves when every float input moves by one unit in the last
    place, up, down, or by chance: where that is far, rounding anywhere decides the result."""
    random = np.random.default_rng(1)
    widest = [np.zeros(array.shape) for array in reference]
    for direction in (1.0, -1.0, None):
        moved = []
        for parameter, array in zip(alone.entry.parameters, given, strict=True):
            step = unit(parameter.shape.dtype)
            sign = random.choice([-1.0, 1.0], array.shape) if direction is None else direction
            wide = array.astype(np.float64) * (1.0 + sign * step) if step else array
            moved.append(np.asarray(wide).astype(array.dtype))
        for number, array in enumerate(evaluate(alone, moved, bindings, "float64")):
            if array.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    change = np.abs(array - reference[number])
                widest[number] = np.fmax(widest[number], change)
    return widest


def _forced_reference(
    alone: Module, given: Sequence[Array], bindings: Mapping[str, int]
) -> list[Array] | None:
    """The float64 outputs with the storage run's decisions; None where nothing is decided."""
    deciding = decisions(alone)
    if not deciding:
        return None
    values = evaluate_all(alone, given, bindings, "storage", set(deciding))
    return evaluate(alone, given, bindings, "float64", {node: values[node] for node in deciding})


def _beyond(ours: Array, forced: Array, theirs: Array, tolerance: float) -> Array:
    """Elements that agree with the reference once decisions are forced."""
    if ours.dtype.kind in "iub":
        return np.asarray(ours == forced.astype(ours.dtype))
    wide, expected = ours.astype(np.float64), forced.astype(np.float64)
    finite = expected[np.isfinite(expected)]
    scale = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    allowed = tolerance * (np.abs(expected) + scale)
    allowed = allowed + 2.0 * np.abs(theirs.astype(np.float64) - expected)
    with np.errstate(all="ignore"):
        return np.asarray((np.abs(wide - expected) <= allowed) | (wide == expected))
