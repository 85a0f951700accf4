"""The tables, and what a SQLite file of an earlier release takes to have them.

Earlier releases numbered their files by `user_version`, 1 to 3. It stays 3: the release before
opens this ledger too.
"""

from __future__ import annotations

import secrets
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "1.0"
down_revision = None

TEXT, WHOLE, REAL = sa.Text, sa.BigInteger, sa.Double
OF_NAMESPACES = (
    *("submissions", "sessions", "savings", "events", "swaps", "breakers", "groups"),
    *("refusals", "pods", "standings", "kept"),
)
"""Tables that clients add to: `rows` has how many each namespace has in them all."""
SQLITE_COUNTS = (
    """CREATE TRIGGER IF NOT EXISTS {table}_more AFTER INSERT ON {table} BEGIN
         INSERT INTO rows VALUES (NEW.namespace, 1)
           ON CONFLICT DO UPDATE SET count = count + 1; END""",
    """CREATE TRIGGER IF NOT EXISTS {table}_less AFTER DELETE ON {table} BEGIN
         UPDATE rows SET count = count - 1 WHERE namespace = OLD.namespace; END""",
)
POSTGRES_FUNCTION = """
CREATE FUNCTION count_rows_of_namespaces() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO rows VALUES (NEW.namespace, 1)
      ON CONFLICT (namespace) DO UPDATE SET count = rows.count + 1;
  ELSE
    UPDATE rows SET count = count - 1 WHERE namespace = OLD.namespace;
  END IF;
  RETURN NULL;
END $$"""
POSTGRES_COUNTS = (
    "CREATE TRIGGER {table}_counted AFTER INSERT OR DELETE ON {table} "
    "FOR EACH ROW EXECUTE FUNCTION count_rows_of_namespaces()",
)


