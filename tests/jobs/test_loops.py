"""Programs with loops in their steps end as without us, with a step stitched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import both

pytestmark = pytest.mark.slow

PROGRAMS = (
    "two_optimizers", "steps_per_execution", "masked_lstm", "scan_and_map", "decoding", "nested",
    "session", "lookups",
)  # fmt: skip
OLDER = ("steps_per_execution", "masked_lstm", "two_optimizers", "session")


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_are_stitched(name: str, tmp_path: Path) -> None:
    both.same_end("loops.py", name, folder=tmp_path)


@pytest.mark.parametrize("name", OLDER)
def test_loops_of_an_older_version_are_stitched(name: str, tmp_path: Path) -> None:
    both.same_end("loops.py", name, version="2.15", folder=tmp_path)


def test_a_training_step_in_a_loop(tmp_path: Path) -> None:
    both.same_end("loop_frames.py", folder=tmp_path)


def test_constants_that_lead_from_region_to_region_and_back(tmp_path: Path) -> None:
    """Its weights differ from run to run; its random numbers do not."""
    both.same_end("clone_cycle.py", folder=tmp_path, columns=slice(-1, None))
