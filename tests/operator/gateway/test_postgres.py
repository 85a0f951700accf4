"""A ledger in PostgreSQL: several gateways at once, a server that dies, and each figure once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import SQLAlchemyError

from stitch_operator.gateway import database
from stitch_operator.gateway.database import LedgerVersion, connect, run
from stitch_operator.gateway.groups import ABORTED, COMMITTED, NAMED, Acknowledgement
from stitch_operator.gateway.ledger import COUNTED, GO, OLD, WAIT, Ledger
from stitch_operator.gateway.workloads import Stood
from tests.operator.gateway.test_ledger import (
    GRAPH,
    KEY,
    SECOND,
    START,
    handed_in,
    identity,
    report,
)
from tests.postgres import Postgres, server

NOW = START + 3600
PODS, REPORTS = 6, 12


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    with server() as made:
        yield made


def stubborn(call: Callable[[], str]) -> str:
    """As a job that repeats what was not answered."""
    while True:
        try:
            return call()
        except SQLAlchemyError:
            time.sleep(0.05)


def save(ledger: Ledger, pod: int, seq: int) -> str:
    """The job's sum so far: a second more with each report."""
    return ledger.save(identity(pod=f"p{pod}"), "s", GRAPH, report(seq, seq), 1.2, NOW)


def reported(ledger: Ledger) -> None:
    """Every report of every pod, in order, as often as it takes."""
    for seq in range(1, REPORTS + 1):
        for pod in range(PODS):
            assert stubborn(lambda p=pod, s=seq: save(ledger, p, s)) in (COUNTED, OLD)


def whole(ledger: Ledger) -> None:
    assert ledger.totals() == [("a", "cpu", PODS * REPORTS * SECOND, 0)]
    counts = {(name, label): count for name, label, count in ledger.counts()}
    assert counts["savings", COUNTED] <= PODS * REPORTS
    with ledger._database.reading() as db:
        [rows] = run(db, "SELECT count FROM rows").scalars()
        tables = ("savings", "sessions", "pods")
        found = [run(db, f"SELECT count(*) FROM {table}").scalar_one() for table in tables]
        assert found == [PODS] * 3
        assert rows == sum(found)


def test_two_gateways_count_nothing_twice(postgres: Postgres) -> None:
    """Each is told everything, so that all of it is told twice, at the same time."""
    url = postgres.fresh()
    both = [Ledger(url), Ledger(url)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(reported, both))
    whole(both[0])
    for ledger in both:
        ledger.close()


