"""The judge accepts what float64 allows and nothing else."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from stitchcore.verify.accuracy import allowance, judge

RANDOM = np.random.default_rng(0)
REFERENCE = RANDOM.standard_normal(1000)
OURS = REFERENCE.astype(np.float32)


def test_rounding_passes_and_a_wrong_element_fails() -> None:
    assert judge(OURS, REFERENCE, tolerance=1e-7).passed
    wrong = OURS.copy()
    wrong[7] += 1e-3
    verdict = judge(wrong, REFERENCE, tolerance=1e-7)
    assert not verdict.passed
    assert verdict.failures == 1
    assert "(7,)" in str(verdict)


def test_twice_the_frameworks_error_is_the_allowance() -> None:
    theirs = (REFERENCE + 1e-4).astype(np.float32)
    assert judge((REFERENCE - 1.9e-4).astype(np.float32), REFERENCE, theirs, 1e-7).passed
    assert not judge((REFERENCE - 2.2e-4).astype(np.float32), REFERENCE, theirs, 1e-7).passed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_must_agree(value: float) -> None:
    reference = REFERENCE.copy()
    reference[3] = value
    good = reference.astype(np.float32)
    assert judge(good, reference, tolerance=1e-7).passed
    assert not judge(OURS, reference, tolerance=1e-7).passed
    extra = OURS.copy()
    extra[4] = value
    assert not judge(extra, REFERENCE, tolerance=1e-7).passed


def test_what_overflows_the_storage_type_is_infinite_there() -> None:
    reference = np.array([1e5, 1.0, 2.0])
    assert judge(np.array([np.inf, 1, 2], np.float16), reference, tolerance=1e-3).passed


def test_bfloat16_is_a_float() -> None:
    verdict = judge(REFERENCE.astype(ml_dtypes.bfloat16), REFERENCE, tolerance=2**-8)
    assert verdict.passed
    assert not judge(REFERENCE.astype(ml_dtypes.bfloat16), REFERENCE, tolerance=1e-6).passed


def test_integers_are_exact() -> None:
    reference = np.arange(10)
    assert judge(reference.astype(np.int32), reference).passed
    assert not judge(reference.astype(np.int32) + 1, reference).passed


def test_decisions_are_counted_apart_and_bounded() -> None:
    decided = np.zeros(1000, np.bool_)
    decided[7] = True
    wrong = OURS.copy()
    wrong[7] += 1
    verdict = judge(wrong, REFERENCE, tolerance=1e-7, decided=decided)
    assert (verdict.failures, verdict.decisions) == (0, 1)
    assert not verdict.passed  # 1 of 1000 is more than the share that may differ


def test_constant_data_shows_nothing() -> None:
    assert not judge(np.ones(10, np.float32), np.ones(10)).informative
    assert not judge(np.full(10, np.nan, np.float32), np.full(10, np.nan)).informative
    assert judge(OURS, REFERENCE, tolerance=1e-7).informative


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        judge(OURS, REFERENCE[:5])


def test_the_ordinary_error_is_the_least_that_is_allowed() -> None:
    """An element that the framework rounded exactly leaves room for what is ordinary elsewhere, not
    for its worst error: what is rare has to be explained (a decision, a sensitivity)."""
    reference = np.random.default_rng(1).standard_normal(200_000)
    theirs = reference.astype(np.float32)
    theirs[:1000] += 1e-4
    theirs[:150] += 1e-3  # fewer than what is ordinary
    for error, passed in ((1.9e-4, True), (2.3e-4, False), (1.5e-3, False)):
        ours = reference.astype(np.float32)
        ours[2000] += error
        verdict = judge(ours, reference, theirs, tolerance=1e-7)
        assert verdict.passed is passed, str(verdict)
        assert verdict.decisions == 0


def test_two_equally_good_computations_agree() -> None:
    """Why the ordinary error counts: with the same errors in distribution, 30 % of the elements of
    one have more than twice the other's, and none is wrong."""
    random = np.random.default_rng(2)
    reference = random.standard_normal(100_000)
    ours, theirs = (reference + 1e-6 * random.standard_normal(100_000) for _ in range(2))
    beyond = np.abs(ours - reference) > 2 * np.abs(theirs - reference)
    assert 0.28 < np.mean(beyond) < 0.31
    assert judge(ours, reference, theirs).passed
    assert not judge(reference + 8e-6, reference, theirs).passed


def test_the_ordinary_error_of_a_noisy_row_is_its_own() -> None:
    """Few rows with three times the others' error: another computation with the same errors is as
    good; the noise of those rows excuses nothing in the others."""
    random = np.random.default_rng(4)
    reference = random.standard_normal((4000, 64))
    deviation = np.where(np.arange(4000) < 3, 5e-6, 1e-6)[:, None]
    ours, theirs = (reference + deviation * random.standard_normal((4000, 64)) for _ in range(2))
    ours[0, 0] = reference[0, 0] + 4.5 * deviation[0, 0]
    theirs[0, 0] = reference[0, 0]
    assert judge(ours, reference, theirs).passed
    for row, passed in ((0, True), (2000, False)):
        wrong = ours.copy()
        wrong[row, 7] = reference[row, 7] + 4 * 5e-6
        assert judge(wrong, reference, theirs).passed is passed
    assert not judge(
        ours + np.where(deviation > 1e-6, 8 * deviation, 0.0), reference, theirs
    ).passed


def test_sensitivity_is_allowed_on_top_where_it_is() -> None:
    sensitivity = np.zeros(1000)
    sensitivity[7] = 1e-3
    moved = OURS.copy()
    moved[7] += 9e-4
    assert judge(moved, REFERENCE, tolerance=1e-7, sensitivity=sensitivity).passed
    moved[8] += 9e-4
    assert judge(moved, REFERENCE, tolerance=1e-7, sensitivity=sensitivity).failures == 1


def test_the_allowance_is_what_the_judge_allows() -> None:
    theirs = REFERENCE + 1e-6 * np.random.default_rng(3).standard_normal(1000)
    limit = allowance(REFERENCE, theirs, 1e-7)
    assert judge(REFERENCE + 0.999 * limit, REFERENCE, theirs, 1e-7).passed
    assert judge(REFERENCE - 1.001 * limit, REFERENCE, theirs, 1e-7).failures == 1000
