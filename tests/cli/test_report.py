"""`stitch report`: of a module, measured or not, and of a stored report."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stitchcore.cli.main import stitch
from stitchcore.report import render
from stitchcore.report import schema as reports
from tests.report import samples

SMALL = Path(__file__).resolve().parents[1] / "workloads" / "softmax_grad.hlo.xz"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STITCH_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(stitch, ["report", *(str(argument) for argument in arguments)])


def data(page: Path) -> dict[str, Any]:
    """What the page's script reads."""
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


def test_a_modules_kernels_are_timed_and_shown_beside_their_prediction() -> None:
    result = call(SMALL, "--measure", "--planner", "auto", "--json")
    assert result.exit_code == 0, result.output
    page = Path(json.loads(result.stdout)["report"])
    [kernel] = data(page)["kernels"]
    facts = dict(kernel["facts"])
    assert {"predicted", "measured", "bytes before", "bytes after", "values"} <= set(facts)
    assert "int64_t" in data(page)["sources"][kernel["name"]]
    assert kernel["name"] in data(page)["texts"][kernel["name"]]
    text = page.read_text(encoding="utf-8")
    assert text.count('<circle class="point') == 1
    for planner in ("exhaustive", "explore", "exact", "auto (taken)"):
        assert f">{planner}<" in text


def test_without_measure_nothing_is_claimed_to_be_measured() -> None:
    result = call(SMALL, "--out", "page.html")
    assert "1 kernels; page: page.html" in result.output
    text = Path("page.html").read_text(encoding="utf-8")
    assert "nothing was timed" in text
    assert '<circle class="point' not in text


def test_the_newest_stored_report_is_the_last_jobs(tmp_path: Path) -> None:
    for age, key in ((20, "a" * 64), (10, "b" * 64)):
        folder = tmp_path / "store" / "artifacts" / key
        folder.mkdir(parents=True)
        made = reports.Report(f"graph {key[:3]}", "cpu-x86-64-v3")
        (folder / "report.json").write_bytes(reports.encode(made))
        os.utime(folder / "report.json", (1e9 - age, 1e9 - age))
    assert "graph bbb" in call().output
    assert "graph aaa" in call("--artifact", "aa").output


def test_a_page_that_a_job_made_is_the_artifacts(tmp_path: Path) -> None:
    """Of the newest job that ran it, or of the one that is named; never of another artifact."""
    for key in ("a" * 64, "b" * 64):
        folder = tmp_path / "store" / "artifacts" / key
        folder.mkdir(parents=True)
        made = reports.Report("graph 123456789abc", "cpu-x86-64-v3")
        (folder / "report.json").write_bytes(reports.encode(made))
    for session, key in (("20260101-1", "a"), ("20260102-2", "a"), ("20260103-3", "b")):
        folder = tmp_path / "store" / "sessions" / session
        folder.mkdir(parents=True)
        event = {"type": "ready", "digest": "123456789abcdef", "key": key * 64}
        (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
        (folder / "report-123456789abc.html").write_text(f"measured by {session}")
    for name, page in (("aa", "20260102-2"), ("bb", "20260103-3"), ("20260101-1", "20260101-1")):
        assert call(name, "--out", "page.html").exit_code == 0
        assert Path("page.html").read_text() == f"measured by {page}"


def test_a_job_without_a_report_is_told_with_its_reason(tmp_path: Path) -> None:
    """Whatever names it; and nothing of an earlier job is taken for it."""
    store = tmp_path / "store"
    (store / "artifacts" / ("a" * 64)).mkdir(parents=True)
    older = reports.encode(reports.Report("graph aaa", "cpu-x86-64-v3"))
    (store / "artifacts" / ("a" * 64) / "report.json").write_bytes(older)
    told: dict[str, tuple[dict[str, object], ...]] = {
        "20260101-1": ({"type": "ready", "digest": "12ab34cd56ef", "key": "a" * 64},),
        "20260102-2": ({"type": "submitted", "digest": "fedcba987654", "step": "training"},),
        "20260103-3": ({"type": "started", "tf": "2.21.0"}, {"type": "exited", "code": 1}),
    }
    for session, events in told.items():
        (store / "sessions" / session).mkdir(parents=True)
        lines = "".join(json.dumps(event) + "\n" for event in events)
        (store / "sessions" / session / "events.jsonl").write_text(lines)
    for command in (["report"], ["explain"], ["explain", "--session", "20260103-3"]):
        last = CliRunner().invoke(stitch, command)
        assert last.exit_code == 2 and "aaaaaaaaaaaa" in last.stderr, "that there is another"
        assert "command_failed: the command ended, by an error or a signal, before" in last.stderr
    for name in ("fedcba987654", "20260102"):
        found = call(name)
        assert "training step fedcba987654: its kernels were not ready" in found.stderr
        assert "20260102-2 has no report" in found.stderr
    assert call("20260101-1").exit_code == 0
    for command in ("report", "explain"):
        unknown = CliRunner().invoke(stitch, [command, "0123456789ab"]).stderr
        assert "0123456789ab in " in unknown and "name an artifact, a graph or a" in unknown


def test_what_was_built_after_the_job_is_the_jobs(tmp_path: Path) -> None:
    key, digest = "b" * 64, "12ab34cd56ef"
    made = {
        f"artifacts/{key}/report.json": reports.encode(reports.Report("graph 12a", "cpu")),
        f"answers/{digest}.json": json.dumps({"status": "ready", "key": key}).encode(),
        "sessions/20260101-1/events.jsonl": b'{"type": "submitted", "digest": "12ab34cd56ef"}\n',
    }
    for name, content in made.items():
        (tmp_path / "store" / name).parent.mkdir(parents=True)
        (tmp_path / "store" / name).write_bytes(content)
    assert "graph 12a: 0 kernels" in call().output


def test_a_report_json_becomes_the_same_page() -> None:
    Path("report.json").write_bytes(reports.encode(samples.hostile()))
    assert call("report.json", "--out", "x.html").exit_code == 0
    assert Path("x.html").read_text(encoding="utf-8") == render.html(samples.hostile())


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "no report there"),
        (("broken.json",), "broken.json"),
        (("missing.json",), "missing.json"),
        (("report.json", "--out", "no/such/folder.html"), "name a file you may write to"),
        ((SMALL, "--measure", "--target", "sm_90"), "leave out --measure"),
    ],
)
def test_what_cannot_be_says_why_and_the_mend(arguments: tuple[object, ...], what: str) -> None:
    Path("broken.json").write_bytes(b"{")
    Path("report.json").write_bytes(reports.encode(samples.hostile()))
    result = call(*arguments)
    assert result.exit_code == 2
    assert what in result.output + result.stderr
