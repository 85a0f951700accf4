"""Kernels to cubins with no GPU: what is kept, what is refused alone, how all else fits."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import pytest

from stitchcore.codegen import cuda
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Accumulator,
    Kernel,
    LaneReduce,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scalar,
    Scope,
    Section,
    Store,
)
from stitchcore.loop_ir.visitor import mapped
from stitchcore.schedule import register_pressure
from stitchcore.toolchain import cuda_compiler, launch_bounds, nvrtc
from stitchcore.toolchain.launch_bounds import Fit
from stitchcore.toolchain.nvrtc import CompiledProgram, Resources
from stitchcore.toolchain.nvrtc_process import Compiler
from tests.loop_ir.sample import column_sum, device, softmax, whole_sum

TARGETS = ["sm_70", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"]


@pytest.fixture(autouse=True)
def _nvrtc() -> None:
    try:
        nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}: pip install nvidia-cuda-nvrtc-cu12")


def named(kernel: Kernel, name: str) -> Kernel:
    return replace(kernel, name=name)


def of_sums(count: int, tasks: int = 4096) -> Kernel:
    """A sum of `count` rows' sums: as many values live in each lane all through a loop."""
    x = device("x", "f32", (tasks, count, 4096), Role.INPUT)
    y = device("y", "f32", (tasks,), Role.OUTPUT)
    sums = [Scalar(f"s{n}", "f32") for n in range(count)]
    whole = Scalar("whole", "f32")
    task, lane = Variable("task"), Variable("j")
    added = tuple(
        Accumulate(one, op.ADD, Load(x, (task, number, lane))) for number, one in enumerate(sums)
    )
    body = (
        *(Accumulator(one, op.ADD) for one in sums),
        Loop("j", 0, 4096, LoopKind.LANES, added),
        Accumulator(whole, op.ADD),
        *(Accumulate(whole, op.ADD, one) for one in sums),
        LaneReduce(whole, op.ADD, Scope.GROUP),
        Store(y, (task,), whole),
    )
    return Kernel(f"sums{count}", (), (x, y), (Phase((Section("task", tasks, body),)),))


def unreadable(name: str) -> Kernel:
    """A kernel whose text is no C++: a buffer is called as a type is."""
    kernel = named(softmax(), name)
    wrong = replace(kernel.buffers[0], name="int")
    text = {"x": wrong}
    [phase] = kernel.phases
    sections = tuple(
        replace(one, body=mapped(one.body, lambda buffer: text.get(buffer.name, buffer)))
        for one in phase.sections
    )
    return replace(kernel, buffers=(wrong, kernel.buffers[1]), phases=(Phase(sections),))


# ---- compiling -----------------------------------------------------------------------------------
@pytest.mark.parametrize("target", TARGETS)
def test_every_architecture_of_the_issue_has_a_record_and_compiles(target: str) -> None:
    units, refusals = cuda_compiler.compile_kernels([named(column_sum(), "k")], target)
    assert not refusals
    [unit] = units
    assert unit.program.data.startswith(b"\x7fELF")
    [found] = unit.fits
    assert found.cooperative and found.wave == found.blocks * DEVICES[target].units


def test_one_kernel_that_nvrtc_refuses_is_refused_alone() -> None:
    given = [named(softmax(), f"k{n}") for n in range(5)]
    given[3] = unreadable("k3")
    units, [refusal] = cuda_compiler.compile_kernels(given, "sm_90")
    assert [kernel.name for unit in units for kernel in unit.kernels] == ["k0", "k1", "k2", "k4"]
    assert (refusal.subject, refusal.reason) == ("k3", Reason.COMPILE_FAILED)
    assert "error" in refusal.detail
    for unit in units:
        assert {one.name for one in unit.program.resources} == {one.name for one in unit.kernels}


def test_an_architecture_that_is_too_old_is_refused_with_those_that_are_known() -> None:
    for target in ("sm_50", "sm_20", "gfx942"):  # NVRTC compiles for the first
        with pytest.raises(Refused, match="sm_70") as refused:
            cuda_compiler.compile_kernels([softmax()], target)
        assert refused.value.refusal.reason is Reason.WRONG_TARGET


