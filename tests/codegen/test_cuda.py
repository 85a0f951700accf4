"""CUDA text: every opcode at every type compiles for sm_90, and ptxas' figures are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import sass
from stitchcore.codegen import cuda
from stitchcore.errors import Refused
from stitchcore.hlo.ir import opcodes
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import (
    Allocate,
    Apply,
    Buffer,
    Kernel,
    Literal,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scope,
    Section,
    Store,
)
from stitchcore.toolchain import nvrtc
from tests.codegen.opcode_cases import cases
from tests.loop_ir.sample import device


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


def updated(elements_per_lane: int = 1) -> Kernel:
    """y = a + b, where y may lie where a does."""
    a, b = (device(name, "f32", (4096,), Role.INPUT) for name in "ab")
    y, i = device("y", "f32", (4096,), Role.OUTPUT), Variable("i")
    stored = Store(y, (i,), Apply(opcodes.ADD, (Load(a, (i,)), Load(b, (i,))), "f32"))
    loop = Loop("i", 0, 4096, LoopKind.LANES, (stored,))
    section = Section("task", 1, (loop,), elements_per_lane=elements_per_lane)
    return Kernel("updated", (), (a, b, y), (Phase((section,)),), aliases=((0, 0),))


def test_memory_that_may_be_one_is_not_promised_to_be_apart() -> None:
    text = cuda.render([updated()])
    assert "const float *a, const float *__restrict__ b, float *y" in text
    assert "__ldg(&b[i])" in text and "(a[i] +" in text
    runs = cuda.render([updated(elements_per_lane=4)])
    assert "st_read_only((const st_run<float, 4> *)&b[i])" in runs
    assert "= *((const st_run<float, 4> *)&a[i]);" in runs
    apart = cuda.render([replace(updated(), aliases=())])
    assert apart.count("__restrict__") == 3 and apart.count("__ldg(") == 2


def test_what_lanes_leave_for_each_other_is_read_from_memory() -> None:
    """A buffer that a section writes and reads: with a promise a load might pass its barrier."""
    [section] = updated().phases[0].sections
    y, z = (device(name, "f32", (4096,), Role.OUTPUT) for name in "yz")
    again = Loop("j", 0, 4096, LoopKind.LANES, (Store(z, (Variable("j"),), Load(y, (0,))),))
    kernel = replace(
        updated(),
        buffers=(*updated().buffers[:2], y, z),
        phases=(Phase((replace(section, body=(*section.body, again)),)),),
        aliases=(),
    )
    text = cuda.render([kernel])
    assert "float *y, float *__restrict__ z" in text and "__ldg(&y" not in text


def summed(columns: int) -> Kernel:
    """Sums of 392 rows, a column a lane: what a task of the last phase of a column sum does."""
    x = device("x", "f32", (392, columns), Role.SCRATCH)
    y = device("y", "f32", (columns,), Role.OUTPUT)
    own = Buffer("own", "f32", (columns,), Scope.LANE, Role.LOCAL)
    i, j, k, row = map(Variable, "ijkr")
    added = Apply(opcodes.ADD, (Load(own, (j,)), Load(x, (row, j))), "f32")
    body = (
        Allocate(own),
        Loop("i", 0, columns, LoopKind.LANES, (Store(own, (i,), Literal(0.0, "f32")),)),
        Loop(
            "r",
            0,
            392,
            LoopKind.SERIAL,
            (Loop("j", 0, columns, LoopKind.LANES, (Store(own, (j,), added),)),),
        ),
        Loop("k", 0, columns, LoopKind.LANES, (Store(y, (k,), Load(own, (k,))),)),
    )
    phases = (Phase((Section("task", 1, body),)),)
    name, size = f"summed{columns}", 4 * 392 * columns
    return Kernel(name, (), (y, x), phases, scratch_offsets=(0,), scratch_bytes=size)


@pytest.mark.parametrize("columns", [64, 256])
def test_rows_that_a_lane_adds_up_are_loaded_together(version: str, columns: int) -> None:
    """However many lanes have a column: a branch in each row would make each load wait."""
    cubin = nvrtc.compile_cuda(cuda.render([summed(columns)])).data
    assert 16 <= sass.loads_together(cubin)[f"summed{columns}"] <= 32


def test_lanes_of_a_full_loop_do_not_branch(version: str) -> None:
    """256 lanes know that each of them has 16 of 4096 elements."""
    kernel = replace(updated(), aliases=())
    [found] = sass.loads_together(nvrtc.compile_cuda(cuda.render([kernel])).data).values()
    assert found >= 8
