"""What the gateway's client reports: in order, once, never in the job's way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stitchcore.inject import gateway, reasons, report
from tests.inject import https_gateway as gateways
from tests.inject.gateway_job import DIGEST, KEY, Job
from tests.inject.https_gateway import Asked, Reply
from tests.waiting import PATIENCE_SECONDS, RUN_SECONDS, wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a job a slow machine is no dead gateway."""
    monkeypatch.setattr(gateway, "EXIT_SECONDS", PATIENCE_SECONDS)


def test_reports_arrive_in_order_and_survive_failures(tmp_path: Path, public_key: str) -> None:
    broken = iter([Reply(raw=b""), gateways.reply(503, {}, Retry_After="0.2")])

    def answer(asked: Asked) -> Reply:
        return next(broken, gateways.reply(200, {"status": "noted"}))

    with gateways.serve(tmp_path / "g", answer) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source.observe("seen", {"digest": DIGEST})  # not the gateway's business
        job.source.observe("swap_begin", {"digest": DIGEST, "key": KEY})
        job.source.observe("savings_total", {"digest": DIGEST, "key": KEY, "steps": 5})
        job.source.observe("savings_total", {"digest": DIGEST, "key": KEY, "steps": 9})
        job.source.observe("swap_ok", {"digest": DIGEST, "key": KEY})
        wait_for(lambda: len(server.asked) >= 5)
        got = [(a.path, a.document.get("type"), a.document["seq"]) for a in server.asked]
        assert got == [
            ("/v1/jobs/events", "swap-begin", 1),
            ("/v1/jobs/events", "swap-begin", 1),  # the same report, not another
            ("/v1/jobs/events", "swap-begin", 1),
            ("/v1/jobs/events", "swap-ok", 4),
            ("/v1/savings", None, 3),
        ]
        assert server.asked[-1].document["steps"] == 9
        assert len({a.document["session"] for a in server.asked}) == 1


