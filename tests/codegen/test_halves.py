"""Narrow floats in registers: rounded where they are made, and as they are in memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from stitchcore.codegen.source import MEMORY_TYPES
from stitchcore.device.host import host_device
from stitchcore.hlo.ir.numerics import convert
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.runtime.cpu_kernel import load_library
from stitchcore.toolchain.c_compiler import compile_c

MIDDLE = {"f16": 0x1000, "bf16": 0x8000, "f8e4m3fn": 0x80000, "f8e5m2": 0x100000}
"""The bit of a float32 that is half of the type's last one."""

SOURCE = """#include "stitch_cpu.h"
ST_EXPORT void rounded(float *x, long count) {
  const unsigned saved = st_enter();
#pragma omp simd
  for (long i = 0; i < count; i++) x[i] = st_round_TYPE(x[i]);
  st_leave(saved);
}
ST_EXPORT void narrowed(const double *from, float *to, long count) {
  const unsigned saved = st_enter();
#pragma omp simd
  for (long i = 0; i < count; i++) to[i] = st_convert_f64_TYPE(from[i]);
  st_leave(saved);
}
ST_EXPORT void copied(const PATTERN *from, PATTERN *to, long count) {
  const unsigned saved = st_enter();
#pragma omp simd
  for (long i = 0; i < count; i++) to[i] = st_store_TYPE(st_load_TYPE(from[i]));
  st_leave(saved);
}
"""


@pytest.fixture(scope="module", params=["f16", "bf16", "f8e4m3fn", "f8e5m2"])
def library(request: pytest.FixtureRequest) -> tuple[str, ctypes.CDLL]:
    source = SOURCE.replace("TYPE", request.param)
    source = source.replace("PATTERN", MEMORY_TYPES[request.param])
    return request.param, load_library(compile_c(source, host_device()).data)


def patterns(dtype: str) -> np.ndarray[Any, Any]:
    kind = np.dtype(f"u{DTYPES[dtype].bytes}")
    return np.arange(2 ** (8 * kind.itemsize), dtype=np.int64).astype(kind)


def test_a_store_keeps_every_pattern_that_a_load_gave(library: tuple[str, ctypes.CDLL]) -> None:
    dtype, functions = library
    every = patterns(dtype)
    found = np.zeros_like(every)
    count = ctypes.c_long(every.size)
    functions.copied(ctypes.c_void_p(every.ctypes.data), ctypes.c_void_p(found.ctypes.data), count)
    assert np.array_equal(found, every)


def test_rounding_is_to_the_nearest_value_and_to_even(library: tuple[str, ctypes.CDLL]) -> None:
    """Random patterns, and all values with the floats beside them and halfway to the next one."""
    dtype, functions = library
    narrow = DTYPES[dtype].numpy
    bits = np.random.default_rng(0).integers(0, 2**32, 2**20, dtype=np.uint64).astype(np.uint32)
    values = patterns(dtype).view(narrow).astype(np.float32).view(np.uint32)
    middle = np.uint32(MIDDLE[dtype])
    near = [values + np.uint32(d) for d in (0, 1, -1 % 2**32, middle, middle + 1, middle - 1)]
    x = np.concatenate([bits, *near]).view(np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(narrow).astype(np.float32)
    flushed = (x != 0) & (np.abs(x) < np.finfo(np.float32).tiny)
    x, expected = x[~flushed], expected[~flushed]
    found = x.copy()
    functions.rounded(ctypes.c_void_p(found.ctypes.data), ctypes.c_long(found.size))
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(found), ~number)
    assert np.array_equal(found[number].view(np.uint32), expected[number].view(np.uint32))


def test_float64_is_rounded_to_float8_once(library: tuple[str, ctypes.CDLL]) -> None:
    """Beside each middle of two values, by less than float32 sees: the nearer one, as exact
    arithmetic says. Two-byte types are rounded to float32 before, as TensorFlow does."""
    dtype, functions = library
    values = patterns(dtype).view(DTYPES[dtype].numpy).astype(np.float32).astype(np.float64)
    values = np.unique(values[np.isfinite(values) & (values >= np.finfo(np.float32).tiny)])
    lower, upper = values[:-1], values[1:]
    middle = (lower + upper) / 2
    once = DTYPES[dtype].bytes == 1
    for step, expected in ((-(2.0**-40), lower), (2.0**-40, upper)):
        x = middle * (1 + step)
        for sign in (1.0, -1.0):
            given, found = x * sign, np.zeros(x.size, np.float32)
            arguments = (ctypes.c_void_p(array.ctypes.data) for array in (given, found))
            functions.narrowed(*arguments, ctypes.c_long(x.size))
            assert np.array_equal(found, expected * sign) == once
            assert np.array_equal(convert(given, DTYPES[dtype].numpy).astype(np.float32), found)
