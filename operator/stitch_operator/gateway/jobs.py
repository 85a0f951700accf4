"""What the ledger knows of one job, for its page. Reading only, inside the ledger's thread.

A job is asked for by what its owner knows of it: the workload's name, the uid of a pod or of what
made the pod, or a session; always within the asker's own namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from stitch_operator.gateway import workloads
from stitch_operator.gateway.database import run
from stitch_operator.reports import Graph
from stitchcore.report.job import Job, JobGraph

NANO = 1e9
MOST_PODS = 256
"""Of one job, the newest: a replica's page is not a fleet's."""
Session = tuple[str, str]
"""A pod (or "session:..." where there are none) and a session of it."""


def job(database: Connection, namespace: str, name: str, devices: float) -> Job | None:
    """The job; None where the namespace has none of this name. A process drives `devices` where its
    pod does not say."""
    sessions = _sessions(database, namespace, name)
    if not sessions:
        return None
    rows = [row for one in sessions for row in _savings(database, namespace, one)]
    kinds = {row[6] for row in rows}
    low, high = _interval(database, namespace, rows, devices)
    told = [
        graph
        for pod in dict.fromkeys(pod for pod, _ in sessions)
        for graph in workloads.graphs_of(database, (namespace, pod))
    ]
    told += [Graph(graph=row[7], phase="ready") for row in rows]  # not measured, and yet it ran
    graphs = [_with_key(database, namespace, graph) for graph in _merged(told)]
    return Job(
        name,
        namespace,
        kinds.pop() if len(kinds) == 1 else ("device" if kinds else "cpu"),
        sum(row[1] for row in rows) / NANO,
        sum(row[2] for row in rows) / NANO,
        _spent(database, namespace, graphs),
        low,
        high,
        tuple(_told(graph) for graph in graphs),
    )


def _sessions(database: Connection, namespace: str, name: str) -> list[Session]:
    found = run(
        database,
        "SELECT pod, session FROM sessions WHERE namespace = :namespace AND (session = :name "
        "OR pod IN (SELECT pod FROM pods WHERE namespace = :namespace "
        "AND (pod = :name OR owner = :name OR controller = :name))) ORDER BY time DESC LIMIT :most",
        **{"namespace": namespace, "name": name, "most": MOST_PODS},
    )
    return [tuple(row) for row in found]


def _savings(database: Connection, namespace: str, one: Session) -> list[tuple[Any, ...]]:
    """(pod, saved, lost, difference, low, high, gpu, graph) of each graph, in nanoseconds."""
    found = run(
        database,
        "SELECT pod, saved, lost, baseline - stitched, low, high, gpu, graph FROM savings "
        "WHERE namespace = :namespace AND pod = :pod AND session = :session",
        **{"namespace": namespace, "pod": one[0], "session": one[1]},
    )
    return [tuple(row) for row in found]


def _interval(
    database: Connection,
    namespace: str,
    rows: Sequence[Sequence[float]],
    devices: float,
) -> tuple[float | None, float | None]:
    """Device seconds between which saved less lost lies. Ends are added up, as if all graphs erred
    alike: too wide rather than too narrow."""
    if not any(row[4] is not None for row in rows):
        return None, None
    low = high = 0.0
    for pod, saved, lost, difference, below, above, *_ in rows:
        net = saved - lost
        statement = "SELECT devices FROM pods WHERE namespace = :namespace AND pod = :pod"
        known = run(database, statement, namespace=namespace, pod=pod).scalar()
        used = devices if known is None else known
        low += net - ((difference - below) * used if below is not None else 0)
        high += net + ((above - difference) * used if above is not None else 0)
    return low / NANO, high / NANO


def _merged(found: Iterable[Graph]) -> list[Graph]:
    """Of replicas' graphs each once: the one that ran the most stitched steps."""
    best: dict[str, Graph] = {}
    for graph in found:
        known = best.get(graph.graph)
        if known is None or (graph.steps, graph.swap != "") > (known.steps, known.swap != ""):
            best[graph.graph] = graph
    return sorted(best.values(), key=lambda graph: (-graph.steps, not graph.key, graph.graph))


def _with_key(database: Connection, namespace: str, graph: Graph) -> Graph:
    """With the artifact that its request led to, where its pod has not been told (or has none)."""
    if graph.key or graph.phase == "refused":
        return graph
    found = run(
        database,
        "SELECT r.artifact FROM requests r JOIN submissions s USING (request) "
        "WHERE s.namespace = :namespace AND r.digest = :digest AND r.artifact IS NOT NULL "
        "ORDER BY s.time DESC LIMIT 1",
        **{"namespace": namespace, "digest": graph.graph},
    ).scalar()
    return msgspec.structs.replace(graph, key=found) if found else graph


def _spent(database: Connection, namespace: str, graphs: Sequence[Graph]) -> float:
    """Seconds that building for these graphs took, whoever asked first."""
    total = 0.0
    for graph in graphs:
        of_artifact = "AND r.artifact = :key" if graph.key else ""
        total += run(
            database,
            "SELECT coalesce(sum(seconds), 0) FROM spent WHERE request IN (SELECT r.request "
            "FROM requests r JOIN submissions s USING (request) "
            f"WHERE s.namespace = :namespace AND r.digest = :digest {of_artifact})",
            **{"namespace": namespace, "digest": graph.graph},
            **({"key": graph.key} if graph.key else {}),
        ).scalar_one()
    return total


def _told(graph: Graph) -> JobGraph:
    return JobGraph(
        *(graph.graph, graph.key, graph.phase, graph.swap, graph.reason, graph.steps),
        *(graph.ratio, graph.low, graph.high),
    )
