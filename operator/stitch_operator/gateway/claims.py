"""Savings inside a transaction of the ledger: what a session has claimed so far, what others have,
and whose total it is added to.

Each function takes the connection whose transaction is open; the arithmetic is savings.py's.
"""

from __future__ import annotations

from sqlalchemy import Connection

from stitch_operator.gateway import savings
from stitch_operator.gateway.database import run
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.savings import Claimed, Report, Row
from stitch_operator.metrics import OTHER_NAMESPACE

Where = tuple[str, str, str, str]
"""A row of savings: namespace, pod, session, graph."""

CHARGE = "saved / greatest(1.0, (baseline - stitched) * 1.0 / greatest(stitched, 1))"
"""Row.charge of a stored row."""
OF_GRAPH = "namespace = :namespace AND pod = :pod AND session = :session AND graph = :graph"


def row(database: Connection, where: Where) -> Row:
    """The high-water of a session's graph; zero before its first report."""
    columns = "seq, steps, net, saved, lost, baseline, stitched"
    found = run(database, f"SELECT {columns} FROM savings WHERE {OF_GRAPH}", **_named(where))
    one = found.first()
    return Row(*one) if one else Row()


def _named(where: Where) -> dict[str, str]:
    return dict(zip(("namespace", "pod", "session", "graph"), where, strict=True))


def elsewhere(database: Connection, where: Where) -> tuple[Claimed, Claimed]:
    """Of the session's other graphs, and of all else in the pod."""
    same = "coalesce(sum(CASE session WHEN :session THEN {0} END), 0), coalesce(sum({0}), 0)"
    found = run(
        database,
        f"SELECT {same.format(CHARGE)}, {same.format('lost')} FROM savings "
        "WHERE namespace = :namespace AND pod = :pod "
        "AND NOT (session = :session AND graph = :graph)",
        **_named(where),
    ).one()
    charged, all_charged, lost, all_lost = found
    return Claimed(float(charged), int(lost)), Claimed(float(all_charged), int(all_lost))


def beyond_one_machine(
    database: Connection,
    identity: Identity,
    where: Where,
    before: Row,
    report: Report,
    now: float,
) -> str:
    """Sessions without a pod share `devices`: all that began at or after any moment can have
    saved, or lost, no more than the time since then times the devices. "" where that holds.

    Whoever holds the token can invent such sessions, so here steps that are more than twice as fast
    are not believed to save more than they take."""
    after = savings.add(before, report, identity.devices)
    changes = {"saved": after.saved - before.saved, "lost": after.lost - before.lost}
    for column, more in changes.items():
        over = run(
            database,
            f"SELECT max(claimed - (:now - time) * :rate) FROM (SELECT s.session, s.time, "
            f"sum(coalesce(v.{column}, 0)) OVER (ORDER BY s.time DESC) AS claimed "
            "FROM sessions s LEFT JOIN savings v "
            "ON v.namespace = s.namespace AND v.pod = s.pod AND v.session = s.session "
            "WHERE s.namespace = :namespace AND s.pod LIKE 'session:%' "
            "AND (v.session IS NOT NULL OR s.session = :session)) AS claims WHERE time <= "
            "(SELECT time FROM sessions "
            "WHERE namespace = :namespace AND pod = :pod AND session = :session)",
            **{**_named(where), "now": now, "rate": identity.devices * 1e9},
        ).scalar_one()
        if more > 0 and over is not None and over + more > 0:
            return "more device time than all sessions together have had"
    return ""


def measured(database: Connection, where: Where) -> bool:
    """Whether an interval was reported of it before."""
    found = run(database, f"SELECT low IS NOT NULL FROM savings WHERE {OF_GRAPH}", **_named(where))
    return bool(found.scalar())


def shown(database: Connection, namespace: str, most: int) -> str:
    """Whose total a namespace's savings are added to: its own while there are fewer than `most`,
    and from then on for ever, whatever the maximum becomes; else that of all others. So no total
    falls, none counts anything twice, and their sum is exact."""
    known = "SELECT 1 FROM totals WHERE namespace = :namespace LIMIT 1"
    if run(database, known, namespace=namespace).first():
        return namespace
    others = "SELECT count(DISTINCT namespace) FROM totals WHERE namespace != :other"
    return (
        namespace
        if run(database, others, other=OTHER_NAMESPACE).scalar_one() < most
        else OTHER_NAMESPACE
    )
