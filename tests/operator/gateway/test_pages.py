"""Report pages over HTTP: whose they are, what they say, and that nothing in a report runs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.problems import Problem, Rejected
from stitchcore.report import render
from stitchcore.report import schema as reports
from tests.operator.gateway.support import (
    KEY,
    Running,
    Tokens,
    gateway,
    graph,
    key_of,
    publish,
)
from tests.report import samples

SECOND = 10**9
ARTIFACT, JOB = f"/v1/artifacts/{KEY}/report.html", "/v1/jobs/{}/report.html"


@pytest.fixture
def running(tmp_path: Path):  # type: ignore[no-untyped-def]
    with gateway(tmp_path) as found:
        yield found


def ready(running: Running, report: bytes | None = None, name: str = "alice") -> dict[str, Any]:
    """A graph is handed in and answered; the fields of a report about it."""
    digest, request = key_of(graph(), name)
    running.submit(graph(), name)
    made = reports.encode(samples.hostile()) if report is None else report
    publish(running.store, request, report=made, spent={"compile": 3.0, "measure": 1.0}, ratio=1.5)
    running.forget()
    assert running.submit(graph(), name).status_code == 200
    running.forget()
    return {"session": "s1", "graph": digest, "key": KEY}


def save(running: Running, about: dict[str, Any], saved: int, half: int, **more: Any) -> None:
    said = {
        **{"seq": 1, "steps": 100, "baseline_ns": 100 * SECOND + saved, "pairs": 20},
        **{"stitched_ns": 100 * SECOND, "interval": [saved - half, saved + half], "devices": 2},
    }
    answer = running.post("/v1/savings", {**about, **said, **more})
    assert answer.json()["status"] == "counted", answer.text


def test_the_page_is_for_its_namespace_and_nobody_else(running: Running) -> None:
    ready(running)
    found = running.get(ARTIFACT)
    assert found.status_code == 200
    assert found.headers["content-type"].startswith("text/html")
    assert found.text == render.html(samples.hostile())
    assert running.get(ARTIFACT, "bob").status_code == 404
    assert running.client.get(ARTIFACT).status_code == 401
    assert running.get("/v1/artifacts/../secret/report.html").status_code == 404
    assert running.get("/v1/artifacts/short/report.html").status_code == 400


def test_nothing_runs_but_the_pages_own_script(running: Running) -> None:
    ready(running)
    headers = running.get(ARTIFACT).headers
    policy = headers["content-security-policy"]
    assert policy.startswith(render.policy())
    assert "sandbox allow-scripts" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"].startswith("private")


def test_html_that_a_worker_wrote_is_never_sent(running: Running) -> None:
    """The compile child ran on a stranger's graph: its page may be anything."""
    _, request = key_of(graph())
    running.submit(graph())
    files = {"manifest.json": b"{}", "manifest.sig": b"s"}
    files["report.html"] = b"<script>evil()</script>"
    files["report.json"] = reports.encode(samples.hostile())
    running.store.publish(files, "manifest.sig", "artifacts", KEY)
    running.store.answer(request, {"status": "ready", "key": KEY, "time": time.time()})
    running.forget()
    running.submit(graph())
    found = running.get(ARTIFACT)
    assert found.status_code == 200
    assert "evil()" not in found.text


BROKEN = [b"{}", b"", b"[" * 10**5, b'{"title": 1}', b'{"title": "t", "target": "c", "nodes": 3}']


@pytest.mark.slow
@pytest.mark.parametrize("data", BROKEN)
def test_a_broken_report_is_a_problem_and_no_page(running: Running, data: bytes) -> None:
    ready(running, data)
    found = running.get(ARTIFACT)
    assert found.status_code == 503
    assert found.json()["reason"] == "unavailable"


def test_what_is_not_ready_or_revoked_says_so(running: Running) -> None:
    _, request = key_of(graph())
    running.submit(graph())
    pending = running.get(f"/v1/artifacts/{request}/report.html")
    assert (pending.status_code, pending.json()["status"]) == (202, "pending")
    ready(running)
    assert running.service.trust is not None
    running.service.trust = replace(running.service.trust, revoked=(KEY,))
    assert running.get(ARTIFACT).status_code == 410


def test_a_jobs_page_has_its_own_savings_first(running: Running) -> None:
    """20 core-seconds saved on two cores, 4 s spent: 16, between 14 and 18."""
    about = ready(running)
    save(running, about, 10 * SECOND, SECOND)
    for name in ("s1", "pod-alice", "train"):
        found = running.get(JOB.format(name))
        assert found.status_code == 200
        assert f"<h1>{name}</h1>" in found.text
        assert "+16.0" in found.text
        assert "20.0 saved, 0.0 lost, 4.0 spent" in found.text
        assert "interval of the net: 14.0 to 18.0" in found.text
        assert "1.100 [1.090, 1.110]" in found.text
        assert "MatMul" in found.text, "the artifact's graph is drawn"
        assert found.headers["content-security-policy"].startswith(render.policy())
    assert running.get(JOB.format("s1"), "bob").status_code == 404
    assert running.client.get(JOB.format("s1")).status_code == 401


def test_names_that_are_none(running: Running) -> None:
    ready(running)
    assert running.get(JOB.format("no-such-job")).status_code == 404
    assert running.get(JOB.format("a%3Cb%3E")).status_code == 400
    assert running.get(JOB.format("x" * 129)).status_code == 400
    assert running.get(JOB.format("'%20OR%201=1")).status_code == 400


def test_an_unmeasured_job_claims_nothing_and_hides_no_cost(running: Running) -> None:
    about = ready(running)
    save(running, about, 10 * SECOND, 0, interval=None)
    found = running.get(JOB.format("s1")).text
    assert "Too few steps were timed" in found
    assert "−4.0" in found, "what was spent is not hidden"


class Pods(Tokens):
    """Alice's job has two pods, by token."""

    def identify(self, token: str) -> Identity:
        found = super().identify(token)
        if found.namespace == "alice":
            return found
        if found.namespace == "bob":
            return replace(found, namespace="alice", pod="pod-two")
        raise Rejected(Problem.UNAUTHORIZED, "nobody else")


def test_replicas_add_up(tmp_path: Path) -> None:
    with gateway(tmp_path, Pods(started=time.time() - 3600)) as running:
        about = ready(running)
        save(running, about, 10 * SECOND, SECOND)
        said = {**about, "session": "s2", "seq": 1, "steps": 50, "stitched_ns": 50 * SECOND}
        more = {"baseline_ns": 45 * SECOND, "interval": [-6 * SECOND, -4 * SECOND], "pairs": 9}
        assert running.post("/v1/savings", {**said, **more, "devices": 2}, "bob").is_success
        found = running.written(running.service.parts.ledger.job, "alice", "train", 2.0)
        assert (found.saved, found.lost, found.spent) == (20.0, 10.0, 4.0)
        assert (found.low, found.high) == (6.0, 14.0), "10, less and more 2 of each pod"
        assert [one.steps for one in found.graphs] == [100], "a graph once, as the most steps tell"
        one = running.written(running.service.parts.ledger.job, "alice", "s2", 2.0)
        assert (one.saved, one.lost) == (0.0, 10.0)
        assert msgspec.json.encode(found)
