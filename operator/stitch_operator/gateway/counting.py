"""Sums that only grow, inside a transaction of the ledger: what was spent, by whom, and counts.

Whoever spends tells a sum of its own, again and again: the largest that was seen of each stays, so
that a repeated word adds nothing and a restarted gateway forgets nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

PURPOSES = ("compile", "measure")
"""Of a compilation."""
IDLE = "idle"
"""Of a worker that waits."""
Total = tuple[str, str, int, int]


def count(database: sqlite3.Connection, name: str, label: str, more: int = 1) -> None:
    """One more, or so many, of what has this name and label."""
    database.execute(
        "INSERT INTO counts VALUES (?, ?, ?) "
        "ON CONFLICT DO UPDATE SET count = count + excluded.count",
        (name, label, more),
    )


def spent(
    database: sqlite3.Connection,
    who: str,
    account: int,
    device: str,
    seconds: Mapping[str, float],
) -> bool:
    """`who` (a request, or a worker's life) has spent so many seconds of `device` in all, by
    purpose, in one `account`. Whether any of it is new."""
    changed = database.executemany(
        "INSERT INTO spent VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "seconds = excluded.seconds WHERE excluded.seconds > spent.seconds",
        [(who, account, purpose, device, one) for purpose, one in seconds.items() if one > 0],
    )
    return changed.rowcount > 0


def totals(database: sqlite3.Connection) -> list[Total]:
    """(namespace, gpu, saved, lost) in device-nanoseconds; none of them ever falls."""
    return database.execute("SELECT * FROM totals ORDER BY namespace, gpu").fetchall()


def all_spent(database: sqlite3.Connection) -> list[tuple[str, str, float]]:
    """(device, purpose, seconds) over all requests and workers."""
    return database.execute(
        "SELECT device, purpose, sum(seconds) FROM spent GROUP BY device, purpose"
    ).fetchall()


def counts(database: sqlite3.Connection) -> list[tuple[str, str, int]]:
    """(name, label, count): events by type, savings by what became of them, aborted groups."""
    return database.execute("SELECT * FROM counts ORDER BY name, label").fetchall()
