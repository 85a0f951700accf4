"""A gateway of this process for each test, and places of a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator.gateway.support import Running, gateway
from tests.postgres import Postgres, server


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with gateway(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with server() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a ledger is to be made, of each kind."""
    if request.param == "sqlite":
        return tmp_path / "ledger.sqlite"
    return str(request.getfixturevalue("postgres").fresh())
