"""Whatever fails of ours, the job goes on: a slice of the table in docs/faults.md, which
`python -m bench.faults` makes whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiers
from tests.jobs import faults
from tests.jobs.faults import LATE, Prepared

pytestmark = pytest.mark.slow

SLICE = (
    ("native:construct", 1), ("native:guard", 1), ("native:launch", 1), ("native:launch", LATE),
    ("native:pool", LATE), ("native:throw", LATE), ("graph:dtype", 1), ("graph:input", 1),
    ("hook:choose", LATE), ("hook:_refuse", 1), ("events:write", 1), ("store:gone", LATE),
)  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return faults.prepare("fault_function", tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize(
    ("fault", "occasion"),
    tiers.nightly_but(
        *(("native:construct", 1), ("native:guard", 1), ("native:launch", LATE)),
        *(("native:throw", LATE), ("graph:dtype", 1), ("hook:choose", LATE), ("store:gone", LATE)),
        of=SLICE,
    ),
)
def test_a_fault_is_survived(fault: str, occasion: int, prepared: Prepared, tmp_path: Path) -> None:
    outcome = faults.run(prepared, fault, occasion, tmp_path)
    assert outcome.survived(prepared), outcome.errors[-3000:]
    expected = next(one.told for one in faults.ALL if one.name == fault)
    if expected:
        assert outcome.reason in expected
        assert sum("the job runs its own step" in line for line in outcome.said) == 1
    assert "Traceback" not in outcome.errors
    # a size that did not fit once is told, and the step stays stitched
    assert (fault == "native:guard") == any("guard_failed" in line for line in outcome.said)


def test_without_a_function_the_same_fault_ends_the_job(prepared: Prepared, tmp_path: Path) -> None:
    """The mutant: it is the function that does the kernel's work, not that nothing happens."""
    outcome = faults.run(prepared, "native:launch+graph:alone", 1, tmp_path)
    assert outcome.code == 1 and "a fault on purpose" in outcome.errors


def test_a_killed_worker(prepared: Prepared, tmp_path: Path) -> None:
    outcome = faults.killed_worker(prepared, tmp_path)
    assert outcome.survived(prepared), outcome.errors[-3000:]
    assert outcome.reason == "worker_failed" or outcome.status != "stitched"
