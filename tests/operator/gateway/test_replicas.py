"""Two gateways as processes, on one PostgreSQL, one broker and one volume: a job may ask either."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from stitch_operator.gateway.ledger import Ledger
from stitch_worker import collect as collector
from stitch_worker.collect import collect
from stitchcore.artifact import store as stores
from stitchcore.artifact.store import open_store
from stitchcore.service.queues import queue_name
from tests import bucket
from tests.operator.gateway import processes
from tests.operator.gateway.processes import Gateway
from tests.operator.gateway.support import TARGET, Running, graph, key_of, publish, submission
from tests.operator.gateway.test_faults import SECOND, report
from tests.ports import free_port
from tests.postgres import Postgres
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
REPORTS = 40
DAY = 86400.0


@pytest.fixture
def both(tmp_path: Path, postgres: Postgres) -> Iterator[list[Gateway]]:
    url = postgres.fresh()
    with ExitStack() as stack:
        broker = stack.enter_context(processes.redis(free_port(), tmp_path))
        yield [
            stack.enter_context(processes.gateway(tmp_path, broker, ledger=url)) for _ in range(2)
        ]


def metric(one: Gateway, name: str) -> float:
    lines = httpx.get(one.metrics, trust_env=False).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_what_one_was_told_the_other_knows(both: list[Gateway], tmp_path: Path) -> None:
    first, second = both
    data = graph()
    digest, request = key_of(data, "local")
    assert first.client.post("/v1/graphs", json=submission(data)).status_code in (202, 409)
    store = open_store(str(tmp_path / "store"))
    publish(store, request)
    for one in both:
        wait_for(lambda o=one: _ready(o, request), "ready")
    artifact = second.client.get(f"/v1/graphs/{request}").json()["key"]
    about = {"graph": digest, "key": artifact, "session": "s"}
    for seq, (one, kind) in enumerate(((first, "swap-begin"), (second, "swap-ok")), 1):
        said = {**about, "seq": seq, "type": kind}
        assert one.client.post("/v1/jobs/events", json=said).status_code == 200
    repeated = {**about, "seq": 1, "type": "swap-begin"}
    assert second.client.post("/v1/jobs/events", json=repeated).status_code == 200
    for one in both:
        assert metric(one, 'stitch_jobs_total{outcome="optimized"}') == 1


def _ready(one: Gateway, request: str) -> bool:
    answer = one.client.get(f"/v1/graphs/{request}")
    return answer.status_code == 200 and answer.json()["status"] == "ready"


def test_one_is_killed_while_jobs_post_and_nothing_is_lost_or_doubled(
    both: list[Gateway], tmp_path: Path
) -> None:
    """What has no answer is said again to the other one: some of it twice."""
    first, second = both
    data = graph()
    digest, request = key_of(data, "local")
    first.client.post("/v1/graphs", json=submission(data))
    publish(open_store(str(tmp_path / "store")), request)
    wait_for(lambda: _ready(second, request), "ready")
    artifact = second.client.get(f"/v1/graphs/{request}").json()["key"]
    posted, halfway = [0, 0], threading.Event()
    for number in range(2):
        began = {"graph": "", "session": f"s{number}", "seq": 0, "type": "timed"}
        assert first.client.post("/v1/jobs/events", json=began).status_code == 200
    time.sleep(1.2)  # as long as the steps take that are posted

    def job(number: int) -> None:
        about = {"graph": digest, "key": artifact, "session": f"s{number}"}
        gateways = [first, second] if number == 0 else [second, first]
        for seq in range(1, REPORTS + 1):
            _told(gateways, report(about, seq, seq * 0.001))
            posted[number] = seq
            if seq == REPORTS // 2:
                halfway.set()

    jobs = [threading.Thread(target=job, args=(number,)) for number in range(2)]
    for one in jobs:
        one.start()
    assert halfway.wait(120)
    processes.end(first.process)
    for one in jobs:
        one.join(120)
    assert posted == [REPORTS, REPORTS]
    saved = metric(second, "stitch_cpu_core_seconds_saved_total")
    lost = metric(second, "stitch_cpu_core_seconds_lost_total")
    assert round((saved - lost) * SECOND) == 2 * REPORTS * SECOND // 1000


def _told(gateways: list[Gateway], said: dict[str, Any]) -> None:
    while True:
        try:
            answer = gateways[0].client.post("/v1/savings", json=said)
        except httpx.HTTPError:
            gateways.reverse()
            continue
        if answer.status_code == 200:
            return
        assert answer.status_code == 503, answer.text


def test_a_namespaces_rate_is_that_of_all_gateways(tmp_path: Path, postgres: Postgres) -> None:
    """As many calls as go through, at both, until sixteen seconds' have: not twice the rate."""
    rate, url = 5.0, postgres.fresh()
    with ExitStack() as stack:
        broker = stack.enter_context(processes.redis(free_port(), tmp_path))
        both = [
            stack.enter_context(
                processes.gateway(tmp_path, broker, "--calls", str(rate), ledger=url)
            )
            for _ in range(2)
        ]
        passed, began = [0, 0], time.monotonic()

        def ask(number: int) -> None:
            while sum(passed) < 16 * rate:
                answer = both[number].client.get(f"/v1/graphs/{'0' * 64}")
                passed[number] += answer.status_code == 404
                assert answer.status_code in (404, 429), answer.text
                time.sleep(0.05)

        asking = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
        for one in asking:
            one.start()
        for one in asking:
            one.join()
        elapsed = time.monotonic() - began
    bursts = 2 * 2 * rate
    assert sum(passed) <= rate * elapsed + bursts + 3 * rate, passed


