"""Savings inside a transaction of the ledger: what a session has claimed so far, what others have,
and whose total it is added to.

Each function takes the connection whose transaction is open; the arithmetic is savings.py's.
"""

from __future__ import annotations

import sqlite3

from stitch_operator.gateway import savings
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.savings import Claimed, Report, Row
from stitch_operator.metrics import OTHER_NAMESPACE

Where = tuple[str, str, str, str]
"""A row of savings: namespace, pod, session, graph."""

CHARGE = "saved / max(1.0, (baseline - stitched) * 1.0 / max(stitched, 1))"
"""Row.charge of a stored row."""


def row(database: sqlite3.Connection, where: Where) -> Row:
    """The high-water of a session's graph; zero before its first report."""
    found = database.execute(
        "SELECT seq, steps, net, saved, lost, baseline, stitched FROM savings "
        "WHERE namespace = ? AND pod = ? AND session = ? AND graph = ?",
        where,
    ).fetchone()
    return Row(*found) if found else Row()


def elsewhere(database: sqlite3.Connection, where: Where) -> tuple[Claimed, Claimed]:
    """Of the session's other graphs, and of all else in the pod."""
    session = where[2]
    same = "coalesce(sum(CASE session WHEN ? THEN {0} END), 0), coalesce(sum({0}), 0)"
    found = database.execute(
        f"SELECT {same.format(CHARGE)}, {same.format('lost')} FROM savings "
        "WHERE namespace = ? AND pod = ? AND NOT (session = ? AND graph = ?)",
        (session, session, *where),
    ).fetchone()
    return Claimed(found[0], found[2]), Claimed(found[1], found[3])


def beyond_one_machine(
    database: sqlite3.Connection,
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
        over = database.execute(
            f"SELECT max(claimed - (? - time) * ?) FROM (SELECT s.session, s.time, "
            f"sum(coalesce(v.{column}, 0)) OVER (ORDER BY s.time DESC) AS claimed "
            "FROM sessions s LEFT JOIN savings v USING (namespace, pod, session) "
            "WHERE s.namespace = ? AND s.pod LIKE 'session:%' "
            "AND (v.session IS NOT NULL OR s.session = ?)) WHERE time <= "
            "(SELECT time FROM sessions WHERE namespace = ? AND pod = ? AND session = ?)",
            (now, identity.devices * 1e9, where[0], where[2], *where[:3]),
        ).fetchone()[0]
        if more > 0 and over is not None and over + more > 0:
            return "more device time than all sessions together have had"
    return ""


def measured(database: sqlite3.Connection, where: Where) -> bool:
    """Whether an interval was reported of it before."""
    found = database.execute(
        "SELECT low IS NOT NULL FROM savings "
        "WHERE namespace = ? AND pod = ? AND session = ? AND graph = ?",
        where,
    ).fetchone()
    return bool(found and found[0])


def shown(database: sqlite3.Connection, namespace: str, most: int) -> str:
    """Whose total a namespace's savings are added to: its own while there are fewer than `most`,
    and from then on for ever, whatever the maximum becomes; else that of all others. So no total
    falls, none counts anything twice, and their sum is exact."""
    known = database.execute("SELECT 1 FROM totals WHERE namespace = ? LIMIT 1", (namespace,))
    if known.fetchone():
        return namespace
    (others,) = database.execute(
        "SELECT count(DISTINCT namespace) FROM totals WHERE namespace != ?", (OTHER_NAMESPACE,)
    ).fetchone()
    return namespace if others < most else OTHER_NAMESPACE
