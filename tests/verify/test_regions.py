"""Verification of small regions against references made for it: right or wrong, fast or slow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from stitchcore.compiler.regions import CompiledRegions, compile_regions, program
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.errors import Reason, Refused
from stitchcore.hlo.symbolic.unify import unify
from stitchcore.hlo.text.parser import parse
from stitchcore.launch.region_program import RegionProgram
from stitchcore.tensorflow.run_region import within_device_memory
from stitchcore.verify.region import Reference
from stitchcore.verify.regions import References, Verification, measure, on_processor, verify

Array = np.ndarray[Any, np.dtype[Any]]
KEY = "region"


def text(elements: int, last: str = "add") -> str:
    shape = f"f32[{elements}]"
    return (
        f"HloModule m\n\nENTRY main {{\n  a = {shape} parameter(0)\n  b = {shape} tanh(a)\n"
        f"  c = {shape} multiply(b, a)\n  ROOT d = {shape} {last}(c, a)\n}}\n"
    )


def built(elements: int) -> tuple[CompiledRegions, dict[str, RegionProgram]]:
    found = compile_regions({KEY: parse(text(elements))}, host_device(), BuildOptions())
    return found, {KEY: program(found, KEY, host_device())}


@pytest.fixture(scope="module")
def made() -> tuple[CompiledRegions, dict[str, RegionProgram]]:
    return built(65536)


def right(given: Sequence[Array]) -> list[Array]:
    return [np.tanh(given[0]) * given[0] + given[0]]


def slow(given: Sequence[Array]) -> list[Array]:
    time.sleep(0.02)
    return right(given)


def nothing(given: Sequence[Array]) -> list[Array]:
    return []


def slower_call(given: Sequence[Array]) -> list[Array]:
    time.sleep(0.1)
    return []


def verification(
    made: tuple[CompiledRegions, dict[str, RegionProgram]],
    references: References,
    seconds: float = 12.0,
) -> Verification:
    checked = verify(*made, {KEY: references})
    return measure(*made, {KEY: 1.0}, {KEY: references}, checked, host_device(), 1, None, seconds)


def test_a_region_that_wins_is_kept_with_its_figures(
    made: tuple[CompiledRegions, dict[str, RegionProgram]],
) -> None:
    found = verification(made, References(slow, nothing))
    assert not found.refused
    timing = found.regions[KEY].timing
    assert timing.ratio is not None
    assert timing.ratio.high < 0.5
    assert timing.seconds["framework"] > 0.019
    summary = found.regions[KEY].summary()
    assert summary["ratio"][1] == timing.ratio.value
    assert found.figures() == {"Distinct regions timed": "1 of 1"}


def busy(seconds: float) -> Reference:
    """A sleep takes as long as the machine is busy."""

    def call(given: Sequence[Array]) -> list[Array]:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass
        return right([np.zeros(4, np.float32)])

    return call


def large_beside(references: References) -> Verification:
    """A region of some milliseconds, timed beside `references`."""
    large = built(2**22)
    checked = verify(*large, {KEY: References(right, nothing)})
    return measure(*large, {KEY: 1.0}, {KEY: references}, checked, host_device(), 1)


@pytest.mark.slow
def test_a_region_that_loses_is_refused_with_its_figure() -> None:
    found = large_beside(References(busy(0.0001), nothing))
    timing = found.regions[KEY].timing
    assert timing.ratio is not None, timing.note
    refusal = found.refused[KEY]
    assert refusal.reason is Reason.SLOWER
    assert str(timing.ratio) in refusal.detail
    assert "framework" in refusal.detail


@pytest.mark.slow
def test_a_region_that_takes_longer_than_the_framework_and_a_call_is_refused() -> None:
    """However little of the framework's time can be told from its call's."""
    found = large_beside(References(busy(0.0003), busy(0.0003)))
    assert found.refused[KEY].reason is Reason.SLOWER
    assert found.regions[KEY].timing.ratio is not None


class Counting(ThreadPoolExecutor):
    """Counts what is handed to its threads."""

    handed = 0

    def submit(self, *work: Any, **named: Any) -> Future[Any]:
        self.handed += 1
        return super().submit(*work, **named)


def test_what_python_takes_to_reach_threads_is_not_the_kernels() -> None:
    """It is in the time of the call without its work, which is taken off: of a kernel of several
    phases it was ten times what the kernel takes."""
    compiled, programs = built(2**22)
    runner = on_processor(compiled, programs)[KEY]
    with Counting(2) as pool:
        launch, idle = runner.prepared([np.ones(2**22, np.float32)], {}, pool, 2)
        before = pool.handed
        launch()
        handed = pool.handed - before
        idle()
        assert pool.handed - before == 2 * handed > 0


def test_a_wrong_kernel_is_refused(made: tuple[CompiledRegions, dict[str, RegionProgram]]) -> None:
    """Kernels of one region verified as another, whose last operation differs."""

    def subtracted(given: Sequence[Array]) -> list[Array]:
        return [np.tanh(given[0]) * given[0] - given[0]]

    build_, programs = made
    other = replace(build_.regions[KEY], module=parse(text(65536, "subtract")))
    references = {KEY: References(subtracted, nothing)}
    found = verify(replace(build_, regions={KEY: other}), programs, references)
    assert found.refused[KEY].reason is Reason.WRONG_RESULT
    assert "output 0: WRONG" in found.refused[KEY].detail


def test_a_module_that_is_not_the_frameworks_is_refused(
    made: tuple[CompiledRegions, dict[str, RegionProgram]],
) -> None:
    """Kernels that do what the module says, where the framework computes something else."""

    def other(given: Sequence[Array]) -> list[Array]:
        return [np.tanh(given[0]) * given[0]]

    found = verify(*made, {KEY: References(other, nothing)})
    assert found.refused[KEY].reason is Reason.WRONG_RESULT
    assert "differs from the lowered module" in found.refused[KEY].detail


@pytest.mark.parametrize(("rows", "bound"), [(100, 32), (12, 8), (1, 1)])
def test_a_region_is_verified_where_the_framework_takes_its_sizes(rows: int, bound: int) -> None:
    """Places that are counted are looked up in a table of 12 rows: an error, of 32 places."""
    module = unify([({"n": size}, parse(text(size))) for size in (23, 40, 57)])
    compiled = compile_regions({KEY: module}, host_device(), BuildOptions())
    programs = {KEY: program(compiled, KEY, host_device())}

    def framework(given: Sequence[Array]) -> list[Array]:
        if len(given[0]) > rows:
            raise Refused("region", Reason.DATA_DEPENDENT_ERROR, f"12 is not in [0, {rows})")
        return right(given)

    found = verify(compiled, programs, {KEY: References(framework, nothing)})
    assert found.regions[KEY].bindings == {"n": bound} and not found.refused
    rows = 0  # none at all
    found = verify(compiled, programs, {KEY: References(framework, nothing)})
    assert found.refused[KEY].reason is Reason.DATA_DEPENDENT_ERROR


def test_a_call_that_costs_more_than_the_region_is_not_a_measurement(
    made: tuple[CompiledRegions, dict[str, RegionProgram]],
) -> None:
    timing = verification(made, References(slow, slower_call)).regions[KEY].timing
    assert timing.ratio is None
    assert "call from outside" in timing.note


def test_what_weighs_next_to_nothing_is_not_timed(
    made: tuple[CompiledRegions, dict[str, RegionProgram]],
) -> None:
    """Least weight first in the artifact: the order is the weights', and the tail's sum counts."""
    build_, programs = made
    weights = {"least": 0.005, "little": 0.01, "second": 0.3, KEY: 0.7}
    alike = replace(build_, regions=dict.fromkeys(weights, build_.regions[KEY]))
    each = dict.fromkeys(weights, programs[KEY])
    references = dict.fromkeys(weights, References(slow, nothing))
    checked = verify(alike, each, references)
    found = measure(alike, each, weights, references, checked, host_device(), 1)
    ratios = {key: region.timing.ratio for key, region in found.regions.items()}
    assert ratios[KEY] is not None and ratios["second"] is not None
    assert ratios["least"] is None and ratios["little"] is None
    assert "2 of 4; 2 not: among those of less" in found.figures()["Distinct regions timed"]


def test_what_the_time_limit_left_out_is_said(
    made: tuple[CompiledRegions, dict[str, RegionProgram]],
) -> None:
    found = verification(made, References(slow, nothing), seconds=-1.0)
    assert found.regions[KEY].timing.ratio is None
    assert "weigh more" in found.figures()["Distinct regions timed"]


NOISE = """HloModule m

