"""In whose thread a job's stitched step runs, and that `stitch run` tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiers
from tests.jobs import both
from tests.jobs import judge as judges

PROGRAMS = Path(__file__).resolve().parent / "programs"
WAYS = (("function", "2.21"), ("session", "2.21"), ("session", "2.15"), ("signature", "2.15"))

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "version"), tiers.nightly_but(("function", "2.21"), ("session", "2.15"), of=WAYS)
)
def test_a_step_runs_where_it_was_quicker(how: str, version: str, tmp_path: Path) -> None:
    script = judges.SCRIPTS / "inference.py"
    summary = both.same_end(script, how, "200", version=version, folder=tmp_path)
    [step] = summary["steps"]
    told = step["executor"]
    assert told["caller_thread"] == (told["caller_ns"] < told["pool_ns"]) and not told["detail"]


def test_one_that_asks_python_runs_in_tensorflows(tmp_path: Path) -> None:
    """Python sees that it is not in the caller's thread, as without us."""
    summary = both.same_end(PROGRAMS / "asks_python.py", folder=tmp_path)
    [step] = summary["steps"]
    assert not step["executor"]["caller_thread"] and "PyFunc" in step["executor"]["detail"]
