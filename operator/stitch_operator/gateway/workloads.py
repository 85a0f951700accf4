"""What the ledger knows of pods, for the reconciler: who was heard, and where its graphs stand.

A pod's row carries the number of its last change, so that who reads again gets what has changed and
nothing else. Figures change with every report of savings; they count as a change twice a minute.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.standing import Standing
from stitch_operator.reports import MOST_GRAPHS, Graph, Workload, Workloads

TOLD_SECONDS = 86400.0
"""Pods that were silent for longer are not told any more."""
PAGE = 500
CONTACT_SECONDS = 60.0
FIGURES_SECONDS = 30.0
MOST_REMEMBERED = 50_000
NANO = 1e9
Where = tuple[str, str]
"""A pod: its namespace and uid."""
Graphs = dict[tuple[str, str, str], "Stood"]
"""By namespace, pod and canonical digest."""


@dataclass(frozen=True)
class Stood:
    """Where a graph of a pod stood when its pod last asked."""

    graph: str
    phase: str
    key: str
    reason: str


class Sightings:
    """What requests show beside what they ask for, kept until it is written: all of it in memory,
    so that a poll costs no write. A pod is written down once a minute, a graph when it moves on."""

    def __init__(self) -> None:
        self._written: OrderedDict[Where, float] = OrderedDict()
        self._stood: OrderedDict[tuple[str, str, str], Stood] = OrderedDict()
        self._pods: dict[Where, tuple[Identity, float]] = {}
        self._graphs: Graphs = {}

    def saw(self, identity: Identity, now: float) -> None:
        """A pod has made a call."""
        where = (identity.namespace, identity.pod)
        if identity.pod and now - self._written.get(where, 0.0) >= CONTACT_SECONDS:
            self._pods[where] = (identity, now)

    def stood(self, identity: Identity, graph: str, standing: Standing, now: float) -> None:
        """A pod was told where its graph stands."""
        key = standing.key if standing.status == "ready" else ""
        self._stands(identity, Stood(graph, standing.status, key, standing.reason), now)

    def left(self, identity: Identity, graph: str, reason: str, now: float) -> None:
        """A pod leaves a graph as it is, for good: what it was told before is not written after."""
        self._stands(identity, Stood(graph, "refused", "", reason), now)

    def _stands(self, identity: Identity, found: Stood, now: float) -> None:
        where = (identity.namespace, identity.pod, found.graph)
        if identity.pod and self._stood.get(where) != found:
            _keep(self._stood, where, found)
            self._graphs[where] = found
            self._pods[where[:2]] = (identity, now)

    def take(self) -> tuple[list[tuple[Identity, float]], Graphs]:
        """All that is to be written; `restore` where that failed."""
        pods, self._pods = self._pods, {}
        graphs, self._graphs = self._graphs, {}
        for where, (_, now) in pods.items():
            _keep(self._written, where, now)
        return list(pods.values()), graphs

    def restore(self, pods: Iterable[tuple[Identity, float]], graphs: Graphs) -> None:
        """They are to be written still, unless there is newer."""
        for identity, now in pods:
            self._pods.setdefault((identity.namespace, identity.pod), (identity, now))
        self._graphs = {**graphs, **self._graphs}


def _keep(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > MOST_REMEMBERED:
        memory.popitem(last=False)


# Writing, inside a transaction of the ledger


def touch(
    database: sqlite3.Connection,
    identity: Identity,
    now: float,
    stepped: bool = False,
    figures: bool = False,
) -> None:
    """A pod was heard. `figures`: nothing but figures has changed, which can wait."""
    if not identity.pod:
        return
    values = (identity.namespace, identity.pod, identity.owner, identity.controller, identity.gpu,
              identity.devices, now, now, stepped)  # fmt: skip
    known = database.execute(
        "SELECT stepped FROM pods WHERE namespace = ? AND pod = ?", values[:2]
    ).fetchone()
    if figures and known is not None and known[0] >= stepped:
        database.execute(
            "UPDATE pods SET contact = ?, stale = 1 WHERE namespace = ? AND pod = ?",
            (now, *values[:2]),
        )
        return
    database.execute(
        "INSERT INTO pods VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT DO UPDATE SET "
        "owner = excluded.owner, controller = excluded.controller, gpu = excluded.gpu, "
        "devices = excluded.devices, contact = excluded.contact, "
        "stepped = max(stepped, excluded.stepped), change = excluded.change, stale = 0",
        (*values, _next_change(database)),
    )


def note(
    database: sqlite3.Connection,
    pods: Sequence[tuple[Identity, float]],
    graphs: Graphs,
) -> None:
    """Write sightings down."""
    for identity, now in pods:
        touch(database, identity, now)
    database.executemany(
        "INSERT OR REPLACE INTO standings VALUES (?, ?, ?, ?, ?, ?)",
        [(*where, one.phase, one.key, one.reason) for where, one in graphs.items()],
    )


def left(database: sqlite3.Connection, identity: Identity, graph: str, reason: str) -> None:
    """A pod leaves a graph as it is, for good, wherever it stood with the gateway."""
    if identity.pod:
        where = (identity.namespace, identity.pod, graph)
        database.execute(
            "INSERT OR REPLACE INTO standings VALUES (?, ?, ?, 'refused', '', ?)", (*where, reason)
        )


def settle(database: sqlite3.Connection) -> None:
    """Figures that have waited count as a change now."""
    if database.execute("SELECT 1 FROM pods WHERE stale LIMIT 1").fetchone():
        change = _next_change(database)
        database.execute("UPDATE pods SET change = ?, stale = 0 WHERE stale", (change,))


def forget(database: sqlite3.Connection, before: float) -> None:
    """Pods that were silent since then."""
    database.execute("DELETE FROM pods WHERE contact < ?", (before,))
    database.execute(
        "DELETE FROM standings WHERE (namespace, pod) NOT IN (SELECT namespace, pod FROM pods)"
    )


def _next_change(database: sqlite3.Connection) -> int:
    statement = "UPDATE ledger SET change = change + 1 RETURNING change"
    return int(database.execute(statement).fetchone()[0])


# Reading


def page(database: sqlite3.Connection, since: str, now: float) -> Workloads:
    """What has changed since an answer's `next`; of another ledger's, of a future that this one has
    not seen (it was restored), or "", all."""
    ledger, latest = database.execute("SELECT id, change FROM ledger").fetchone()
    change, last = _position(since, ledger)
    if change > latest:
        change, last = 0, ""
    rows = database.execute(
        "SELECT namespace, pod, owner, controller, gpu, devices, began, contact, stepped, change "
        "FROM pods WHERE (change, pod) > (?, ?) AND contact >= ? ORDER BY change, pod LIMIT ?",
        (change, last, now - TOLD_SECONDS, PAGE + 1),
    ).fetchall()
    told = [_workload(database, row) for row in rows[:PAGE]]
    if told:
        change, last = rows[:PAGE][-1][9], rows[:PAGE][-1][1]
    return Workloads(
        workloads=told, next=f"{ledger}.{change}.{last}", more=len(rows) > PAGE, time=now
    )


def _position(since: str, ledger: str) -> tuple[int, str]:
    """The last change that a reader has, and the last pod of it."""
    whose, _, rest = since.partition(".")
    change, _, pod = rest.partition(".")
    if whose != ledger or not change.isdecimal() or len(change) > 18:
        return 0, ""
    return int(change), pod


def _workload(database: sqlite3.Connection, row: Sequence[Any]) -> Workload:
    namespace, pod, owner, controller, gpu, devices, began, contact, stepped, _ = row
    where = (namespace, pod)
    (sessions,) = database.execute(
        "SELECT count(*) FROM sessions WHERE namespace = ? AND pod = ?", where
    ).fetchone()
    saved, lost = database.execute(
        "SELECT coalesce(sum(saved), 0), coalesce(sum(lost), 0) FROM savings "
        "WHERE namespace = ? AND pod = ?",
        where,
    ).fetchone()
    return Workload(
        namespace=namespace,
        owner=owner,
        pod=pod,
        controller=controller,
        gpu=gpu,
        devices=devices,
        sessions=sessions,
        began=began,
        contact=contact,
        stepped=bool(stepped),
        saved=saved / NANO,
        lost=lost / NANO,
        graphs=graphs_of(database, where),
    )


def graphs_of(database: sqlite3.Connection, where: Where) -> list[Graph]:
    """A pod's graphs: of each the last word, those that were swapped first."""
    condition = "WHERE namespace = ? AND pod = ?"
    made: dict[str, Graph] = {}
    for graph, phase, key, reason in database.execute(
        f"SELECT graph, phase, key, reason FROM standings {condition}", where
    ):
        made[graph] = Graph(graph=graph, phase=phase, key=key, reason=reason)
    for graph, key, state, reason in database.execute(
        f"SELECT graph, key, state, reason FROM swaps {condition} ORDER BY time", where
    ):
        known = made.get(graph, Graph(graph=graph))
        phase = "ready" if known.phase == "pending" else known.phase
        made[graph] = msgspec.structs.replace(
            known, phase=phase, key=key, swap=state, reason=reason or known.reason
        )
    for graph, steps, baseline, stitched, low, high in database.execute(
        "SELECT graph, steps, baseline, stitched, low, high FROM savings "
        f"{condition} AND stitched > 0 AND low IS NOT NULL AND high IS NOT NULL ORDER BY time",
        where,
    ):
        made[graph] = msgspec.structs.replace(
            made.get(graph, Graph(graph=graph, phase="ready")),
            steps=steps,
            ratio=baseline / stitched,
            low=(stitched + low) / stitched,
            high=(stitched + high) / stitched,
            seconds_before=baseline / steps / NANO if steps else None,
            seconds_after=stitched / steps / NANO if steps else None,
        )
    return sorted(made.values(), key=_order)[:MOST_GRAPHS]


def _order(graph: Graph) -> tuple[bool, bool, bool, str]:
    return graph.ratio is None, not graph.swap, graph.phase == "refused", graph.graph