def test_a_newer_architecture_gets_the_nearest_ones_cubin_or_ptx() -> None:
    """Within a major number cubins go on running; beyond, the driver compiles PTX."""
    source = cuda_compiler.rendered([softmax()], "sm_90")
    newest = nvrtc.compiled_for("sm_999")
    program = nvrtc.compile_cuda(source, "sm_999")
    assert f".target {newest}\n".encode() in program.data and program.data.endswith(b"\0")
    assert (program.target, len(program.resources)) == ("sm_999", 1)
    assert nvrtc.compile_cuda(source, "sm_88").data == nvrtc.compile_cuda(source, "sm_87").data
    unit, refused = cuda_compiler.compile_kernels([softmax()], "sm_999")
    assert not refused and unit[0].program.data.endswith(b"\0")


def test_without_nvrtc_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> ctypes.CDLL:
        raise Refused("nvrtc", Reason.NO_COMPILER, nvrtc.INSTALL)

    monkeypatch.setattr(nvrtc, "_library", missing)
    with pytest.raises(Refused, match="pip install") as refused:
        cuda_compiler.compile_kernels([softmax()], "sm_90")
    assert refused.value.refusal.reason is Reason.NO_COMPILER


def test_programs_are_of_twenty_kernels_or_sixty_sections() -> None:
    given = [named(softmax(), f"k{n}") for n in range(45)]
    assert [len(batch) for batch in cuda_compiler.batches(given)] == [20, 20, 5]
    [phase] = given[0].phases
    large = replace(given[0], phases=(Phase(phase.sections * 61),))
    assert [len(batch) for batch in cuda_compiler.batches([given[1], large, given[2]])] == [1, 1, 1]
    assert [kernel for batch in cuda_compiler.batches(given) for kernel in batch] == given


# ---- the cache -----------------------------------------------------------------------------------
def test_a_program_is_compiled_once_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    real = nvrtc.compile_cuda

    def counted(self: Compiler, source: str, target: str) -> CompiledProgram:
        compiled.append(target)
        return real(source, target)

    monkeypatch.setattr(Compiler, "compile", counted)
    source = cuda.render([named(softmax(), "k")])
    first = cuda_compiler.compile_source(source, "sm_90", tmp_path)
    assert cuda_compiler.compile_source(source, "sm_90", tmp_path) == first
    of_other_origin = cuda.render([replace(softmax(), name="k", provenance=("model/dense",))])
    assert "model/dense" in of_other_origin
    assert cuda_compiler.compile_source(of_other_origin, "sm_90", tmp_path) == first
    assert compiled == ["sm_90"]
    cuda_compiler.compile_source(source, "sm_80", tmp_path)
    cuda_compiler.compile_source(cuda.render([named(softmax(48), "k")]), "sm_90", tmp_path)
    assert compiled == ["sm_90", "sm_80", "sm_90"]
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: "99.0")
    cuda_compiler.compile_source(source, "sm_90", tmp_path)
    assert len(compiled) == 4


def test_a_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    source = cuda.render([named(softmax(), "k")])
    first = cuda_compiler.compile_source(source, "sm_90", tmp_path)
    [path] = tmp_path.glob("*.cubin")
    path.write_bytes(b"\x7fELF" + bytes(100))
    assert cuda_compiler.compile_source(source, "sm_90", tmp_path) == first
    assert path.read_bytes() == first.data


