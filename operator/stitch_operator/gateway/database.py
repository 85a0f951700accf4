"""Where the ledger is kept: a SQLite file of one gateway, or a PostgreSQL database of several.

Both answer the same statements (SQLAlchemy's `text`), and both let one transaction write at a time:
SQLite by its own lock, PostgreSQL by an advisory lock that ends with the transaction, so a gateway
that dies while it writes holds nobody up. What is read and then written within one is therefore
never another's by then, and changes are numbered in the order in which they can be seen. Durable
when a transaction ends: WAL and synchronous=FULL, or the server's synchronous_commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, CursorResult, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

LOG = logging.getLogger("stitch.gateway")
POSTGRES = ("postgresql://", "postgres://")
OLDEST, NEWEST = 1, 3
"""Of SQLite files that earlier releases numbered by `user_version`."""
LOCKS = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(7380427)"}
SNAPSHOTS = {
    "sqlite": "BEGIN",
    "postgresql": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
}
LOCK_SECONDS = 5.0
SERVER = {
    "application_name": "stitch-gateway",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "options": f"-c lock_timeout={LOCK_SECONDS:g}s -c statement_timeout=10s "
    "-c idle_in_transaction_session_timeout=10s",
}
"""Of a connection to PostgreSQL: whoever is cut off holds the lock for ten seconds at most."""
SQLITE_FULL, POSTGRES_FULL = "SQLITE_FULL", "53100"


class LedgerHeld(RuntimeError):
    """Another process writes this ledger."""


class LedgerVersion(RuntimeError):
    """It is of a release that this one does not understand, or no ledger."""


@dataclass(frozen=True)
class Database:
    """An open ledger; `held` is the descriptor of a SQLite file's lock."""

    engine: Engine
    held: int | None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """All of a block, durable when it ends, or nothing of it. Nobody else writes meanwhile."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql(LOCKS[connection.dialect.name])
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Sees what others have written until each statement."""
        with self.engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Sees the ledger of one moment, for as long as it takes; nobody waits for it."""
        with self.engine.connect() as connection:
            connection.exec_driver_sql(SNAPSHOTS[connection.dialect.name])
            without_limits(connection)
            yield connection

    def close(self) -> None:
        self.engine.dispose()
        if self.held is not None:
            os.close(self.held)


def run(connection: Connection, statement: str, **values: Any) -> CursorResult[*tuple[Any, ...]]:
    """One statement of SQL that both kinds of database know; values are named `:so` in it."""
    return connection.execute(text(statement), values)


def connect(where: Path | str) -> Database:
    """The ledger in a file, locked for this process until it ends, or at a URL of PostgreSQL; made,
    or brought to this release, where need be.

    Raises LedgerHeld, LedgerVersion, or SQLAlchemy's DBAPIError.
    """
    held = None if is_server(where) else _held(Path(where))
    made = opened(where, held)
    try:
        with made.writing() as connection:
            _migrate(connection)
    except BaseException:
        made.close()
        raise
    return made


def opened(where: Path | str, held: int | None = None) -> Database:
    """A ledger as it is, whoever writes it."""
    at = _server(str(where)) if is_server(where) else URL.create("sqlite", database=str(where))
    return Database(_engine(at), held)


def without_limits(connection: Connection) -> None:
    """For a transaction that may take long."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")


def is_server(where: Path | str) -> bool:
    return str(where).startswith(POSTGRES)


def shown(where: Path | str) -> str:
    """For logs: without a password."""
    return str(_server(str(where))) if is_server(where) else str(where)


def words(error: SQLAlchemyError) -> str:
    """What the database itself has said, in one line."""
    said = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(str(said).split()) or type(error).__name__


def disk_full(error: DBAPIError) -> bool:
    """Whether the database has no room, which mends itself when somebody makes some."""
    found = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None)
    return found in (SQLITE_FULL, POSTGRES_FULL)


def _server(url: str) -> URL:
    """Raises ValueError."""
    try:
        return make_url(url).set(drivername="postgresql+psycopg")
    except ArgumentError as error:
        raise ValueError("no URL of a PostgreSQL database") from error


def _held(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(
        path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
    except OSError as error:
        os.close(lock)
        raise LedgerHeld(f"{path} is in use by another gateway") from error
    return lock


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        return create_engine(url, connect_args=SERVER, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"isolation_level": None, "timeout": LOCK_SECONDS})

    @event.listens_for(engine, "connect")
    def _opened(connection: Any, _: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.create_function("greatest", -1, max, deterministic=True)  # as PostgreSQL has it

    return engine


def _migrate(connection: Connection) -> None:
    """Bring a ledger to this release. A later one of the same first number only adds to what is
    there, so that gateways of two releases share a ledger while one replaces the other."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("revisions")))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    newest = str(script.get_current_head())
    found = MigrationContext.configure(connection).get_current_revision()
    if found is None and connection.dialect.name == "sqlite":
        version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        if version and not OLDEST <= version <= NEWEST:
            raise LedgerVersion(f"it is a ledger of version {version}, not {NEWEST}")
    if found is None or found in {one.revision for one in script.walk_revisions()}:
        command.upgrade(config, "head")
    elif found.partition(".")[0] != newest.partition(".")[0]:
        raise LedgerVersion(f"it is a ledger of revision {found}, not {newest}")
    else:
        LOG.warning("the ledger is of a later release: revision %s, not %s", found, newest)
