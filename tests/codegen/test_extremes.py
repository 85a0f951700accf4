"""The greatest and least of rows: a NaN wins, a choice in front of it or not."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.schedule.agree import DEVICE
from tests.schedule.modules import apply, module_of, parameter, reduce, whole


@pytest.mark.parametrize("reducer", [op.MAXIMUM, op.MINIMUM])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("chosen", [False, True])
def test_a_nan_of_a_row_is_its_extreme(reducer: str, dtype: str, chosen: bool) -> None:
    """Wherever in the row it is; other rows are their greatest or least element."""
    x = parameter(0, (70, 67), dtype)
    value = x
    if chosen:
        large = builder.elementwise(
            op.COMPARE, apply(op.ABS, x), builder.splat(9.0, x), direction="GE"
        )
        value = apply(op.SELECT, large, builder.splat(0.5, x), x)
    module = module_of([reduce(value, (1,), reducer)], [x])
    kernel = schedule(whole(module), module, DEVICE, "kernel", verify=True)
    library = compile_c(c.render([kernel]), DEVICE)
    assert not library.scalar_loops, library.scalar_loops
    given = np.random.default_rng(0).standard_normal((70, 67)).astype(DTYPES[dtype].numpy)
    given[np.arange(67), np.arange(67)] = np.nan
    given[68, 3], given[69, 3] = np.inf, -np.inf
    expected = np.where(np.abs(given) >= 9, 0.5, given) if chosen else given
    extreme = np.max if reducer == op.MAXIMUM else np.min
    [found] = CpuKernel(library.data, kernel).run([given], {}, threads=1)
    assert np.array_equal(found.reshape(-1), extreme(expected, axis=1), equal_nan=True)
