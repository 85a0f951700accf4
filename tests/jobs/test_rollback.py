"""A Keras step under XLA (`jit_compile=True`): stitched, and given back to XLA where it is slower.

The artifact is a real one whose kernels wait. The script takes its first SKIPPED steps
back, so what it records begins after the roll-back, from the same state: bits tell whose step runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import judge as judges
from tests.jobs.slowed import slow_down
from tests.jobs.test_jobs import python_of

SKIPPED = ("--skip", "60")  # a first verdict on a hopeless step takes 30, and a look behind it
STEPS = 4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["2.21", "2.15"])
def job(request: pytest.FixtureRequest) -> judges.Job:
    return judges.Job("fit_jit", "adam", python_of(request.param))


@pytest.fixture(scope="module")
def made(job: judges.Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, judges.Record]:
    """A store with the artifact, and the run that asked for it and was stitched."""
    folder = tmp_path_factory.mktemp("made")
    return folder, judges.stitched(job, folder / "out", STEPS, folder)


def test_the_step_is_stitched(
    job: judges.Job, made: tuple[Path, judges.Record], tmp_path: Path
) -> None:
    _, record = made
    assert judges.stitched_steps(record), record.lines
    plain = judges.untouched(job, tmp_path, STEPS)
    assert judges.losses_apart(record.losses, plain.losses) <= judges.FIRST_TOLERANCE
    # Its rounding is another than XLA's: else the test below could not tell them apart.
    assert record.losses != plain.losses


def test_a_slower_step_goes_back_to_xla(
    job: judges.Job, made: tuple[Path, judges.Record], tmp_path: Path
) -> None:
    store, _ = made
    plain = judges.untouched(job, tmp_path / "plain", STEPS, SKIPPED)
    again = judges.untouched(job, tmp_path / "again", STEPS, SKIPPED)
    assert plain.losses == again.losses, "XLA's step repeats, else the bits below say nothing"
    (artifact,) = (store / "store" / "artifacts").iterdir()
    slow_down(artifact, store / "signing.key", 0.01)
    record = judges.stitched(job, tmp_path / "slow", STEPS, store, SKIPPED)
    (step,) = (one for one in record.summary["steps"] if one["status"] != "left")
    assert (step["status"], step["reason"]) == ("rolled_back", "slower")
    assert float(step["detail"].split()[0]) > 1.25  # of the original's time
    assert len(record.lines) == 1 and "slower" in record.lines[0]
    assert record.losses == plain.losses
