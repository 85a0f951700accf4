"""The process's peak memory of both arms, as the native sampler finds it, and what follows."""

from __future__ import annotations

import ctypes
import mmap
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stitchcore.inject import memory, plugin
from stitchcore.inject.plugin import Peak
from tests import tiers
from tests.inject import jobs
from tests.inject.conftest import Answer
from tests.waiting import wait_for

MIB = 2**20
HELD = 128 * MIB


@pytest.fixture
def step(library: plugin.Plugin) -> Iterator[int]:
    made = library.new_step()
    library.schedule(made, 0, 3, 3)
    assert library.watch_memory(made)
    yield made
    library.unwatch_memory(made)


def held(size: int) -> mmap.mmap:
    """Anonymous memory, every page of it written."""
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, size, mmap.PAGESIZE):
        made[start] = 1
    return made


def tasks() -> list[Path]:
    """The sampler's thread, where there is one."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # one that has just ended
            if (task / "comm").read_text() == "stitch-memory\n":
                found.append(task)
    return found


def run(library: plugin.Plugin, step: int, calls: int, call: Callable[[int, int], None]) -> None:
    """Calls of the step, each of the arm that is due; `call` is given the arm and its place."""
    place, last = 0, -1
    for _ in range(calls):
        arm = library.step_arm(step)[0]
        place = place + 1 if arm == last else 0
        last = arm
        library.pass_step(step, arm)
        call(arm, place)


def samples(library: plugin.Plugin, step: int) -> int:
    return sum(one.samples for one in library.memory(step))


def sampled(library: plugin.Plugin, step: int, place: int) -> None:
    """A call of the step goes on until it has been sampled; samples of the first and last of a
    block are nobody's."""
    if place == 1:
        before = samples(library, step)
        wait_for(lambda: samples(library, step) >= before + 2, "samples")
    else:
        time.sleep(0.02)


@pytest.mark.slow
def test_what_one_arm_allocates_is_its_own(library: plugin.Plugin, step: int) -> None:
    def allocate(arm: int, place: int) -> None:
        made = held(HELD) if arm == 1 else None
        sampled(library, step, place)
        if made is not None:
            made.close()

    run(library, step, 24, allocate)
    peaks = library.memory(step)
    assert [one.arm for one in peaks] == [0, 1] * 4 and all(one.samples for one in peaks)
    # medians: this process has run other tests, and gives back their memory when it likes
    middle = [statistics.median(one.bytes for one in peaks if one.arm == arm) for arm in (0, 1)]
    assert 0.9 * HELD < middle[1] - middle[0] < 1.1 * HELD


@pytest.mark.slow
def test_what_lies_at_a_switch_is_nobodys(library: plugin.Plugin, step: int) -> None:
    """The first call of a block, and the last, after which the other arm's may have begun."""

    def allocate(arm: int, place: int) -> None:
        made = held(HELD) if place != 1 else None
        sampled(library, step, place)
        if made is not None:
            made.close()

    def pause(_: int, place: int) -> None:
        sampled(library, step, place)

    before = held(MIB)  # warm: what the test itself needs is in memory
    run(library, step, 6, pause)
    quiet = max(one.bytes for one in library.memory(step))
    run(library, step, 18, allocate)
    assert max(one.bytes for one in library.memory(step)) - quiet < HELD // 4
    before.close()


@pytest.mark.slow
def test_it_ends_when_nothing_is_watched(library: plugin.Plugin, step: int) -> None:
    def pause(_: int, place: int) -> None:
        sampled(library, step, place)

    run(library, step, 12, pause)
    found = library.memory(step)
    assert found
    library.unwatch_memory(step)
    run(library, step, 12, lambda *_: time.sleep(0.02))
    assert library.memory(step) == found
    wait_for(lambda: not tasks(), "the thread has ended")
    assert library.watch_memory(step), "and begins again"
    run(library, step, 12, pause)
    assert len(library.memory(step)) > len(found)


@pytest.mark.slow
def test_it_costs_little(library: plugin.Plugin, step: int) -> None:
    """Two hundred samples a second at most, each of which is one read of one short line: what that
    takes of a core `python -m bench.memory_samples` tells."""

    def done() -> tuple[int, int, int]:
        """How often the thread has read, how many bytes, and the samples kept at that moment."""
        while True:
            before = samples(library, step)
            of = dict(line.split(": ") for line in (task / "io").read_text().splitlines())
            if samples(library, step) == before:
                return int(of["syscr"]), int(of["rchar"]), before

    run(library, step, 2, lambda *_: None)  # the second call goes on and on
    [task] = wait_for(tasks, "the thread has begun")
    began, before = time.perf_counter(), done()
    wait_for(lambda: samples(library, step) >= before[2] + 100, "samples")
    reads, size, kept = (now - then for now, then in zip(done(), before, strict=True))
    most = (time.perf_counter() - began) / 0.005 + 1
    assert 100 <= kept <= most
    assert kept - 1 <= reads <= kept + 1, "one may be under way"
    assert size <= 80 * reads


