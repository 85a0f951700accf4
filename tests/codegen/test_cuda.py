"""CUDA text: every opcode at every type compiles for sm_90, and ptxas' figures are read."""

from __future__ import annotations

import pytest

from stitchcore.codegen import cuda
from stitchcore.errors import Refused
from stitchcore.hlo.ir import opcodes
from stitchcore.toolchain import nvrtc
from tests.codegen.opcode_cases import cases


@pytest.fixture(scope="module")
def version() -> str:
    try:
        return nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}: pip install nvidia-cuda-nvrtc-cu12")


@pytest.mark.slow
def test_every_opcode_compiles(version: str) -> None:
    kernels = [case.kernel(64) for case in cases()]
    found = set()
    for start in range(0, len(kernels), 64):
        program = nvrtc.compile_cuda(cuda.render(kernels[start : start + 64]))
        assert program.data.startswith(b"\x7fELF")
        found |= {resources.name for resources in program.resources}
    assert found == {kernel.name for kernel in kernels}


def test_an_error_is_a_refusal_with_the_compilers_words(version: str) -> None:
    with pytest.raises(Refused, match="no_such_function"):
        nvrtc.compile_cuda('extern "C" __global__ void k() { no_such_function(); }')


def test_resources_are_read(version: str) -> None:
    one = next(case for case in cases() if case.opcode == opcodes.ADD and case.target == "f32")
    [resources] = nvrtc.compile_cuda(cuda.render([one.kernel(64)])).resources
    assert resources.name == one.name
    assert 8 <= resources.registers <= 64
    assert resources.spill_bytes == 0
