"""A step that looks up what its tables do not have, or sums what belongs to no group, fails as the
untouched one does: the same words, and no variable changed. Both versions of TensorFlow, whose
own message is the expectation.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import lean, tiers
from tests.jobs import judge as judges
from tests.jobs.cases import python_of
from tests.waiting import RUN_SECONDS

SCRIPT = judges.SCRIPTS / "wrong_index.py"
ERROR = re.compile(r"^(?:indices|segment_ids).*$", re.MULTILINE)

pytestmark = pytest.mark.slow


def run(python: str, before: list[str], **extra: str) -> list[Any]:
    done = subprocess.run(
        [*before, python, str(SCRIPT)],
        env=lean.environment(**extra), capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module", params=tiers.nightly_but("2.21", of=["2.21", "2.15"]))
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the untouched run says, what the stitched one says, and its summary."""
    pytest.importorskip("tensorflow", reason="no TensorFlow: pip install tensorflow-cpu")
    python = python_of(request.param)
    folder: Path = tmp_path_factory.mktemp("lookups")
    [plain] = run(python, [])
    command = [python, "-m", "stitchcore.cli", "run", "--wait", "--json", "--store"]
    settings = {"STITCH_CONTROL": "0", "PYTHONPATH": str(judges.ROOT)}
    settings |= {"STITCH_CACHE": str(folder / "cache"), "STITCH_KEY": str(folder / "key")}
    told, summary = run(python, [*command, str(folder / "store"), "--"], **settings)
    return plain, told, summary, folder / "store"


def test_lookups_are_stitched(runs: Any) -> None:
    _, told, summary, _ = runs
    [step] = [step for step in summary["steps"] if step["status"] == "stitched"]
    assert step["kernels_after"] <= 10 < step["kernels_before"]
    assert "data_dependent_error" not in step["refusals"]
    assert not any("stitch/" in message for _, message in told["errors"])


def test_errors_are_tensorflows_word_for_word(runs: Any) -> None:
    plain, told, _, _ = runs
    ours, theirs = ([(kind, ERROR.findall(text)) for kind, text in side["errors"]]
                    for side in (told, plain))  # fmt: skip
    assert ours == theirs
    assert [message for _, [message] in theirs] == [
        "indices[100,3] = -4 is not in [0, 3000)",
        "indices[0,0] = 3000 is not in [0, 3000)",
        "indices[17] = 706 is not in [0, 700)",
        "segment_ids[31] = 40 is out of range [0, 40)",
        "indices[255,7] = 6000 is not in [0, 3000)",
    ]


def test_no_variable_moves_and_training_goes_on(runs: Any) -> None:
    plain, told, _, _ = runs
    assert told["moved"] == plain["moved"] == [[0.0] * 4] * 5
    assert len(told["losses"]) == 9
    np.testing.assert_allclose(told["losses"], plain["losses"], rtol=1e-5)


def test_the_datas_fault_does_not_disable_stitching(runs: Any) -> None:
    assert not list((runs[3] / "breaker").glob("*"))
