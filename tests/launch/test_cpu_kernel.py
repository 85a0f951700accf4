"""The CPU runtime checks what it is given and times what it runs."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.device.host import host_device
from stitchcore.runtime.cpu_kernel import CpuKernel, aligned_empty
from stitchcore.toolchain.c_compiler import compile_c
from tests.loop_ir.sample import column_sum


@pytest.fixture(scope="module")
def kernel() -> CpuKernel:
    made = column_sum()
    return CpuKernel(compile_c(c.render([made]), host_device()).data, made)


X = np.ones((9, 40), np.float32)


def test_wrong_arguments_are_named(kernel: CpuKernel) -> None:
    with pytest.raises(ValueError, match=r"no value for symbols \['B'\]"):
        kernel.run([X])
    with pytest.raises(ValueError, match="1 inputs, 2 given"):
        kernel.run([X, X], {"B": 9})
    with pytest.raises(ValueError, match=r"input x must be float32\(8, 40\), is float32\(9, 40\)"):
        kernel.run([X], {"B": 8})
    with pytest.raises(ValueError, match="is float64"):
        kernel.run([X.astype(np.float64)], {"B": 9})
    with pytest.raises(ValueError, match="not row-major"):
        kernel.run([X], {"B": 9}, outputs=[np.empty((80,), np.float32)[::2]])


def test_inputs_of_any_layout_are_made_row_major(kernel: CpuKernel) -> None:
    x = np.random.default_rng(0).standard_normal((40, 9)).astype(np.float32).T
    [y] = kernel.run([x], {"B": 9})
    np.testing.assert_allclose(y, x.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_nothing_to_do(kernel: CpuKernel) -> None:
    [y] = kernel.run([X[:0]], {"B": 0})
    assert (y == 0).all()


def test_seconds_are_measured(kernel: CpuKernel) -> None:
    taken = kernel.seconds([X], {"B": 9}, repeats=4, threads=2)
    assert len(taken) == 4
    assert all(0 < t < 1 for t in taken)


def test_allocation_is_aligned() -> None:
    for size in (1, 7, 1000):
        assert aligned_empty((size, 3), np.dtype(np.float32)).ctypes.data % 64 == 0
