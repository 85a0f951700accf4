"""Cumulative sums as CUDA text on the emulator: no race, the same bits on any grid."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.schedule.pipeline import schedule
from tests import tiers
from tests.emulator import kernels
from tests.emulator.program import compile_text
from tests.emulator.test_fuzz import TINY
from tests.emulator.twins import DEVICE, RUNS
from tests.schedule.agree import assert_close, collapsed
from tests.schedule.modules import apply, draw_inputs, module_of, parameter, reduce, whole
from tests.schedule.test_scans import scanned
from tests.schedule.twins import toy

DIMS = (12, 20, 264)
"""Beside the axis in the middle lie as many elements as a block has lanes, and a few more."""


def passes(value: Instruction) -> dict[str, list[Instruction]]:
    """Kernels of one pass, of sums that other lanes and blocks read, and of passes over such."""
    sums = scanned(apply(op.TANH, value), 1, exclusive=True, reverse=True)
    plain = scanned(value, 1)
    most = reduce(plain, (2,), op.MAXIMUM)
    again = scanned(apply(op.ADD, plain, scanned(value, 0, reverse=True)), 1)
    return {
        "one": [apply(op.MULTIPLY, sums, sums), sums],
        "reduced": [most, apply(op.NEGATE, plain)],
        "again": [again],
    }


@pytest.mark.slow
@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("name", tiers.nightly_but("again", of=["one", "reduced", "again"]))
def test_scans_are_race_free_and_agree_with_numpy(name: str, tiny: bool) -> None:
    value = parameter(0, DIMS)
    module = module_of(passes(value)[name], [value])
    pattern = whole(module)
    inputs = draw_inputs(pattern, 0)
    with toy(TINY) if tiny else nullcontext():
        kernel = schedule(pattern, module, DEVICE, "kernel", verify=True)
    program = compile_text(kernels.rendered([kernel]))
    values = dict(zip(module.outputs, evaluate(module, inputs, {}), strict=True))
    outputs: set[bytes] = set()
    for how, blocks in RUNS:
        made = kernels.run(kernel, program, collapsed(kernel, inputs, {}), {}, how, blocks=blocks)
        assert not made.findings, list(map(str, made.findings))
        assert_close(made.outputs, [values[one] for one in pattern.outputs], kernel)
        outputs.add(b"".join(np.ascontiguousarray(array).tobytes() for array in made.outputs))
    assert len(outputs) == 1
