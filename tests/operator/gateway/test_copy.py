"""Backup, loss and restore of a ledger, as docs/service.md says it: nothing is lost that was in the
backup, and what jobs say again afterwards counts once."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_operator.gateway.copy import copy, main
from stitch_operator.gateway.database import connect, run
from stitch_operator.gateway.groups import Acknowledgement
from stitch_operator.gateway.ledger import COUNTED, OLD, Known, Ledger
from tests.operator.gateway.test_ledger import (
    GRAPH,
    KEY,
    SECOND,
    START,
    handed_in,
    identity,
    report,
)
from tests.operator.gateway.test_workloads import OLD as OLD_SCHEMA
from tests.postgres import Postgres

NOW = START + 3600


def filled(ledger: Ledger) -> None:
    one = identity()
    handed_in(ledger, one)
    assert ledger.save(one, "s", GRAPH, report(1, 5), 1.2, NOW) == COUNTED
    ledger.acknowledge(one, "g", 1, Acknowledgement("s0", KEY, 2, 0, 10, None), NOW)
    ledger.keeps("a", Known("r", GRAPH, "t", "2.21", None, 0, None, None), 17, NOW)


def seen(ledger: Ledger) -> list[object]:
    with ledger._database.reading() as db:
        rows = run(db, "SELECT namespace, count FROM rows ORDER BY namespace").all()
    pods = ledger.workloads("", NOW).workloads
    return [ledger.totals(), ledger.spent(), ledger.counts(), [tuple(row) for row in rows], pods]


@pytest.mark.parametrize("back", ["sqlite", "postgres"])
def test_a_ledger_that_is_lost_is_restored_from_its_copy(
    place: str, back: str, postgres: Postgres, tmp_path: Path
) -> None:
    """Copied while its gateway has it open; restored to either kind. The job that went on says its
    sum again, and the reconciler reads all of it anew."""
    ledger, backup = Ledger(place), str(tmp_path / "backup.sqlite")
    filled(ledger)
    position = ledger.workloads("", NOW).next
    assert main([str(place), backup]) == 0
    before = seen(ledger)
    assert ledger.save(identity(), "s", GRAPH, report(2, 7), 1.2, NOW) == COUNTED
    ledger.close()  # and lost
    restored = str(tmp_path / "restored.sqlite") if back == "sqlite" else postgres.fresh()
    assert main([backup, restored]) == 0
    ledger = Ledger(restored)
    assert seen(ledger) == before
    assert len(ledger.workloads(position, NOW).workloads) == 1, "it is another ledger"
    assert ledger.save(identity(), "s", GRAPH, report(1, 5), 1.2, NOW) == OLD
    assert ledger.save(identity(), "s", GRAPH, report(2, 7), 1.2, NOW) == COUNTED
    assert ledger.totals() == [("a", "cpu", 7 * SECOND, 0)]
    ledger.close()


def test_what_is_there_is_not_written_over(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(tmp_path / "source.sqlite")
    for one in (source, place):
        ledger = Ledger(one)
        filled(ledger)
        ledger.close()
    assert main([source, str(place)]) == 2
    assert "is there already" in (said := capsys.readouterr().err) or "not empty" in said
    assert main([str(tmp_path / "none"), str(tmp_path / "made")]) == 2
    assert "is no file" in capsys.readouterr().err


def test_a_later_releases_is_not_cut(tmp_path: Path) -> None:
    made = connect(tmp_path / "later.sqlite")
    with made.writing() as db:
        run(db, "ALTER TABLE totals ADD COLUMN later BIGINT")
    made.close()
    with pytest.raises(ValueError, match="totals with later"):
        copy(str(tmp_path / "later.sqlite"), str(tmp_path / "copy.sqlite"))


def test_the_file_of_an_earlier_release_moves_to_postgres(
    postgres: Postgres, tmp_path: Path
) -> None:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as old:
        old.executescript(OLD_SCHEMA)
    connect(path).close()  # this release's gateway has begun on it once
    url = postgres.fresh()
    environment = {**os.environ, "STITCH_LEDGER": url}
    command = [sys.executable, "-m", "stitch_operator.gateway.copy", str(path), "-"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "rows of" in done.stdout, done.stderr
    ledger = Ledger(url)
    said = report(2, 5)
    assert ledger.save(identity(pod="p"), "s", "g", said, 1.2, NOW) == COUNTED
    ledger.close()
