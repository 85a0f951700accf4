"""The ledger's file: SQLite, durable (WAL, synchronous=FULL), with one writing process.

Postgres would do for several gateways; one gateway with a volume of its own needs neither a server
nor a password.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

VERSION = 3
SPENT = """
CREATE TABLE IF NOT EXISTS spent (
  request TEXT, account INTEGER, purpose TEXT, device TEXT NOT NULL, seconds REAL NOT NULL,
  PRIMARY KEY (request, account, purpose)) WITHOUT ROWID;
"""
OF_3 = """
CREATE TABLE IF NOT EXISTS ledger (id TEXT PRIMARY KEY, change INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO ledger SELECT lower(hex(randomblob(8))), 0 WHERE NOT EXISTS (SELECT 1 FROM ledger);
CREATE TABLE IF NOT EXISTS pods (
  namespace TEXT, pod TEXT, owner TEXT NOT NULL, controller TEXT NOT NULL, gpu TEXT NOT NULL,
  devices REAL NOT NULL, began REAL NOT NULL, contact REAL NOT NULL, stepped INTEGER NOT NULL,
  change INTEGER NOT NULL, stale INTEGER NOT NULL,
  PRIMARY KEY (namespace, pod)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pods_by_change ON pods (change, pod);
CREATE INDEX IF NOT EXISTS pods_to_settle ON pods (stale) WHERE stale;
CREATE TABLE IF NOT EXISTS standings (
  namespace TEXT, pod TEXT, graph TEXT, phase TEXT NOT NULL, key TEXT NOT NULL,
  reason TEXT NOT NULL, PRIMARY KEY (namespace, pod, graph)) WITHOUT ROWID;
"""
"""`pods` and `standings` are what the reconciler reads (workloads.py): `change` numbers the changes
of the one row of `ledger`; `stale` figures have changed since."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
  request TEXT PRIMARY KEY, digest TEXT NOT NULL, target TEXT NOT NULL, tf TEXT NOT NULL,
  enqueued REAL, attempts INTEGER NOT NULL DEFAULT 0, artifact TEXT, ratio REAL);
CREATE INDEX IF NOT EXISTS requests_by_artifact ON requests (artifact);
CREATE TABLE IF NOT EXISTS submissions (
  namespace TEXT, request TEXT, digest TEXT NOT NULL, time REAL NOT NULL,
  PRIMARY KEY (namespace, request)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS submissions_by_digest ON submissions (namespace, digest);
CREATE TABLE IF NOT EXISTS sessions (
  namespace TEXT, pod TEXT, session TEXT, time REAL NOT NULL,
  PRIMARY KEY (namespace, pod, session)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS savings (
  namespace TEXT, pod TEXT, session TEXT, graph TEXT, gpu TEXT NOT NULL, seq INTEGER NOT NULL,
  steps INTEGER NOT NULL, net INTEGER NOT NULL, saved INTEGER NOT NULL, lost INTEGER NOT NULL,
  time REAL NOT NULL, baseline INTEGER NOT NULL DEFAULT 0, stitched INTEGER NOT NULL DEFAULT 0,
  low INTEGER, high INTEGER, PRIMARY KEY (namespace, pod, session, graph)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (
  namespace TEXT, gpu TEXT, saved INTEGER NOT NULL, lost INTEGER NOT NULL,
  PRIMARY KEY (namespace, gpu)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
  namespace TEXT, pod TEXT, session TEXT, seq INTEGER, type TEXT NOT NULL, graph TEXT NOT NULL,
  key TEXT NOT NULL, time REAL NOT NULL,
  PRIMARY KEY (namespace, pod, session, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS swaps (
  namespace TEXT, pod TEXT, session TEXT, key TEXT, owner TEXT NOT NULL, state TEXT NOT NULL,
  time REAL NOT NULL, graph TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (namespace, pod, session, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS breakers (
  namespace TEXT, owner TEXT, key TEXT, target TEXT, time REAL NOT NULL,
  PRIMARY KEY (namespace, owner, key, target)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (
  namespace TEXT, owner TEXT, name TEXT, round INTEGER, record BLOB NOT NULL, time REAL NOT NULL,
  PRIMARY KEY (namespace, owner, name, round)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refusals (
  namespace TEXT, request TEXT, reason TEXT, time REAL NOT NULL,
  PRIMARY KEY (namespace, request, reason)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counts (
  name TEXT, label TEXT, count INTEGER NOT NULL, PRIMARY KEY (name, label)) WITHOUT ROWID;
"""
"""`savings.net`, `saved`, `lost` and the totals in device-nanoseconds; times in epoch seconds."""
KEPT = """
CREATE TABLE IF NOT EXISTS kept (
  namespace TEXT, request TEXT, bytes INTEGER NOT NULL,
  PRIMARY KEY (namespace, request)) WITHOUT ROWID;
"""
"""Graphs of a namespace that are in the store."""
OF_NAMESPACES = (
    *("submissions", "sessions", "savings", "events", "swaps", "breakers", "groups"),
    *("refusals", "pods", "standings", "kept"),
)


def _counted_rows() -> str:
    """Rows of each namespace over all tables that clients add to: counted anew at each start, and
    by triggers from then on."""
    made = "DROP TABLE IF EXISTS rows; "
    made += "CREATE TABLE rows (namespace TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;"
    for table in OF_NAMESPACES:
        made += f"""
        INSERT INTO rows SELECT namespace, count(*) FROM {table} WHERE true GROUP BY namespace
          ON CONFLICT DO UPDATE SET count = count + excluded.count;
        CREATE TRIGGER IF NOT EXISTS {table}_more AFTER INSERT ON {table} BEGIN
          INSERT INTO rows VALUES (NEW.namespace, 1)
            ON CONFLICT DO UPDATE SET count = count + 1; END;
        CREATE TRIGGER IF NOT EXISTS {table}_less AFTER DELETE ON {table} BEGIN
          UPDATE rows SET count = count - 1 WHERE namespace = OLD.namespace; END;"""
    return made


FROM_1 = f"""
BEGIN;
ALTER TABLE spent RENAME TO spent_1;
{SPENT}
INSERT INTO spent SELECT request, 0, purpose, device, seconds FROM spent_1;
DROP TABLE spent_1;
PRAGMA user_version = 2;
COMMIT;
"""
"""Version 1 kept one sum for each request; workers of its time name no account (0)."""
FROM_2 = """
BEGIN;
ALTER TABLE savings ADD COLUMN baseline INTEGER NOT NULL DEFAULT 0;
ALTER TABLE savings ADD COLUMN stitched INTEGER NOT NULL DEFAULT 0;
ALTER TABLE savings ADD COLUMN low INTEGER;
ALTER TABLE savings ADD COLUMN high INTEGER;
ALTER TABLE swaps ADD COLUMN graph TEXT NOT NULL DEFAULT '';
ALTER TABLE swaps ADD COLUMN reason TEXT NOT NULL DEFAULT '';
PRAGMA user_version = 3;
COMMIT;
"""
"""Version 2 kept what a report adds to the totals, not what it says. Pods are known again when they
are next heard."""


class LedgerHeld(RuntimeError):
    """Another process writes this ledger."""


def connect(path: Path) -> sqlite3.Connection:
    """The ledger in `path`, made if it is not there; locked for this process until it ends.

    Raises LedgerHeld, or sqlite3.Error for a file that is no ledger of this version.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(
        path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
    except OSError as error:
        os.close(lock)
        raise LedgerHeld(f"{path} is in use by another gateway") from error
    database = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, factory=_Locked, timeout=5.0
    )
    assert isinstance(database, _Locked)
    database.lock = lock
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    found = database.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, 1, 2, VERSION):
        raise sqlite3.DatabaseError(f"{path} is a ledger of version {found}, not {VERSION}")
    if found == 1:
        database.executescript(FROM_1)
    if found in (1, 2):
        database.executescript(FROM_2)
    database.execute("PRAGMA recursive_triggers = ON")  # what is replaced is deleted first
    tables = SPENT + SCHEMA + OF_3 + KEPT + _counted_rows()
    database.executescript(f"BEGIN; {tables} PRAGMA user_version = {VERSION}; COMMIT;")
    return database


class _Locked(sqlite3.Connection):
    """A connection that gives the lock back when closed."""

    lock: int = -1

    def close(self) -> None:
        super().close()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All of a block, durable when it ends, or nothing of it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