def test_two_on_one_bucket_lose_nothing_and_hold_the_quota(
    tmp_path: Path, postgres: Postgres
) -> None:
    """Both are handed the same graphs and others, while a collector makes room: what was taken in
    is there whole, what is in use stays, and no more is kept than the namespace may have."""
    graphs, room = [graph(salt=1000 + number) for number in range(24)], 10
    size, url = len(graphs[0]), postgres.fresh()
    queue, most = queue_name(TARGET, "2.21"), ("--namespace-bytes", str(room * size))
    with ExitStack() as stack:
        _, environment = stack.enter_context(bucket.served())
        broker = stack.enter_context(processes.redis(free_port(), tmp_path))
        options = ("--store", bucket.URL, "--on-demand", queue, *most)
        both = [
            stack.enter_context(
                processes.gateway(tmp_path, broker, *options, ledger=url, more=environment)
            )
            for _ in range(2)
        ]
        store = open_store(bucket.URL)

        def hand_in(given: tuple[int, bytes]) -> tuple[str, int]:
            """To either gateway; the request, and what was said."""
            place, data = given
            answer = both[place].client.post("/v1/graphs", json=submission(data))
            turned_away = answer.status_code == 429
            assert answer.status_code in (200, 202) or turned_away, answer.text
            return key_of(data, "local")[1], answer.status_code

        with ThreadPoolExecutor(8) as pool:
            said = list(pool.map(hand_in, [(place, one) for one in graphs for place in (0, 1)]))
        taken = {request for request, status in said if status == 202}
        assert len(taken) == room, said
        assert set(store.list("requests")) == taken
        by_request = {key_of(one, "local")[1]: one for one in graphs}
        for request in taken:
            assert store.read("requests", request, "graph.pb") == by_request[request]
            assert json.loads(store.read("requests", request, "meta.json"))["digest"]

        used, idle = sorted(taken)[:3], sorted(taken)[3:]
        for number, request in enumerate(sorted(taken)):
            publish(store, request, key=f"{number:064x}", time=time.time() - 2 * DAY)
        later = time.time() + 2 * DAY  # all was handed in, and answered, two days ago
        for request in used:
            both[1].client.get(f"/v1/graphs/{request}")
        wait_for(lambda: all(store.exists("requests", r, "used") for r in used), "use is noted")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(collector, "written", lambda info: _as_of(info, later))
            with ThreadPoolExecutor(8) as pool:
                asked = [(place, by_request[one]) for one in used for place in (0, 1)]
                asking = pool.map(hand_in, 4 * asked)
                gone = {one.parts for one in collect(store, later, limit=0)}
                assert all(status == 200 for _, status in asking)
        assert gone >= {("requests", request) for request in idle}
        assert set(store.list("requests")) == set(used)
        assert len(store.list("artifacts")) == len(used)

        new = [graph(salt=2000 + number) for number in range(24)]
        for _ in range(30):  # a gateway counts anew once a minute at most
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(hand_in, [(n % 2, one) for n, one in enumerate(new)]))
            kept = len(store.list("requests"))
            assert kept <= room
            if kept == room:
                break
            time.sleep(5)
        assert kept == room, "what was collected makes room"


def _as_of(info: Mapping[str, Any], now: float) -> float:
    """When a file was written; a note of its use, at `now`."""
    return now if str(info["name"]).endswith("/used") else stores.written(info)


def test_one_whose_clock_is_wrong_is_not_ready(
    running: Running, monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    """It would take a swap that another one has just noted for one that was silent for an hour."""
    ledger = Ledger(postgres.fresh())
    assert abs(ledger.clock_differs()) < 5
    monkeypatch.setattr(running.service.parts.ledger, "clock_differs", ledger.clock_differs)
    assert running.client.get("/readyz").status_code == 200
    real = time.time
    monkeypatch.setattr("stitch_operator.gateway.ledger.time.time", lambda: real() - 3600)
    answer = running.client.get("/readyz")
    assert answer.status_code == 503 and "-3600 s ahead" in answer.text
    ledger.close()
