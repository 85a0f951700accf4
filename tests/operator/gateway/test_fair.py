"""One namespace's burst is not another's wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_operator.gateway.digests import Digests
from stitch_operator.gateway.fair import Line
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.service import Shares
from tests.operator.gateway.support import QUEUE, TARGET, gateway, graph, key_of, publish
from tests.waiting import wait_for


def drained(line: Line[None], places: int, tasks: int) -> list[str]:
    """Namespaces in the order in which they are served, the oldest that runs ending first."""
    order: list[str] = []
    for _ in range(tasks):
        while (taken := line.take(places)) is not None:
            order.append(taken[0])
        if not line.running:
            break
        line.done(next(iter(line.running)))
    return order


@given(st.integers(1, 300), st.integers(1, 4), st.integers(0, 20))
def test_a_burst_delays_another_namespace_by_one_task(burst: int, places: int, served: int) -> None:
    line: Line[None] = Line()
    for number in range(burst):
        line.add("loud", f"loud-{number}", None)
    drained(line, places, served)
    while line.take(places) is not None:
        pass
    line.add("quiet", "quiet", None)
    if line.running:
        line.done(next(iter(line.running)))  # the one task that it waits for
    taken = line.take(places)
    assert taken is not None and taken[0] == "quiet"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99)), max_size=200))
def test_everything_is_served_once_however_it_comes(asked: list[tuple[str, int]]) -> None:
    line: Line[None] = Line(most=1)
    for namespace, number in asked:
        line.add(namespace, f"{namespace}{number}", None)
    order = drained(line, 2, 1000)
    assert Counter(order) == Counter(namespace for namespace, _ in set(asked))
    assert not line.waiting and not line.running


def test_shares_are_as_weights_and_a_cap_holds() -> None:
    line: Line[None] = Line(weights={"a": 3.0})
    for number in range(400):
        line.add("a", f"a{number}", None)
        line.add("b", f"b{number}", None)
    counts = Counter(drained(line, 1, 99)[:100])
    assert abs(counts["a"] - 75) <= 1
    capped: Line[None] = Line(most=2)
    for number in range(9):
        capped.add("a", f"a{number}", None)
    while capped.take(8) is not None:
        pass
    assert len(capped.running) == 2
    capped.add("b", "b", None)
    assert capped.take(8) is not None, "the rest is others'"


def test_who_was_away_has_saved_nothing_up() -> None:
    line: Line[None] = Line()
    for number in range(100):
        line.add("a", f"a{number}", None)
    drained(line, 1, 50)
    for number in range(100):
        line.add("b", f"b{number}", None)
    assert 9 <= Counter(drained(line, 1, 19))["a"] <= 11


def test_a_worker_gets_the_next_namespaces_graph_and_none_is_enqueued_before(
    tmp_path: Path,
) -> None:
    with gateway(tmp_path, places=1) as running:
        for salt in range(30):
            assert running.submit(graph(salt=salt)).status_code == 202
        assert running.submit(graph(salt=99), "bob").json()["stage"] == "queued"
        first, quiet = key_of(graph(salt=0))[1], key_of(graph(salt=99), "bob")[1]
        assert [key for key, _ in running.queue.submitted] == [first]
        for _ in range(3):
            assert running.submit(graph(salt=99), "bob").status_code == 202
        publish(running.store, first)
        running.forget()
        assert running.submit(graph(salt=0)).status_code == 200
        assert [key for key, _ in running.queue.submitted] == [first, quiet]
        publish(running.store, quiet, "cd" * 32)
        running.forget()
        assert running.submit(graph(salt=99), "bob").status_code == 200
        assert len(running.queue.submitted) == 3 and len(running.store.list("requests")) == 31


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), min_size=1, max_size=60))
def test_what_a_job_waits_for_is_first_of_its_namespace_alone(
    asked: list[tuple[str, bool]],
) -> None:
    line: Line[None] = Line()
    for number, (namespace, _) in enumerate(asked):
        line.add(namespace, f"{namespace}{number}", None)
    for number, (namespace, waits) in enumerate(asked):
        if waits:
            line.urge(f"{namespace}{number}")
    order: list[str] = []
    while (taken := line.take(1)) is not None:
        order.append(taken[1])
        line.done(taken[1])
    for one in "ab":
        own = [(not waits, n) for n, (namespace, waits) in enumerate(asked) if namespace == one]
        assert [int(name[1:]) for name in order if name[0] == one] == [n for _, n in sorted(own)]
    turns, counts = [name[0] for name in order], Counter(namespace for namespace, _ in asked)
    both = 2 * min(counts["a"], counts["b"])
    assert turns[:both].count("a") == both / 2, "nobody is given more for saying that it waits"
    assert not line.urgent


def test_a_job_that_waits_goes_before_those_that_run(tmp_path: Path) -> None:
    with gateway(tmp_path, places=1) as running:
        for salt in range(5):
            running.submit(graph(salt=salt))
        running.submit(graph(salt=5), waits=True)
        running.submit(graph(salt=3), waits=True)  # who joins one that waits already
        for _ in range(3):
            last = running.queue.submitted[-1][0]
            publish(running.store, last, f"{len(running.queue.submitted):064x}")
            running.forget()
            assert running.get(f"/v1/graphs/{last}").status_code == 200
        keys = [key_of(graph(salt=salt))[1] for salt in (0, 5, 3, 1)]
        assert [key for key, _ in running.queue.submitted] == keys


def test_who_waits_in_line_asks_when_it_can_have_come_up(tmp_path: Path) -> None:
    """A thousand jobs that ask each second are a thousand calls a second, of graphs that cannot
    be ready: the gateway answered nobody else."""
    with gateway(tmp_path, places=2) as running:
        told = [int(running.submit(graph(salt=n)).headers["Retry-After"]) for n in range(20)]
        assert told == [max(1, round(max(0, n - 2) / 2)) for n in range(20)]
        assert running.submit(graph(salt=19), waits=True).headers["Retry-After"] == "1"
        assert running.submit(graph(salt=18)).headers["Retry-After"] == "8", "one went before it"
        for n in range(10, 15):
            urgent = running.submit(graph(salt=n), waits=True)
        assert urgent.headers["Retry-After"] == "2", "five that are waited for go before it"
        for n in range(20, 100):
            told.append(int(running.submit(graph(salt=n)).headers["Retry-After"]))
        assert max(told) == 30
        assert running.submit(graph(salt=1), "bob").headers["Retry-After"] == "1"


def test_no_line_is_counted_further_than_it_matters() -> None:
    line: Line[None] = Line()
    for number in range(1000):
        line.add("a", str(number), None)
    assert [line.ahead(str(n), 40) for n in (0, 7, 40, 999)] == [0, 7, 40, 40]
    assert line.ahead("none", 40) == 0


def test_a_days_core_seconds_hold_what_was_taken_in_before_too(tmp_path: Path) -> None:
    """Graphs that were handed in before the first one was charged would have been all compiled."""
    with gateway(tmp_path, places=1, shares=Shares(day=50.0)) as running:
        for salt in range(5):
            assert running.submit(graph(salt=salt)).status_code == 202
        first, quiet = key_of(graph(salt=0))[1], key_of(graph(salt=9), "bob")[1]
        publish(running.store, first, spent={"compile": 60.0, "measure": 20.0})
        running.forget()
        assert running.submit(graph(salt=0)).status_code == 200
        assert running.submit(graph(salt=1)).status_code == 202, "it waits for its share"
        assert running.submit(graph(salt=9), "bob").status_code == 202
        assert [key for key, _ in running.queue.submitted] == [first, quiet]
        publish(running.store, quiet, "cd" * 32)
        running.service._budgets.charge("alice", -80.0, time.monotonic())  # as time would have it
        wait_for(lambda: len(running.queue.submitted) == 3)


def test_no_worker_is_started_for_what_may_not_run() -> None:
    line: Line[None] = Line(most=3)
    for number in range(9):
        for namespace in ("a", "b", "c"):
            line.add(namespace, f"{namespace}{number}", None)
    assert line.wanted(lambda one: True) == 9, "three of each"
    assert line.take(9, lambda one: one != "a") is not None
    assert line.wanted(lambda one: one != "a") == 6, "what runs is counted, of whomever"
    assert line.wanted(lambda one: False) == 1


@pytest.mark.slow
def test_a_task_that_workers_are_started_for_waits_for_them(tmp_path: Path) -> None:
    """An image may be pulled for minutes: given up after one, it would stop its own worker."""
    with gateway(tmp_path, served=(), on_demand=(QUEUE,), places=1) as running:
        assert running.submit(graph(salt=1)).status_code == 202
        request = key_of(graph(salt=1))[1]
        ledger = running.service.parts.ledger
        running.written(ledger.enqueued, request, time.time() - 1000.0)
        assert running.submit(graph(salt=2)).status_code == 202
        time.sleep(1.5)  # the gateway has looked again
        assert len(running.queue.submitted) == 1 and running.service.demand == {QUEUE: 2}
        running.queue.names = frozenset((QUEUE,))
        wait_for(lambda: len(running.queue.submitted) == 2)


def test_a_line_is_made_for_no_queue_that_nobody_serves(tmp_path: Path) -> None:
    with gateway(tmp_path, on_demand=(QUEUE,)) as running:
        for target in ("sm_1", "sm_2"):
            running.submit(graph(), waits=True, target=target)
        assert not running.service._lines


@pytest.mark.slow
def test_workers_are_started_for_what_waits_and_find_it(tmp_path: Path) -> None:
    """From none: the first graph waits instead of being refused, the figure that a scaler reads
    counts what waits and what runs, and workers that come get theirs though nobody asks."""
    with gateway(tmp_path, served=(), on_demand=(QUEUE,), places=1) as running:
        assert running.service.demand == {QUEUE: 0}, "there before anything is asked for"
        for salt in range(4):
            assert running.submit(graph(salt=salt)).status_code == 202
        wait_for(lambda: running.service.demand == {QUEUE: 4})
        labels = {"target": TARGET, "tensorflow": "2.21"}
        value = running.service.metrics.registry.get_sample_value
        assert value("stitch_queue_tasks", labels) == 4
        assert len(running.queue.submitted) == 1
        running.queue.free = 3
        wait_for(lambda: len(running.queue.submitted) == 3)
        for key in [key for key, _ in running.queue.submitted]:
            publish(running.store, key, key)
        running.forget()
        wait_for(lambda: running.service.demand == {QUEUE: 1})
    with gateway(tmp_path / "none", served=()) as running:
        running.service.since -= 1000.0
        refused = running.submit(graph())
        assert refused.json()["reason"] == "no_worker_for_target"


def test_numbering_is_nobodys_line_either() -> None:
    """Graphs as large as may be take seconds each: another namespace waits for one of them."""

    async def scene() -> list[str]:
        digests, order = Digests(1), []

        async def number(namespace: str, data: bytes) -> None:
            await digests.of(data, [], namespace)
            order.append(namespace)

        loud = [asyncio.ensure_future(number("loud", graph(2000, salt=n))) for n in range(6)]
        await asyncio.sleep(0)
        quiet = asyncio.ensure_future(number("quiet", graph()))
        await asyncio.gather(*loud, quiet)
        digests.close()
        return order

    assert asyncio.run(scene()).index("quiet") <= 1


def test_a_day_has_so_many_core_seconds_of_compilations(tmp_path: Path) -> None:
    with gateway(tmp_path, shares=Shares(day=50.0)) as running:
        request = key_of(graph(salt=1))[1]
        for salt, status in ((1, 202), (2, 202)):
            assert running.submit(graph(salt=salt)).status_code == status
        publish(running.store, request, spent={"compile": 600.0, "measure": 20.0})
        running.forget()
        assert running.submit(graph(salt=1)).status_code == 200
        refused = running.submit(graph(salt=3))
        assert (refused.status_code, refused.json()["reason"]) == (429, "quota")
        assert running.submit(graph(salt=2)).status_code == 202, "what was taken in goes on"
        assert running.submit(graph(salt=3), "bob").status_code == 202


def test_a_flood_of_reports_delays_another_namespaces_by_one(tmp_path: Path) -> None:
    """The ledger has one thread, and a report is a write: where the disk takes its time, one
    namespace within its rate of calls had it to itself, and others were told 503."""
    done: list[str] = []
    with gateway(tmp_path) as running:
        kept, begun, go_on = (
            running.service.parts.ledger.timed,
            threading.Event(),
            threading.Event(),
        )

        def slowly(identity: Identity, *rest: Any) -> None:
            begun.set()
            go_on.wait(60)
            kept(identity, *rest)
            done.append(identity.namespace)

        running.service.parts.ledger.timed = slowly  # type: ignore[method-assign]

        def report(name: str, number: int) -> int:
            said = {"session": f"s{number}", "seq": 1, "graph": "", "type": "timed"}
            return int(running.post("/v1/jobs/events", said, name).status_code)

        waiting = running.service.ledger._under_way
        with ThreadPoolExecutor(48) as pool:
            answers = [pool.submit(report, "alice", number) for number in range(40)]
            assert begun.wait(60)
            answers += [pool.submit(report, "bob", number) for number in range(3)]
            wait_for(lambda: (waiting["alice"], waiting["bob"]) == (40, 3), "all are in line")
            go_on.set()
            assert [one.result() for one in answers] == [200] * 43
    assert max(place for place, name in enumerate(done) if name == "bob") <= 6, done
