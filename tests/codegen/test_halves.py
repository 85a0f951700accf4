"""Two-byte floats in registers: rounded where they are made, and as they are in memory."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from stitchcore.device.host import host_device
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.runtime.cpu_kernel import load_library
from stitchcore.toolchain.c_compiler import compile_c

SOURCE = """#include "stitch_cpu.h"
ST_EXPORT void rounded(float *x, long count) {
  const unsigned saved = st_enter();
#pragma omp simd
  for (long i = 0; i < count; i++) x[i] = st_round_TYPE(x[i]);
  st_leave(saved);
}
ST_EXPORT void copied(const uint16_t *from, uint16_t *to, long count) {
  const unsigned saved = st_enter();
#pragma omp simd
  for (long i = 0; i < count; i++) to[i] = st_store_TYPE(st_load_TYPE(from[i]));
  st_leave(saved);
}
"""


@pytest.fixture(scope="module", params=["f16", "bf16"])
def library(request: pytest.FixtureRequest) -> tuple[str, ctypes.CDLL]:
    source = SOURCE.replace("TYPE", request.param)
    return request.param, load_library(compile_c(source, host_device()).data)


def test_a_store_keeps_every_pattern_that_a_load_gave(library: tuple[str, ctypes.CDLL]) -> None:
    _, functions = library
    every, found = np.arange(2**16, dtype=np.uint16), np.zeros(2**16, np.uint16)
    count = ctypes.c_long(every.size)
    functions.copied(ctypes.c_void_p(every.ctypes.data), ctypes.c_void_p(found.ctypes.data), count)
    assert np.array_equal(found, every)


def test_rounding_is_to_the_nearest_half_and_to_even(library: tuple[str, ctypes.CDLL]) -> None:
    """Random patterns, and all halves with the floats beside them and halfway to the next one."""
    dtype, functions = library
    narrow = DTYPES[dtype].numpy
    bits = np.random.default_rng(0).integers(0, 2**32, 2**20, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(2**16, dtype=np.uint16).view(narrow).astype(np.float32).view(np.uint32)
    middle = np.uint32(0x1000 if dtype == "f16" else 0x8000)
    near = [halves + np.uint32(d) for d in (0, 1, -1 % 2**32, middle, middle + 1, middle - 1)]
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
