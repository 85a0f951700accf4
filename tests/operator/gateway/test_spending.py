"""What workers spent, as the ledger adds it up."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_operator.gateway.ledger import Ledger
from tests.operator.gateway.support import KEY, unsynced
from tests.operator.gateway.test_workloads import OLD


def test_what_another_compilation_spent_is_added(place: Path | str) -> None:
    """An account's sum grows with each compilation, however often and in whatever order its answers
    are seen; what was removed with its account begins another one."""
    ledger, known = Ledger(place), ("11" * 32, KEY, 2.0)
    first, second = {"compile": 1.5}, {"compile": 4.0, "measure": 0.5}
    seen = ((first, 7), (first, 7), (second, 7), (first, 7), (first, 9), (first, 9))
    grown = [ledger.finished(*known, spent, "cpu", account) for spent, account in seen]
    assert grown == [True, False, True, False, True, False]
    assert sorted(ledger.spent()) == [("cpu", "compile", 5.5), ("cpu", "measure", 0.5)]
    ledger.close()


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.booleans()), max_size=20))
def test_each_life_of_a_worker_counts_its_largest_sum(
    said: list[tuple[str, int, bool]],
) -> None:
    """Records that are read again, late, out of order, by a gateway that is restarted (True)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger, before = _quick(path), 0.0
        for life, seconds, restarted in said:
            ledger.waited({life * 32: {"cpu": float(seconds), "gpu": seconds / 2}})
            found = {device: s for device, purpose, s in ledger.spent() if purpose == "idle"}
            assert found.get("cpu", 0.0) >= before
            before = found.get("cpu", 0.0)
            if restarted:
                ledger.close()
                ledger = _quick(path)
        most = {life: max(s for one, s, _ in said if one == life) for life, _, _ in said}
        assert before == sum(most.values())
        assert _of_gpus(ledger) == sum(most.values()) / 2
        ledger.close()


def _quick(path: Path) -> Ledger:
    return unsynced(Ledger(path))


def _of_gpus(ledger: Ledger) -> float:
    return sum(s for device, _, s in ledger.spent() if device == "gpu")


def test_a_ledger_of_version_1_keeps_what_was_spent(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(OLD)  # its other tables are those of version 2
        database.executescript(
            "CREATE TABLE spent (request TEXT, purpose TEXT, device TEXT NOT NULL, "
            "seconds REAL NOT NULL, PRIMARY KEY (request, purpose)) WITHOUT ROWID;"
            "INSERT INTO spent VALUES ('r', 'compile', 'cpu', 2.5); PRAGMA user_version = 1;"
        )
    for _ in range(2):
        ledger = Ledger(path)
        assert not ledger.finished("r", KEY, 2.0, {"compile": 2.5}, "cpu", 0), "it is known"
        assert ledger.spent() == [("cpu", "compile", 2.5)]
        ledger.close()
