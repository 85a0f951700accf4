"""A Keras step under XLA (`jit_compile=True`): stitched, and given back to XLA where it is slower.

The artifact is a real one whose kernels wait. The script takes its first steps back, whole epochs
of them, until the roll-back is on record: what it records begins after it, from the same state,
and bits tell whose step runs. No bar here is one of seconds: how soon the verdict comes depends on
the machine's load.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcore.inject import timer
from tests.jobs import judge as judges
from tests.jobs.cases import python_of
from tests.jobs.slowed import slow_down

STEPS = 4  # an epoch of the script
MOST = 400  # steps taken back: the verdict on an undecided step takes 60 pairs, 320 steps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job() -> judges.Job:
    return judges.Job("fit_jit")


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
    plain = judges.untouched(job, tmp_path / "plain", STEPS, ("--skip", str(STEPS)))
    again = judges.untouched(job, tmp_path / "again", STEPS, ("--skip", str(5 * STEPS)))
    assert plain.losses == again.losses, "XLA's step repeats, however many were taken back"
    (artifact,) = (store / "store" / "artifacts").iterdir()
    slow_down(artifact, store / "signing.key", 0.01)
    sessions, told = store / "store" / "sessions", tmp_path / "told"
    with judges.told(sessions, "rolled_back", told):
        options = ("--skip", str(MOST), "--until", str(told))
        record = judges.stitched(job, tmp_path / "slow", STEPS, store, options)
    (step,) = (one for one in record.summary["steps"] if one["status"] != "left")
    assert (step["status"], step["reason"]) == ("rolled_back", "slower")
    (back,) = (event for event in judges.events_of(sessions) if event["type"] == "rolled_back")
    assert back["pairs"] >= timer.HOPELESS_PAIRS and back["ratio"] > timer.SLOWER
    assert len(record.lines) == 1 and "slower" in record.lines[0]
    assert record.losses == plain.losses


def test_an_older_tensorflow_keeps_its_step_under_xla(tmp_path: Path) -> None:
    """It would hold more memory outside (stitchcore/inject/xla.py): nothing is even handed in."""
    job = judges.Job("fit_jit", "adam", python_of("2.15"))
    plain = judges.untouched(job, tmp_path / "plain", STEPS)
    record = judges.stitched(job, tmp_path / "out", STEPS, tmp_path)
    assert record.losses == plain.losses
    assert len(record.lines) == 1 and "memory" in record.lines[0]
    events = judges.events_of(tmp_path / "store" / "sessions")
    assert "memory" in [event.get("reason") for event in events]
    assert not list((tmp_path / "store").glob("requests/*"))
    assert not judges.stitched_steps(record)
