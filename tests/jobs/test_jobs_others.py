"""Real jobs with SGD, and under TensorFlow 2.15: by night."""

from __future__ import annotations

import pytest

from tests.jobs import cases
from tests.jobs.cases import OTHERS, Case, Make

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
runs = cases.runs_of_session
each = pytest.mark.parametrize("case", OTHERS, ids="-".join)


@each
def test_kernels_are_swapped_in(case: Case, runs: Make) -> None:
    cases.swapped(runs(case))


@each
def test_state_after_one_step(case: Case, runs: Make) -> None:
    cases.same_state(runs(case))


@each
def test_losses_of_first_steps(case: Case, runs: Make) -> None:
    cases.same_first_losses(runs(case))


@each
def test_share_of_bytes_stitched(case: Case, runs: Make) -> None:
    cases.stitched_share(runs(case), case)
