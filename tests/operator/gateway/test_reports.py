"""Events and savings over HTTP, down to the metrics that Prometheus reads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stitch_operator.gateway.service import CLUSTER, NAMESPACE
from stitch_operator.gateway.wire import MESSAGES
from tests.operator.gateway.support import KEY, Running, Tokens, gateway, graph, key_of, publish
from tests.waiting import wait_for

SECOND = 10**9


def samples(running: Running) -> dict[str, float]:
    """name{labels} -> value, of all metrics."""
    text = generate_latest(running.service.metrics.registry).decode()
    return {
        f"{sample.name}{json.dumps(sample.labels, sort_keys=True)}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ready(running: Running, name: str = "alice") -> dict[str, Any]:
    """A graph is handed in and answered; the fields of a report about it."""
    digest, request = key_of(graph())
    running.submit(graph(), name)
    publish(running.store, request, spent={"compile": 3.5, "measure": 1.25, "lower": 0.5})
    running.forget()
    assert running.submit(graph(), name).status_code == 200
    running.forget()
    return {"session": "s1", "graph": digest, "key": KEY}


def savings(about: dict[str, Any], seq: int, saved: int, **more: Any) -> dict[str, Any]:
    figures = {"steps": 100, "baseline_ns": 100 * SECOND + saved, "stitched_ns": 100 * SECOND}
    given = {"interval": [saved - 1, saved + 1], "pairs": 20, "devices": 2}
    return {**about, "seq": seq, **figures, **given, **more}


def test_savings_reach_prometheus_and_repeats_change_nothing(running: Running) -> None:
    about = ready(running)
    said = savings(about, 1, 10 * SECOND)
    assert running.post("/v1/savings", said).json()["status"] == "counted"
    assert running.post("/v1/savings", said).json()["status"] == "old"
    older = savings(about, 0, 50 * SECOND)
    assert running.post("/v1/savings", older).json()["status"] == "old"
    found = samples(running)
    saved = 'stitch_cpu_core_seconds_saved_total{"namespace": "alice"}'
    assert found[saved] == 20.0  # 10 s on 2 cores
    running.post("/v1/savings", savings(about, 2, -5 * SECOND))
    found = samples(running)
    assert found[saved] == 20.0
    assert found[saved.replace("saved", "lost")] == 30.0
    assert found['stitch_cpu_core_seconds_spent_total{"purpose": "compile"}'] == 4.0
    assert found['stitch_cpu_core_seconds_spent_total{"purpose": "measure"}'] == 1.25
    assert found["stitch_step_speedup_ratio_count{}"] == 1.0


def test_what_workers_spent_is_the_sum_of_all_compilations(tmp_path: Path) -> None:
    """An answer that is seen again adds nothing, one after another compilation what is new."""
    seen = (
        *(("compile", 2.0, 7, 2.0), ("compile", 2.0, 7, 2.0), ("compile", 5.0, 7, 5.0)),
        ("idle", 1.0, 9, 6.0),
    )
    for purpose, seconds, account, total in seen:
        with gateway(tmp_path) as running:
            publish(running.store, key_of(graph())[1], spent={purpose: seconds}, account=account)
            assert running.submit(graph()).status_code == 200
            found = samples(running)
            assert found['stitch_cpu_core_seconds_spent_total{"purpose": "compile"}'] == total


def test_a_later_protobuf_report_is_counted(running: Running) -> None:
    about = ready(running)
    message = MESSAGES["Savings"](
        **about,
        seq=7,
        steps=10,
        baseline_ns=120 * SECOND,
        stitched_ns=100 * SECOND,
        interval=[1, 2],
        devices=1.0,
    )
    headers = {**running.as_("alice"), "Content-Type": "application/x-protobuf"}
    body = message.SerializeToString()
    answer = running.client.post("/v1/savings", content=body, headers=headers)
    assert answer.json()["status"] == "counted"
    assert samples(running)['stitch_cpu_core_seconds_saved_total{"namespace": "alice"}'] == 20.0


def test_implausible_savings_are_refused_and_counted(running: Running) -> None:
    about = ready(running)
    # the artifact was measured at 2.0: beyond 2.5 nobody is believed
    answer = running.post("/v1/savings", savings(about, 1, 151 * SECOND))
    assert (answer.status_code, answer.json()["reason"]) == (422, "implausible")
    long = {"baseline_ns": 9000 * SECOND, "stitched_ns": 8000 * SECOND}
    assert running.post("/v1/savings", savings(about, 2, 0, **long)).status_code == 422
    found = samples(running)
    assert found['stitch_savings_reports_total{"result": "implausible"}'] == 2.0
    assert not any(name.startswith("stitch_cpu_core_seconds_saved_total{") for name in found)


def test_the_best_regions_measurement_bounds_savings(running: Running) -> None:
    """Not the cost model's estimate (2.0 here), where the worker has timed regions."""
    digest, request = key_of(graph())
    running.submit(graph())
    regions = [
        {"stitched": True, "proof": {"ratio": [0.8, 0.9, 1.0]}},
        {"stitched": False, "proof": {"ratio": [0.1, 0.2, 0.3]}},
        {"stitched": True, "proof": {}},
    ]
    publish(running.store, request, report=json.dumps({"regions": regions}).encode())
    running.forget()
    running.submit(graph())
    running.forget()
    about = {"session": "s1", "graph": digest, "key": KEY}
    beyond = savings(about, 1, 57 * SECOND)  # 1.57 > 1.25 / 0.8
    assert running.post("/v1/savings", beyond).status_code == 422
    assert running.post("/v1/savings", savings(about, 1, 56 * SECOND)).status_code == 200


