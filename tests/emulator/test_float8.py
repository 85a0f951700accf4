"""Kernels that store float8, as CUDA text on the emulator, against ml_dtypes (by numpy): what is
too large is NaN or infinite, and never the largest number as the GPU's own instruction has it."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.schedule.pipeline import schedule
from tests.codegen.opcode_cases import Array
from tests.emulator import kernels
from tests.emulator.launch import Order, Schedule
from tests.emulator.program import compile_text
from tests.emulator.twins import DEVICE
from tests.schedule.agree import collapsed
from tests.schedule.modules import module_of, parameter, reduce, whole

ROWS, COLUMNS = 24, 512


def same(ours: Array, theirs: Array) -> bool:
    return np.array_equal(
        ours.astype(np.float32).ravel(), theirs.astype(np.float32).ravel(), equal_nan=True
    )


@pytest.mark.parametrize(("dtype", "other"), [("f8e4m3fn", "f8e5m2"), ("f8e5m2", "f8e4m3fn")])
def test_float8_is_stored_reduced_and_widened(dtype: str, other: str) -> None:
    """In runs of neighbours; and the mutant, the other type's rounding, is seen."""
    x = parameter(0, (ROWS, COLUMNS))
    narrow = builder.convert(x, dtype)
    most = reduce(narrow, (1,), op.MAXIMUM)
    module = module_of([narrow, most, builder.convert(narrow, "bf16")], [x])
    pattern = whole(module)
    kernel = schedule(pattern, module, DEVICE, "kernel", verify=True)
    assert max(one.elements_per_lane for one in kernel.phases[0].sections) > 1
    spread = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    data = (spread * np.logspace(-6, 6, ROWS)[:, None]).astype(np.float32)
    data[:, 0], data[:, 1] = 464, 61440
    wanted = [np.asarray(value) for value in evaluate(module, [data])]
    assert np.isnan(wanted[0].astype(np.float32)).any() == (dtype == "f8e4m3fn")
    text = kernels.rendered([kernel])
    for rendered, right in ((text, True), (text.replace(f"f32_{dtype}(", f"f32_{other}("), False)):
        given = collapsed(kernel, [data], {})
        order = Schedule(Order.RANDOM, 1)
        found = kernels.run(kernel, compile_text(rendered), given, {}, order)
        assert not found.findings, list(map(str, found.findings))
        alike = [same(a, b) for a, b in zip(found.outputs, wanted, strict=True)]
        assert all(alike) == right, alike
