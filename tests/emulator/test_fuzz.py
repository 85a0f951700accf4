"""Random modules as CUDA text on the emulator: free of findings, equal to numpy, and nothing in
their text that keeps threads apart can go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.schedule.pipeline import schedule
from tests.emulator import kernels, mutants
from tests.emulator.launch import Array, Order, Schedule
from tests.emulator.program import compile_text
from tests.emulator.twins import DEVICE
from tests.schedule.agree import assert_close, collapsed
from tests.schedule.modules import draw_inputs, modules, whole
from tests.schedule.twins import toy

TINY = {
    "task_elements": 16,
    "enough_tasks": 5,
    "lane_block": 12,
    "max_part_rows": 2,
    "chain_elements": 8,
    "inline_size": 2,
    "few_rows": 3,
    "long_row": 16,
    "warp_elements": 8,
    "run_lanes": 2,
    "flat_below": 4,
}
"""Limits by which small arrays are split over tasks, lane blocks, parts, warps and runs."""

SETTINGS = settings(
    max_examples=60,
    derandomize=True,  # the same kernels every time, so that they are compiled once
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def scheduled(module: Module) -> tuple[Kernel, list[Array], list[Array]]:
    """A kernel of the whole module with many small tasks, its inputs, and its outputs by numpy."""
    pattern = whole(module)
    inputs = draw_inputs(pattern, 0)
    with toy(TINY):
        kernel = schedule(pattern, module, DEVICE, "kernel", verify=True)
    known = dict(zip(pattern.inputs, inputs, strict=True))
    given = [known.get(p, np.zeros(p.shape.static, np.float32)) for p in module.entry.parameters]
    values = dict(zip(module.outputs, evaluate(module, given, {}), strict=True))
    return kernel, collapsed(kernel, inputs, {}), [values[value] for value in pattern.outputs]


@pytest.mark.nightly
@SETTINGS
@given(modules())
def test_random_modules_are_race_free_and_agree_with_numpy(module: Module) -> None:
    kernel, inputs, expected = scheduled(module)
    program = compile_text(kernels.rendered([kernel]))
    outputs: list[bytes] = []
    for run, blocks in enumerate((3, 1, 2, 5)):
        order = Order.FORWARD if run == 0 else Order.RANDOM
        made = kernels.run(
            kernel, program, inputs, {}, Schedule(order, run, run == 3), blocks=blocks
        )
        assert not made.findings, list(map(str, made.findings))
        assert_close(made.outputs, expected, kernel)
        outputs = outputs or [array.tobytes() for array in made.outputs]
        assert outputs == [array.tobytes() for array in made.outputs]


@pytest.mark.nightly
@settings(SETTINGS, max_examples=25)
@given(modules())
def test_nothing_can_go_unnoticed(module: Module) -> None:
    kernel, inputs, _ = scheduled(module)
    text = kernels.with_every_load([kernel])
    for mutant in mutants.mutants(text):
        if mutant.helper:
            continue
        program = compile_text(mutant.text)
        runs = (kernels.run(kernel, program, inputs, {}, blocks=blocks) for blocks in (3, 1))
        assert any(made.findings for made in runs), f"{mutant.what}\n{print_kernel(kernel)}\n{text}"
