"""Sums that only grow, inside a transaction of the ledger: what was spent, by whom, and counts.

Whoever spends tells a sum of its own, again and again: the largest that was seen of each stays, so
that a repeated word adds nothing and a restarted gateway forgets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from stitch_operator.gateway.database import run

PURPOSES = ("compile", "measure")
"""Of a compilation."""
IDLE = "idle"
"""Of a worker that waits."""
Total = tuple[str, str, int, int]


def count(database: Connection, name: str, label: str, more: int = 1) -> None:
    """One more, or so many, of what has this name and label."""
    run(
        database,
        "INSERT INTO counts (name, label, count) VALUES (:name, :label, :more) "
        "ON CONFLICT (name, label) DO UPDATE SET count = counts.count + excluded.count",
        **{"name": name, "label": label, "more": more},
    )


def spent(
    database: Connection,
    who: str,
    account: int,
    device: str,
    seconds: Mapping[str, float],
) -> bool:
    """`who` (a request, or a worker's life) has spent so many seconds of `device` in all, by
    purpose, in one `account`. Whether any of it is new."""
    changed = [
        run(
            database,
            "INSERT INTO spent (request, account, purpose, device, seconds) "
            "VALUES (:who, :account, :purpose, :device, :seconds) "
            "ON CONFLICT (request, account, purpose) DO UPDATE SET "
            "seconds = excluded.seconds WHERE excluded.seconds > spent.seconds",
            **{"who": who, "account": account, "purpose": purpose},
            **{"device": device, "seconds": float(one)},
        ).rowcount
        for purpose, one in seconds.items()
        if one > 0
    ]
    return any(changed)


def totals(database: Connection) -> list[Total]:
    """(namespace, gpu, saved, lost) in device-nanoseconds; none of them ever falls."""
    statement = "SELECT namespace, gpu, saved, lost FROM totals ORDER BY namespace, gpu"
    return [tuple(row) for row in run(database, statement)]


def all_spent(database: Connection) -> list[tuple[str, str, float]]:
    """(device, purpose, seconds) over all requests and workers."""
    statement = "SELECT device, purpose, sum(seconds) FROM spent GROUP BY device, purpose"
    return [tuple(row) for row in run(database, f"{statement} ORDER BY device, purpose")]


def counts(database: Connection) -> list[tuple[str, str, int]]:
    """(name, label, count): events by type, savings by what became of them, aborted groups."""
    statement = "SELECT name, label, count FROM counts ORDER BY name, label"
    return [tuple(row) for row in run(database, statement)]
