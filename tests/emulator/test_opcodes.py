"""Each elementwise opcode at each type as CUDA text, on the emulator, against numpy.

CUDA keeps denormal numbers and the reference flushes them: operands are flushed beforehand.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from stitchcore.hlo import opcodes
from stitchcore.hlo.shape import DTYPES
from tests.emit.opcode_cases import Array, cases, inputs
from tests.emit.test_opcodes import agrees
from tests.emulator import kernels
from tests.emulator.launch import Order, Schedule
from tests.emulator.program import compile_text
from tests.kernel.sample import looked_up

BATCH = 40


def flushed(values: Array, dtype: str) -> Array:
    if DTYPES[dtype].kind != "float":
        return values
    tiny = ml_dtypes.finfo(DTYPES[dtype].numpy).tiny  # type: ignore[no-untyped-call]
    with np.errstate(invalid="ignore"):
        small = np.abs(values.astype(np.float64)) < float(tiny)
    return np.where(small, np.copysign(np.zeros_like(values), values), values)


@pytest.mark.slow
def test_numpy_and_cuda_agree() -> None:
    generator = np.random.default_rng(4)
    wrong: dict[str, list[str]] = defaultdict(list)
    everything = list(cases())
    for start in range(0, len(everything), BATCH):
        batch = everything[start : start + BATCH]
        operands = [
            [flushed(a, t) for a, t in zip(inputs(case, generator), case.sources, strict=True)]
            for case in batch
        ]
        made = [case.kernel(len(given[0])) for case, given in zip(batch, operands, strict=True)]
        program = compile_text(kernels.rendered(made))
        for case, kernel, given in zip(batch, made, operands, strict=True):
            schedule = Schedule(Order.RANDOM, 1)
            found = kernels.run(kernel, program, given, {}, schedule)
            assert not found.findings, (case.name, list(map(str, found.findings)))
            expected = opcodes.compute(case.opcode, given, case.target, dict(case.attributes))
            if not agrees(case.opcode, found.outputs[0], expected, case.target):
                wrong[case.opcode].append(case.name)
    assert not wrong


@pytest.mark.slow
def test_lookups_by_every_integer_type() -> None:
    """Positions as CUDA text, clamped from the least and the greatest integers there are."""
    integers = [n for n, d in DTYPES.items() if d.kind in ("signed", "unsigned")]
    made = [replace(looked_up(dtype, 70), name=f"looked_up_{dtype}") for dtype in integers]
    program = compile_text(kernels.rendered(made))
    x = np.arange(70, dtype=np.float32)
    for dtype, kernel in zip(integers, made, strict=True):
        limits = np.iinfo(DTYPES[dtype].numpy)
        at = np.resize(np.array([limits.min, limits.max, 0, 3, 69, 70, 99], limits.dtype), 20)
        found = kernels.run(kernel, program, [x, at], {}, Schedule(Order.RANDOM, 1))
        assert not found.findings, (dtype, list(map(str, found.findings)))
        assert found.outputs[0].tolist() == [float(min(max(int(i), 0), 69)) for i in at], dtype
