"""Every stage's text can be edited and the rest built from it; a broken edit says where."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stitchcore.codegen import cuda as emit_cuda
from stitchcore.compiler.module import REFUSED
from stitchcore.compiler.pipeline import Dump, run
from stitchcore.compiler.regions import compile_regions
from stitchcore.compiler.restart import UNIT_HEADER
from stitchcore.compiler.stages import (
    PLANNED,
    BuildOptions,
    ModuleState,
    compile_module,
    compiled,
    stages_for,
)
from stitchcore.device.host import host_device
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion.mechanisms import ALL, Mechanism
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.runtime.module import run_module

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
MODULE = parse(lzma.decompress((WORKLOADS / "softmax_grad.hlo.xz").read_bytes()).decode())
SMALL = parse(
    "HloModule small\n\nENTRY main {\n"
    "  a = f32[64,32] parameter(0)\n  b = f32[64,32] parameter(1)\n"
    "  c = f32[64,32] add(a, b)\n  d = f32[64,32] multiply(c, a)\n"
    "  ROOT e = (f32[64,32], f32[64,32]) tuple(c, d)\n}\n"
)


TWO_KERNELS = parse(
    "HloModule two\n\nENTRY main {\n"
    "  a = f32[64,64] parameter(0)\n  b = f32[64,64] add(a, a)\n  c = f32[64,64] multiply(b, a)\n"
    "  d = f32[64,64] dot(c, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  e = f32[64,64] tanh(d)\n  ROOT f = f32[64,64] add(e, d)\n}\n"
)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    compile_module(MODULE, host_device(), dump=Dump(folder / "softmax"))
    compile_module(SMALL, host_device(), dump=Dump(folder / "small"))
    return folder


def edit(source: Path, folder: Path, change: Callable[[str], str]) -> Path:
    text = source.read_text()
    changed = change(text)
    assert changed != text
    (folder / source.name).write_text(changed)
    return folder / source.name


def refused(module: object, path: Path) -> Refusal:
    with pytest.raises(Refused) as caught:
        compile_module(module, host_device(), dump=Dump(restart=path))  # type: ignore[arg-type]
    return caught.value.refusal


def test_every_stage_is_dumped_to_a_numbered_file(dumped: Path) -> None:
    names = [stage.file for stage in stages_for(host_device())]
    assert names == [
        "00_import.txt",
        "01_simplify.txt",
        "02_plan.txt",
        "03_schedule.txt",
        "04_emit.c",
        "05_compile.txt",
    ]
    files = sorted(path.name for path in (dumped / "softmax").iterdir())
    assert files == sorted([*names, "03_schedule.trace.txt"])
    assert all(path.stat().st_size for path in (dumped / "softmax").iterdir())
    assert "byte vectors" in (dumped / "softmax" / "05_compile.txt").read_text()


@pytest.mark.parametrize(
    "stage", [stage for stage in stages_for(host_device()) if stage.load], ids=lambda s: s.name
)
def test_an_unedited_text_changes_nothing(dumped: Path, stage: object) -> None:
    path = dumped / "softmax" / stage.file  # type: ignore[arg-type]
    again = compile_module(MODULE, host_device(), dump=Dump(restart=path))
    fresh = compile_module(MODULE, host_device())
    assert [kernel.key for kernel in again.kernels] == [kernel.key for kernel in fresh.kernels]
    assert [unit.source.strip() for unit in again.units] == [
        unit.source.strip() for unit in fresh.units
    ]


@pytest.mark.parametrize("stage", ["00_import.txt", "01_simplify.txt"])
def test_an_edited_module_is_planned(dumped: Path, tmp_path: Path, stage: str) -> None:
    path = edit(dumped / "softmax" / stage, tmp_path, lambda t: t.replace("exponential(", "tanh("))
    made = compile_module(MODULE, host_device(), dump=Dump(restart=path))
    used = {node.opcode for pattern in made.plan.patterns for node in pattern.instructions}
    assert opcodes.TANH in used
    assert opcodes.EXPONENTIAL not in used


def test_an_edited_plan_is_scheduled(dumped: Path, tmp_path: Path) -> None:
    """The one kernel cut in two; inputs and outputs follow from the instructions."""

    def cut(text: str) -> str:
        lines = text.splitlines()
        head = [line for line in lines if line.startswith(("planner", "#"))]
        names = next(line for line in lines if line.startswith("  instructions")).split()[1:]
        parts = [name for name in names if name.startswith(("add", "multiply"))]
        assert len(parts) == 2
        kernels = [f"kernel\n  instructions {name}" for name in parts]
        return "\n".join([*head, *kernels]) + "\n"

    path = edit(dumped / "small" / "02_plan.txt", tmp_path, cut)
    made = compile_module(SMALL, host_device(), dump=Dump(restart=path))
    assert [len(pattern.instructions) for pattern in made.plan.patterns] == [1, 1]
    a, b = np.full((64, 32), 3.0, np.float32), np.full((64, 32), 2.0, np.float32)
    both = run_module(made, [a, b])
    assert np.array_equal(both[0], a + b)
    assert np.array_equal(both[1], (a + b) * a)


def test_edited_loop_ir_is_emitted(dumped: Path, tmp_path: Path) -> None:
    path = edit(
        dumped / "small" / "03_schedule.txt",
        tmp_path,
        lambda text: text.replace("multiply:f32(", "subtract:f32("),
    )
    made = compile_module(SMALL, host_device(), dump=Dump(restart=path))
    a, b = np.full((64, 32), 3.0, np.float32), np.full((64, 32), 2.0, np.float32)
    assert np.array_equal(run_module(made, [a, b])[1], (a + b) - a)
    fresh = compile_module(SMALL, host_device())
    assert made.kernels[0].key != fresh.kernels[0].key, "an edited kernel has a key of its own"


def test_edited_source_is_compiled(dumped: Path, tmp_path: Path) -> None:
    path = edit(
        dumped / "small" / "04_emit.c",
        tmp_path,
        lambda text: text.replace("(v2 * v1)", "(v2 - v1)"),
    )
    made = compile_module(SMALL, host_device(), dump=Dump(restart=path))
    a, b = np.full((64, 32), 3.0, np.float32), np.full((64, 32), 2.0, np.float32)
    assert np.array_equal(run_module(made, [a, b])[1], (a + b) - a)


BROKEN = [
    ("00_import.txt", "add(", "frobnicate(", Reason.UNKNOWN_OPCODE, "frobnicate("),
    ("00_import.txt", "parameter(1)", "parameter(", Reason.PARSE_ERROR, "%parameter.1 ="),
    ("01_simplify.txt", "ROOT ", "", Reason.PARSE_ERROR, None),
    ("02_plan.txt", "add.", "ad.", Reason.PARSE_ERROR, "  instructions"),
    ("02_plan.txt", "kernel 0", "kennel 0", Reason.PARSE_ERROR, "kennel"),
    ("02_plan.txt", "  outputs", "  output", Reason.PARSE_ERROR, "  output "),
    ("03_schedule.txt", "multiply:f32(", "multiply:f32[", Reason.PARSE_ERROR, "multiply:f32["),
    ("03_schedule.txt", "multiply:f32(", "frobnicate:f32(", Reason.PARSE_ERROR, None),
    ("03_schedule.txt", "kernel k_", "kernel x_", Reason.PARSE_ERROR, "kernel x_"),
    ("04_emit.c", "return 0;", "return 0 0;", Reason.COMPILE_FAILED, "return 0 0;"),
    ("04_emit.c", "(void *const *buffers", "_(void *const *buffers", Reason.PARSE_ERROR, None),
    ("05_compile.txt", "unit", "unite", Reason.PARSE_ERROR, None),
]


@pytest.mark.parametrize(("file", "old", "new", "reason", "line"), BROKEN)
def test_a_broken_edit_is_refused_with_file_and_line(
    dumped: Path, tmp_path: Path, file: str, old: str, new: str, reason: Reason, line: str | None
) -> None:
    path = edit(dumped / "small" / file, tmp_path, lambda text: text.replace(old, new, 1))
    found = refused(SMALL, path)
    assert found.reason is reason, str(found)
    assert file in str(found)
    if line is not None:
        lines = path.read_text().splitlines()
        number = next(n for n, text in enumerate(lines, 1) if line in text)
        assert f"{file}:{number}" in str(found), str(found)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ("kernel\n  instructions add.2\n", "no kernel makes multiply.3"),
        ("kernel\n  instructions add.2 multiply.3\n  outputs add.2\n", "no kernel makes"),
        ("kernel\n  inputs parameter.0\n  instructions add.2 multiply.3\n", "is read but"),
        ("kernel\n  instructions add.2\nkernel\n  instructions multiply.3 add.9\n", "add.9"),
        ("kernel\n  instructions add.2 add.2 multiply.3\n", "twice"),
        ("kernel\n", "no instructions"),
        ("left out add.2: because\n", "none of the reasons"),
        ("computation nowhere\n", "no nowhere"),
        (
            "kernel\n  instructions add.2\n  outputs add.2\n"
            "kernel\n  instructions add.2 multiply.3\n  outputs add.2 multiply.3\n",
            "too",
        ),
    ],
)
def test_a_plan_that_cannot_run_is_refused(tmp_path: Path, plan: str, told: str) -> None:
    path = tmp_path / "02_plan.txt"
    path.write_text(plan)
    found = refused(SMALL, path)
    assert found.reason is Reason.PARSE_ERROR
    assert "02_plan.txt:" in found.subject
    assert told in found.detail


def test_kernels_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    module = parse(
        "HloModule loop\n\nENTRY main {\n  a = f32[8] parameter(0)\n  b = f32[8] negate(a)\n"
        "  c = f32[8] tanh(b)\n  ROOT d = f32[8] add(c, b)\n}\n"
    )
    path = tmp_path / "02_plan.txt"
    path.write_text("kernel\n  instructions negate.1 add.3\nkernel\n  instructions tanh.2\n")
    found = refused(module, path)
    assert "waits for a value that waits for it" in found.detail


@pytest.mark.usefixtures("needs_nvrtc")
def test_cuda_restarts_too(tmp_path: Path) -> None:
    device = DEVICES["sm_90"]
    state = run(stages_for(device), ModuleState(SMALL, device, BuildOptions()), Dump(tmp_path))
    assert "registers" in (tmp_path / "05_compile.txt").read_text()
    edited = tmp_path / "edit" / "04_emit.cu"
    edited.parent.mkdir()
    shutil.copy(tmp_path / "04_emit.cu", edited)
    again = run(
        stages_for(device), ModuleState(SMALL, device, BuildOptions()), Dump(restart=edited)
    )
    assert [u.source.strip() for u in again.units] == [u.source.strip() for u in state.units]
    edited.write_text(edited.read_text().replace("__global__", "__globul__"))
    with pytest.raises(Refused, match=r"04_emit.cu:\d+"):
        run(stages_for(device), ModuleState(SMALL, device, BuildOptions()), Dump(restart=edited))


@pytest.mark.usefixtures("needs_nvrtc")
def test_a_kernel_that_a_gpu_cannot_hold_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device = DEVICES["sm_90"]
    apart = BuildOptions(mechanisms=ALL - {Mechanism.GEMM})
    whole = run(stages_for(device), ModuleState(TWO_KERNELS, device, apart))
    first, other = [kernel.name for kernel in whole.kernels]
    real = emit_cuda.shared_bytes

    def too_much(kernel: Kernel) -> int:
        return 2**20 if kernel.name == first else real(kernel)

    monkeypatch.setattr(emit_cuda, "shared_bytes", too_much)
    less = run(stages_for(device), ModuleState(TWO_KERNELS, device, apart))
    assert [kernel.name for unit in less.units for kernel in unit.kernels] == [other]
    [refusal] = less.refused
    assert (refusal.subject, refusal.reason) == (first, Reason.SHARED_MEMORY)
    assert "refused: " in stages_for(device)[-1].text(less)
    module = compiled(less, {})
    assert [module.kernels[n].unit for n in module.kernels_of(module.plan)] == [REFUSED, 0]


def test_planned_stages_stop_before_sources() -> None:
    assert [stage.name for stage in PLANNED] == ["import", "simplify", "plan", "schedule"]


@pytest.mark.slow
def test_a_job_on_a_gpu_is_dumped_and_restarted_as_all_else(
    needs_nvrtc: None, tmp_path: Path
) -> None:
    """Emit and compile too, each kernel a program of its own; a line that is wrong is named."""
    device, key = DEVICES["sm_90"], "ab" * 32
    fresh = compile_regions({key: SMALL}, device, BuildOptions(), Dump(tmp_path / "dump"))
    folder = tmp_path / "dump" / "kernels"
    assert sorted(path.name for path in folder.iterdir()) == ["04_emit.cu", "05_compile.txt"]
    assert (folder / "04_emit.cu").read_text().count(UNIT_HEADER) == len(fresh.kernels)
    (edits := tmp_path / "kernels").mkdir()
    multiplied = edit(folder / "04_emit.cu", edits, lambda text: text.replace(" * ", " + "))
    changed = compile_regions({key: SMALL}, device, BuildOptions(), Dump(restart=multiplied))
    assert [library.data for library in changed.libraries] != [
        library.data for library in fresh.libraries
    ]
    broken = edit(
        folder / "04_emit.cu",
        edits,
        lambda text: text.replace("st_shared, st_block, 1);", "st_shared st_block, 1);", 1),
    )
    with pytest.raises(Refused) as caught:
        compile_regions({key: SMALL}, device, BuildOptions(), Dump(restart=broken))
    line = next(
        n for n, text in enumerate(broken.read_text().splitlines(), 1) if "shared st_block" in text
    )
    assert caught.value.refusal.reason is Reason.COMPILE_FAILED
    assert f"04_emit.cu:{line}" in str(caught.value.refusal)
