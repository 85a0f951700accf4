"""The calls over HTTP, with a real store and ledger: submissions, artifacts, who may see what."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import sqlite3
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stitch_operator.gateway import ledger
from stitch_operator.gateway.limits import Rate
from stitch_operator.gateway.service import CLUSTER, NAMESPACE, Rates
from stitch_operator.gateway.wire import MESSAGES
from stitch_worker.answers import Answers
from stitch_worker.lease import FolderLeases
from stitch_worker.service import Service as Worker
from stitch_worker.service import process
from stitchcore.errors import Reason, Refusal
from stitchcore.sandbox import isolate
from tests.operator.gateway.support import (
    KEY,
    QUEUE,
    TARGET,
    TF,
    Running,
    gateway,
    graph,
    key_of,
    publish,
    submission,
    withheld,
)
from tests.waiting import wait_for


def test_a_graph_is_published_and_enqueued_once(running: Running) -> None:
    data = graph()
    digest, request = key_of(data)
    for _ in range(5):
        answer = running.submit(data)
        assert answer.status_code == 202
        assert answer.json()["request"] == answer.json()["key"] == request
        assert answer.json()["stage"] == "queued"
        assert int(answer.headers["retry-after"]) >= 1
    assert running.queue.submitted == [(request, QUEUE)]
    meta = json.loads(running.store.read("requests", request, "meta.json"))
    assert meta["digest"] == digest
    assert (meta["target"], meta["tf"], meta["preserve"]) == (TARGET, TF, [])
    assert running.store.read("requests", request, "graph.pb") == data


def test_submissions_at_the_same_moment_are_one_task(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue = running.queue.submit

    def slowly(*task: str) -> None:
        time.sleep(0.2)
        enqueue(*task)

    monkeypatch.setattr(running.queue, "submit", slowly)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: running.submit(graph()).status_code, range(8)))
    assert answers == [202] * 8
    assert len(running.queue.submitted) == 1


def test_names_and_order_of_nodes_do_not_make_another_request(running: Running) -> None:
    one = MESSAGES["GraphDef"].FromString(graph(1))
    other = MESSAGES["GraphDef"]()
    for node in reversed(one.node):
        copy = other.node.add()
        copy.CopyFrom(node)
        copy.name = f"renamed/{node.name}"
        copy.input[:] = [f"renamed/{name}" for name in node.input]
    first = running.submit(one.SerializeToString()).json()
    second = running.submit(other.SerializeToString()).json()
    assert first["request"] == second["request"]
    assert len(running.queue.submitted) == 1


@pytest.mark.parametrize("other", [{"target": "cpu-x86-64-v4"}, {"tf": "2.15.1"}, {"abi": 2}])
def test_another_target_version_or_abi_is_another_request(
    running: Running, other: dict[str, Any]
) -> None:
    first = running.submit(graph()).json()
    assert running.submit(graph(), **other).json()["request"] != first["request"]


def test_progress_then_the_artifact(running: Running) -> None:
    _, request = key_of(graph())
    running.submit(graph())
    pending = {"status": "pending", "stage": "compile", "done": 3, "total": 9}
    running.store.answer(request, {**pending, "time": time.time()})
    running.forget()
    answer = running.get(f"/v1/artifacts/{request}")
    assert answer.status_code == 202
    assert (answer.json()["stage"], answer.json()["done"]) == ("compile", 3)
    library = publish(running.store, request)
    running.forget()
    assert running.submit(graph()).json()["key"] == KEY
    for key in (request, KEY):
        answer = running.get(f"/v1/artifacts/{key}")
        assert answer.status_code == 200
        assert answer.headers["stitch-key"] == KEY
        with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:") as tar:
            assert tar.getnames() == ["manifest.json", "manifest.sig", "kernels_00.so"]
            member = tar.extractfile("kernels_00.so")
            assert member is not None
            assert member.read() == library
    tag = answer.headers["etag"]
    again = running.get(f"/v1/artifacts/{KEY}", **{"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_only_a_namespace_that_handed_in_the_graph_gets_the_artifact(running: Running) -> None:
    _, request = key_of(graph())
    running.submit(graph(), "alice")
    publish(running.store, request)
    running.forget()
    assert running.get(f"/v1/artifacts/{request}", "alice").status_code == 200
    for key in (KEY, request):
        for call in ("artifacts", "graphs"):
            answer = running.get(f"/v1/{call}/{key}", "bob")
            assert (answer.status_code, answer.json()["reason"]) == (404, "not_found")
    assert running.submit(graph(), "bob").status_code == 202, "his own is built anew"
    assert running.get(f"/v1/artifacts/{KEY}", "bob").status_code == 404


@pytest.mark.parametrize("scope", [NAMESPACE, CLUSTER])
@pytest.mark.parametrize("status", ["pending", "ready", "refused"])
def test_no_namespace_learns_what_another_has_handed_in(
    status: str, scope: str, running: Running
) -> None:
    """Whatever became of alice's equal graph, bob's answers are those of a graph nobody knows."""
    running.service.parts = replace(running.service.parts, cache_scope=scope)
    digest, request = key_of(graph())
    unknown = "00" * 32
    running.submit(graph(), "alice")
    if status == "ready":
        publish(running.store, request)
    else:
        said = {"status": status, "stage": "verify", "reason": "slower", "time": time.time()}
        running.store.answer(request, said)
    running.forget()
    running.submit(graph(), "alice")

    def told(key: str) -> list[Any]:
        answers = [running.get(f"/v1/{call}/{key}", "bob") for call in ("graphs", "artifacts")]
        return [(one.status_code, one.text.replace(key[:12], "KEY")) for one in answers]

    for key in (digest, request, KEY) if status == "ready" else (digest, request):
        assert told(key) == told(unknown)
    first, never = (running.submit(graph(salt=salt), "bob") for salt in (0, 7))
    assert (first.status_code, first.json()["stage"]) == (202, "queued")
    documents = [one.text.replace(one.json()["request"], "KEY") for one in (first, never)]
    assert documents[0] == documents[1]
    assert first.json()["request"] == key_of(graph(), "bob")[1] != request
    enqueued = [key for key, _ in running.queue.submitted]
    assert enqueued.count(request) == enqueued.count(first.json()["request"]) == 1


def test_trust_rides_on_every_answer_and_revoked_artifacts_are_not_served(tmp_path: Path) -> None:
    keys = ["11" * 32, "22" * 32]
    with gateway(tmp_path) as running:
        running.store.write(json.dumps({"public_keys": keys}).encode(), "public_keys.json")
        running.store.write(json.dumps({"artifacts": [KEY]}).encode(), "revoked.json")
    with gateway(tmp_path) as running:
        _, request = key_of(graph())
        answers = [running.submit(graph())]
        publish(running.store, request)
        running.forget()
        answers.append(running.submit(graph()))
        answers.append(running.get(f"/v1/artifacts/{request}"))
        answers.append(running.get(f"/v1/graphs/{'0' * 64}"))
        assert [answer.status_code for answer in answers] == [202, 200, 410, 404]
        for answer in answers:
            assert answer.json()["trust"] == {"public_keys": keys, "revoked": [KEY]}
            assert answer.json()["revoked"] == [KEY]


def test_a_job_hears_of_its_own_revocations_however_many_there_are(tmp_path: Path) -> None:
    """Past 7,825 of them an answer was longer than a job reads."""
    revoked = [f"{number:064x}" for number in range(100_000)]
    named = f"{'f' * 64},{revoked[77_777]}, {revoked[1]},not a key"
    with gateway(tmp_path) as running:
        running.store.write(json.dumps({"artifacts": revoked}).encode(), "revoked.json")
    with gateway(tmp_path) as running:
        running.submit(graph())
        answer = running.get(f"/v1/graphs/{key_of(graph())[1]}", **{"Stitch-Running": named})
        assert answer.json()["revoked"] == [revoked[1], revoked[77_777]]
        before = running.get(f"/v1/graphs/{key_of(graph())[1]}")
        assert before.json()["revoked"] == revoked[:3000] and len(before.content) < 2**20


def test_a_revocation_list_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        running.store.write(b"{torn", "revoked.json")
    with gateway(tmp_path, trusting=False) as running:
        _, request = key_of(graph())
        running.submit(graph())
        publish(running.store, request)
        running.forget()
        assert running.get(f"/v1/artifacts/{request}").status_code == 503
        assert running.client.get("/readyz").status_code == 503
        assert running.client.get("/healthz").status_code == 200


def test_without_a_worker_the_answer_says_so_and_is_not_kept(tmp_path: Path) -> None:
    with gateway(tmp_path, served=()) as running:
        running.service.since -= 1000  # it has had time to see workers
        answer = running.submit(graph())
        assert answer.status_code == 409
        assert answer.json()["reason"] == "no_worker_for_target"
        assert answer.json()["retry_after"] > 0
        running.queue.names = frozenset({QUEUE})
        assert running.submit(graph()).status_code == 202
        assert len(running.queue.submitted) == 1


def rows(running: Running) -> list[int]:
    """How many requests and submissions the ledger holds."""
    with contextlib.closing(sqlite3.connect(running.folder / "ledger.sqlite")) as database:
        counts = [f"SELECT count(*) FROM {table}" for table in ("requests", "submissions")]
        return [database.execute(count).fetchone()[0] for count in counts]


def test_what_is_turned_away_is_kept_nowhere(tmp_path: Path) -> None:
    """Nobody would ever work on it, and nobody need ask for it again."""
    slow = Rates(Rate(1e9, 1e9), Rate(1e9, 1e9), Rate(0.001, 1))
    with gateway(tmp_path, rates=slow) as running:
        running.service.since -= 1000  # it has had time to see workers
        for other in ({"target": "cpu-foo"}, {"tf": "2.999"}):
            assert running.submit(graph(), **other).json()["reason"] == "no_worker_for_target"
        assert [running.submit(graph(salt=salt)).status_code for salt in (0, 1)] == [202, 429]
        assert running.store.list("requests") == (key_of(graph())[1],)
        assert rows(running) == [1, 1]


def test_new_graphs_are_limited_before_workers_are_known_too(tmp_path: Path) -> None:
    slow = Rates(Rate(1e9, 1e9), Rate(1e9, 1e9), Rate(0.001, 2))
    with gateway(tmp_path, rates=slow, served=()) as running:
        statuses = [running.submit(graph(salt=salt)).status_code for salt in (0, 1, 1, 2)]
        assert statuses == [202, 202, 202, 429]
        assert len(running.store.list("requests")) == 2 and rows(running) == [2, 2]


def test_a_collected_request_is_not_found_until_it_is_handed_in_again(running: Running) -> None:
    digest, request = key_of(graph())
    running.submit(graph())
    running.store.delete("requests", request)
    running.written(running.service.parts.ledger.enqueued, request, time.time() - 100)
    for path in (f"graphs/{request}", f"graphs/{digest}", f"artifacts/{request}"):
        answer = running.get(f"/v1/{path}")
        assert (answer.status_code, answer.json()["reason"]) == (404, "not_found")
        assert "collected" in answer.json()["what"]
    assert not running.service._memory.pending
    assert len(running.queue.submitted) == 1, "no task for what is not there"
    running.queue.submitted.clear()
    assert running.submit(graph()).status_code == 202
    assert running.store.read("requests", request, "graph.pb") == graph()
    assert running.queue.submitted == [(request, QUEUE)]


def test_what_the_ledger_has_forgotten_is_known_again_when_handed_in(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, request = key_of(graph())
    running.submit(graph())
    publish(running.store, request)
    running.forget()
    assert running.get(f"/v1/artifacts/{request}").status_code == 200
    monkeypatch.setattr(ledger, "KEPT_SECONDS", -1.0)
    assert running.client.portal is not None
    running.client.portal.call(running.service._prune)
    running.forget()
    assert running.get(f"/v1/artifacts/{KEY}").status_code == 404
    assert running.submit(graph()).json()["key"] == KEY
    assert running.get(f"/v1/artifacts/{KEY}").status_code == 200


def test_while_codes_differ_a_refusal_is_asked_again_once_and_told(
    running: Running, tmp_path: Path
) -> None:
    """A real worker finds its own refusal final; the gateway is of another version."""
    running.service._code = "of another version"
    _, request = key_of(graph())
    running.submit(graph())
    Answers(running.store, request, 1).refused(Refusal("step", Reason.SLOWER), {})
    old = {**(running.store.read_answer(request) or {}), "time": time.time() - 900}
    running.store.answer(request, old)
    running.written(running.service.parts.ledger.enqueued, request, time.time() - 1000)
    running.queue.submitted.clear()
    running.forget()
    assert running.get(f"/v1/graphs/{request}").status_code == 202
    limits = isolate.Limits(60, 2**30, 60)
    leases = FolderLeases(tmp_path / "leases")
    worker = Worker(running.store, leases, TARGET, "2.21", limits, tmp_path)
    for key, _ in running.queue.submitted:
        assert process(worker, key) == "refused"
    running.forget()
    assert running.get(f"/v1/graphs/{request}").json()["reason"] == "slower"
    assert running.queue.submitted == [(request, QUEUE)]
    wait_for(lambda: not running.service._memory.pending, "the end of its wait")


def test_a_refusal_is_given_with_its_reason(running: Running) -> None:
    _, request = key_of(graph())
    running.submit(graph())
    refusal = {"status": "refused", "reason": "quarantined", "detail": "it died twice"}
    running.store.answer(request, {**refusal, "time": time.time()})
    running.forget()
    answer = running.submit(graph())
    assert answer.status_code == 409
    assert (answer.json()["reason"], answer.json()["detail"]) == ("quarantined", "it died twice")
    assert len(running.queue.submitted) == 1


@pytest.mark.parametrize(
    ("header", "status"),
    [({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "Basic x"}, 401)],
)
def test_without_a_valid_token_nothing_is_served(
    running: Running, header: dict[str, str], status: int
) -> None:
    for method, path in (("POST", "/v1/graphs"), ("GET", f"/v1/artifacts/{KEY}")):
        answer = running.client.request(method, path, headers=header)
        assert answer.status_code == status
        assert set(answer.json()) >= {"reason", "what", "mend"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"graph": ""}, "nodes"),
        ({"graph": "AAAA"}, "graph"),
        ({"target": "../../etc"}, "target"),
        ({"tf": "1.15"}, "tf"),
        ({"abi": "one"}, "abi"),
        ({"preserve": ["nowhere"]}, "preserved"),
        ({"session": "a/b"}, "session"),
    ],
)
def test_a_bad_submission_is_told_what_is_wrong(
    running: Running, change: dict[str, Any], what: str
) -> None:
    answer = running.post("/v1/graphs", {**submission(graph()), **change})
    assert (answer.status_code, answer.json()["reason"]) == (400, "bad_request")
    assert what in answer.json()["what"]
    assert running.store.list("requests") == ()


def test_unknown_fields_are_ignored(running: Running) -> None:
    body = {**submission(graph()), "of_a_later_version": {"a": [1]}}
    assert running.post("/v1/graphs", body).status_code == 202


def test_gzip_and_protobuf_are_the_same_submission(running: Running) -> None:
    headers = running.as_("alice")
    plain = running.submit(graph()).json()["request"]
    packed = gzip.compress(json.dumps(submission(graph())).encode())
    gzipped = {**headers, "Content-Encoding": "gzip", "Content-Type": "application/json"}
    message = MESSAGES["SubmitGraph"](target=TARGET, tf=TF, abi=1, graph=graph())
    proto = {**headers, "Content-Type": "application/x-protobuf"}
    bodies = ((packed, gzipped), (message.SerializeToString(), proto))
    for content, sent in bodies:
        answer = running.client.post("/v1/graphs", content=content, headers=sent)
        assert answer.status_code == 202
        assert answer.json()["request"] == plain


def test_rates_hold_per_namespace(tmp_path: Path) -> None:
    slow = Rates(Rate(0.01, 3), Rate(1e9, 1e9), Rate(1e9, 1e9))
    with gateway(tmp_path, rates=slow) as running:
        statuses = [running.get(f"/v1/graphs/{KEY}").status_code for _ in range(5)]
        assert statuses == [404, 404, 404, 429, 429]
        refused = running.get(f"/v1/graphs/{KEY}")
        assert int(refused.headers["retry-after"]) > 10
        assert running.get(f"/v1/graphs/{KEY}", "bob").status_code == 404


def bomb(size: int) -> bytes:
    """A body that unpacks to a little more than `size`, as fast as the ratio allows."""
    return gzip.compress(random.Random(0).randbytes(size // 100) + bytes(size))


def test_bodies_take_so_much_memory_and_one_namespace_half_of_it(tmp_path: Path) -> None:
    """Counted while they come in: those that never end count too, until they are given up."""
    large = submission(graph(), unknown="x" * (2**20 - 2**13))  # with the rest below a mebibyte
    with gateway(tmp_path, body_bytes=2**22) as running:
        with withheld(running, bomb(3 * 2**19), "alice"):
            refused = running.post("/v1/graphs", large, "alice")
            assert (refused.status_code, refused.json()["reason"]) == (429, "rate_limited")
            assert int(refused.headers["retry-after"]) >= 1
            assert running.submit(graph(), "alice").status_code == 202, "there is still room"
            assert running.post("/v1/graphs", large, "bob").status_code == 202
            with withheld(running, bomb(3 * 2**19), "bob"):
                refused = running.post("/v1/graphs", large, "carol")
                assert (refused.status_code, refused.json()["reason"]) == (503, "unavailable")
                assert int(refused.headers["retry-after"]) >= 1
            assert running.post("/v1/graphs", large, "carol").status_code == 202
        assert running.post("/v1/graphs", large, "alice").status_code == 202


def test_a_body_that_never_ends_is_paid_for(tmp_path: Path) -> None:
    slow = Rates(Rate(1e9, 1e9), Rate(0.01, 2**20), Rate(1e9, 1e9))
    with (
        gateway(tmp_path, rates=slow) as running,
        withheld(running, bomb(3 * 2**19), "alice"),
    ):
        refused = running.submit(graph(), "alice")
        assert (refused.status_code, refused.json()["reason"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) > 1000
        assert running.submit(graph(), "bob").status_code == 202


def test_new_graphs_have_a_rate_of_their_own(tmp_path: Path) -> None:
    slow = Rates(Rate(1e9, 1e9), Rate(1e9, 1e9), Rate(0.01, 2))
    with gateway(tmp_path, rates=slow) as running:
        statuses = [running.submit(graph(salt=salt)).status_code for salt in range(4)]
        assert statuses == [202, 202, 429, 429]
        assert running.submit(graph(salt=0)).status_code == 202  # joins, compiles nothing


def test_paths_and_methods_that_are_not_there_are_problems(running: Running) -> None:
    assert running.client.get("/v2/graphs").json()["reason"] == "not_found"
    answer = running.client.delete("/v1/graphs")
    assert (answer.status_code, answer.json()["reason"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert running.get("/v1/artifacts/..%2f..%2fetc").status_code in (400, 404)
    assert running.get(f"/v1/artifacts/{'g' * 64}").status_code == 400


def test_a_graph_is_found_by_its_digest_among_ones_own(running: Running) -> None:
    digest, request = key_of(graph())
    assert running.get(f"/v1/graphs/{digest}").status_code == 404
    running.submit(graph())
    other = running.submit(graph(), "bob", xla=True).json()["request"]
    assert other != request
    assert running.get(f"/v1/graphs/{digest}").json()["request"] == request
    assert running.get(f"/v1/graphs/{digest}", "bob").json()["request"] == other
    assert running.get(f"/v1/artifacts/{digest}").status_code == 404
    latest = running.submit(graph(), deterministic=True).json()["request"]
    assert running.get(f"/v1/graphs/{digest}").json()["request"] == latest
