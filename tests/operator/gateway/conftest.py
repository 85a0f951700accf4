"""A gateway of this process for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator.gateway.support import Running, gateway


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with gateway(tmp_path) as made:
        yield made
