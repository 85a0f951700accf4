"""Huge pages (native/huge.cc) under buffers of an allocator that keeps what is freed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.inject.conftest import Compile

MIB = 1 << 20
FRAME = 2 * MIB
POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class State(NamedTuple):
    """KiB of the buffer: in memory, in huge pages, asked for."""

    resident: int
    huge: int
    asked: int


Driver = Callable[[list[str]], list[State]]


@pytest.fixture(scope="module")
def driver(compiled: Compile) -> Driver:
    target = compiled("memory_driver", ("huge.cc",))

    def run(lines: list[str]) -> list[State]:
        done = subprocess.run(
            [target], input="\n".join(lines) + "\n", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout.splitlines()[-1:]
        return [State(*map(int, line.split())) for line in done.stdout.splitlines()]

    return run


@pytest.fixture
def huge_pages() -> None:
    policy = POLICY.read_text() if POLICY.exists() else "[never]"
    if "[never]" in policy:
        pytest.skip("huge pages are off here: echo madvise > " + str(POLICY))


@pytest.mark.slow
def test_a_frame_is_asked_for_once_all_of_it_was_in_use(driver: Driver, huge_pages: None) -> None:
    """By several buffers, whichever order; and never a frame of which a part was not."""
    parts = [f"note {k * MIB // 2} {MIB // 2}" for k in (4, 6, 7, 5)]  # the second frame
    states = driver([f"fill 0 {8 * MIB}", *parts, f"note {FRAME * 2} {MIB}"])
    assert [state.asked for state in states] == [0, 0, 0, 0, 2048, 2048]
    assert states[-1].huge == 2048 and states[0].huge == 0
    assert states[-1].resident == states[0].resident, "no page more than was in use"


def test_small_buffers_are_left_alone(driver: Driver, huge_pages: None) -> None:
    notes = [f"note {k * 64 * 1024} {64 * 1024}" for k in range(32)]
    assert driver([f"fill 0 {2 * MIB}", *notes])[-1].asked == 0
