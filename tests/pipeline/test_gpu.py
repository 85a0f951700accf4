"""An artifact for a GPU from a worker that has none: compiled, and said not to be measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason, Refused
from stitchcore.gpu.programs import differs
from stitchcore.hlo import opcodes as op
from stitchcore.inject.target import runs_on
from stitchcore.kernel.index import Variable
from stitchcore.kernel.nodes import (
    Apply,
    Buffer,
    Kernel,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scope,
    Section,
    Store,
)
from stitchcore.target import nvrtc
from stitchcore.target.launch_table import MAGIC

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from stitchcore import pipeline
from stitchcore.artifact.check import check_files
from stitchcore.request import read_request
from tests.pipeline.test_pipeline import DIGEST, options_in, submit


@pytest.mark.slow
def test_a_captured_step_becomes_programs_that_nobody_measured(tmp_path: Path) -> None:
    try:
        nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}")
    options = options_in(tmp_path)
    request = read_request(submit(options.store))
    said: list[str] = []

    def report(stage: str, done: int, total: int) -> None:
        said.append(stage)

    made = pipeline.produce(request, DEVICES["sm_90"], options, report)
    expected = {"digest": DIGEST, "target": "sm_90"}
    manifest = check_files(made.key, made.files, expected)
    assert not manifest.measured and manifest.compiler.startswith("NVRTC")
    assert manifest.kernels and len(manifest.kernels) == len(manifest.libraries)
    assert {node.op for node in manifest.patch.add} >= {"StitchedFusion"}
    for kernel in manifest.kernels:
        table = made.files[manifest.libraries[kernel.library].file]
        assert table.startswith(MAGIC) and kernel.symbol.encode() in table
    assert b"unmeasured" in made.files["report.json"]
    assert "build" in said


def converted(source: str, target: str) -> Kernel:
    """Four elements converted."""
    x = Buffer("x", source, (4,), Scope.DEVICE, Role.INPUT)
    y = Buffer("y", target, (4,), Scope.DEVICE, Role.OUTPUT)
    i = Variable("i")
    value = Apply(op.CONVERT, (Load(x, (i,)),), target)
    body = (Loop(i.name, 0, 4, LoopKind.LANES, (Store(y, (i,), value),)),)
    return Kernel("converted", (), (x, y), (Phase((Section("task", 1, body),)),))


def test_what_tensorflow_does_otherwise_on_a_gpu_is_refused() -> None:
    plain = converted("f32", "f64")
    assert differs(plain) is None and differs(converted("s32", "f32")) is None
    narrowed = differs(converted("f32", "s32"))
    assert narrowed is not None and narrowed.reason is Reason.UNSUPPORTED_OPCODE
    raising = differs(replace(plain, errors=("{} is out of range",)))
    assert raising is not None and raising.reason is Reason.DATA_DEPENDENT_ERROR


@pytest.mark.parametrize(
    ("made", "has", "runs"),
    [("sm_80", "sm_86", True), ("sm_86", "sm_80", False), ("sm_80", "sm_90", False),
     ("sm_100", "sm_100", True), ("sm_90", "cpu-x86-64-v4", False)],
)  # fmt: skip
def test_a_gpu_runs_its_own_major_number(made: str, has: str, runs: bool) -> None:
    assert runs_on(made, has) is runs