# ---- assume, relax, apply ------------------------------------------------------------------------
def test_a_bound_that_spills_is_relaxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 sums and little else live at once: 64 registers are too few, 128 are enough."""
    kernel = of_sums(80)
    monkeypatch.setattr(launch_bounds, "assumed", lambda kernel, target: 4)
    source = cuda.render([kernel], {kernel.name: 4})
    [tight] = nvrtc.compile_cuda(source, "sm_90").resources
    assert tight.registers <= 64 and tight.spill_bytes > 0
    [unit], refusals = cuda_compiler.compile_kernels([kernel], "sm_90")
    assert not refusals
    [found] = unit.fits
    assert (found.bound, found.resources.spill_bytes) == (2, 0)
    assert 80 < found.resources.registers <= 128
    assert found.blocks == 2 and found.wave == 2 * DEVICES["sm_90"].units
    assert f"__launch_bounds__({unit.kernels[0].threads}, 2)" in unit.source


def test_a_kernel_that_spills_whatever_its_bound_is_refused_alone() -> None:
    units, [refusal] = cuda_compiler.compile_kernels([of_sums(260), named(softmax(), "k")], "sm_80")
    assert refusal.subject == "sums260"
    assert refusal.reason is Reason.REGISTERS
    assert "spilled" in refusal.detail
    assert [kernel.name for unit in units for kernel in unit.kernels] == ["k"]


def test_too_much_shared_memory_is_refused_before_it_is_compiled() -> None:
    units, [refusal] = cuda_compiler.compile_kernels([softmax(32, 80_000)], "sm_90")
    assert not units
    assert refusal.reason is Reason.SHARED_MEMORY
    assert "320000 bytes" in refusal.detail and "232448" in refusal.detail
    # what an H100 holds an A10 does not
    assert cuda_compiler.compile_kernels([softmax(32, 40_000)], "sm_90")[1] == ()
    assert cuda_compiler.compile_kernels([softmax(32, 40_000)], "sm_86")[1][0].reason is (
        Reason.SHARED_MEMORY
    )


def fitted(bound: int, registers: int, spilled: int, shared: int = 0) -> Fit:
    used = Resources("k", registers, spilled, spilled, 0)
    return Fit("k", 40, bound, bound, used, shared, bound, bound * 132, True, 256)


def test_relaxing_counts_what_was_spilled() -> None:
    assert launch_bounds.relaxed(fitted(4, 64, 216), "sm_90") == 2  # 64 + 27 words: 96 registers
    assert launch_bounds.relaxed(fitted(4, 64, 8), "sm_90") == 3  # 65: 72 registers of 768 threads
    assert launch_bounds.relaxed(fitted(2, 128, 4), "sm_90") == 1
    assert launch_bounds.relaxed(fitted(4, 64, 4000), "sm_90") == 1
    with pytest.raises(Refused, match="cut the pattern"):
        launch_bounds.relaxed(fitted(1, 255, 4), "sm_90")


def test_what_is_assumed() -> None:
    """AStitch 4.4: shared memory and registers bound the wave; a wave wider than the tasks is not
    worth registers."""
    assert launch_bounds.assumed(softmax(4096, 96), "sm_90") == 4
    assert launch_bounds.assumed(softmax(32, 96), "sm_90") == 1  # 8 tasks
    assert launch_bounds.assumed(softmax(4 * 132 * 2, 96), "sm_90") == 2
    assert (
        launch_bounds.assumed(softmax(8192, 20_000), "sm_90") == 2
    )  # two of 80,000 bytes, of 233,472
    assert launch_bounds.assumed(of_sums(100), "sm_90") < 4
    rows = softmax(4 * 132 * 8, 96)
    [section] = rows.phases[0].sections
    warps = replace(rows, phases=(Phase((replace(section, scope=Scope.WARP),)),))
    assert launch_bounds.assumed(warps, "sm_90") == 1  # 1056 tasks of warps, 132 blocks


def test_registers_are_predicted_by_what_lives_at_once() -> None:
    few, many = (register_pressure.registers(of_sums(count)) for count in (10, 100))
    assert few < many <= 255
    found = register_pressure.pressure(of_sums(100).phases[0].sections[0], 256)
    assert (found.live, found.carried, found.moved) == (0, 101, 0)
    assert register_pressure.registers(whole_sum(1000)) < 64


def ptx(source: str) -> str:
    """What NVRTC makes of a text before it is an architecture's own, with our options."""
    library, program, size = nvrtc._library(), ctypes.c_void_p(), ctypes.c_size_t()
    name, none = b"kernels.cu", None
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name, 0, none, none)
    chosen = [one.replace("=sm_", "=compute_").encode() for one in nvrtc.options("sm_90")]
    arguments = (ctypes.c_char_p * len(chosen))(*chosen)
    assert library.nvrtcCompileProgram(program, len(chosen), arguments) == 0
    library.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    library.nvrtcGetPTX(program, text)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return text.value.decode()


def test_float32_flushes_denormals_as_tensorflows_kernels_do() -> None:
    """float64 keeps them, as on every GPU; nothing is contracted or approximate."""
    kernel = 'extern "C" __global__ void k_{0}({0} *a, {0} b) {{ *a = (*a * b + b) / b; }}\n'
    text = ptx(kernel.format("float") + kernel.format("double"))
    found = sorted(set(re.findall(r"\b(?:add|mul|div|fma)\.[\w.]*f(?:32|64)\b", text)))
    kinds = ("f64", "ftz.f32")
    assert found == [f"{name}.rn.{kind}" for name in ("add", "div", "mul") for kind in kinds]
