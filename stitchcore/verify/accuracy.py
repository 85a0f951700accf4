"""Judging an output against float64 rather than against the framework (docs/decisions.md 22-24).

The reference is the same computation in float64 with HLO's storage rounding, ranges and bit
widths. Ours passes where `err(ours) <= 2 * err(theirs) + tolerance`, element by element, `theirs`
being the framework's own result and its error at least what is ordinary in that array. What else
may be allowed is computed, never a constant: how far the exact result moves when what it is
computed from moves by its own allowance (`sensitivity`). Elements on which a decision (compare,
floor, cast) fell the other way are counted apart and may be at most DECISION_SHARE of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stitchcore.hlo.ir.shape import DTYPES

_FLOATS = frozenset(dtype.numpy for dtype in DTYPES.values() if dtype.kind == "float")

DECISION_SHARE = 1e-5
"""Largest share of elements that may be counted apart."""

ORDINARY_QUANTILE = 0.999
"""The framework's error on an element counts as at least its error at this quantile of the array.

Rounding errors are random: of two computations equally good in every element, one has more than
twice the other's error in 30 % of them (the ratio of two centred Gaussians), so that element by
element alone would refuse TensorFlow itself on another number of threads. For Gaussian errors this
quantile is 3.3 standard deviations; a correct element lies beyond twice that once in 2e10.
"""

ORDINARY_DEVIATIONS = 3.29
"""The same quantile in standard deviations, for a row (along the last axis) by itself: the rows of
an embedding's gradient add different numbers of terms, and the noisiest are not 0.1 % of all."""

ROW = 32
"""Elements that a row must have for its root mean square to tell its deviation (to 13 %)."""

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
        error = np.where(special, 0.0, np.abs(got - expected))
        theirs_error = _error(expected, special, theirs)
        allowed = _allowance(expected, special, theirs_error, tolerance)
        if sensitivity is not None:
            allowed = allowed + np.where(np.isfinite(sensitivity), sensitivity, 0.0)
        same_special = np.where(np.isnan(wide), np.isnan(got), got == wide)
        bad = np.where(special, ~same_special, ~(error <= allowed))
        magnitude = float(np.max(np.abs(expected[~special]), initial=0.0))
    worst_theirs = float(np.max(theirs_error, initial=0.0))
    return _verdict(bad, error, worst_theirs, magnitude, decided, informative(wide))


def allowance(
    reference: NDArray[np.float64], theirs: NDArray[np.generic], tolerance: float = 0.0
) -> NDArray[np.float64]:
    """The error that `judge` allows each element, of a reference whose values are all in range."""
    special = ~np.isfinite(reference)
    with np.errstate(all="ignore"):
        return _allowance(reference, special, _error(reference, special, theirs), tolerance)


def _error(
    expected: NDArray[np.float64], special: NDArray[np.bool_], theirs: NDArray[np.generic] | None
) -> NDArray[np.float64]:
    """The framework's error, 0 where it or the reference is not finite or where it is not given."""
    if theirs is None:
        return np.zeros(expected.shape)
    error = np.abs(theirs.astype(np.float64) - expected)
    return np.where(special | ~np.isfinite(error), 0.0, error)


def _allowance(
    expected: NDArray[np.float64],
    special: NDArray[np.bool_],
    theirs_error: NDArray[np.float64],
    tolerance: float,
) -> NDArray[np.float64]:
    finite = expected[~special]
    scale = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    least = np.maximum(theirs_error, _ordinary(theirs_error))
    return tolerance * (np.abs(expected) + scale) + 2.0 * least


def _ordinary(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The framework's ordinary error: of the whole array, or of the element's row if larger."""
    if not errors.size:
        return errors
    whole = np.asarray(np.quantile(errors, ORDINARY_QUANTILE))
    if errors.ndim < 2 or errors.shape[-1] < ROW:
        return whole
    rows = np.sqrt(np.mean(np.square(errors), axis=-1, keepdims=True))
    return np.asarray(np.maximum(whole, ORDINARY_DEVIATIONS * rows))


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
    shows_errors: bool,
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
    return Judgement(
        passed, shows_errors, bad.size, failures, decisions, worst, worst_theirs, scale, where
    )


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
    return array.dtype in _FLOATS


def _round_to(values: NDArray[np.float64], dtype: np.dtype[np.generic]) -> NDArray[np.float64]:
    """Ranges of the storage type: what overflows there is infinite there."""
    return np.asarray(values.astype(dtype).astype(np.float64))
