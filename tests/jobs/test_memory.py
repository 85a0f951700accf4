"""A job one of whose regions would hold too much: it is cut, and the job's memory does not grow.

Without cuts the same region is refused as `memory`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="no TensorFlow: pip install tensorflow-cpu")

from stitchcore.compiler.pipeline import run
from stitchcore.device.host import host_device
from stitchcore.errors import Reason
from stitchcore.optimize import pipeline
from stitchcore.optimize.request import read_request
from stitchcore.options import Options
from tests import lean
from tests.jobs import judge as judges
from tests.waiting import RUN_SECONDS

SCRIPT = judges.SCRIPTS / "tables.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """The store, the stitched run's summary, and what both runs print."""
    folder = tmp_path_factory.mktemp("memory")
    settings = {"STITCH_CONTROL": "0.5", "STITCH_GUARD": "1.2", "PYTHONPATH": str(judges.ROOT)}
    settings |= {"STITCH_CACHE": str(folder / "cache"), "STITCH_KEY": str(folder / "key")}
    stitch = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json", "--store"]
    printed = []
    for before in ([], [*stitch, str(folder / "store"), "--"]):
        done = subprocess.run(
            [*before, sys.executable, str(SCRIPT)],
            env=lean.environment(**settings), capture_output=True, text=True, timeout=RUN_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed += done.stdout.splitlines()
    return folder / "store", json.loads(printed.pop()), printed


def test_the_region_is_cut_and_the_process_holds_no_more(made: Any) -> None:
    store, summary, (plain, stitched) = made
    [step] = summary["steps"]
    assert plain == stitched
    assert step["status"] == "stitched"
    assert "memory" not in step["refusals"]
    assert step["bytes_saved"] > 0.75 * step["bytes_saveable"]
    assert 0 < step["memory"]["ratio"] <= 1.05
    [report] = store.glob("artifacts/*/report.json")
    figure = json.loads(report.read_text())["figures"]["Cut to hold less memory"]
    parts = int(re.match(r"(\S+) in (\d+) \(", figure)[2])  # type: ignore[index]
    names = [region["name"] for region in json.loads(report.read_text())["regions"]]
    assert sum(name.endswith(f"of{parts}") for name in names) == parts >= 2


def test_without_cuts_it_is_refused(made: Any) -> None:
    store, _, _ = made
    [request] = [path.parent for path in store.glob("requests/*/graph.pb")]
    options = Options(store, store.parent / "cache", store.parent / "key", jobs=2)
    start = pipeline.RequestState(
        read_request(request), host_device(), options, lambda *_: None
    )  # fmt: skip
    wanted = ("partition", "lower", "build", "limit")
    stages = [stage for stage in pipeline.STAGES if stage.name in wanted]
    state = run(stages, start, start.dump)
    assert [r.reason for r in state.refusals if r.reason is Reason.MEMORY] == [Reason.MEMORY]
