"""Each elementwise opcode at each type as CUDA text, on the emulator, against numpy; lookups and
updates, whose places data decides.

CUDA keeps denormal numbers and the reference flushes them: operands are flushed beforehand.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from stitchcore.hlo.ir import builder, opcodes
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.schedule.pipeline import schedule
from tests import tiers
from tests.codegen.opcode_cases import Array, cases, inputs
from tests.codegen.test_opcodes import agrees
from tests.emulator import kernels
from tests.emulator.launch import Order, Schedule
from tests.emulator.program import compile_text
from tests.emulator.twins import DEVICE
from tests.loop_ir.sample import looked_up
from tests.schedule.agree import assert_close, collapsed
from tests.schedule.modules import apply, draw_inputs, module_of, parameter, whole

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
            order = Schedule(Order.RANDOM, 1)
            found = kernels.run(kernel, program, given, {}, order)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", tiers.nightly_but("s8", "u32", of=["s8", "u8", "s32", "u32", "s64", "u64"])
)
@pytest.mark.parametrize("in_place", [False, True])
def test_windows_are_replaced_wherever_they_begin(dtype: str, in_place: bool) -> None:
    """A dynamic-update-slice as CUDA text: clamped so that the whole window lies inside, written
    over its input or beside it."""
    old, new = parameter(0, (9, 40)), parameter(1, (4, 33))
    starts = [parameter(2, (), dtype), parameter(3, (), "s32")]
    updated = builder.dynamic_update_slice(old, apply(opcodes.TANH, new), starts)
    module = module_of([updated], [old, new, *starts])
    pattern = whole(module)
    kernel = schedule(pattern, module, DEVICE, "kernel", verify=True)
    assert kernel.aliases == ((pattern.inputs.index(old), 0),)
    program = compile_text(kernels.rendered([kernel]))
    given = draw_inputs(pattern, 0)
    limits = np.iinfo(DTYPES[dtype].numpy)
    for row, column in itertools.product((limits.min, limits.max, 3, 5, 6), (-2, 0, 7, 30)):
        known = dict(zip(pattern.inputs, given, strict=True))
        known[starts[0]] = np.array(row, limits.dtype)
        known[starts[1]] = np.array(column, np.int32)
        arrays = [known[value] for value in pattern.inputs]
        top, left = min(max(int(row), 0), 5), min(max(column, 0), 7)
        expected = known[old].copy()
        expected[top : top + 4, left : left + 33] = np.tanh(known[new])
        shaped = collapsed(kernel, arrays, {})
        order = Schedule(Order.RANDOM, 1)
        found = kernels.run(kernel, program, shaped, {}, order, share_aliases=in_place)
        assert not found.findings, list(map(str, found.findings))
        assert_close(found.outputs, [expected], kernel)
