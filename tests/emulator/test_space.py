"""Blocks of 64 to 1,024 threads as CUDA text on the emulator: no race, right, the same bits on any
grid."""

from __future__ import annotations

import pytest

from stitchcore.schedule.pipeline import schedule
from stitchcore.schedule.space import Schedule
from tests.emulator import kernels, twins
from tests.emulator.launch import Order
from tests.emulator.launch import Schedule as Interleaving
from tests.emulator.program import compile_text
from tests.schedule.test_space import SMALL_GPU, subject
from tests.schedule.twins import Twin

RUNS = ((Interleaving(Order.FORWARD), 3), (Interleaving(Order.RANDOM, seed=1), 2))


@pytest.mark.parametrize(
    ("name", "number", "smallest"),
    [
        ("softmax_grad", 0, 16),
        pytest.param("layernorm_gelu_grad", 0, 16, marks=pytest.mark.slow),
        pytest.param("mlp_train", 3, 16, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("threads", [64, 128, 512, 1024])
def test_blocks_of_any_size_are_race_free_and_right(
    name: str, number: int, smallest: int, threads: int
) -> None:
    pattern, module = subject(name, number, SMALL_GPU, smallest)
    chosen = Schedule(threads=threads)
    kernel = schedule(pattern, module, SMALL_GPU, "kernel", verify=True, chosen=chosen)
    program = compile_text(kernels.rendered([kernel], threads))
    found = twins.emulated(Twin(pattern, module, kernel, {}, ()), program, RUNS, threads)
    assert found.right, (str(found.check), found.findings, found.unlike)


def test_a_block_of_fewer_threads_than_its_text_is_for_is_seen() -> None:
    pattern, module = subject("softmax_grad", 0, SMALL_GPU, 16)
    kernel = schedule(pattern, module, SMALL_GPU, "kernel", chosen=Schedule(threads=128))
    program = compile_text(kernels.rendered([kernel], 128))
    found = twins.emulated(Twin(pattern, module, kernel, {}, ()), program, RUNS[:1], 64)
    assert not found.right