def test_without_the_lock_two_gateways_count_twice(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read before either has written."""
    monkeypatch.setitem(database.LOCKS, "postgresql", "SELECT 1")
    url = postgres.fresh()
    both, met = [Ledger(url), Ledger(url)], threading.Barrier(2)
    save(both[0], 0, 1)
    monkeypatch.setattr(
        "stitch_operator.gateway.ledger.savings.implausible", lambda *_: met.wait(120) * 0 or ""
    )
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda ledger: save(ledger, 0, 2), both)) == [COUNTED] * 2
    assert both[0].totals() == [("a", "cpu", 3 * SECOND, 0)], "the second second twice"
    for ledger in both:
        ledger.close()


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_writes_loses_and_doubles_nothing(
    own_server: Postgres,
) -> None:
    """Five times, with two gateways at work; each goes on by itself when it is back."""
    url = own_server.fresh()
    both = [Ledger(url), Ledger(url)]
    with ThreadPoolExecutor(2) as threads:
        written = [threads.submit(reported, ledger) for ledger in both]
        for kill in range(5):
            seen = PODS * (kill + 1)
            while not all(one.done() for one in written) and _count(own_server, url) < seen:
                time.sleep(0.01)
            own_server.kill()
            own_server.start()
        for one in written:
            one.result(120)
    reported(both[1])  # all of it once more
    whole(both[1])
    for ledger in both:
        ledger.close()


def _count(postgres: Postgres, url: str) -> int:
    with postgres.asked(url.rpartition("/")[2]) as connection:
        found = connection.execute("SELECT coalesce(sum(count), 0) FROM counts").fetchone()
    return int(found[0]) if found else 0


@pytest.mark.slow
def test_a_gateway_that_stops_while_it_writes_holds_nobody_up(postgres: Postgres) -> None:
    """Its transaction is ended by the server, and nothing of it is left."""
    url = postgres.fresh()
    stuck, other = Ledger(url), Ledger(url)

    def write() -> None:
        with stuck._database.writing() as db:
            run(db, "INSERT INTO counts VALUES ('savings', 'counted', 1000)")
            assert stubborn(lambda: save(other, 0, 1)) == COUNTED
            run(db, "SELECT 1")

    with pytest.raises(SQLAlchemyError):
        write()
    assert ("savings", COUNTED, 1) in other.counts()
    stuck.close()
    other.close()


def test_what_gateways_decide_is_one_decision(postgres: Postgres) -> None:
    """Whether a workload may swap, and at which step replicas do, whichever gateway they ask."""
    url = postgres.fresh()
    first, second = Ledger(url), Ledger(url)
    handed_in(first, identity())
    one, other = identity(pod="p1"), identity(pod="p2")
    assert first.may_swap(one, "s1", GRAPH, KEY, NOW, START) == GO
    assert second.may_swap(other, "s2", GRAPH, KEY, NOW, START) == WAIT

    def say(ledger: Ledger, rank: int, step: int, confirm: int | None = None) -> str:
        word = Acknowledgement(f"s{rank}", KEY, 2, rank, step, confirm)
        return ledger.acknowledge(one, "g", 1, word, NOW).state

    say(first, 0, 10)
    assert say(second, 1, 10) == NAMED
    step = 10 + 50
    assert say(first, 0, 20, step) == NAMED
    assert say(second, 1, 20, step) == COMMITTED
    assert say(first, 0, step) == COMMITTED != ABORTED
    first.close()
    second.close()


def test_what_a_pod_was_told_last_stays(place: str) -> None:
    """The gateway that told it "pending" writes that down after the one that told it "ready"."""
    ledger, one = Ledger(place), identity()
    where = (one.namespace, one.pod, GRAPH)
    ready, pending = Stood(GRAPH, "ready", KEY, ""), Stood(GRAPH, "pending", "", "")
    ledger.note([(one, NOW + 1)], {where: ready})
    ledger.note([(one, NOW)], {where: pending, (*where[:2], "b" * 64): pending})
    [told] = ledger.workloads("", NOW + 2).workloads
    assert {graph.graph: graph.phase for graph in told.graphs} == {
        GRAPH: "ready",
        "b" * 64: "pending",
    }
    ledger.note([(one, NOW + 2)], {where: pending})
    [told] = ledger.workloads("", NOW + 2).workloads
    assert all(graph.phase == "pending" for graph in told.graphs)
    ledger.close()


@pytest.mark.parametrize(("revision", "opened"), [("1.99", True), ("2.0", False)])
def test_the_next_releases_ledger_is_opened_where_it_only_adds(
    place: str, revision: str, opened: bool
) -> None:
    made = connect(place)
    with made.writing() as db:
        run(db, "UPDATE alembic_version SET version_num = :revision", revision=revision)
        run(db, "ALTER TABLE standings ADD COLUMN later BIGINT")
    made.close()
    if not opened:
        with pytest.raises(LedgerVersion, match=r"2\.0"):
            Ledger(place)
        return
    ledger = Ledger(place)
    assert ledger.save(identity(), "s", GRAPH, report(1, 5), 1.2, NOW) == COUNTED
    ledger.note([(identity(), NOW)], {("a", "p1", GRAPH): Stood(GRAPH, "pending", "", "")})
    ledger.close()


def test_a_password_is_not_shown() -> None:
    assert "secret" not in database.shown("postgresql://stitch:secret@host/ledger")
