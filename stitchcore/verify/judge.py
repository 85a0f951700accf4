"""Judging an output against float64 rather than against the framework (rulings.md 22-24).

The reference is the same computation in float64 with HLO's storage rounding, ranges and bit
widths. Ours passes where `err(ours) <= 2 * err(theirs) + tolerance`, element by element, `theirs`
being the framework's own result (and its error at least what is ordinary in that array). Elements
on which a decision (compare, floor, cast) fell the other way, and those within twice the
framework's worst error though not within their own bound, are counted apart and may be at most
DECISION_SHARE of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DECISION_SHARE = 1e-5
"""Largest share of elements that may be counted apart."""

ORDINARY_QUANTILE = 0.999
"""The framework's error on an element counts as at least its error at this quantile of the array:
rounding errors are random, and an element that it happened to hit exactly proves nothing."""

INFORMATIVE_SHARE = 0.99
"""A check counts only where at least this share of the reference is finite, and not constant."""


@dataclass(frozen=True)
class Judgement:
    """One array judged. Errors are absolute, `scale` the reference's largest finite magnitude.

    `informative` is false when the data could not have shown an error (constant or not finite).
    """

    passed: bool
    informative: bool
    elements: int
    failures: int
    decisions: int
    worst_ours: float
    worst_theirs: float
    scale: float
    detail: str

    def __str__(self) -> str:
        verdict = "ok" if self.passed else "WRONG"
        return (
            f"{verdict}: {self.failures} of {self.elements} elements beyond the bound, error "
            f"{self.worst_ours:.3g} (theirs {self.worst_theirs:.3g}) at scale {self.scale:.3g}"
            + (f"; {self.detail}" if self.detail else "")
        )


def judge(
    ours: NDArray[np.generic],
    reference: NDArray[np.generic],
    theirs: NDArray[np.generic] | None = None,
    tolerance: float = 0.0,
    decided: NDArray[np.bool_] | None = None,
    sensitivity: NDArray[np.float64] | None = None,
) -> Judgement:
    """Judge `ours` (storage dtype) against `reference` (float64, or integer/pred: then equal).

    `theirs`, when given, is the framework's result and doubles as the allowance. `tolerance` is
    relative to the element's magnitude plus the array's root mean square, so that cancellation in
    one element is judged by the data it came from. `decided` marks elements that a forced-decision
    rerun showed to differ by a decision alone. `sensitivity` is how far the exact result moves when
    the inputs move by the rounding a correct computation may add: allowed on top. All arrays have
    one shape; ValueError otherwise. Where nothing is expected (a library's workspace, empty for us)
    what the framework left there is not read.
    """
    theirs = theirs if reference.size else None
    if ours.shape != reference.shape or (theirs is not None and theirs.shape != ours.shape):
        raise ValueError(f"shapes differ: {ours.shape}, {reference.shape}")
    if not _is_float(ours):
        return _judge_exact(ours, reference, decided)
    with np.errstate(all="ignore"):
        expected = reference.astype(np.float64)
        got = ours.astype(np.float64)
        wide = _round_to(expected, ours.dtype)
        special = ~np.isfinite(wide)
        finite = expected[~special]
        scale = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
        error = np.where(special, 0.0, np.abs(got - expected))
        allowed = tolerance * (np.abs(expected) + scale)
        if sensitivity is not None:
            allowed = allowed + np.where(np.isfinite(sensitivity), sensitivity, 0.0)
        worst_theirs = 0.0
        tail = np.zeros(error.shape, np.bool_)
        if theirs is not None:
            framework = theirs.astype(np.float64)
            theirs_error = np.where(special, 0.0, np.abs(framework - expected))
            usable = np.isfinite(theirs_error)
            ordinary = _ordinary_error(theirs_error[usable])
            allowed = allowed + 2.0 * np.where(usable, np.maximum(theirs_error, ordinary), 0.0)
            worst_theirs = float(np.max(theirs_error, initial=0.0, where=usable))
            tail = ~special & (error <= 2.0 * worst_theirs)
        same_special = np.where(np.isnan(wide), np.isnan(got), got == wide)
        bad = np.where(special, ~same_special, ~(error <= allowed))
        magnitude = float(np.max(np.abs(finite), initial=0.0))
    apart = tail if decided is None else tail | decided
    return _verdict(bad, error, worst_theirs, magnitude, apart, informative(wide))


def _ordinary_error(errors: NDArray[np.float64]) -> float:
    """The framework's error at ORDINARY_QUANTILE: where it was lucky we need not be."""
    return float(np.quantile(errors, ORDINARY_QUANTILE)) if errors.size else 0.0


def _judge_exact(
    ours: NDArray[np.generic],
    reference: NDArray[np.generic],
    decided: NDArray[np.bool_] | None,
) -> Judgement:
    bad = np.asarray(ours != reference.astype(ours.dtype))
    return _verdict(bad, bad.astype(np.float64), 0.0, 1.0, decided, informative(reference))


def _verdict(
    bad: NDArray[np.bool_],
    error: NDArray[np.float64],
    worst_theirs: float,
    scale: float,
    decided: NDArray[np.bool_] | None,
    told: bool,
) -> Judgement:
    by_decision = bad & decided if decided is not None else np.zeros_like(bad)
    failures = int(np.count_nonzero(bad & ~by_decision))
    decisions = int(np.count_nonzero(by_decision))
    passed = failures == 0 and decisions <= DECISION_SHARE * max(bad.size, 1)
    worst = float(np.nanmax(error, initial=0.0)) if error.size else 0.0
    where = ""
    if failures:
        position = tuple(int(i) for i in np.argwhere(bad & ~by_decision)[0])
        where = f"first at {position}"
    return Judgement(passed, told, bad.size, failures, decisions, worst, worst_theirs, scale, where)


def informative(values: NDArray[np.generic]) -> bool:
    """Whether `values` could show an error: nearly all finite, and not constant."""
    if values.size == 0:
        return True
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    if np.count_nonzero(finite) < INFORMATIVE_SHARE * values.size:
        return False
    return values.size == 1 or bool(np.ptp(wide[finite]) > 0)


def _is_float(array: NDArray[np.generic]) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _round_to(values: NDArray[np.float64], dtype: np.dtype[np.generic]) -> NDArray[np.float64]:
    """Ranges of the storage type: what overflows there is infinite there."""
    return np.asarray(values.astype(dtype).astype(np.float64))