@pytest.mark.parametrize(("said", "most"), [(1.2, 1.5), (1e300, None), (0.5, 1.25), ("x", 1.25)])
def test_the_answers_ratio_comes_first(running: Running, said: object, most: float | None) -> None:
    digest, request = key_of(graph())
    running.submit(graph())
    regions = [{"stitched": True, "proof": {"ratio": [1.0, 1.0, 1.0]}}]
    report = json.dumps({"regions": regions}).encode()
    publish(running.store, request, report=report, ratio=said)
    running.forget()
    running.submit(graph())
    running.forget()
    about = {"session": "s1", "graph": digest, "key": KEY}
    if most is not None:
        beyond = savings(about, 1, round((most - 0.99) * 100) * SECOND)
        assert running.post("/v1/savings", beyond).status_code == 422
        within = savings(about, 1, round((most - 1.01) * 100) * SECOND)
        assert running.post("/v1/savings", within).status_code == 200
    known = running.service.parts.ledger.request(request)
    assert known is not None and known.ratio is not None and known.ratio <= 1e6


def test_without_an_interval_nothing_is_counted(running: Running) -> None:
    about = ready(running)
    running.post("/v1/savings", savings(about, 1, 10 * SECOND, interval=None))
    assert samples(running)['stitch_cpu_core_seconds_saved_total{"namespace": "alice"}'] == 0.0