def peaks(original: list[int], stitched: list[int]) -> list[Peak]:
    """Of blocks that reach so many MiB."""
    arms = [(0, size) for size in original] + [(1, size) for size in stitched]
    return [Peak(block, arm, 1, size * MIB) for block, (arm, size) in enumerate(arms)]


@pytest.mark.parametrize(
    ("original", "stitched", "before", "over"),
    [
        ([100, 100, 100], [106, 106, 100], 0, True),
        ([100, 100, 100], [105, 105, 105], 0, False),
        ([100, 100, 100], [130, 100, 100], 0, False),  # once is not a step's peak
        ([100, 101, 102], [130, 130, 130], 125, False),  # the process held as much before
        ([100, 125, 100], [130, 130, 130], 0, False),
        ([100, 100], [130, 130, 130], 0, None),
        ([100, 100, 100], [130, 130], 0, None),
        ([3, 3, 3], [4, 4, 4], 0, False),  # nobody's memory is short by that
    ],
)
def test_verdicts(original: list[int], stitched: list[int], before: int, over: bool | None) -> None:
    found = memory.compare(peaks(original, stitched), before * MIB)
    assert (found.over if found is not None else None) is over


def test_a_user_may_allow_more() -> None:
    grown = peaks([100] * 3, [130] * 3)
    for more, over in ((0, True), (29 * MIB, True), (30 * MIB, False)):
        found = memory.compare(grown, 0, more)
        assert found is not None and found.over is over


@pytest.mark.slow
def test_growth_of_the_job_is_not_the_stitched_steps(library: plugin.Plugin, step: int) -> None:
    kept: list[mmap.mmap] = []

    def grow(arm: int, place: int) -> None:
        kept.append(held(4 * MIB))
        sampled(library, step, place)

    run(library, step, 36, grow)
    found = memory.compare(library.memory(step), 0)
    assert found is not None and found.ratio <= 1.0
    for one in kept:
        one.close()


class NoProc(plugin.Plugin):
    def __init__(self) -> None:
        super().__init__(ctypes.CDLL(None))

    def watch_memory(self, step: int) -> bool:
        return False

    def unwatch_memory(self, step: int) -> None: ...


def test_without_a_proc_it_is_off_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STATUS", "/nowhere")
    found = memory.Watch(NoProc(), 0, on_gpu=False, untouched_steps=9).look(False, False)
    assert found is not None and not found.over
    assert found.fields() == {
        "of": "resident", "why": "the system does not tell what is resident"
    }  # fmt: skip


def test_a_gpu_has_its_allocators_peak(
    library: plugin.Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which only growth tells: with no step before the swap nothing is known."""
    told = iter([1000 * MIB, 1040 * MIB, 1060 * MIB])
    monkeypatch.setattr(memory, "allocated_peak", lambda: next(told))
    watch = memory.Watch(library, 0, on_gpu=True, untouched_steps=9)
    assert watch.look(False, False) is None
    found = watch.look(False, False)
    assert found is not None and found.over and found.of == "allocator"
    unknown = memory.Watch(library, 0, on_gpu=True, untouched_steps=0).look(False, False)
    assert unknown is not None and unknown.why and not unknown.over


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "late"),
    tiers.nightly_but(
        ("2.21", False), ("2.21", True), of=[("2.21", False), ("2.21", True), ("2.15", True)]
    ),
)
def test_a_step_that_holds_more_is_taken_back(
    version: str, late: bool, native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    plain = jobs.untouched(version, "function_step.py", 100, 0.01)
    answered(version, "function_step.py", "heavy")
    more = {"baseline": "5"} if late else {}
    done = jobs.run(
        jobs.python_of(version), "function_step.py", 100, 0.01, store=store, public_key=public_key,
        forked=False, **more,
    )  # fmt: skip
    assert done.code == 0 and done.losses == pytest.approx(plain, rel=1e-5)
    back, told = done.event("rolled_back"), done.event("memory")
    assert back["reason"] == "memory" and "MiB" in back["detail"]
    assert told["stitched"] - told["untouched"] > 128 * MIB and told["ratio"] > memory.LIMIT
    assert len(done.lines) == 1 and "memory: rolled back" in done.lines[0]
    (steps,) = done.event("end")["steps"]
    assert steps["stitched_steps"] < 60, "the rest is the job's own"


@pytest.mark.slow
def test_a_step_that_holds_no_more_stays(
    native: Path, store: Path, answered: Answer, public_key: str
) -> None:
    answered("2.21", "function_step.py", "good")
    done = jobs.run(
        jobs.python_of("2.21"),
        "function_step.py",
        100,
        0.01,
        store=store,
        public_key=public_key,
        forked=False,
    )
    told = done.event("memory")
    assert told["of"] == "resident" and 0.5 < told["ratio"] <= memory.LIMIT
    assert "memory" not in [event.get("reason") for event in done.events]
