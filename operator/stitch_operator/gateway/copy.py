"""`python -m stitch_operator.gateway.copy FROM TO`: a ledger, whole, into another place.

A backup is a copy into a file, a restore one out of it, and a move to PostgreSQL one into an empty
database. The ledger may be in use: what is copied is all of it at one moment. TO must not hold a
ledger. The copy is another ledger: whoever follows changes reads it anew.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection, MetaData, Table, insert, select
from sqlalchemy.exc import SQLAlchemyError

from stitch_operator.gateway.database import (
    LedgerHeld,
    LedgerVersion,
    connect,
    is_server,
    opened,
    run,
    shown,
    without_limits,
    words,
)
from stitchcore.options import ledger_url
from stitchcore.service import startup
from stitchcore.service.startup import needed

VERSION = "alembic_version"
COUNTED = "rows"
"""Filled as the others are."""
OWN = ("ledger", COUNTED)
BATCH = 1000


def copy(source: str, target: str) -> dict[str, int]:
    """Rows by table. Raises SQLAlchemyError, LedgerHeld, LedgerVersion or ValueError."""
    if not is_server(source) and not Path(source).is_file():
        raise ValueError(f"{source or 'nothing'} is no file")
    if not is_server(target) and Path(target).exists():
        raise ValueError(f"{target} is there already")
    there, made = opened(source), connect(target)
    try:
        with there.snapshot() as before, made.writing() as after:
            without_limits(after)
            return _copied(before, after)
    finally:
        there.close()
        made.close()


def _copied(before: Connection, after: Connection) -> dict[str, int]:
    """All rows of all tables, in a ledger that has none; one of an earlier release has fewer
    columns. Raises ValueError where there is no room for what is there."""
    given, places = _tables(before), _tables(after)
    for name, table in given.items():
        room = set(places[name].columns.keys()) if name in places else set()
        if missing := set(table.columns.keys()) - room:
            raise ValueError(f"of a later release: {name} with {', '.join(sorted(missing))}")
    for name, table in places.items():
        if name not in OWN and after.execute(select(table).limit(1)).first():
            raise ValueError(f"the other ledger is not empty: {name}")
        after.execute(table.delete())
    counts = {}
    for name, table in given.items():
        if name == COUNTED:
            continue
        counts[name] = 0
        rows = before.execute(select(table).execution_options(yield_per=BATCH)).mappings()
        for batch in rows.partitions():
            after.execute(insert(places[name]), [dict(row) for row in batch])
            counts[name] += len(batch)
    run(after, "UPDATE ledger SET id = :id", id=secrets.token_hex(8))
    return counts


def _tables(connection: Connection) -> dict[str, Table]:
    metadata = MetaData()
    metadata.reflect(connection)
    return {name: table for name, table in metadata.tables.items() if name != VERSION}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stitch_operator.gateway.copy")
    default = "file, postgresql:// URL, or - for STITCH_LEDGER"
    parser.add_argument("source", metavar="FROM", help=default)
    parser.add_argument("target", metavar="TO", help=default)
    given = parser.parse_args(arguments)
    source, target = (_named(one) for one in (given.source, given.target))

    def copied() -> int:
        mend = "a ledger that can be read, and a place for another one that holds none"
        what = f"{shown(source)} to {shown(target)}"
        with needed(what, mend, LedgerHeld, LedgerVersion):
            try:
                counts = copy(source, target)
            except SQLAlchemyError as error:
                raise ValueError(words(error)) from error
        sys.stdout.write(f"{sum(counts.values())} rows of {len(counts)} tables\n")
        return 0

    return startup.guarded("copy", copied)


def _named(place: str) -> str:
    return ledger_url(os.environ) if place == "-" else place


if __name__ == "__main__":
    raise SystemExit(main())
