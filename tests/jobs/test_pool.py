"""The plug-in's own pool: it serves outputs where TensorFlow's allocator gives freed memory back.

That is so with oneDNN off; every other test of a job runs with TensorFlow's keeping allocator, and
so without the pool.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiers
from tests.jobs import judge as judges
from tests.jobs.cases import python_of

STEPS = 12
RETURNING = {"TF_ENABLE_ONEDNN_OPTS": "0"}


@pytest.mark.slow
@pytest.mark.parametrize("version", tiers.nightly_but("2.21", of=["2.21", "2.15"]))
def test_the_pool_serves_a_real_job(version: str, tmp_path: Path) -> None:
    job = judges.Job("small_step", "adam", python_of(version))
    plain = judges.untouched(job, tmp_path / "plain", STEPS, (), RETURNING)
    # Before original steps the pool is emptied: without any, what it keeps is seen best.
    alone = {**RETURNING, "STITCH_CONTROL": "0"}
    record = judges.stitched(job, tmp_path / "out", STEPS, tmp_path, (), alone)
    assert judges.stitched_steps(record), record.lines
    (end,) = (e for e in judges.events_of(tmp_path / "store" / "sessions") if e["type"] == "end")
    counters, (steps,) = end["counters"], end["steps"]
    assert steps["stitched_steps"] == STEPS
    # Every buffer comes back, and each step is served from those of the one before. Some are
    # fresh: what the pool keeps, of all sizes together, is what was once in use at one moment.
    assert counters["used_bytes"] == 0 < counters["fresh"]
    assert counters["reused"] >= STEPS
    assert judges.losses_apart(record.losses, plain.losses) <= judges.FIRST_TOLERANCE
