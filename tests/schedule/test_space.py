"""Every schedule of the space is a right kernel; the default is the kernel that there was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stitchcore.device.records import DEVICES, Device
from stitchcore.errors import Refused
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import THREADS, Kernel
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.schedule import limits, space
from stitchcore.schedule.pipeline import schedule
from stitchcore.schedule.space import DEFAULT, Schedule
from tests.fuzz.shrink import shrink
from tests.schedule import twins
from tests.schedule.test_tiling import row_sums
from tests.schedule.twins import Twin

CPU, GPU = DEVICES["cpu-x86-64-v3"], DEVICES["sm_90"]
SMALL_GPU = replace(GPU, units=2)
"""A few blocks are a wave of it: small arrays are split as large ones are."""


def kernels(pattern: Pattern, module: Module, device: Device) -> Iterator[tuple[Schedule, Kernel]]:
    """The distinct kernels of the space, each with its first point."""
    seen: set[str] = set()
    for chosen in space.points(device):
        try:
            kernel = schedule(pattern, module, device, "kernel", verify=True, chosen=chosen)
        except Refused:
            continue
        if (text := print_kernel(kernel)) not in seen:
            seen.add(text)
            yield chosen, kernel


def subject(name: str, number: int, device: Device, smallest: int) -> tuple[Pattern, Module]:
    """Kernel `number` of a workload at sizes down to `smallest` (0: its own)."""
    whole, inside = twins.alone(twins.patterns_of(name, device)[number])
    if not smallest:
        return inside, whole
    shrunk = shrink(whole, smallest)
    parts = (inside.instructions, inside.inputs, inside.outputs)
    return Pattern(*(tuple(shrunk.made[v] for v in part) for part in parts)), shrunk.module


@pytest.mark.parametrize(
    ("name", "number", "device", "smallest", "least"),
    [
        pytest.param("softmax_grad", 0, CPU, 16, 1, marks=pytest.mark.slow),
        pytest.param("softmax_grad", 0, SMALL_GPU, 16, 10, marks=pytest.mark.slow),
        pytest.param("layernorm_gelu_grad", 0, SMALL_GPU, 16, 10, marks=pytest.mark.slow),
        pytest.param("mlp_train", 3, SMALL_GPU, 0, 20, marks=pytest.mark.nightly),
        pytest.param("mlp_train", 4, SMALL_GPU, 16, 10, marks=pytest.mark.slow),
        pytest.param("softmax_grad", 0, CPU, 0, 4, marks=pytest.mark.slow),
        pytest.param("dien_infer", 5, CPU, 0, 2, marks=pytest.mark.slow),
        pytest.param("layernorm_gelu_grad", 0, SMALL_GPU, 48, 10, marks=pytest.mark.slow),
    ],
)
def test_every_schedule_of_a_kernel_is_right(
    name: str, number: int, device: Device, smallest: int, least: int
) -> None:
    pattern, module = subject(name, number, device, smallest)
    found = list(kernels(pattern, module, device))
    assert len(found) >= least
    for chosen, kernel in found:
        check = twins.interpreted(Twin(pattern, module, kernel, {}, ()))
        assert check.passed, f"{chosen}: {check}"


def test_the_default_is_what_a_device_has() -> None:
    for device in DEVICES.values():
        assert limits.of(device, chosen=DEFAULT) == limits.of(device)
        assert next(space.points(device)) == DEFAULT and DEFAULT.on(device) == device


@pytest.mark.parametrize("device", [CPU, GPU])
def test_points_are_different_and_come_back_from_their_text(device: Device) -> None:
    points = list(space.points(device))
    assert len(set(points)) == len(points) > 10
    assert len({str(point) for point in points}) == len(points)
    assert [space.read(point.chosen) for point in points] == points
    assert all(space.contains(device, point) for point in points)


@pytest.mark.parametrize("threads", [64, 128, 512, 1024])
def test_a_launch_dimension_is_the_kernels(threads: int) -> None:
    """Its tasks are for blocks of so many lanes: elements of one, and rows that share one."""
    kernel = row_sums(2_000_000, 32, chosen=Schedule(threads=threads))
    assert kernel.threads == threads != THREADS
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert "threads" not in print_kernel(row_sums(2_000_000, 32))
    own = limits.of(GPU, chosen=Schedule(threads=threads))
    assert own.warps == threads // 32 and own.task_elements == 8 * threads


def test_blocks_of_more_threads_keep_less_in_registers() -> None:
    """A multiprocessor has 65,536: of a block of 1,024 threads each has 64."""
    words = {n: limits.of(GPU, chosen=Schedule(threads=n)).register_words for n in (256, 512, 1024)}
    assert words == {256: 96, 512: 48, 1024: 24}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([], "object"),
        ({"blocks": 3}, "'blocks'"),
        ({"threads": "128"}, "threads"),
        ({"threads": 128.0}, "threads"),
        ({"threads": None}, "threads"),
    ],
)
def test_what_is_no_schedule_is_said(wrong: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        space.read(wrong)


@pytest.mark.parametrize(
    "outside", [Schedule(threads=100), Schedule(threads=2048), Schedule(task_elements=7)]
)
def test_what_is_outside_the_space_is_seen(outside: Schedule) -> None:
    assert not space.contains(GPU, outside)
