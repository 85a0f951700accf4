"""Errors of stitch_cpu.h's float32 functions, in ulp against float64, over the whole range.

Figures are what was measured (gcc 12, x86-64-v4), rounded up: a change that loses accuracy fails.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.device.host import host_device
from stitchcore.hlo.ir import opcodes
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library
from stitchcore.toolchain.c_compiler import INCLUDE, compile_c
from tests.codegen.opcode_cases import Array, Case

TINY = float(np.finfo(np.float32).tiny)
SIZE = 1_500_000

UNARY: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "exponential": (1.1, np.exp),
    "exponential-minus-one": (2.0, np.expm1),
    "log": (0.9, np.log),
    "log-plus-one": (1.8, np.log1p),
    "logistic": (2.3, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (2.6, np.tanh),
    "erf": (1.9, lambda x: opcodes.record("erf").numpy(x)),  # type: ignore[misc]
    "rsqrt": (1.6, lambda x: 1 / np.sqrt(x)),
    "sqrt": (0.51, np.sqrt),
    "cbrt": (0.51, np.cbrt),
    "sine": (0.51, np.sin),
    "cosine": (0.51, np.cos),
    "tan": (0.51, np.tan),
}
BINARY: dict[str, tuple[float, Callable[[Array, Array], Array]]] = {
    "power": (0.6, np.power),
    "atan2": (0.6, np.arctan2),
}


def sample(seed: int) -> Array:
    """Bit patterns of the whole range, and values where the functions do their work."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, SIZE // 2, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = rng.uniform(-12, 12, SIZE // 4).astype(np.float32)
    unit = (1 + rng.standard_normal(SIZE // 8) * 0.1).astype(np.float32)
    small = (rng.standard_normal(SIZE - SIZE // 2 - SIZE // 4 - SIZE // 8) * 1e-2).astype(
        np.float32
    )
    return np.concatenate([bits, near, unit, small])


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < TINY, np.copysign(0.0, x), x)


def worst_ulp(found: Array, exact: Array) -> float:
    """Largest error; every infinity, NaN and overflow must agree. Below TINY all is zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        expected = flushed(exact).astype(np.float32)
    special = ~np.isfinite(expected)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    assert same[special].all(), (found[special & ~same][:4], expected[special & ~same][:4])
    got, want = found[~special].astype(np.float64), exact[~special]
    assert np.isfinite(got).all()
    error = np.abs(got - want)
    spacing = np.spacing(np.maximum(np.abs(expected[~special]), np.float32(TINY)))
    return float(np.where(error <= TINY, 0.0, error / spacing.astype(np.float64)).max())


@pytest.fixture(scope="module")
def functions() -> dict[str, CpuKernel]:
    kernels = [
        Case(name, ("f32",) * count, "f32", ()).kernel(SIZE)
        for count, names in ((1, UNARY), (2, BINARY))
        for name in names
    ]
    library = compile_c(c.render(kernels), host_device())
    loaded = load_library(library.data)
    return {name: CpuKernel(loaded, k) for name, k in zip([*UNARY, *BINARY], kernels, strict=True)}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, functions: dict[str, CpuKernel]) -> None:
    bound, exact = UNARY[name]
    x = sample(1)
    x = x[: SIZE // 4] if name == "erf" else x  # its reference is a Python loop
    padded = np.resize(x, SIZE)
    [found] = functions[name].run([padded], threads=2)
    with np.errstate(all="ignore"):
        expected = exact(flushed(x.astype(np.float64)))
    assert worst_ulp(found[: x.size], expected) <= bound


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, functions: dict[str, CpuKernel]) -> None:
    bound, exact = BINARY[name]
    x = sample(2)
    y = np.random.default_rng(3).permutation(x)
    y[: SIZE // 3] = np.round(y[: SIZE // 3])
    y[SIZE // 3 : SIZE // 2] = np.random.default_rng(4).uniform(-20, 20, SIZE // 2 - SIZE // 3)
    [found] = functions[name].run([x, y], threads=2)
    with np.errstate(all="ignore"):
        expected = exact(flushed(x.astype(np.float64)), flushed(y.astype(np.float64)))
    assert worst_ulp(found, expected) <= bound


def test_the_table_of_two_over_pi_is_what_its_script_writes() -> None:
    script = Path(__file__).with_name("two_over_pi.py")
    written = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    ).stdout
    assert written == (INCLUDE / "stitch_two_over_pi.h").read_text()
