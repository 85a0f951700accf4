"""A cluster's processes are found by their mark: all of them, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import processes
from tests.cluster.processes import Daemon, NotUp
from tests.waiting import wait_for

SLEEP = Daemon("sleep", ("/bin/sleep", "600"))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    for folder in ("pid", "log"):
        (tmp_path / folder).mkdir()
    yield tmp_path
    processes.end(lambda: processes.owned(tmp_path))


def test_everything_marked_ends_and_nothing_else(state: Path) -> None:
    pid = processes.start(state, SLEEP)
    children = Daemon("parent", ("/bin/sh", "-c", "/bin/sleep 600 & /bin/sleep 600 & wait"))
    parent = processes.start(state, children)
    neighbours = [
        subprocess.Popen(["/bin/sleep", "60"], env={processes.MARK: mark})
        for mark in (f"{state}x", str(state.parent), "")
    ]
    wait_for(lambda: len(processes.owned(state)) == 4, "four processes")
    assert {pid, parent} < set(processes.owned(state))
    processes.end(lambda: processes.owned(state))
    assert processes.owned(state) == []
    assert all(neighbour.poll() is None for neighbour in neighbours)
    for neighbour in neighbours:
        neighbour.kill()
        neighbour.wait()


@pytest.mark.parametrize(
    ("environment", "its"),
    [
        (b"STITCH_TESTBED=/run/one\0PATH=/bin\0", True),
        (b"PATH=/bin\0STITCH_TESTBED=/run/one", True),
        (b"STITCH_TESTBED=/run/one/more\0", False),
        (b"STITCH_TESTBED=/run\0", False),
        (b"OF_STITCH_TESTBED=/run/one\0", False),
        (b"PATH=/bin\0", False),
        (b"", False),
    ],
)
def test_the_mark_is_the_whole_folder(environment: bytes, its: bool) -> None:
    assert processes.has_mark(environment, Path("/run/one")) is its


@pytest.mark.parametrize("other", [lambda: 1, os.getpid, os.getppid])
def test_nothing_ends_where_a_process_is_named_that_is_no_clusters(
    state: Path, other: Callable[[], int]
) -> None:
    pid = processes.start(state, SLEEP)
    with pytest.raises(NotUp, match="nothing is ended"):
        processes.end(lambda: [pid, other()])
    assert processes.alive(state, "sleep")


@pytest.mark.slow
def test_a_number_given_anew_is_not_the_program(state: Path) -> None:
    processes.start(state, SLEEP)
    assert processes.alive(state, "sleep")
    processes.stop(state, "sleep")
    assert not processes.alive(state, "sleep")
    processes.pid_file(state, "sleep").write_text(str(os.getpid()))
    assert not processes.alive(state, "sleep")
    processes.stop(state, "sleep")  # and this process lives on


def test_a_process_that_changes_its_program_keeps_its_mark(state: Path) -> None:
    again = state / "again"
    again.write_text('#!/bin/sh\nexec "$0"\n')
    again.chmod(0o755)
    pid = processes.start(state, Daemon("again", (str(again),)))
    assert all(processes.marked(pid, state) for _ in range(5000))


def test_a_program_that_ends_is_told_with_its_log(state: Path) -> None:
    processes.start(state, Daemon("broken", ("/bin/sh", "-c", "echo no such flag; exit 1")))
    with pytest.raises(NotUp, match=r"the part: broken ended\nbroken: no such flag"):
        processes.await_ready(state, ["broken"], lambda: False, 20, "the part")


def test_time_that_is_up_is_told(state: Path) -> None:
    processes.start(state, SLEEP)
    with pytest.raises(NotUp, match="not within 0 s"):
        processes.await_ready(state, ["sleep"], lambda: False, 0.2, "the part")
