"""Refusals inside jobs: counted once with their closed reason, and told of the pod."""

from __future__ import annotations

from typing import Any

import pytest

from stitch_operator.gateway.reports import JOB_REASONS
from stitch_operator.metrics import METRICS, REFUSALS
from stitchcore.inject import report
from tests.operator.gateway.support import Running, gateway, graph, key_of, publish
from tests.operator.gateway.test_reports import samples

DIGEST = "cd" * 32


@pytest.fixture
def running(tmp_path: Any) -> Any:
    with gateway(tmp_path) as found:
        yield found


def left(running: Running, seq: int, reason: str, who: str = "alice", **more: Any) -> str:
    said = {"session": "s1", "seq": seq, "type": "refused", "graph": DIGEST, **more}
    answer = running.post("/v1/jobs/events", {**said, "reason": reason}, who)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["status"])


def counted(running: Running) -> dict[str, float]:
    """Refusals by reason."""
    prefix = 'stitch_fallbacks_total{"reason": "'
    return {
        name.removeprefix(prefix).removesuffix('"}'): value
        for name, value in samples(running).items()
        if name.startswith(prefix) and value
    }


def test_a_refusal_is_counted_once_a_namespace_graph_and_reason(running: Running) -> None:
    assert left(running, 1, "no_device") == "noted"
    assert left(running, 1, "no_device") == "old", "the same report"
    left(running, 2, "no_device", session="s2")
    left(running, 3, "memory")
    left(running, 1, "no_device", "bob")
    assert counted(running) == {"no_device": 2, "memory": 1}


def test_what_is_no_graphs_is_counted_once_a_pod(running: Running) -> None:
    for seq, session in enumerate(("s1", "s2")):
        left(running, seq, "input_pipeline", graph="", session=session)
    left(running, 1, "input_pipeline", "bob", graph="")
    assert counted(running) == {"input_pipeline": 2}


@pytest.mark.parametrize(
    ("reason", "told"),
    [("wrong_result", "wrong_result"), ("compile_failed", "other"), ("a user's own words", "other"),
     ("", "other")],
)  # fmt: skip
def test_a_job_raises_no_alarm_about_workers_and_makes_no_series(
    running: Running, reason: str, told: str
) -> None:
    left(running, 1, reason)
    assert counted(running) == {told: 1}
    assert samples(running)["stitch_verification_failures_total{}"] == 0


def test_what_the_gateway_refused_itself_is_not_counted_again(running: Running) -> None:
    data = graph()
    digest, request = key_of(data)
    running.submit(data)
    answer = {"status": "refused", "reason": "memory", "detail": "", "time": 9e9}
    running.store.answer(request, answer)
    running.forget()
    assert running.submit(data).status_code == 409
    left(running, 5, "memory", graph=digest)
    assert counted(running) == {"memory": 1}
    left(running, 6, "no_device", graph=digest)
    assert counted(running) == {"memory": 1, "no_device": 1}


@pytest.mark.parametrize("final", [True, False])
def test_a_pod_is_told_to_have_left_what_it_left_for_good(running: Running, final: bool) -> None:
    """An artifact that was ready and does not load: refused, not waiting for a swap."""
    data = graph()
    digest, request = key_of(data)
    running.submit(data)
    publish(running.store, request)
    running.forget()
    running.submit(data)
    left(running, 1, "no_device", graph=digest, final=final)
    ledger, sightings = running.service.parts.ledger, running.service.sightings
    if final:
        ((found,),) = [one.graphs for one in running.written(ledger.workloads, "", 0.0).workloads]
        assert found.phase == "refused", "durable when it was answered"
    running.written(ledger.note, *sightings.take())  # what it was told before is written later
    ((found,),) = [one.graphs for one in running.written(ledger.workloads, "", 0.0).workloads]
    assert (found.phase, found.reason) == (("refused", "no_device") if final else ("ready", ""))


def test_all_reasons_of_the_jobs_side_have_a_series() -> None:
    assert JOB_REASONS <= REFUSALS
    (label,) = METRICS["stitch_fallbacks_total"].labels
    assert set(label.values) >= JOB_REASONS


def posts(*events: tuple[str, dict[str, Any]]) -> list[tuple[str, str, bool]]:
    outbox = report.Outbox(1)
    for kind, fields in events:
        outbox.add(kind, {"digest": DIGEST, **fields})
    made = []
    while (one := outbox.first()) is not None:
        outbox.sent(one)
        said = one.document
        made.append((said["type"], said.get("reason", ""), said.get("final", False)))
    return made


def test_the_job_tells_each_refusal_once_and_a_rollback_as_such() -> None:
    """A graph that is left for good is `disabled` and then `refused` for the same reason."""
    why = {"reason": "no_device"}
    before = ("disabled", {**why, "key": None})
    assert posts(before, ("refused", why), ("refused", why)) == [("refused", "no_device", True)]
    after = ("disabled", {"reason": "kernel_failed", "key": "ab" * 32})
    assert posts(after, ("refused", {"reason": "kernel_failed"})) == [
        ("rolled-back", "kernel_failed", False)
    ]
    slower = {"reason": "slower", "key": "ab" * 32}
    assert posts(("rolled_back", slower), ("refused", {"reason": "slower"})) == [
        ("rolled-back", "slower", False)
    ]
    quiet = ("refused", {"digest": "", "reason": "input_pipeline"})
    assert posts(quiet, quiet) == [("refused", "input_pipeline", False)]
