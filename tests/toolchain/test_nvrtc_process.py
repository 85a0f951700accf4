"""NVRTC in a process of its own: what it does to that process happens to no other."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stitchcore.errors import Reason, Refused
from stitchcore.toolchain import cuda_compiler, nvrtc, nvrtc_process
from stitchcore.toolchain.nvrtc_process import Compiler, Limits
from tests.loop_ir.sample import softmax

pytestmark = pytest.mark.usefixtures("needs_nvrtc")

GOOD = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] += 1.0f; }'


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    one = Compiler()
    yield one
    one.close()


def refused_by(compiler: Compiler, source: str) -> str:
    with pytest.raises(Refused) as refused:
        compiler.compile(source, "sm_90")
    assert refused.value.refusal.reason is Reason.COMPILE_FAILED
    return refused.value.refusal.detail


def test_it_says_what_nvrtc_says_in_this_process(compiler: Compiler) -> None:
    assert compiler.compile(GOOD, "sm_90") == nvrtc.compile_cuda(GOOD, "sm_90")
    assert "no_such_name" in refused_by(compiler, GOOD.replace("threadIdx.x", "no_such_name"))
    assert compiler.compile(GOOD, "sm_80").target == "sm_80", "the process goes on"


# C++ whose compile time doubles with each level, and has no end that a test could wait for.
EXPLODING = """
template <int N, int M> struct Twice {
  static constexpr long long value = Twice<N - 1, 2 * M>::value + Twice<N - 1, 2 * M + 1>::value;
};
template <int M> struct Twice<0, M> { static constexpr long long value = M; };
extern "C" __global__ void k(long long *x) { *x = Twice<30, 0>::value; }
"""


@pytest.mark.slow
def test_what_explodes_is_cut_and_the_next_program_compiles() -> None:
    one = Compiler(Limits(processor_seconds=1.0))
    assert refused_by(one, EXPLODING) == "cut after 1 s of a processor"
    assert one.compile(GOOD, "sm_90").resources[0].name == "k"
    one.close()


def sleeping(seconds: float) -> tuple[str, ...]:
    return sys.executable, "-c", f"import time; time.sleep({seconds})"


def test_what_waits_for_ever_is_cut_too() -> None:
    one = Compiler(Limits(seconds=0.2), sleeping(60))
    assert refused_by(one, GOOD) == "cut after 0.2 s"


def test_a_process_that_dies_is_told_with_its_signal(compiler: Compiler) -> None:
    dying = (sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})")
    assert "ended with -11" in refused_by(Compiler(command=dying), GOOD)
    compiler.compile(GOOD, "sm_90")
    process = compiler._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert compiler.compile(GOOD, "sm_90").target == "sm_90", "a fresh one takes its place"


def test_memory_has_an_end() -> None:
    one = Compiler(Limits(memory_bytes=200 << 20))
    assert refused_by(one, EXPLODING.replace("30", "24"))
    one.close()


def test_the_other_kernels_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five kernels one is cut: it is refused, by name, and alone."""

    class Cutting(Compiler):
        def compile(self, source: str, target: str) -> nvrtc.CompiledProgram:
            if "k3(" in source:
                raise Refused("nvrtc", Reason.COMPILE_FAILED, "cut after 1 s of a processor")
            return nvrtc.compile_cuda(source, target)

    monkeypatch.setattr(nvrtc_process, "shared", Cutting)
    given = [replace(softmax(), name=f"k{n}") for n in range(5)]
    units, [refusal] = cuda_compiler.compile_kernels(given, "sm_90")
    assert [kernel.name for unit in units for kernel in unit.kernels] == ["k0", "k1", "k2", "k4"]
    assert (refusal.subject, refusal.detail) == ("k3", "cut after 1 s of a processor")
