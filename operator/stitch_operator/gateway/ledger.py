"""The one durable ledger: who asked for what, what was saved, which swaps crashed, which step
groups swap at. Synchronous; the application calls it from one thread. Several gateways may share
one (database.py): nothing is remembered between two calls.

Everything a client repeats changes nothing, so a gateway that died between writing and answering
is simply asked again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy import Connection

from stitch_operator.gateway import claims, counting, groups, jobs, savings, workloads
from stitch_operator.gateway.counting import IDLE, count
from stitch_operator.gateway.database import connect, is_server, run
from stitch_operator.gateway.groups import Acknowledgement, Group
from stitch_operator.gateway.identity import Identity, run_times
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.savings import Bounds, Report
from stitch_operator.gateway.sharing import HEARD_SECONDS, About, Sum
from stitch_operator.metrics import MAX_NAMESPACES, MICRO, bucket
from stitch_operator.reports import Workloads
from stitchcore.report.job import Job

CRASH_CODES = frozenset({132, 134, 135, 136, 139})
"""Illegal instruction, abort, bus error, floating-point exception, segmentation fault."""
KEPT_SECONDS = 30 * 86400.0
COUNTED, OLD = "counted", "old"
BEGUN = "begun"
GO, WAIT, CRASHED = "noted", "wait", "crashed"
INDEPENDENT = 2
"""Reports of a crash after which nobody swaps to that artifact."""
SILENT_SECONDS = 60.0
"""Four words of a living session that has begun a swap."""
HIGHEST = 1e6
"""Of a ratio, so that a job cannot add any sum."""
SETTLED = {"swap-ok": "ok", "rolled-back": "rolled-back", "crashed-before": "crashed"}


SAVINGS = (
    *("namespace", "pod", "session", "graph", "gpu", "seq", "steps", "net", "saved", "lost"),
    *("time", "baseline", "stitched", "low", "high"),
)
SAVED = (
    f"INSERT INTO savings ({', '.join(SAVINGS)}) VALUES (:{', :'.join(SAVINGS)}) "
    "ON CONFLICT (namespace, pod, session, graph) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in SAVINGS[4:])
)
HAPPENED = (
    "INSERT INTO events (namespace, pod, session, seq, type, graph, key, time) "
    "VALUES (:namespace, :pod, :session, :seq, :type, :graph, :key, :now) ON CONFLICT DO NOTHING"
)
SUBMITTED = (
    "INSERT INTO submissions (namespace, request, digest, time) "
    "VALUES (:namespace, :request, :digest, :now) "
    "ON CONFLICT (namespace, request) DO UPDATE SET time = excluded.time"
)
REFUSED = (
    "INSERT INTO refusals (namespace, request, reason, time) "
    "VALUES (:namespace, :request, :reason, :now) ON CONFLICT DO NOTHING"
)
TAKEN = (
    "INSERT INTO taken (gateway, kind, namespace, before, total, time) "
    "VALUES (:gateway, :kind, :namespace, :before, :total, :now) "
    "ON CONFLICT (gateway, kind, namespace) DO UPDATE SET "
    "before = excluded.before, total = excluded.total, time = excluded.time"
)
SWAP = (
    "INSERT INTO swaps (namespace, pod, session, key, owner, state, time, graph, reason) "
    "VALUES (:namespace, :pod, :session, :key, :owner, :state, :now, :graph, '') "
    "ON CONFLICT (namespace, pod, session, key)"
)


@dataclass(frozen=True)
class Known:
    """A request as the ledger knows it; `enqueued` in epoch seconds, None before the first time."""

    request: str
    digest: str
    target: str
    tf: str
    enqueued: float | None
    attempts: int
    artifact: str | None
    ratio: float | None


@dataclass(frozen=True)
class Happened:
    """An event of a job's session, in the ledger's terms."""

    session: str
    seq: int
    type: str
    graph: str
    key: str
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Left:
    """A graph that a job leaves as it is, "" for what is no graph's; `final`: for good."""

    session: str
    seq: int
    graph: str
    reason: str
    final: bool = False


