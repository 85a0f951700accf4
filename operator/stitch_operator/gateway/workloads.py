"""What the ledger knows of pods, for the reconciler: who was heard, and where its graphs stand.

A pod's row carries the number of its last change, so that who reads again gets what has changed and
nothing else. Figures change with every report of savings; they count as a change twice a minute.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection

from stitch_operator.gateway.database import run
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.standing import Standing
from stitch_operator.reports import MOST_GRAPHS, Graph, Workload, Workloads

TOLD_SECONDS = 86400.0
"""Pods that were silent for longer are not told any more."""
PAGE = 100
MOST_LOOKED_AT = 4 * MOST_GRAPHS
"""Rows of each kind that are read of a pod: a page is read while all others wait."""
CONTACT_SECONDS = 60.0
FIGURES_SECONDS = 30.0
MOST_REMEMBERED = 50_000
NANO = 1e9
PENDING = "pending"
OF_POD = "WHERE namespace = :namespace AND pod = :pod"
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
    database: Connection,
    identity: Identity,
    now: float,
    stepped: bool = False,
    figures: bool = False,
) -> None:
    """A pod was heard. `figures`: nothing but figures has changed, which can wait."""
    if not identity.pod:
        return
    where = {"namespace": identity.namespace, "pod": identity.pod}
    known = run(database, f"SELECT stepped FROM pods {OF_POD}", **where).scalar()
    if figures and known is not None and known >= stepped:
        heard = f"UPDATE pods SET contact = greatest(contact, :now), stale = 1 {OF_POD}"
        run(database, heard, now=now, **where)
        return
    run(
        database,
        "INSERT INTO pods (namespace, pod, owner, controller, gpu, devices, began, contact, "
        "stepped, change, stale) VALUES (:namespace, :pod, :owner, :controller, :gpu, :devices, "
        ":now, :now, :stepped, :change, 0) ON CONFLICT (namespace, pod) DO UPDATE SET "
        "owner = excluded.owner, controller = excluded.controller, gpu = excluded.gpu, "
        "devices = excluded.devices, contact = greatest(pods.contact, excluded.contact), "
        "stepped = greatest(pods.stepped, excluded.stepped), change = excluded.change, stale = 0",
        **where,
        **{"owner": identity.owner, "controller": identity.controller, "gpu": identity.gpu},
        **{"devices": identity.devices, "now": now, "stepped": int(stepped)},
        change=_next_change(database),
    )


def note(
    database: Connection,
    pods: Sequence[tuple[Identity, float]],
    graphs: Graphs,
    most: int,
) -> None:
    """Write sightings down, of a pod's graphs so many. One gateway's "pending" may be written after
    what another one has told the pod since: what the pod was told last stays."""
    heard = {(identity.namespace, identity.pod): now for identity, now in pods}
    for identity, now in pods:
        touch(database, identity, now)
    for (namespace, pod, graph), one in graphs.items():
        now = heard.get((namespace, pod), 0.0)
        newer = "" if one.phase != PENDING else (
            f" WHERE standings.phase = '{PENDING}' OR :now >= (SELECT contact FROM pods {OF_POD})"
        )  # fmt: skip
        where = {"namespace": namespace, "pod": pod, "graph": graph}
        known = f"SELECT 1 FROM standings {OF_POD} AND graph = :graph"
        room = rows_of(database, "standings", (namespace, pod), most) < most
        if room or run(database, known, **where).first():
            _stands(database, where, one.phase, one.key, one.reason, newer, now)


def rows_of(database: Connection, table: str, where: Where, most: int) -> int:
    """How many rows a table has of a pod; counted as far as `most`."""
    found = f"SELECT 1 FROM {table} {OF_POD} LIMIT :most"
    named = {"namespace": where[0], "pod": where[1]}
    counted = run(database, f"SELECT count(*) FROM ({found}) AS found", most=most, **named)
    return int(counted.scalar_one())


def left(database: Connection, identity: Identity, graph: str, reason: str) -> None:
    """A pod leaves a graph as it is, for good, wherever it stood with the gateway."""
    if identity.pod:
        where = {"namespace": identity.namespace, "pod": identity.pod, "graph": graph}
        _stands(database, where, "refused", "", reason)


def _stands(
    database: Connection,
    where: dict[str, str],
    phase: str,
    key: str,
    reason: str,
    condition: str = "",
    now: float = 0.0,
) -> None:
    run(
        database,
        "INSERT INTO standings (namespace, pod, graph, phase, key, reason) "
        "VALUES (:namespace, :pod, :graph, :phase, :key, :reason) "
        "ON CONFLICT (namespace, pod, graph) DO UPDATE SET "
        f"phase = excluded.phase, key = excluded.key, reason = excluded.reason{condition}",
        **where,
        **{"phase": phase, "key": key, "reason": reason},
        **({"now": now} if condition else {}),
    )


def settle(database: Connection) -> None:
    """Figures that have waited count as a change now."""
    if run(database, "SELECT 1 FROM pods WHERE stale = 1 LIMIT 1").first():
        change = _next_change(database)
        run(database, "UPDATE pods SET change = :change, stale = 0 WHERE stale = 1", change=change)


def forget(database: Connection, before: float) -> None:
    """Pods that were silent since then."""
    run(database, "DELETE FROM pods WHERE contact < :before", before=before)
    known = "SELECT namespace, pod FROM pods"
    run(database, f"DELETE FROM standings WHERE (namespace, pod) NOT IN ({known})")


def _next_change(database: Connection) -> int:
    statement = "UPDATE ledger SET change = change + 1 RETURNING change"
    return int(run(database, statement).scalar_one())


# Reading


def page(database: Connection, since: str, now: float) -> Workloads:
    """What has changed since an answer's `next`; of another ledger's, of a future that this one has
    not seen (it was restored), or "", all."""
    ledger, latest = run(database, "SELECT id, change FROM ledger").one()
    change, last = _position(since, ledger)
    if change > latest:
        change, last = 0, ""
    rows = run(
        database,
        "SELECT namespace, pod, owner, controller, gpu, devices, began, contact, stepped, change "
        "FROM pods WHERE (change, pod) > (:change, :last) AND contact >= :oldest "
        "ORDER BY change, pod LIMIT :most",
        **{"change": change, "last": last, "oldest": now - TOLD_SECONDS, "most": PAGE + 1},
    ).all()
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


def _workload(database: Connection, row: Sequence[Any]) -> Workload:
    namespace, pod, owner, controller, gpu, devices, began, contact, stepped, _ = row
    where = (namespace, pod)
    named = {"namespace": namespace, "pod": pod}
    sessions = run(database, f"SELECT count(*) FROM sessions {OF_POD}", **named).scalar_one()
    sums = "coalesce(sum(saved), 0), coalesce(sum(lost), 0)"
    saved, lost = run(database, f"SELECT {sums} FROM savings {OF_POD}", **named).one()
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
        saved=int(saved) / NANO,
        lost=int(lost) / NANO,
        graphs=graphs_of(database, where),
    )


def graphs_of(database: Connection, where: Where) -> list[Graph]:
    """A pod's graphs: of each the last word, those that were swapped first; looked for among so
    many of each kind, those that are no refusals, and the latest, first."""
    named = {"namespace": where[0], "pod": where[1], "most": MOST_LOOKED_AT}
    made: dict[str, Graph] = {}
    for graph, phase, key, reason in run(
        database,
        f"SELECT graph, phase, key, reason FROM standings {OF_POD} "
        "ORDER BY phase = 'refused', graph LIMIT :most",
        **named,
    ):
        made[graph] = Graph(graph=graph, phase=phase, key=key, reason=reason)
    for graph, key, state, reason, _ in run(
        database,
        f"SELECT * FROM (SELECT graph, key, state, reason, time FROM swaps {OF_POD} "
        "ORDER BY time DESC LIMIT :most) AS latest ORDER BY time",
        **named,
    ):
        known = made.get(graph, Graph(graph=graph))
        phase = "ready" if known.phase == PENDING else known.phase
        made[graph] = msgspec.structs.replace(
            known, phase=phase, key=key, swap=state, reason=reason or known.reason
        )
    for graph, steps, baseline, stitched, low, high, _ in run(
        database,
        "SELECT * FROM (SELECT graph, steps, baseline, stitched, low, high, time FROM savings "
        f"{OF_POD} AND stitched > 0 AND low IS NOT NULL AND high IS NOT NULL "
        "ORDER BY time DESC LIMIT :most) AS latest ORDER BY time",
        **named,
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