ENTRY main {
  a = f32[4096] parameter(0)
  c = f32[] constant(10000)
  big = f32[4096] broadcast(c), dimensions={}
  up = f32[4096] add(a, big)
  down = f32[4096] subtract(up, big)
  noise = f32[4096] subtract(down, a)
  size = f32[4096] abs(noise)
  sign = f32[4096] divide(noise, size)
  OUT
}
"""
"""Exactly 0 / 0, and in float32 the sign of what was rounded."""


def noise(given: Sequence[Array]) -> list[Array]:
    a = given[0]
    with np.errstate(invalid="ignore"):
        rounded = ((a + np.float32(1e4)) - np.float32(1e4)) - a
        return [(-rounded / np.abs(rounded)).astype(np.float32)]  # a machine that rounds otherwise


def beside(given: Sequence[Array]) -> list[Array]:
    return [*noise(given), np.tanh(given[0])]


def mutated(given: Sequence[Array]) -> list[Array]:
    return [*noise(given), np.float32(1.5) * np.tanh(given[0])]


@pytest.mark.parametrize("reference", [noise, beside, mutated])
def test_what_made_up_data_cannot_decide_is_left_to_the_job(reference: Any) -> None:
    alone = "ROOT r = (f32[4096]) tuple(sign)"
    both = "t = f32[4096] tanh(a)\n  ROOT r = (f32[4096], f32[4096]) tuple(sign, t)"
    module = parse(NOISE.replace("OUT", alone if reference is noise else both))
    compiled = compile_regions({KEY: module}, host_device(), BuildOptions())
    made = compiled, {KEY: program(compiled, KEY, host_device())}
    references = {KEY: References(reference, nothing)}
    alone_decides = verify(*made, references)
    assert alone_decides.refused[KEY].reason is Reason.WRONG_RESULT
    found = verify(*made, references, job_decides=True)
    if reference is mutated:  # its other output is well-conditioned, and wrong
        assert found.refused[KEY].reason is Reason.WRONG_RESULT
        return
    assert not found.refused and found.undecided == {KEY}
    assert found.regions[KEY].summary()["undecided"] == 1
    assert "Distinct regions that the job's data decides about" in found.figures()


def test_a_region_that_finds_no_room_on_the_gpu_is_lost_alone(
    made: tuple[CompiledRegions, dict[str, RegionProgram]],
) -> None:
    """A job holds nearly all of its GPU; a worker on the same one has what is left."""

    @within_device_memory
    def no_room(given: Sequence[Array]) -> list[Array]:
        words = "OOM when allocating tensor with shape[65536]\nHint: ..."
        raise tf.errors.ResourceExhaustedError(None, None, words)

    build_, programs = made
    alike = replace(build_, regions={"large": build_.regions[KEY], KEY: build_.regions[KEY]})
    each = {"large": programs[KEY], KEY: programs[KEY]}
    references = {"large": References(no_room, nothing), KEY: References(right, nothing)}
    checked = verify(alike, each, references)
    refusal = checked.refused["large"]
    assert refusal.reason is Reason.MEMORY and set(checked.refused) == {"large"}
    assert refusal.detail.endswith("OOM when allocating tensor with shape[65536]")
    timed = {**references, KEY: References(no_room, nothing)}
    found = measure(made[0], made[1], {KEY: 1.0}, timed, checked, host_device(), 1)
    assert found.refused[KEY].reason is Reason.MEMORY
