"""What cost charges: a GPU's kernel for registers, a transpose for elements that move alone."""

from __future__ import annotations

import pytest

from stitchcore.device.occupancy import multiprocessor
from stitchcore.device.records import DEVICES
from stitchcore.fusion import instructions, occupancy
from stitchcore.fusion.candidates import extent
from stitchcore.fusion.cost import SQUARE_OPERATIONS, TURNED_OPERATIONS, cost, work
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from tests.schedule.modules import apply, module_of, parameter, whole

GPU, CPU = DEVICES["sm_90"], DEVICES["cpu-x86-64-v3"]


def alive(count: int) -> Pattern:
    """`count` values that all wait for the last of them."""
    parameters = [parameter(number, (1 << 24,)) for number in range(count)]
    negated = [apply(op.NEGATE, one) for one in parameters]
    total = negated[-1]
    for one in reversed(negated[:-1]):
        total = apply(op.ADD, total, one)
    return whole(module_of([*negated, total], parameters))


def test_few_live_values_leave_memory_its_speed() -> None:
    estimate = cost(alive(4), GPU)
    assert estimate.occupancy >= occupancy.enough_threads(GPU)
    assert estimate.seconds == pytest.approx(
        estimate.bytes / GPU.bytes_per_second + GPU.launch_seconds, rel=0.1
    )


def test_a_kernel_of_too_many_registers_is_charged_for_idle_threads() -> None:
    estimate = cost(alive(300), GPU)
    assert 128 < estimate.registers <= 255
    assert estimate.occupancy == 256 / multiprocessor("sm_90").threads  # one block
    memory = estimate.bytes / GPU.bytes_per_second
    assert estimate.seconds > 1.9 * memory


def test_a_cpu_is_not_charged() -> None:
    estimate = cost(alive(300), CPU)
    assert estimate.occupancy == 1.0
    assert estimate.seconds < 1.2 * estimate.bytes / CPU.bytes_per_second


@pytest.mark.parametrize(
    ("shape", "permutation", "turns"),
    [
        ((8, 4, 512), (1, 0, 2), False),
        ((8, 4, 512), (0, 2, 1), True),
        ((512, 512), (1, 0), True),
        ((512, 1, 512), (0, 2, 1), False),
        ((1, 512, 512), (1, 2, 0), False),
        ((512, 512, 1), (1, 0, 2), True),
    ],
)
def test_elements_that_leave_their_neighbours_move_alone(
    shape: tuple[int, ...], permutation: tuple[int, ...], turns: bool
) -> None:
    """Dimensions of one element have no neighbours to lose."""
    x = parameter(0, shape)
    turned, copied = builder.transpose(x, permutation), apply(op.NEGATE, x)
    assert instructions.turns(turned) is turns
    more = cost(whole(module_of([turned], [x])), CPU).seconds
    assert (more > cost(whole(module_of([copied], [x])), CPU).seconds) is turns


@pytest.mark.parametrize(
    ("shape", "dtype", "squares"),
    [((64, 64), "f32", True), ((64, 1, 16), "f16", True), ((64, 8), "f32", False),
     ((3, 64), "f32", False), ((64, 64), "s8", False)],
)  # fmt: skip
def test_squares_are_turned_for_less(shape: tuple[int, ...], dtype: str, squares: bool) -> None:
    order = (1, 0) if len(shape) == 2 else (2, 1, 0)
    turned = builder.transpose(parameter(0, shape, dtype), order)
    each = work(turned) / extent(turned.shape.size)
    assert each == (SQUARE_OPERATIONS if squares else TURNED_OPERATIONS)
