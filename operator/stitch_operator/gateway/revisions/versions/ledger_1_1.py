"""What gateways have let through, for the others (sharing.py)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1.1"
down_revision = "1.0"


def upgrade() -> None:
    op.create_table(
        "taken",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("gateway", "kind", "namespace")),
        *(sa.Column(name, sa.Double, nullable=False) for name in ("before", "total", "time")),
        if_not_exists=True,
        sqlite_with_rowid=False,
    )