def upgrade() -> None:
    """Also called on a file that has some of it."""
    connection = op.get_bind()
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        _of_earlier(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    _tables()
    if not connection.execute(sa.text("SELECT 1 FROM ledger")).first():
        made = {"id": secrets.token_hex(8)}
        connection.execute(sa.text("INSERT INTO ledger VALUES (:id, 0)"), made)
    if sqlite:
        op.execute("PRAGMA user_version = 3")
    else:
        op.execute(POSTGRES_FUNCTION)
    for table in OF_NAMESPACES:
        op.execute(
            f"INSERT INTO rows SELECT namespace, count(*) FROM {table} WHERE true "
            "GROUP BY namespace "
            "ON CONFLICT (namespace) DO UPDATE SET count = rows.count + excluded.count"
        )
        for statement in SQLITE_COUNTS if sqlite else POSTGRES_COUNTS:
            op.execute(statement.format(table=table))


def _of_earlier(version: int) -> None:
    """Version 1 kept one sum of what was spent for each request: workers of its time name no
    account (0). Version 2 kept what a report adds to the totals, not what it says; pods are known
    again when they are next heard. Rows were counted at each start."""
    op.execute("DROP TABLE IF EXISTS rows")
    if version == 1:
        op.rename_table("spent", "spent_1")
        _spent()
        op.execute("INSERT INTO spent SELECT request, 0, purpose, device, seconds FROM spent_1")
        op.drop_table("spent_1")
    if version in (1, 2):
        for column in ("baseline", "stitched"):
            op.add_column("savings", sa.Column(column, WHOLE, nullable=False, server_default="0"))
        for column in ("low", "high"):
            op.add_column("savings", sa.Column(column, WHOLE))
        for column in ("graph", "reason"):
            op.add_column("swaps", sa.Column(column, TEXT, nullable=False, server_default=""))


def _spent() -> None:
    _table("spent", {"request": TEXT, "account": WHOLE, "purpose": TEXT},
           device=TEXT, seconds=REAL)  # fmt: skip


def _tables() -> None:
    """Times in epoch seconds; `savings.net`, `saved`, `lost` and the totals in device-nanoseconds.
    `pods` and `standings` are what the reconciler reads (workloads.py): `change` numbers the
    changes of the one row of `ledger`; `stale` figures have changed since. `kept`: graphs of a
    namespace that are in the store."""
    _spent()
    _table("ledger", {"id": TEXT}, change=WHOLE)
    who = {"namespace": TEXT, "pod": TEXT}
    session = {**who, "session": TEXT}
    _table("pods", who, owner=TEXT, controller=TEXT, gpu=TEXT, devices=REAL, began=REAL,
           contact=REAL, stepped=WHOLE, change=WHOLE, stale=WHOLE)  # fmt: skip
    _table("standings", {**who, "graph": TEXT}, phase=TEXT, key=TEXT, reason=TEXT)
    op.create_table(
        "requests",
        sa.Column("request", TEXT, primary_key=True),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("target", TEXT, nullable=False),
        sa.Column("tf", TEXT, nullable=False),
        sa.Column("enqueued", REAL),
        sa.Column("attempts", WHOLE, nullable=False, server_default="0"),
        sa.Column("artifact", TEXT),
        sa.Column("ratio", REAL),
        if_not_exists=True,
    )
    _table("submissions", {"namespace": TEXT, "request": TEXT}, digest=TEXT, time=REAL)
    _table("sessions", session, time=REAL)
    op.create_table(
        "savings",
        *(sa.Column(name, TEXT, primary_key=True) for name in (*session, "graph")),
        sa.Column("gpu", TEXT, nullable=False),
        *(
            sa.Column(name, WHOLE, nullable=False)
            for name in ("seq", "steps", "net", "saved", "lost")
        ),
        sa.Column("time", REAL, nullable=False),
        sa.Column("baseline", WHOLE, nullable=False, server_default="0"),
        sa.Column("stitched", WHOLE, nullable=False, server_default="0"),
        sa.Column("low", WHOLE),
        sa.Column("high", WHOLE),
        if_not_exists=True,
        sqlite_with_rowid=False,
    )
    _table("totals", {"namespace": TEXT, "gpu": TEXT}, saved=WHOLE, lost=WHOLE)
    _table("events", {**session, "seq": WHOLE}, type=TEXT, graph=TEXT, key=TEXT, time=REAL)
    _table("swaps", {**session, "key": TEXT}, owner=TEXT, state=TEXT, time=REAL, graph=TEXT,
           reason=TEXT)  # fmt: skip
    owner = {"namespace": TEXT, "owner": TEXT}
    _table("breakers", {**owner, "key": TEXT, "target": TEXT}, time=REAL)
    _table("groups", {**owner, "name": TEXT, "round": WHOLE}, record=sa.LargeBinary, time=REAL)
    _table("refusals", {"namespace": TEXT, "request": TEXT, "reason": TEXT}, time=REAL)
    _table("counts", {"name": TEXT, "label": TEXT}, count=WHOLE)
    _table("kept", {"namespace": TEXT, "request": TEXT}, bytes=WHOLE)
    _table("rows", {"namespace": TEXT}, count=WHOLE)
    for name, table, columns in (
        ("pods_by_change", "pods", ["change", "pod"]),
        ("requests_by_artifact", "requests", ["artifact"]),
        ("submissions_by_digest", "submissions", ["namespace", "digest"]),
    ):
        op.create_index(name, table, columns, if_not_exists=True)
    op.execute("CREATE INDEX IF NOT EXISTS pods_to_settle ON pods (stale) WHERE stale = 1")


def _table(name: str, key: dict[str, Any], /, **columns: Any) -> None:
    op.create_table(
        name,
        *(sa.Column(column, kind, primary_key=True) for column, kind in key.items()),
        *(sa.Column(column, kind, nullable=False) for column, kind in columns.items()),
        if_not_exists=True,
        sqlite_with_rowid=False,
    )
