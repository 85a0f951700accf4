"""Huge pages and idle pages (native/huge.cc, idle.cc) over an allocator like TensorFlow's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.inject import build

MIB = 1 << 20
FRAME = 2 * MIB
POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class State(NamedTuple):
    """KiB of the arena: in memory, in huge pages, asked for, managed by the allocator."""

    resident: int
    huge: int
    asked: int
    managed: int


Driver = Callable[[list[str]], list[State]]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: apt-get install g++")
    target = tmp_path_factory.mktemp("memory") / "driver"
    here = Path(__file__).parent / "memory_driver.cc"
    sources = [str(build.NATIVE / name) for name in ("huge.cc", "idle.cc")]
    subprocess.run(
        [compiler, "-std=c++17", "-O1", f"-I{build.NATIVE}", str(here), *sources, "-o",
         str(target), "-lpthread"],
        check=True,
    )  # fmt: skip

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


def test_a_frame_is_asked_for_once_all_of_it_was_in_use(driver: Driver, huge_pages: None) -> None:
    """By several buffers, whichever order; and never a frame of which a part was not."""
    parts = [f"note x {k * MIB // 2} {MIB // 2}" for k in (4, 6, 7, 5)]  # the second frame
    states = driver([f"alloc x {8 * MIB}", "fill x", *parts, f"note x {FRAME * 2} {MIB}"])
    assert [state.asked for state in states] == [0, 0, 0, 0, 0, 2048, 2048]
    assert states[-1].huge == 2048 and states[1].huge == 0
    assert states[-1].resident == states[1].resident, "no page more than was in use"


def test_small_buffers_are_left_alone(driver: Driver, huge_pages: None) -> None:
    notes = [f"note x {k * 64 * 1024} {64 * 1024}" for k in range(32)]
    assert driver([f"alloc x {2 * MIB}", "fill x", *notes])[-1].asked == 0


def test_what_one_kind_of_step_leaves_idle_goes_back(driver: Driver) -> None:
    """XLA's block is free, a batch lies where it does not fit again: one of both is in memory."""
    states = driver(
        ["alloc block 67108864", "fill block", "free block", "alloc a 20000000", "fill a",
         "alloc batch 1000000", "fill batch", "free a", "release", "check batch",
         "alloc block 67108864", "fill block", "check batch"]
    )  # fmt: skip
    before, released, after = states[7], states[8], states[-1]
    assert before.resident >= 60 * 1024
    assert released.resident <= 4 * 1024, "the batch and what is left at the edges"
    assert after.resident <= 69 * 1024


commands = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.sampled_from("abcdef"), st.integers(1, 24 * MIB)),
        st.tuples(st.just("free"), st.sampled_from("abcdef"), st.just(0)),
        st.tuples(st.just("release"), st.just("-"), st.just(0)),
    ),
    min_size=4,
    max_size=24,
)


@given(commands)
@settings(max_examples=25, deadline=None)
def test_what_is_in_use_is_never_touched(
    driver: Driver, script: list[tuple[str, str, int]]
) -> None:
    held: set[str] = set()
    lines: list[str] = []
    for verb, name, size in script:
        if verb == "alloc" and name not in held:
            held.add(name)
            lines += [f"alloc {name} {size}", f"fill {name}"]
        elif verb == "free" and name in held:
            held.remove(name)
            lines.append(f"free {name}")
        elif verb == "release":
            lines += ["release", *(f"check {one}" for one in sorted(held))]
    lines += ["release", *(f"check {one}" for one in sorted(held)), "release", "release"]
    states = driver(lines)
    assert states[-1].managed == states[-2].managed, "asking again makes the allocator no larger"


def test_a_second_release_finds_nothing_new(driver: Driver) -> None:
    steps = ["alloc a 50000000", "fill a", "free a", "release"]
    states = driver([*steps, *steps, *steps])
    managed = [state.managed for state in states[3::4]]
    assert managed[1] == managed[2], "the allocator grows no more"
    assert all(state.resident <= 1024 for state in states[3::4])


def test_where_nothing_is_idle_nothing_is_taken(driver: Driver) -> None:
    states = driver(["alloc a 50000000", "alloc b 1500000", "fill a", "fill b", "release"])
    assert states[-1] == states[-2]
