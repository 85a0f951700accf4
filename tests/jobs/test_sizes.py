"""Unknown sizes that agree for a while and then do not: the stitched job runs on like the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import judge as judges

STEPS = 20  # the sizes part after 12


@pytest.mark.slow
def test_sizes_that_part_do_not_end_the_job(tmp_path: Path) -> None:
    job = judges.Job("two_sizes")
    plain = judges.untouched(job, tmp_path / "plain", STEPS, forked=True)
    record = judges.stitched(job, tmp_path / "stitched", STEPS, tmp_path)
    (step,) = judges.stitched_steps(record)
    assert step["kernels_after"] > 2 and record.lines == ()
    assert judges.losses_apart(record.losses, plain.losses) <= judges.FIRST_TOLERANCE