def test_a_pod_of_which_nothing_runs_saves_nothing(tmp_path: Path) -> None:
    """One that waits for a node for ever may ask for ten thousand GPUs, and one that has ended had
    them: whoever may make tokens for a pod of the namespace reported for either."""
    with gateway(tmp_path, Tokens(started=None, devices=10_000.0)) as running:
        about = ready(running)
        answer = running.post("/v1/savings", savings(about, 1, SECOND // 10))
        assert (answer.status_code, answer.json()["reason"]) == (422, "implausible")
        assert "no container of the pod runs" in answer.json()["what"]
        assert not any("saved_total" in name and value for name, value in samples(running).items())


def test_another_namespaces_artifact_cannot_be_reported_on(running: Running) -> None:
    about = ready(running)
    said = savings(about, 1, 10 * SECOND)
    assert running.post("/v1/savings", said, "bob").status_code == 404
    event = {**about, "seq": 1, "type": "swap-begin"}
    assert running.post("/v1/jobs/events", event, "bob").status_code == 404
    assert running.post("/v1/savings", {**said, "graph": "00" * 32}).status_code == 404


def test_a_workload_that_crashed_after_a_swap_is_refused_the_artifact(running: Running) -> None:
    about = ready(running)
    for seq, kind in enumerate(("swap-begin", "crashed-before")):
        event = {**about, "seq": seq, "type": kind, "exit_code": 139}
        assert running.post("/v1/jobs/events", event).json()["status"] == "noted"
    assert (
        running.post("/v1/jobs/events", {**about, "seq": 0, "type": "swap-begin"}).json()["status"]
        == "old"
    )
    answer = running.submit(graph())
    assert (answer.status_code, answer.json()["reason"]) == (409, "crashed_before")
    assert running.get(f"/v1/artifacts/{KEY}").status_code == 409
    assert running.submit(graph(), "bob").status_code == 202
    publish(running.store, key_of(graph(), "bob")[1])
    running.forget()
    assert running.submit(graph(), "bob").status_code == 200, "his workloads have not crashed"
    found = samples(running)
    assert found['stitch_jobs_total{"outcome": "crashed"}'] == 1.0
    assert found['stitch_fallbacks_total{"reason": "crashed_before"}'] == 1.0


def test_a_group_of_two_agrees_over_http(running: Running) -> None:
    about = ready(running)
    words = {**about, "type": "acknowledged", "group": "run-1", "size": 2}

    def say(rank: int, step: int, seq: int, **more: Any) -> dict[str, Any]:
        mine = {"session": f"s{rank}", "rank": rank, "step": step, "seq": seq}
        answer = running.post("/v1/jobs/events", {**words, **mine, **more})
        assert answer.status_code == 200
        document: dict[str, Any] = answer.json()
        return document

    assert "swap_at" not in say(0, 3, 1)
    step = say(1, 9, 1)["swap_at"]
    assert step > 9
    assert say(0, 10, 2, confirm=step)["group"]["state"] == "named"
    assert say(1, 11, 2, confirm=step)["group"]["state"] == "committed"
    assert say(0, step, 3)["group"]["state"] == "committed"


@pytest.mark.parametrize("reason", ["slower", "no such reason \x00"])
def test_reasons_in_metrics_are_a_closed_list(running: Running, reason: str) -> None:
    about = ready(running)
    event = {**about, "seq": 1, "type": "rolled-back", "reason": reason}
    assert running.post("/v1/jobs/events", event).status_code == 200
    counted = "slower" if reason == "slower" else "other"
    found = samples(running)
    assert found[f'stitch_fallbacks_total{{"reason": "{counted}"}}'] == 1.0
    assert found["stitch_regressions_total{}"] == 1.0


def test_waits_and_durations_are_observed_though_nobody_asks(running: Running) -> None:
    _, request = key_of(graph())
    running.submit(graph())
    publish(running.store, request)
    name = 'stitch_compile_duration_seconds_count{"target": "cpu-x86-64-v3"}'
    found = wait_for(lambda: (seen := samples(running)).get(name) and seen, "it is observed")
    assert found["stitch_queue_wait_seconds_count{}"] == 1.0
    assert found["stitch_gateway_pending{}"] <= 1.0


def test_submissions_are_hits_misses_or_joins(running: Running) -> None:
    ready(running)  # a miss, then a hit
    running.submit(graph(salt=1))
    running.submit(graph(salt=1))
    found = samples(running)
    assert {
        result: found.get(f'stitch_cache_requests_total{{"result": "{result}"}}')
        for result in ("hit", "miss", "join")
    } == {"hit": 1.0, "miss": 2.0, "join": 1.0}
    labels = {name.partition("{")[2] for name in found}
    assert not any(KEY[:12] in label or "pod-" in label for label in labels)


def test_kernels_count_once_by_what_became_of_them(running: Running) -> None:
    _, request = key_of(graph())
    running.submit(graph())
    said = {"hit": 3, "miss": 2, "refused": -1, "failed": "many", "lies": 9}
    opened = ["network", "network", "files", "lies"]
    publish(running.store, request, spent={"compile": 1.0}, units=said, open=opened)
    for _ in range(2):
        running.forget()
        running.service._memory.finished.clear()
        assert running.submit(graph()).status_code == 200
    found = samples(running)
    name = "stitch_cache_requests_total"
    counted = {label: n for label, n in found.items() if label.startswith(name + '{"result": "k')}
    assert counted == {
        f'{name}{{"result": "kernel_hit"}}': 3.0,
        f'{name}{{"result": "kernel_miss"}}': 2.0,
        f'{name}{{"result": "kernel_refused"}}': 0.0,
        f'{name}{{"result": "kernel_failed"}}': 0.0,
    }
    name = "stitch_unconfined_compiles_total"
    assert {label: n for label, n in found.items() if label.startswith(name)} == {
        f'{name}{{"what": "network"}}': 1.0,
        f'{name}{{"what": "files"}}': 1.0,
    }


@pytest.mark.parametrize("scope", [NAMESPACE, CLUSTER])
def test_whose_kernels_are_shared_is_the_gateways_word(running: Running, scope: str) -> None:
    parts = running.service.parts
    running.service.parts = replace(parts, cache_scope=scope)
    scopes = []
    for salt, name in ((1, "alice"), (2, "bob"), (3, "alice")):
        running.submit(graph(salt=salt), name, scope="ab" * 32)
        _, request = key_of(graph(salt=salt), name)
        scopes.append(json.loads(running.store.read("requests", request, "meta.json"))["scope"])
    assert all(re.fullmatch("[0-9a-f]{64}|cluster", one) for one in scopes), "as workers take it"
    if scope == CLUSTER:
        assert scopes == ["cluster"] * 3
    else:
        assert scopes[0] == scopes[2] != scopes[1] and "ab" * 32 not in scopes
