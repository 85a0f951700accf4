"""The C toolchain: what it finds, refuses, caches, and reads in the compiler's report."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.device.host import LEVELS, host_device
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason, Refused
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.toolchain.c_compiler import (
    BATCH,
    Compiler,
    batches,
    compile_c,
    find_compiler,
    flags,
    loop_reports,
)
from tests.loop_ir.sample import softmax, whole_sum

LOOP = """#include "stitch_cpu.h"
ST_EXPORT void f(long n, float *restrict x, long *restrict next) {
#pragma omp simd
  for (long i = 0; i < n; i++) { /* lanes f.i */
    x[i] = x[i] + 1.0f;
  }
  long at = 0;
  for (long j = 0; j < n; j++) { /* lanes f.j */
    at = next[at];
    x[at] = 0.0f;
  }
}
"""


def test_a_loop_that_did_not_vectorise_is_reported_by_kernel_and_loop() -> None:
    library = compile_c(LOOP, host_device())
    by_name = {loop.loop: loop for loop in library.loops}
    assert by_name["f.i"].vector_bytes >= 16
    assert [loop.loop for loop in library.scalar_loops] == ["f.j"]
    assert by_name["f.j"].reason


def test_without_a_compiler_the_refusal_says_what_to_install() -> None:
    with pytest.raises(Refused) as refused:
        find_compiler((("no-such-compiler",),))
    assert refused.value.refusal.reason is Reason.NO_COMPILER
    assert "apt-get install gcc" in str(refused.value)
    assert "pip install ziglang" in str(refused.value)


def test_an_error_is_a_refusal_with_the_compilers_words() -> None:
    with pytest.raises(Refused, match="no_such_helper") as refused:
        compile_c("long f(void) { return no_such_helper(1); }", host_device())
    assert refused.value.refusal.reason is Reason.COMPILE_FAILED


def test_a_compiler_that_hangs_is_stopped() -> None:
    source = "#define A(x) x x x x x x x x\n" * 1 + c.render([softmax()])
    with pytest.raises(Refused, match="longer than"):
        compile_c(source, host_device(), timeout=0.001)


def test_output_is_deterministic_and_cached(tmp_path: Path) -> None:
    source = c.render([softmax()])
    first = compile_c(source, host_device())
    assert compile_c(source, host_device()).data == first.data
    stored = compile_c(source, host_device(), cache=tmp_path)
    silent = Compiler(("no-such-compiler",), "gcc", find_compiler().version)
    assert compile_c(source, host_device(), compiler=silent, cache=tmp_path) == stored
    [kept] = tmp_path.glob("*.so")
    kept.write_bytes(b"truncated")
    with pytest.raises((Refused, OSError)):
        compile_c(source, host_device(), compiler=silent, cache=tmp_path)


def test_no_level_contracts_or_is_fast() -> None:
    for target, _ in LEVELS:
        chosen = flags(find_compiler(), DEVICES[target])
        assert "-ffp-contract=off" in chosen
        assert not any("fast-math" in f or "associative" in f for f in chosen)
        assert any(f.startswith("-march=x86-64-v") or f.startswith("-march=x86_64") for f in chosen)


@pytest.mark.parametrize("target", [target for target, _ in LEVELS])
def test_every_level_compiles(target: str) -> None:
    library = compile_c(c.render([softmax(), whole_sum(5000)]), DEVICES[target])
    expected = {"cpu-x86-64-v4": 64, "cpu-x86-64-v3": 32, "cpu-x86-64-v2": 16}[target]
    assert {loop.vector_bytes for loop in library.loops} == {expected}


def test_batches_keep_their_order() -> None:
    kernels = [whole_sum(size) for size in range(1, 20)]
    from dataclasses import replace

    kernels = [replace(kernel, name=f"sum{i}") for i, kernel in enumerate(kernels)]
    units = batches(kernels)
    assert [kernel for batch in units for kernel in batch] == kernels
    assert [len(batch) for batch in units] == [BATCH, BATCH, 19 - 2 * BATCH]


@pytest.mark.parametrize(
    "command", [("clang",), (sys.executable, "-m", "ziglang", "cc")], ids=["clang", "ziglang"]
)
def test_other_compilers_give_right_kernels(command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip("clang is not installed: apt-get install clang")
    if "ziglang" in command and importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed: pip install ziglang")
    compiler = find_compiler((command,))
    assert compiler.family == "clang"
    kernel = softmax(16, 256)
    library = compile_c(c.render([kernel]), host_device(), compiler=compiler)
    # clang has no vector form of a maximum that keeps NaN
    assert {loop.loop for loop in library.scalar_loops} <= {"softmax.j"}
    x = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
    [y] = CpuKernel(library.data, kernel).run([x])
    np.testing.assert_allclose(y.sum(axis=1), 1.0, rtol=1e-5)


def test_a_blocked_loop_is_reported_once() -> None:
    source = c.render([whole_sum(5000)])
    assert (source.count("/* lanes whole_sum.i */"), source.count("/* the rest */")) == (1, 1)
    assert len(loop_reports(source, "")) == 1
