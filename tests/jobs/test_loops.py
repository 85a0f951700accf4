"""Programs with loops in their steps end as without us, with a step stitched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiers
from tests.jobs import both
from tests.jobs import judge as judges

pytestmark = pytest.mark.slow

SCRIPT = judges.SCRIPTS / "loops.py"
PROGRAMS = ("scan_and_map", "nested", "session", "lookups")  # more are in test_programs.py
OLDER = ("steps_per_execution", "masked_lstm", "two_optimizers", "session")


@pytest.mark.parametrize("name", tiers.nightly_but("nested", of=PROGRAMS))
def test_loops_are_stitched(name: str, tmp_path: Path) -> None:
    both.same_end(SCRIPT, name, folder=tmp_path, STITCH_CONTROL="0")


@pytest.mark.parametrize("name", tiers.nightly_but("session", of=OLDER))
def test_loops_of_an_older_version_are_stitched(name: str, tmp_path: Path) -> None:
    both.same_end(SCRIPT, name, version="2.15", folder=tmp_path, STITCH_CONTROL="0")
