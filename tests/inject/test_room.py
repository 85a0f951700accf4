"""A step on a GPU is swapped in only where the GPU has room for what it may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stitchcore.inject import client, memory, plugin, reasons
from stitchcore.inject import settings as job_settings
from stitchcore.inject.memory import Allocator
from stitchcore.inject.program import ORIGINAL, STITCHED, WARM_UP, Instance, Program
from stitchcore.inject.swap_start import Swapper

MIB = 2**20
LIVE = 100 * MIB
"""What the worker says the stitched step holds."""


@pytest.mark.parametrize(
    ("peak", "more", "fits"),
    [(900, 0, True), (910, 0, False), (900, 100, True), (900, 101, False), (0, 0, True),
     (999, 0, False)],
)  # fmt: skip
def test_a_tenth_of_the_untouched_peak_is_to_be_free(peak: int, more: int, fits: bool) -> None:
    """Or what the user lets it grow by. What is in use now, and the estimate, say nothing then."""
    peak, more, limit = peak * MIB, more * MIB, 1000 * MIB
    told = memory.no_room([Allocator("/device:GPU:0", peak, peak, limit)], True, 10**12, more)
    assert (told is None) == fits


@pytest.mark.parametrize(("current", "fits"), [(400, True), (401, False)])
def test_before_the_first_step_twice_the_estimate_is_to_be_free(current: int, fits: bool) -> None:
    """Whatever the peak was: it is not the step's."""
    told = memory.no_room([Allocator("/device:GPU:0", current, 1000, 1000)], False, 300)
    assert (told is None) == fits


def test_the_gpu_that_has_no_room_is_named() -> None:
    wide, tight = (Allocator(f"/device:GPU:{n}", 0, 90 * MIB, n * 98 * MIB) for n in (2, 1))
    assert memory.no_room([wide], True, 0) is None
    told = memory.no_room([wide, tight], True, 0)
    assert told == "/device:GPU:1 has 8 of 98 MiB left, a swap takes 9"
    unknown = Allocator("/device:GPU:0", 0, 10, 0)
    assert memory.no_room([unknown], True, 0) is None, "a limit that is not told"


class Job:
    """A step of `target` whose artifact is there."""

    def __init__(
        self, library: plugin.Plugin, store: Path, target: str, late: str | None = None
    ) -> None:
        config = job_settings.read({"STITCH_STORE": str(store), "STITCH_SESSION": "s"})
        events = client.Events(config.store, config.session, lambda kind, fields: None)
        self.refused: list[str] = []
        self.swapper = Swapper(config, library, events, self._disable, lambda *_: True)
        self.library, self.program = library, Program("d" * 64, target, late)
        manifest: dict[str, Any] = {"key": "k", "expect": {"live_bytes": LIVE}}
        self.program.artifact = client.Artifact(manifest, ())

    def _disable(self, program: Program, reason: str, detail: str) -> None:
        program.reason = reason
        self.refused.append(reason)

    def start(self) -> Instance:
        step = self.library.new_step()
        pointers = self.library.step_arm(step), self.library.step_begun(step)
        first = self.swapper.first_arm(self.program)
        instance = Instance(self.program, step, first, *pointers, can_alternate=True)
        self.swapper.start(instance)
        return instance

    def arms(self, steps: int) -> list[int]:
        """What each of so many steps runs."""
        instance, arms = self.start(), []
        for _ in range(steps):
            self.swapper.late(instance)
            arms.append(int(instance.arm[0]))
            self.library.pass_step(instance.step, arms[-1])
        self.library.unwatch_memory(instance.step)
        return arms


@pytest.mark.parametrize(
    ("target", "before"), [("sm_90", [ORIGINAL] * WARM_UP), ("cpu-x86-64-v3", [])]
)
def test_on_a_gpu_the_original_runs_first(
    target: str,
    before: list[int],
    library: plugin.Plugin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "allocators", lambda: [Allocator("GPU:0", 5, 5, 5 + MIB)])
    arms = Job(library, tmp_path, target).arms(WARM_UP + 2)
    assert arms[: len(before) + 2] == [*before, STITCHED, STITCHED]


def test_without_room_it_goes_on_for_good(
    library: plugin.Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "allocators", lambda: [Allocator("GPU:0", 5, 96, 100)])
    job = Job(library, tmp_path, "sm_90")
    assert job.arms(9) == [ORIGINAL] * 9
    assert job.refused == [reasons.MEMORY]


@pytest.mark.parametrize(("free", "first"), [(2 * LIVE, STITCHED), (2 * LIVE - 1, ORIGINAL)])
def test_what_is_swapped_at_once_or_never(
    free: int,
    first: int,
    library: plugin.Plugin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random numbers in TensorFlow's kernels: there is only the worker's estimate to go by."""
    monkeypatch.setattr(memory, "allocators", lambda: [Allocator("GPU:0", 7, 7, 7 + free)])
    job = Job(library, tmp_path, "sm_90", reasons.KERNEL_RANDOM_STATE)
    assert job.start().first_arm == first
    assert job.refused == ([] if first == STITCHED else [reasons.MEMORY])
