"""The one durable ledger: who asked for what, what was saved, which swaps crashed, which step
groups swap at. Synchronous; the application calls it from one thread.

Everything a client repeats changes nothing, so a gateway that died between writing and answering
is simply asked again.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stitch_operator.gateway import claims, counting, groups, jobs, savings, workloads
from stitch_operator.gateway.counting import IDLE, count
from stitch_operator.gateway.database import connect, transaction
from stitch_operator.gateway.groups import Acknowledgement, Group
from stitch_operator.gateway.identity import Identity, run_times
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.savings import Bounds, Report
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


class Ledger:
    """Open with a path; close when done. At most `namespaces` have totals of their own."""

    def __init__(
        self, path: Path, namespaces: int = MAX_NAMESPACES, quota: Quota | None = None
    ) -> None:
        self._db = connect(path)
        self._namespaces = namespaces
        self._quota = quota or Quota()
        self._totals = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def close(self) -> None:
        self._totals.close()
        self._db.close()

    # Requests

    def submitted(self, identity: Identity, session: str | None, known: Known, now: float) -> None:
        """A namespace has handed in a graph. A session that is new begins now."""
        with self._adding(identity.namespace) as db:
            db.execute(
                "INSERT OR IGNORE INTO requests (request, digest, target, tf) VALUES (?, ?, ?, ?)",
                (known.request, known.digest, known.target, known.tf),
            )
            db.execute(
                "INSERT INTO submissions VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET time = excluded.time",
                (identity.namespace, known.request, known.digest, now),
            )
            if session is not None:
                self._begin_session(identity, session, now)
            workloads.touch(db, identity, now)
            if identity.pod and identity.last_exit_code in CRASH_CODES:
                self._crashed_pod(identity, session, now)

    def keeps(self, namespace: str, request: str, size: int) -> bool:
        """Notes that a graph is to be kept; False where the namespace has no room for it."""
        with self._adding(namespace) as db:
            found = db.execute("SELECT sum(bytes) FROM kept WHERE namespace = ?", (namespace,))
            if (found.fetchone()[0] or 0) + size > self._quota.graph_bytes:
                return False
            db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (namespace, request, size))
            return True

    def kept(self, namespace: str) -> list[str]:
        """Requests whose graphs count as kept, those first that were handed in longest ago."""
        found = self._db.execute(
            "SELECT request FROM kept LEFT JOIN submissions USING (namespace, request) "
            "WHERE namespace = ? ORDER BY time LIMIT 1000",
            (namespace,),
        )
        return [str(row[0]) for row in found.fetchall()]

    def gone(self, requests: Sequence[str]) -> None:
        """These graphs are in the store no longer."""
        with transaction(self._db) as db:
            db.executemany("DELETE FROM kept WHERE request = ?", [(one,) for one in requests])

    def enqueued(self, request: str, now: float) -> None:
        with transaction(self._db) as db:
            statement = "UPDATE requests SET enqueued = ?, attempts = attempts + 1"
            db.execute(f"{statement} WHERE request = ?", (now, request))

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
        with transaction(self._db) as db:
            db.execute(
                "UPDATE requests SET artifact = ?, ratio = ? WHERE request = ?",
                (artifact, ratio, request),
            )
            return counting.spent(db, request, account, device, spent)

    def waited(self, lives: Mapping[str, Mapping[str, float]]) -> None:
        """Each life of a worker (its name is of one start) has cost so many seconds in all while it
        had no task, by device."""
        with transaction(self._db) as db:
            for life, idle in lives.items():
                for device, seconds in idle.items():
                    counting.spent(db, f"worker:{life}:{device}", 0, device, {IDLE: seconds})

    def find(self, namespace: str, key: str) -> Known | None:
        """The request of `namespace` with this request or artifact key; None for all others."""
        columns = "r.request, r.digest, r.target, r.tf, r.enqueued, r.attempts, r.artifact, r.ratio"
        found = self._db.execute(
            f"SELECT {columns} FROM requests r JOIN submissions s USING (request) "
            "WHERE s.namespace = ? AND (r.request = ? OR r.artifact = ?) LIMIT 1",
            (namespace, key, key),
        ).fetchone()
        return Known(*found) if found else None

    def latest(self, namespace: str, digest: str) -> str | None:
        """Key of the request that `namespace` handed in last for a graph of this digest."""
        found = self._db.execute(
            "SELECT request FROM submissions WHERE namespace = ? AND digest = ? "
            "ORDER BY time DESC LIMIT 1",
            (namespace, digest),
        ).fetchone()
        return str(found[0]) if found else None

    def request(self, request: str) -> Known | None:
        """A request by its key, whoever handed it in."""
        columns = "request, digest, target, tf, enqueued, attempts, artifact, ratio"
        found = self._db.execute(
            f"SELECT {columns} FROM requests WHERE request = ?", (request,)
        ).fetchone()
        return Known(*found) if found else None

    def breaker(self, identity: Identity, key: str, target: str) -> bool:
        """Whether this workload has crashed after a swap to this artifact, or two that have nothing
        to do with each other: workloads of this namespace after one to it, namespaces after one
        to an artifact of the same graph on such a device."""
        about = (identity.namespace, key, target)
        found = self._db.execute(
            "SELECT owner FROM breakers WHERE namespace = ? AND key = ? AND target = ?", about
        ).fetchall()
        if (identity.owner,) in found or len(found) >= INDEPENDENT:
            return True
        others = self._db.execute(
            "SELECT count(DISTINCT b.namespace) FROM breakers b "
            "JOIN requests r ON r.artifact = b.key WHERE b.target = ? "
            "AND r.digest IN (SELECT digest FROM requests WHERE artifact = ?)",
            (target, key),
        ).fetchone()
        return int(others[0]) >= INDEPENDENT

    def refused(self, namespace: str, request: str, reason: str, now: float) -> None:
        """A graph of a namespace is left as it is; counted once for each reason."""
        with transaction(self._db) as db:
            values = (namespace, request, reason, now)
            statement = "INSERT OR IGNORE INTO refusals VALUES (?, ?, ?, ?)"
            if db.execute(statement, values).rowcount:
                count(db, "fallbacks", reason)
                count(db, "answers", reason)  # of workers: what jobs say is not in it

    def left(self, identity: Identity, left: Left, now: float) -> bool:
        """A job says that it leaves a graph as it is; False when it said so before. Counted once
        for each namespace, graph and reason, not again where the gateway refused it for the same;
        what is no graph's once for each pod."""
        pod = pod_of(identity, left.session)
        where = (identity.namespace, pod, left.session)
        with self._adding(identity.namespace) as db:
            self._begin_session(identity, left.session, now)
            values = (*where, left.seq, "refused", left.graph, "", now)
            marks = ", ".join("?" * len(values))
            if not db.execute(f"INSERT OR IGNORE INTO events VALUES ({marks})", values).rowcount:
                return False
            workloads.touch(db, identity, now)
            if left.final and left.graph:
                workloads.left(db, identity, left.graph, left.reason)
            told = db.execute(
                "SELECT 1 FROM refusals JOIN requests USING (request) "
                "WHERE namespace = ? AND digest = ? AND reason = ?",
                (identity.namespace, left.graph, left.reason),
            ).fetchone()
            about = (identity.namespace, left.graph or pod, left.reason, now)
            statement = "INSERT OR IGNORE INTO refusals VALUES (?, ?, ?, ?)"
            if not told and db.execute(statement, about).rowcount:
                count(db, "fallbacks", left.reason)
            return True

    # Events

    def happened(self, identity: Identity, event: Happened, now: float) -> bool:
        """Notes an event; False when it was noted before."""
        pod = pod_of(identity, event.session)
        where = (identity.namespace, pod, event.session)
        with self._adding(identity.namespace) as db:
            self._begin_session(identity, event.session, now)
            values = (*where, event.seq, event.type, event.graph, event.key, now)
            marks = ", ".join("?" * len(values))
            if not db.execute(f"INSERT OR IGNORE INTO events VALUES ({marks})", values).rowcount:
                return False
            count(db, "events", event.type)
            if event.reason:
                count(db, "fallbacks", event.reason)
            workloads.touch(db, identity, now, stepped=event.type != "crashed-before")
            if event.type == "swap-begin":
                db.execute(
                    "INSERT OR REPLACE INTO swaps VALUES (?, ?, ?, ?, ?, ?, ?, ?, '')",
                    (*where, event.key, identity.owner, BEGUN, now, event.graph),
                )
                return True
            # a job may say that its first stitched steps went well after it has gone back: it did
            db.execute(
                "UPDATE swaps SET state = ?, time = ?, graph = ?, reason = ? "
                "WHERE namespace = ? AND pod = ? AND session = ? AND key = ? "
                "AND (? != 'ok' OR state = ?)",
                (SETTLED[event.type], now, event.graph, event.reason, *where, event.key,
                 SETTLED[event.type], BEGUN),
            )  # fmt: skip
            code = event.exit_code if identity.last_exit_code is None else identity.last_exit_code
            if event.type == "crashed-before" and (code is None or code in CRASH_CODES):
                self._open_breaker(identity, event.key, now)
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
        where = (identity.namespace, pod_of(identity, session), session, key)
        about = (identity.namespace, identity.owner, key)
        with self._adding(identity.namespace) as db:
            self._begin_session(identity, session, now)
            target = db.execute("SELECT target FROM requests WHERE artifact = ?", (key,)).fetchone()
            if target is not None and self.breaker(identity, key, target[0]):
                return CRASHED
            found = db.execute(
                "SELECT pod, session, state, time FROM swaps "
                "WHERE namespace = ? AND owner = ? AND key = ?", about,
            ).fetchall()  # fmt: skip
            proved = any(state == SETTLED["swap-ok"] for *_, state, _ in found)
            others = [row for row in found if row[2] == BEGUN and row[:2] != where[1:3]]
            silent = [row for row in others if now - max(row[3], since) > SILENT_SECONDS]
            if others and not proved:
                for pod, dead, *_ in silent:
                    self._open_breaker(identity, key, now)
                    db.execute(
                        "UPDATE swaps SET state = 'crashed' WHERE namespace = ? AND pod = ? "
                        "AND session = ? AND key = ?", (identity.namespace, pod, dead, key),
                    )  # fmt: skip
                return CRASHED if silent else WAIT
            db.execute(
                "INSERT INTO swaps VALUES (?, ?, ?, ?, ?, ?, ?, ?, '') "
                "ON CONFLICT DO UPDATE SET time = excluded.time WHERE state = excluded.state",
                (*where, identity.owner, BEGUN, now, graph),
            )
            return GO

    def acknowledge(
        self, identity: Identity, name: str, number: int, said: Acknowledgement, now: float
    ) -> Group:
        """The swap group's state after a member's word, durable before anyone is told."""
        with self._adding(identity.namespace) as db:
            group = self._group(identity, name, number)
            after = groups.acknowledge(group, said, now)
            if after != group:
                db.execute(
                    "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?, ?)",
                    (identity.namespace, identity.owner, name, number,
                     msgspec.json.encode(after), now),
                )  # fmt: skip
            if after.state == groups.ABORTED and (group is None or group.state != groups.ABORTED):
                count(db, "groups", groups.ABORTED)
            return after

    def latest_round(self, identity: Identity, name: str) -> int:
        """Number of the group's last round that any member began; 0 without one."""
        found = self._db.execute(
            "SELECT max(round) FROM groups WHERE namespace = ? AND owner = ? AND name = ?",
            (identity.namespace, identity.owner, name),
        ).fetchone()
        return int(found[0] or 0)

    # Savings

    def save(
        self, identity: Identity, session: str, graph: str, report: Report, ratio: float, now: float
    ) -> str:
        """Adds a report. COUNTED, OLD (changes nothing), or why it is implausible."""
        pod = pod_of(identity, session)
        where = (identity.namespace, pod, session, graph)
        with self._adding(identity.namespace) as db:
            begun = self._begin_session(identity, session, now)
            row = claims.row(db, where)
            if report.seq <= row.seq:
                return OLD
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
            db.execute(
                f"INSERT OR REPLACE INTO savings VALUES ({', '.join('?' * 15)})",
                (*where, identity.gpu, after.seq, after.steps, after.net, after.saved, after.lost,
                 now, report.baseline_ns, report.stitched_ns, *(report.bounds or (None, None))),
            )  # fmt: skip
            workloads.touch(db, identity, now, stepped=True, figures=True)
            db.execute(
                "INSERT INTO totals VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "saved = saved + excluded.saved, lost = lost + excluded.lost",
                (claims.shown(db, identity.namespace, self._namespaces), identity.gpu,
                 after.saved - row.saved, after.lost - row.lost),
            )  # fmt: skip
            count(db, "savings", COUNTED)
            return COUNTED

    # Pods, for the reconciler

    def timed(self, identity: Identity, session: str, now: float) -> None:
        """A process of the pod has timed its first step."""
        with self._adding(identity.namespace) as db:
            self._begin_session(identity, session, now)
            workloads.touch(db, identity, now, stepped=True)

    def note(self, pods: list[tuple[Identity, float]], graphs: workloads.Graphs) -> None:
        """What was seen beside what was asked."""
        with transaction(self._db) as db:
            workloads.note(db, pods, graphs)

    def settle(self) -> None:
        """Figures that have changed are told to who reads next."""
        with transaction(self._db) as db:
            workloads.settle(db)

    def workloads(self, since: str, now: float) -> Workloads:
        """A page of what has changed since an earlier one's `next`."""
        return workloads.page(self._db, since, now)

    def job(self, namespace: str, name: str, devices: float) -> Job | None:
        """What a job of the namespace has measured, by a name that its owner knows."""
        return jobs.job(self._db, namespace, name, devices)

    # Totals, on a connection of their own: metrics are asked for from any thread

    def totals(self) -> list[tuple[str, str, int, int]]:
        return counting.totals(self._totals)

    def spent(self) -> list[tuple[str, str, float]]:
        return counting.all_spent(self._totals)

    def counts(self) -> list[tuple[str, str, int]]:
        return counting.counts(self._totals)

    def prune(self, now: float) -> int:
        """Forgets sessions that have been silent for KEPT_SECONDS, and requests that were not
        handed in for so long and nobody reports savings of; totals and breakers stay, and what a
        pod has claimed for as long as any session of it reports."""
        removed = 0
        limit = (now - KEPT_SECONDS,)
        with transaction(self._db) as db:
            for table in ("events", "swaps", "groups", "refusals"):
                removed += db.execute(f"DELETE FROM {table} WHERE time < ?", limit).rowcount
            removed += db.execute(
                "DELETE FROM savings WHERE (namespace, pod) IN (SELECT namespace, pod FROM savings "
                "GROUP BY namespace, pod HAVING max(time) < ?)",
                limit,
            ).rowcount
            db.execute(
                "DELETE FROM sessions WHERE time < ? AND (namespace, pod, session) NOT IN "
                "(SELECT namespace, pod, session FROM savings)",
                limit,
            )
            removed += db.execute(
                "DELETE FROM submissions WHERE time < ? AND (namespace, digest) NOT IN "
                "(SELECT namespace, graph FROM savings)",
                limit,
            ).rowcount
            workloads.forget(db, *limit)
            for table in ("requests", "kept"):
                db.execute(
                    f"DELETE FROM {table} WHERE request NOT IN (SELECT request FROM submissions)"
                )
        return removed

    # Inside a transaction

    @contextlib.contextmanager
    def _adding(self, namespace: str) -> Iterator[sqlite3.Connection]:
        """A transaction in which a client of the namespace may add rows. Raises Rejected(QUOTA)."""
        with transaction(self._db) as db:
            found = db.execute("SELECT count FROM rows WHERE namespace = ?", (namespace,))
            if (found.fetchone() or (0,))[0] >= self._quota.rows:
                what = f"namespace {namespace!r} has {self._quota.rows} rows in the ledger"
                raise Rejected(Problem.QUOTA, what)
            yield db

    def _begin_session(self, identity: Identity, session: str, now: float) -> float:
        where = (identity.namespace, pod_of(identity, session), session)
        self._db.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?, ?)", (*where, now))
        found = self._db.execute(
            "SELECT time FROM sessions WHERE namespace = ? AND pod = ? AND session = ?", where
        ).fetchone()
        return float(found[0])

    def _crashed_pod(self, identity: Identity, session: str | None, now: float) -> None:
        """The pod's container ended in a crash: swaps that an earlier session of it had begun and
        not settled are what it crashed after."""
        where = (identity.namespace, identity.pod, session or "", BEGUN)
        condition = "namespace = ? AND pod = ? AND session != ? AND state = ?"
        found = self._db.execute(f"SELECT key FROM swaps WHERE {condition}", where).fetchall()
        for (key,) in found:
            self._open_breaker(identity, key, now)
        self._db.execute(f"UPDATE swaps SET state = 'crashed' WHERE {condition}", where)

    def _open_breaker(self, identity: Identity, key: str, now: float) -> None:
        target = self._db.execute("SELECT target FROM requests WHERE artifact = ?", (key,))
        found = target.fetchone()
        if found is not None:
            self._db.execute(
                "INSERT OR IGNORE INTO breakers VALUES (?, ?, ?, ?, ?)",
                (identity.namespace, identity.owner, key, found[0], now),
            )

    def _group(self, identity: Identity, name: str, number: int) -> Group | None:
        found = self._db.execute(
            "SELECT record FROM groups WHERE namespace = ? AND owner = ? AND name = ? "
            "AND round = ?",
            (identity.namespace, identity.owner, name, number),
        ).fetchone()
        return msgspec.json.decode(found[0], type=Group) if found else None