@pytest.mark.slow
def test_the_last_report_is_sent_at_exit_and_a_dead_gateway_does_not_hold_it_up(
    tmp_path: Path, public_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [0.0]

    def answer(asked: Asked) -> Reply:
        return Reply(200, b'{"status": "noted"}', hang=slow[0])

    with gateways.serve(tmp_path / "g", answer) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source.observe("swap_begin", {"digest": DIGEST, "key": KEY})
        wait_for(lambda: job.source._contact.reached)
        job.source.observe("savings_total", {"digest": DIGEST, "key": KEY, "steps": 9})
        job.source.finish()
        assert server.paths()[-1] == "POST /v1/savings"
        another = Job(server, tmp_path / "c", (public_key,))
        another.source.observe("swap_begin", {"digest": DIGEST, "key": KEY})
        wait_for(lambda: len(server.asked) == 3)
        slow[0] = 100.0
        monkeypatch.setattr(gateway, "EXIT_SECONDS", 1.0)
        another.source.observe("savings_total", {"digest": DIGEST, "key": KEY, "steps": 9})
        wait_for(lambda: len(server.asked) == 4)  # under way when the job ends
        start = time.monotonic()
        another.source.finish()
        assert time.monotonic() - start < 50, "not as long as it hangs"
    monkeypatch.setattr(gateway, "EXIT_SECONDS", PATIENCE_SECONDS)
    dead = Job(server, tmp_path / "c", (public_key,))
    dead.source.observe("swap_begin", {"digest": DIGEST, "key": KEY})
    wait_for(lambda: dead.source._contact.failure is not None)
    start = time.monotonic()
    dead.source.finish()
    assert time.monotonic() - start < 50, "not for what nobody takes"


@pytest.mark.parametrize("kind", ["ps", "evaluator", "worker"])
def test_servers_and_evaluators_report_nothing(kind: str, tmp_path: Path, public_key: str) -> None:
    answer = gateways.reply(200, {})
    with gateways.serve(tmp_path / "g", lambda _: answer) as server:
        role = json.dumps({"cluster": {}, "task": {"type": kind, "index": 0}})
        job = Job(server, tmp_path / "c", (public_key,), TF_CONFIG=role)
        job.source.observe("swap_begin", {"digest": DIGEST, "key": KEY})
        if kind == "worker":
            wait_for(lambda: len(server.asked) == 1)
        else:
            time.sleep(0.3)
            assert server.asked == []


@pytest.mark.parametrize(("status", "reason"), [(422, "implausible"), (400, "gateway_error")])
def test_a_report_that_is_never_taken_is_dropped_and_counted(
    status: int, reason: str, tmp_path: Path, public_key: str
) -> None:
    answer = gateways.reply(status, {"reason": "x", "what": "faster than measured"})
    with gateways.serve(tmp_path / "g", lambda _: answer) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source.observe("savings_total", {"digest": DIGEST, "key": KEY, "steps": 9})
        wait_for(lambda: bool(job.complaints))
        time.sleep(0.3)
        assert len(server.asked) == 1 and [one[1] for one in job.complaints] == [reason]


def test_a_revocation_arrives_with_any_answer(tmp_path: Path, public_key: str) -> None:
    answer = gateways.reply(200, {"status": "noted", "revoked": [KEY]})
    with gateways.serve(tmp_path / "g", lambda _: answer) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        assert not job.source.revoked(KEY)
        job.source.observe("swap_ok", {"digest": DIGEST, "key": KEY})
        wait_for(lambda: job.source.revoked(KEY))


def test_a_job_names_what_it_runs_all_of_it_in_turn(
    tmp_path: Path, public_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told of what it names: the third of three, though a request names two."""
    monkeypatch.setattr(gateway, "NAMED", 2)

    def answer(asked: Asked) -> Reply:
        named = asked.headers["stitch-running"].split(",")
        return gateways.reply(200, {"revoked": [key for key in named if key == "c"]})

    with gateways.serve(tmp_path / "g", answer) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        job.source._running.extend("abc")
        for number in range(3):
            job.source.observe("swap_ok", {"digest": DIGEST, "key": f"{number}"})
        wait_for(lambda: job.source.revoked("c"))
        wait_for(lambda: len(server.asked) == 3)
        assert [asked.headers["stitch-running"] for asked in server.asked] == ["a,b", "c,a", "b,c"]
        assert job.source.revoked("c"), "and remembers it"


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([gateways.reply(200, {"status": "noted"})], "begins"),
        ([gateways.reply(400, {"reason": "bad_request"})], "begins"),
        (
            [
                Reply(raw=b""),
                gateways.reply(503, {}, Retry_After="0.2"),
                gateways.reply(200, {"status": "wait", "retry_after": 0.2}),
                gateways.reply(200, {"status": "noted"}),
            ],
            "begins",
        ),
        ([gateways.reply(200, {"status": "crashed"})], "crashed_before"),
    ],
    ids=["noted", "of the release before", "after a while", "crashed"],
)
def test_a_swap_begins_once_it_is_on_record(
    tmp_path: Path, public_key: str, answers: list[Reply], outcome: str
) -> None:
    said = iter(answers)
    with gateways.serve(tmp_path / "g", lambda _: next(said, gateways.reply(200, {}))) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        assert not job.source.begun(DIGEST, KEY), "nothing waits for the network"

        def settled() -> str:
            try:
                return "begins" if job.source.begun(DIGEST, KEY) else ""
            except reasons.Refused as refused:
                return refused.reason

        wait_for(lambda: bool(settled()))
        assert settled() == outcome
        assert [asked.document["type"] for asked in server.asked] == ["may-swap"] * len(answers)


def test_an_orderly_end_is_no_crash(tmp_path: Path, public_key: str) -> None:
    noted = gateways.reply(200, {"status": "noted"})
    with gateways.serve(tmp_path / "g", lambda _: noted) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        wait_for(lambda: job.source.begun(DIGEST, KEY))
        job.source.finish()
        types = [asked.document["type"] for asked in server.asked]
        assert types == ["may-swap", "swap-ok"]


def test_a_young_swap_says_that_it_lives(
    tmp_path: Path, public_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "ALIVE_SECONDS", 0.1)
    noted = gateways.reply(200, {"status": "noted"})
    with gateways.serve(tmp_path / "g", lambda _: noted) as server:
        job = Job(server, tmp_path / "c", (public_key,))
        wait_for(lambda: job.source.begun(DIGEST, KEY))
        wait_for(lambda: len(server.asked) >= 3)
        job.source.observe("swap_ok", {"digest": DIGEST, "key": KEY})
        wait_for(lambda: server.asked[-1].document["type"] == "swap-ok")
        told = len(server.asked)
        time.sleep(0.5)
        assert len(server.asked) <= told + 1, "and no more once it is settled"


def test_an_errors_text_stays_in_the_job() -> None:
    """It may quote names and messages of the user's program."""
    outbox = report.Outbox(7)
    fields = {"digest": DIGEST, "key": KEY, "reason": "kernel_failed", "detail": "at CanaryName"}
    assert outbox.add("disabled", fields)
    held = outbox.first()
    assert held is not None and held.document["reason"] == "kernel_failed"
    assert "Canary" not in str(held.document)


def test_events_do_not_pile_up() -> None:
    outbox = report.Outbox(1)
    for _ in range(10_000):
        outbox.add("swap_begin", {"digest": DIGEST, "key": KEY})
        outbox.add("savings_total", {"digest": DIGEST, "steps": 1})
    count = 0
    while (first := outbox.first()) is not None:
        outbox.sent(first)
        count += 1
    assert count == report.KEPT_EVENTS + 1 and not outbox.waiting


IMPORTS = """
import os, sys, time, types
sys.modules["tensorflow"] = types.SimpleNamespace(__version__="2.3.0")
from stitchcore.inject import start
start.install()
until = time.monotonic() + 60
while not os.path.exists(sys.argv[1]) and time.monotonic() < until: time.sleep(0.01)
"""
"""A job that lasts until the gateway was told: one that ends sooner tells nothing, for it does not
wait."""


@pytest.mark.slow
def test_a_process_that_is_left_alone_from_the_start_says_so(
    tmp_path: Path, public_key: str
) -> None:
    """No plug-in fits this TensorFlow: nothing of ours is loaded, and the gateway counts why."""
    told = tmp_path / "told"

    def answer(asked: Asked) -> Reply:
        told.touch()
        return gateways.reply(200, {"status": "noted"})

    with gateways.serve(tmp_path / "g", answer) as one:
        given = one.settings(STITCH_PUBLIC_KEYS=public_key, STITCH_STORE=str(tmp_path / "c"))
        done = subprocess.run(
            [sys.executable, "-c", IMPORTS, str(told)],
            env={"PYTHONPATH": str(ROOT), **given},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )
        assert done.returncode == 0 and "the job runs unchanged" in done.stderr, done.stderr
        (asked,) = one.asked
    said = asked.document
    assert (asked.path, said["type"], said["graph"]) == ("/v1/jobs/events", "refused", "")
    assert said["reason"] == "unsupported_version" and "detail" not in said
