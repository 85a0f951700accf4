"""`stitch run` on a real training step: too short a run, then one that starts stitched."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stitchcore.cli.main import stitch
from stitchcore.cli.run_summary import NEXT_RUN
from stitchcore.inject.build import library_folder
from stitchcore.report import schema as reports
from tests import lean
from tests.waiting import RUN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("scripts") / "small_step.py"
STEPS = 40

pytestmark = pytest.mark.slow


def environment(folder: Path) -> dict[str, str]:
    home = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data")}
    return lean.environment(**home, PYTHONPATH=str(ROOT))


def job(folder: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, str(SCRIPT), str(STEPS)]
    return subprocess.run(
        command,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )


def stitched(folder: Path, *flags: str) -> tuple[list[float], Any, str]:
    """Losses, the summary and what went to standard error."""
    store = str(folder / "store")
    prefix = (sys.executable, "-m", "stitchcore.cli", "run", "--json", "--store", store, *flags)
    done = job(folder, *prefix, "--")
    assert done.returncode == 0, done.stderr
    *losses, summary = done.stdout.splitlines()
    return [float(loss) for loss in losses], json.loads(summary), done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The untouched run, one that ends before its artifact, and the next one."""
    pytest.importorskip("tensorflow", reason="no TensorFlow: pip install tensorflow-cpu")
    if not (library_folder() / "stitch_plugin.so").exists():
        pytest.skip("the plug-in is not built: python -m stitchcore.inject.build")
    folder = tmp_path_factory.mktemp("run")
    plain = job(folder)
    assert plain.returncode == 0, plain.stderr
    losses = [float(loss) for loss in plain.stdout.splitlines()]
    return folder, losses, stitched(folder, "--finish"), stitched(folder, "--no-wait")


def test_the_end_of_the_job_is_the_end_of_the_command(runs: Any, tmp_path: Path) -> None:
    """What is not ready then is not waited for: `--finish` asks for that."""
    losses, summary, errors = stitched(tmp_path)
    assert losses == runs[1]
    assert [step["status"] for step in summary["steps"]] == ["submitted"], errors
    compiled = (tmp_path / "store" / "artifacts").exists()  # before the process was gone
    assert summary["ready"] == compiled, "it was compiled after the end"


def test_a_run_that_is_too_short_is_untouched_and_says_so(runs: Any) -> None:
    _, plain, (losses, summary, _), _ = runs
    assert losses == plain, "a job without an artifact must be bit-identical"
    assert summary["ready"] == 1
    assert NEXT_RUN == "ready: the next run starts stitched"


def test_the_next_run_starts_stitched(runs: Any) -> None:
    _, plain, _, (losses, summary, errors) = runs
    step = summary["steps"][0]
    assert step["status"] in ("stitched", "rolled_back"), errors
    assert step["kernels_after"] < step["kernels_before"]
    assert step["bytes_after"] < step["bytes_before"]
    assert losses == pytest.approx(plain, rel=1e-5)
    assert losses != plain, "nothing shows that a kernel ran"


def test_the_report_tells_of_every_node(runs: Any) -> None:
    folder, step = runs[0], runs[3][1]["steps"][0]
    page = Path(step["report"])
    assert page.parent.name == runs[3][1]["session"], "it says what this job measured"
    stored = folder / "store" / "artifacts" / step["key"] / "report.json"
    report = reports.decode(stored.read_bytes())
    [drawn] = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text()
    )
    assert json.loads(drawn)["names"] == [node.name for node in report.nodes]
    placed = [node for node in report.nodes if node.kernel >= 0]
    assert {node.op for node in placed} >= {"Sum", "Rsqrt", "AssignSubVariableOp"}
    silent = {node.op for node in report.nodes if node.kernel < 0 and not node.reason}
    assert silent <= FREE, "left as they were without a reason"


FREE = {"_Arg", "_Retval", "Const", "NoOp", "Identity", "ReadVariableOp", "Reshape", "Shape"}
FREE |= {"Placeholder"}  # a constant that stays in the job
"""What needs no work, or is only shape arithmetic."""


def test_explain_reads_the_report(runs: Any) -> None:
    folder = runs[0]
    arguments = ["explain", "--store", str(folder / "store"), "--json", "MatMul"]
    result = CliRunner().invoke(stitch, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[0]["reason"] == "library_call"


def test_what_one_command_names_the_others_take(runs: Any, monkeypatch: Any) -> None:
    folder, _, _, (_, summary, _) = runs
    monkeypatch.setenv("STITCH_STORE", str(folder / "store"))
    step = summary["steps"][0]
    key = step["key"]
    for name in (step["digest"][:12], step["digest"], key[:12], key, summary["session"]):
        told = CliRunner().invoke(stitch, ["explain", name])
        assert told.exit_code == 0 and "x library_call" in told.output, told.output
        page = folder / "named.html"
        made = CliRunner().invoke(stitch, ["report", name, "--out", str(page)])
        assert made.exit_code == 0 and step["digest"][:12] in made.output, made.output
    assert CliRunner().invoke(stitch, ["explain"]).exit_code == 0
    one = CliRunner().invoke(stitch, ["explain", step["digest"][:12], "MatMul"])
    assert "left as it was, library_call" in one.output