def pod_of(identity: Identity, session: str) -> str:
    """What bounds and crashes are counted by: the pod, or where there is none the session."""
    return identity.pod or f"session:{session}"


@dataclass(frozen=True)
class Quota:
    """What one namespace may take: bytes of graphs in the store, rows of the ledger."""

    graph_bytes: int = 8 * 2**30
    rows: int = 2_000_000


UNDER_WAY_SECONDS = 60.0
"""How long a graph may take from the account into the store: several times what a store has."""
MOST_OF_POD = 1024
"""Rows of one kind that a pod may have: sessions, swaps, savings, graphs that it was told of. What
is asked of a pod is a walk over them, in the one thread that all namespaces wait for."""
REQUEST = "request, digest, target, tf, enqueued, attempts, artifact, ratio"
"""Known's fields as columns."""
OF_SESSION = "namespace = :namespace AND pod = :pod AND session = :session"


def _where(identity: Identity, session: str) -> dict[str, str]:
    pod = pod_of(identity, session)
    return {"namespace": identity.namespace, "pod": pod, "session": session}


class Ledger:
    """Open with a file's path, or the URL of a PostgreSQL database; close when done. At most
    `namespaces` have totals of their own. `shared`: other gateways may have it open, too."""

    def __init__(
        self, where: Path | str, namespaces: int = MAX_NAMESPACES, quota: Quota | None = None
    ) -> None:
        self._database = connect(where)
        self.shared = is_server(where)
        self._namespaces = namespaces
        self._quota = quota or Quota()

    def close(self) -> None:
        self._database.close()

    def clock_differs(self) -> float:
        """Seconds by which this process's clock is ahead of that of a ledger that several gateways
        share; it must be readable."""
        with self._database.reading() as db:
            if db.dialect.name == "sqlite":
                run(db, "SELECT 1 FROM ledger")
                return 0.0
            now = run(db, "SELECT extract(epoch FROM clock_timestamp())").scalar_one()
            return time.time() - float(now)

    # Requests

    def submitted(self, identity: Identity, session: str | None, known: Known, now: float) -> None:
        """A namespace has handed in a graph. A session that is new begins now."""
        with self._adding(identity.namespace) as db:
            about = {"request": known.request, "digest": known.digest}
            run(
                db,
                "INSERT INTO requests (request, digest, target, tf) "
                "VALUES (:request, :digest, :target, :tf) ON CONFLICT DO NOTHING",
                **{**about, "target": known.target, "tf": known.tf},
            )
            run(db, SUBMITTED, namespace=identity.namespace, now=now, **about)
            if session is not None:
                self._begin_session(db, identity, session, now)
            workloads.touch(db, identity, now)
            if identity.pod and identity.last_exit_code in CRASH_CODES:
                self._crashed_pod(db, identity, session, now)

    def keeps(self, namespace: str, known: Known, size: int, now: float) -> bool:
        """Notes that a graph is to be kept; False where the namespace has no room for it."""
        with self._adding(namespace) as db:
            statement = "SELECT coalesce(sum(bytes), 0) FROM kept WHERE namespace = :namespace"
            found = run(db, statement, namespace=namespace).scalar_one()
            if found + size > self._quota.graph_bytes:
                return False
            run(
                db,
                "INSERT INTO kept (namespace, request, bytes) VALUES (:namespace, :request, :size) "
                "ON CONFLICT (namespace, request) DO UPDATE SET bytes = excluded.bytes",
                **{"namespace": namespace, "request": known.request, "size": size},
            )
            about = {"request": known.request, "digest": known.digest}
            run(db, SUBMITTED, namespace=namespace, now=now, **about)
            return True

    def kept(self, namespace: str, now: float) -> list[str]:
        """Requests whose graphs count as kept, those first that were handed in longest ago, but for
        what may be on its way to the store."""
        with self._database.reading() as db:
            found = run(
                db,
                "SELECT request FROM kept LEFT JOIN submissions USING (namespace, request) "
                "WHERE namespace = :namespace AND coalesce(time, 0) < :before "
                "ORDER BY coalesce(time, 0) LIMIT 1000",
                **{"namespace": namespace, "before": now - UNDER_WAY_SECONDS},
            )
            return [str(request) for request in found.scalars()]

    def gone(self, requests: Sequence[str]) -> None:
        """These graphs are in the store no longer."""
        with self._database.writing() as db:
            for one in requests:
                run(db, "DELETE FROM kept WHERE request = :request", request=one)

    def enqueued(self, request: str, now: float) -> None:
        with self._database.writing() as db:
            statement = "UPDATE requests SET enqueued = :now, attempts = attempts + 1"
            run(db, f"{statement} WHERE request = :request", now=now, request=request)

    def finished(
        self,
        request: str,
        artifact: str | None,
        ratio: float | None,
        spent: Mapping[str, float],
        device: str,
        account: int,
    ) -> bool:
        """A final answer was seen. What was spent is a sum that only grows, of one `account`: a
        repeated answer adds nothing to it, one after another compilation what is new. Whether any
        was."""
        with self._database.writing() as db:
            run(
                db,
                "UPDATE requests SET artifact = :artifact, ratio = :ratio WHERE request = :request",
                **{"artifact": artifact, "ratio": ratio, "request": request},
            )
            return counting.spent(db, request, account, device, spent)

    def waited(self, lives: Mapping[str, Mapping[str, float]]) -> None:
        """Each life of a worker (its name is of one start) has cost so many seconds in all while it
        had no task, by device."""
        with self._database.writing() as db:
            for life, idle in lives.items():
                for device, seconds in idle.items():
                    counting.spent(db, f"worker:{life}:{device}", 0, device, {IDLE: seconds})

    def find(self, namespace: str, key: str) -> Known | None:
        """The request of `namespace` with this request or artifact key; None for all others."""
        statement = (
            f"SELECT {REQUEST} FROM requests WHERE (request = :key OR artifact = :key) "
            "AND EXISTS (SELECT 1 FROM submissions s WHERE s.request = requests.request "
            "AND s.namespace = :namespace) LIMIT 1"
        )
        with self._database.reading() as db:
            found = run(db, statement, namespace=namespace, key=key).first()
        return Known(*found) if found else None

    def latest(self, namespace: str, digest: str) -> str | None:
        """Key of the request that `namespace` handed in last for a graph of this digest."""
        statement = (
            "SELECT request FROM submissions WHERE namespace = :namespace AND digest = :digest "
            "ORDER BY time DESC LIMIT 1"
        )
        with self._database.reading() as db:
            found = run(db, statement, namespace=namespace, digest=digest).scalar()
        return None if found is None else str(found)

    def request(self, request: str) -> Known | None:
        """A request by its key, whoever handed it in."""
        statement = f"SELECT {REQUEST} FROM requests WHERE request = :request"
        with self._database.reading() as db:
            found = run(db, statement, request=request).first()
        return Known(*found) if found else None

    def breaker(self, identity: Identity, key: str, target: str) -> bool:
        """Whether this workload has crashed after a swap to this artifact, or two that have nothing
        to do with each other: workloads of this namespace after one to it, namespaces after one
        to an artifact of the same graph on such a device."""
        with self._database.reading() as db:
            return self._broken(db, identity, key, target)

    def refused(self, namespace: str, request: str, reason: str, now: float) -> None:
        """A graph of a namespace is left as it is; counted once for each reason."""
        with self._adding(namespace) as db:
            about = {"namespace": namespace, "request": request, "reason": reason}
            if run(db, REFUSED, now=now, **about).rowcount:
                count(db, "fallbacks", reason)
                count(db, "answers", reason)  # of workers: what jobs say is not in it

    def left(self, identity: Identity, left: Left, now: float) -> bool:
        """A job says that it leaves a graph as it is; False when it said so before. Counted once
        for each namespace, graph and reason, not again where the gateway refused it for the same;
        what is no graph's once for each pod."""
        pod = pod_of(identity, left.session)
        with self._adding(identity.namespace) as db:
            self._begin_session(db, identity, left.session, now)
            said = {"seq": left.seq, "type": "refused", "graph": left.graph, "key": ""}
            if not run(db, HAPPENED, now=now, **_where(identity, left.session), **said).rowcount:
                return False
            workloads.touch(db, identity, now)
            if left.final and left.graph:
                workloads.left(db, identity, left.graph, left.reason)
                self._bounded(db, "standings", identity.namespace, pod)
            about = {"namespace": identity.namespace, "reason": left.reason}
            told = run(
                db,
                "SELECT 1 FROM refusals JOIN requests USING (request) "
                "WHERE namespace = :namespace AND digest = :digest AND reason = :reason",
                **{**about, "digest": left.graph},
            ).first()
            about["request"] = left.graph or pod
            if not told and run(db, REFUSED, now=now, **about).rowcount:
                count(db, "fallbacks", left.reason)
            return True

    # Events

    def happened(self, identity: Identity, event: Happened, now: float) -> bool:
        """Notes an event; False when it was noted before."""
        where = _where(identity, event.session)
        with self._adding(identity.namespace) as db:
            self._begin_session(db, identity, event.session, now)
            said = {"type": event.type, "graph": event.graph, "key": event.key}
            if not run(db, HAPPENED, seq=event.seq, now=now, **where, **said).rowcount:
                return False
            count(db, "events", event.type)
            if event.reason:
                count(db, "fallbacks", event.reason)
            workloads.touch(db, identity, now, stepped=event.type != "crashed-before")
            if event.type == "swap-begin":
                run(
                    db,
                    f"{SWAP} DO UPDATE SET owner = excluded.owner, state = excluded.state, "
                    "time = excluded.time, graph = excluded.graph, reason = excluded.reason",
                    **where,
                    **{"key": event.key, "owner": identity.owner, "state": BEGUN, "now": now},
                    graph=event.graph,
                )
                self._bounded(db, "swaps", identity.namespace, where["pod"])
                return True
            # a job may say that its first stitched steps went well after it has gone back: it did
            state = SETTLED[event.type]
            only = f" AND state = '{BEGUN}'" if state == SETTLED["swap-ok"] else ""
            run(
                db,
                "UPDATE swaps SET state = :state, time = :now, graph = :graph, reason = :reason "
                f"WHERE {OF_SESSION} AND key = :key{only}",
                **where,
                **{"state": state, "now": now, "graph": event.graph, "reason": event.reason},
                key=event.key,
            )
            code = event.exit_code if identity.last_exit_code is None else identity.last_exit_code
            if event.type == "crashed-before" and (code is None or code in CRASH_CODES):
                self._open_breaker(db, identity, event.key, now)
            return True

    def may_swap(
        self, identity: Identity, session: str, graph: str, key: str, now: float, since: float
    ) -> str:
        """Whether a session may swap to an artifact, which then is on record: GO, WAIT or CRASHED.

        The first swap of a workload proves it for the others, which wait for that. A session that
        has begun and says nothing any more has died of it, wherever its pod was: no word of another
        pod is needed, and none of the API server, which may have forgotten it. Before `since`
        nobody could say anything: this gateway was not there.
        """
        where = _where(identity, session)
        with self._adding(identity.namespace) as db:
            self._begin_session(db, identity, session, now)
            target = self._target(db, key)
            if target is not None and self._broken(db, identity, key, target):
                return CRASHED
            found = run(
                db,
                "SELECT pod, session, state, time FROM swaps "
                "WHERE namespace = :namespace AND owner = :owner AND key = :key",
                **{"namespace": identity.namespace, "owner": identity.owner, "key": key},
            ).all()
            proved = any(state == SETTLED["swap-ok"] for *_, state, _ in found)
            own = (where["pod"], where["session"])
            others = [row for row in found if row[2] == BEGUN and (row[0], row[1]) != own]
            silent = [row for row in others if now - max(row[3], since) > SILENT_SECONDS]
            if others and not proved:
                for pod, dead, *_ in silent:
                    self._open_breaker(db, identity, key, now)
                    run(
                        db,
                        f"UPDATE swaps SET state = 'crashed' WHERE {OF_SESSION} AND key = :key",
                        **{"namespace": identity.namespace, "pod": pod, "session": dead},
                        key=key,
                    )
                return CRASHED if silent else WAIT
            run(
                db,
                f"{SWAP} DO UPDATE SET time = excluded.time WHERE swaps.state = excluded.state",
                **where,
                **{"key": key, "owner": identity.owner, "state": BEGUN, "now": now, "graph": graph},
            )
            self._bounded(db, "swaps", identity.namespace, where["pod"])
            return GO

    def acknowledge(
        self, identity: Identity, name: str, number: int, said: Acknowledgement, now: float
    ) -> Group:
        """The swap group's state after a member's word, durable before anyone is told."""
        with self._adding(identity.namespace) as db:
            about = {"namespace": identity.namespace, "owner": identity.owner, "name": name}
            record = run(
                db,
                "SELECT record FROM groups WHERE namespace = :namespace AND owner = :owner "
                "AND name = :name AND round = :round",
                **{**about, "round": number},
            ).scalar()
            group = None if record is None else msgspec.json.decode(record, type=Group)
            after = groups.acknowledge(group, said, now)
            if after != group:
                run(
                    db,
                    "INSERT INTO groups (namespace, owner, name, round, record, time) "
                    "VALUES (:namespace, :owner, :name, :round, :record, :now) "
                    "ON CONFLICT (namespace, owner, name, round) DO UPDATE SET "
                    "record = excluded.record, time = excluded.time",
                    **{**about, "round": number, "record": msgspec.json.encode(after), "now": now},
                )
            if after.state == groups.ABORTED and (group is None or group.state != groups.ABORTED):
                count(db, "groups", groups.ABORTED)
            return after

    def latest_round(self, identity: Identity, name: str) -> int:
        """Number of the group's last round that any member began; 0 without one."""
        statement = (
            "SELECT max(round) FROM groups "
            "WHERE namespace = :namespace AND owner = :owner AND name = :name"
        )
        about = {"namespace": identity.namespace, "owner": identity.owner, "name": name}
        with self._database.reading() as db:
            return int(run(db, statement, **about).scalar() or 0)

    # Savings

    def save(
        self, identity: Identity, session: str, graph: str, report: Report, ratio: float, now: float
    ) -> str:
        """Adds a report. COUNTED, OLD (changes nothing), or why it is implausible."""
        pod = pod_of(identity, session)
        where = (identity.namespace, pod, session, graph)
        with self._adding(identity.namespace) as db:
            begun = self._begin_session(db, identity, session, now)
            row = claims.row(db, where)
            if report.seq <= row.seq:
                return OLD
            if not identity.runs:
                count(db, "savings", "implausible")
                return "no container of the pod runs"
            times = run_times(identity, begun, now)
            bounds = Bounds(*times, ratio, identity.devices, *claims.elsewhere(db, where))
            wrong = savings.implausible(row, report, bounds)
            if not wrong and not identity.pod:
                wrong = claims.beyond_one_machine(db, identity, where, row, report, now)
            if wrong:
                count(db, "savings", "implausible")
                return wrong
            after = savings.add(row, report, identity.devices)
            if report.bounds and report.stitched_ns and not claims.measured(db, where):
                ratio = min(report.baseline_ns / report.stitched_ns, HIGHEST)
                count(db, "speedup", bucket(ratio))
                count(db, "speedup", "sum", round(ratio * MICRO))
            low, high = report.bounds or (None, None)
            run(
                db,
                SAVED,
                **_where(identity, session),
                **{"graph": graph, "gpu": identity.gpu, "seq": after.seq, "steps": after.steps},
                **{"net": after.net, "saved": after.saved, "lost": after.lost, "time": now},
                **{"baseline": report.baseline_ns, "stitched": report.stitched_ns},
                **{"low": low, "high": high},
            )
            self._bounded(db, "savings", identity.namespace, pod)
            workloads.touch(db, identity, now, stepped=True, figures=True)
            run(
                db,
                "INSERT INTO totals (namespace, gpu, saved, lost) "
                "VALUES (:namespace, :gpu, :saved, :lost) "
                "ON CONFLICT (namespace, gpu) DO UPDATE SET "
                "saved = totals.saved + excluded.saved, lost = totals.lost + excluded.lost",
                namespace=claims.shown(db, identity.namespace, self._namespaces),
                **{"gpu": identity.gpu, "saved": after.saved - row.saved},
                lost=after.lost - row.lost,
            )
            count(db, "savings", COUNTED)
            return COUNTED

    # Pods, for the reconciler

    def timed(self, identity: Identity, session: str, now: float) -> None:
        """A process of the pod has timed its first step."""
        with self._adding(identity.namespace) as db:
            self._begin_session(db, identity, session, now)
            workloads.touch(db, identity, now, stepped=True)

    def note(self, pods: list[tuple[Identity, float]], graphs: workloads.Graphs) -> None:
        """What was seen beside what was asked. Graphs of who has no room are not told of."""
        with self._database.writing() as db:
            full = {one for one, *_ in graphs if self._rows(db, one) >= self._quota.rows}
            workloads.note(
                *(db, pods),
                {where: stood for where, stood in graphs.items() if where[0] not in full},
                MOST_OF_POD,
            )

    def settle(self) -> None:
        """Figures that have changed are told to who reads next."""
        with self._database.writing() as db:
            workloads.settle(db)

    def workloads(self, since: str, now: float) -> Workloads:
        """A page of what has changed since an earlier one's `next`."""
        with self._database.reading() as db:
            return workloads.page(db, since, now)

    def job(self, namespace: str, name: str, devices: float) -> Job | None:
        """What a job of the namespace has measured, by a name that its owner knows."""
        with self._database.reading() as db:
            return jobs.job(db, namespace, name, devices)

    # Totals: metrics are asked for from any thread

    def totals(self) -> list[tuple[str, str, int, int]]:
        with self._database.reading() as db:
            return counting.totals(db)

    def spent(self) -> list[tuple[str, str, float]]:
        with self._database.reading() as db:
            return counting.all_spent(db)

    def counts(self) -> list[tuple[str, str, int]]:
        with self._database.reading() as db:
            return counting.counts(db)

    def exchange(
        self, gateway: str, news: Mapping[About, Sum], now: float
    ) -> dict[tuple[str, About], Sum]:
        """Write what `gateway` has taken; what others have written lately, by gateway."""
        if news:
            with self._database.writing() as db:
                for (kind, namespace), one in news.items():
                    values = {"before": one.before, "total": one.total, "now": now}
                    run(db, TAKEN, gateway=gateway, kind=kind, namespace=namespace, **values)
        with self._database.reading() as db:
            rows = run(
                db,
                "SELECT gateway, kind, namespace, before, total FROM taken "
                "WHERE gateway <> :gateway AND time > :since",
                gateway=gateway,
                since=now - HEARD_SECONDS,
            )
            return {(row[0], (row[1], row[2])): Sum(row[3], row[4]) for row in rows}

    def prune(self, now: float) -> int:
        """Forgets sessions that have been silent for KEPT_SECONDS, and requests that were not
        handed in for so long and nobody reports savings of; totals and breakers stay, and what a
        pod has claimed for as long as any session of it reports."""
        counted = (
            *(
                f"DELETE FROM {table} WHERE time < :limit"
                for table in ("events", "swaps", "groups", "refusals")
            ),
            "DELETE FROM savings WHERE (namespace, pod) IN (SELECT namespace, pod FROM savings "
            "GROUP BY namespace, pod HAVING max(time) < :limit)",
            "DELETE FROM submissions WHERE time < :limit AND (namespace, digest) NOT IN "
            "(SELECT namespace, graph FROM savings)",
        )
        limit = now - KEPT_SECONDS
        with self._database.writing() as db:
            removed = sum(run(db, statement, limit=limit).rowcount for statement in counted)
            run(
                db,
                "DELETE FROM sessions WHERE time < :limit AND (namespace, pod, session) NOT IN "
                "(SELECT namespace, pod, session FROM savings)",
                limit=limit,
            )
            workloads.forget(db, limit)
            run(db, "DELETE FROM taken WHERE time < :limit", limit=now - 60 * HEARD_SECONDS)
            for table in ("requests", "kept"):
                submitted = "SELECT request FROM submissions"
                run(db, f"DELETE FROM {table} WHERE request NOT IN ({submitted})")
        return removed

    # Inside a transaction

    @contextlib.contextmanager
    def _adding(self, namespace: str) -> Iterator[Connection]:
        """A transaction in which a client of the namespace may add rows. Raises Rejected(QUOTA)."""
        with self._database.writing() as db:
            if self._rows(db, namespace) >= self._quota.rows:
                what = f"namespace {namespace!r} has {self._quota.rows} rows in the ledger"
                raise Rejected(Problem.QUOTA, what)
            yield db

    def _rows(self, db: Connection, namespace: str) -> int:
        statement = "SELECT count FROM rows WHERE namespace = :namespace"
        return int(run(db, statement, namespace=namespace).scalar() or 0)

    def _bounded(self, db: Connection, table: str, namespace: str, pod: str) -> None:
        """Raises Rejected(QUOTA), with which the transaction is undone, where a pod has more rows
        in a table than one may."""
        if workloads.rows_of(db, table, (namespace, pod), MOST_OF_POD + 1) > MOST_OF_POD:
            raise Rejected(Problem.QUOTA, f"the pod has {MOST_OF_POD} {table} in the ledger")

    def _begin_session(self, db: Connection, identity: Identity, session: str, now: float) -> float:
        where = _where(identity, session)
        statement = (
            "INSERT INTO sessions (namespace, pod, session, time) "
            "VALUES (:namespace, :pod, :session, :now) ON CONFLICT DO NOTHING"
        )
        if run(db, statement, now=now, **where).rowcount:
            self._bounded(db, "sessions", where["namespace"], where["pod"])
        return float(run(db, f"SELECT time FROM sessions WHERE {OF_SESSION}", **where).scalar_one())

    def _crashed_pod(
        self, db: Connection, identity: Identity, session: str | None, now: float
    ) -> None:
        """The pod's container ended in a crash: swaps that an earlier session of it had begun and
        not settled are what it crashed after."""
        where = {"namespace": identity.namespace, "pod": identity.pod, "session": session or ""}
        condition = (
            f"namespace = :namespace AND pod = :pod AND session != :session AND state = '{BEGUN}'"
        )
        for key in run(db, f"SELECT key FROM swaps WHERE {condition}", **where).scalars().all():
            self._open_breaker(db, identity, key, now)
        run(db, f"UPDATE swaps SET state = 'crashed' WHERE {condition}", **where)

    def _broken(self, db: Connection, identity: Identity, key: str, target: str) -> bool:
        about = {"key": key, "target": target}
        owners = run(
            db,
            "SELECT owner FROM breakers "
            "WHERE namespace = :namespace AND key = :key AND target = :target",
            **{**about, "namespace": identity.namespace},
        )
        found = owners.scalars().all()
        if identity.owner in found or len(found) >= INDEPENDENT:
            return True
        others = run(
            db,
            "SELECT count(DISTINCT b.namespace) FROM breakers b "
            "JOIN requests r ON r.artifact = b.key WHERE b.target = :target "
            "AND r.digest IN (SELECT digest FROM requests WHERE artifact = :key)",
            **about,
        )
        return int(others.scalar_one()) >= INDEPENDENT

    def _open_breaker(self, db: Connection, identity: Identity, key: str, now: float) -> None:
        target = self._target(db, key)
        if target is not None:
            run(
                db,
                "INSERT INTO breakers (namespace, owner, key, target, time) "
                "VALUES (:namespace, :owner, :key, :target, :now) ON CONFLICT DO NOTHING",
                **{"namespace": identity.namespace, "owner": identity.owner},
                **{"key": key, "target": target, "now": now},
            )

    def _target(self, db: Connection, key: str) -> str | None:
        statement = "SELECT target FROM requests WHERE artifact = :key"
        found = run(db, statement, key=key).scalar()
        return None if found is None else str(found)
