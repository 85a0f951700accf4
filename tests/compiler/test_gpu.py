"""An artifact for a GPU from a worker that has none: compiled, and said not to be measured."""

from __future__ import annotations

import ctypes
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stitchcore.compiler.gpu_tables import differs
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason
from stitchcore.hlo.ir import opcodes as op
from stitchcore.inject.target import runs_on
from stitchcore.launch.cuda_table import MAGIC
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import (
    Apply,
    Buffer,
    Kernel,
    Let,
    Literal,
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

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.artifact.check import check_files
from stitchcore.artifact.package import Unsigned
from stitchcore.compiler.regions import CompiledRegions
from stitchcore.inject import build, digest, graphs, patch, plugin, structure
from stitchcore.launch.region_program import RegionProgram
from stitchcore.optimize import pipeline
from stitchcore.optimize.request import read_request
from stitchcore.verify import testbed as testbeds
from stitchcore.verify.region import RegionRunner
from stitchcore.verify.regions import References
from tests.launch.standin_cuda import Standin, open_library
from tests.optimize.test_pipeline import CAPTURED, DIGEST, options_in, submit
from tests.runtime.host import Kernels, host_device, in_c

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


@dataclass(frozen=True)
class Produced:
    """A step on a GPU as it was handed in, its artifacts with no GPU beside and with one (the
    stand-in), and the stages that were told."""

    graph: Any
    preserve: list[str]
    made: Unsigned
    verified: Unsigned
    said: list[str]


@pytest.fixture(scope="module")
def produced(tmp_path_factory: pytest.TempPathFactory, needs_nvrtc: None) -> Produced:
    """The captured step as TensorFlow would place it where it has a GPU."""
    options = options_in(tmp_path_factory.mktemp("gpu"))
    graph = graph_pb2.GraphDef.FromString(lzma.decompress((CAPTURED / "graph.pb.xz").read_bytes()))
    for node in graph.node:
        node.device = node.device.replace("CPU:0", "GPU:0")
    request = read_request(submit(options.store, graph.SerializeToString()))
    said: list[str] = []

    def report(stage: str, done: int, total: int) -> None:
        said.append(stage)

    made = pipeline.produce(request, DEVICES["sm_90"], options, report)
    standin = Standin()
    standin.devices()
    standin.free_memory(1 << 30)
    standin.do("cuInit", 0)
    cuda = open_library(standin)
    with host_device(standin) as device:
        testbed = on_standin(standin, testbeds.gpu_testbed(device, cuda, references, references))
        verified = pipeline.produce(request, DEVICES["sm_90"], options, report, None, testbed)
    cuda.close()
    assert standin.errors() == []
    return Produced(graph, list(request.meta["preserve"]), made, verified, said)


def references(function: Any) -> References:
    """TensorFlow's on the processor: what a GPU's would be but for its rules."""
    here = testbeds.open_testbed(DEVICES["cpu-x86-64-v3"])
    assert isinstance(here, testbeds.Testbed)
    return here.references(function)


def on_standin(standin: Standin, testbed: testbeds.Testbed) -> testbeds.Testbed:
    """Kernels compute what the same objects do in C."""

    def runners(
        made: CompiledRegions, programs: Mapping[str, RegionProgram]
    ) -> Mapping[str, RegionRunner]:
        launched = {one.kernel.name: one.kernel for p in programs.values() for one in p.launches}
        standin.on_launch(Kernels(list(launched.values()), in_c(list(launched.values()))))
        return testbed.runners(made, programs)

    return replace(testbed, runners=runners)


@pytest.mark.slow
def test_a_captured_step_becomes_programs_that_nobody_measured(produced: Produced) -> None:
    made, said = produced.made, produced.said
    expected = {"digest": DIGEST, "target": "sm_90"}
    manifest = check_files(made.key, made.files, expected)
    assert not manifest.measured and manifest.compiler.startswith("NVRTC")
    assert manifest.kernels and len(manifest.kernels) == len(manifest.libraries)
    added = [node.op for region in manifest.patch.regions for node in region.add]
    assert set(added) >= {"StitchedFusion"}
    for kernel in manifest.kernels:
        table = made.files[manifest.libraries[kernel.library].file]
        assert table.startswith(MAGIC) and kernel.symbol.encode() in table
    assert b"unmeasured: " in made.files["report.json"]
    assert b"this worker's TensorFlow" in made.files["report.json"], "and why"
    assert "build" in said


@pytest.mark.slow
def test_beside_a_gpu_they_are_verified_and_timed_on_it(produced: Produced) -> None:
    """By the launch tables that the job will load."""
    verified = produced.verified
    manifest = check_files(verified.key, verified.files, {"digest": DIGEST, "target": "sm_90"})
    assert manifest.measured
    report = json.loads(verified.files["report.json"])
    stitched = [region for region in report["regions"] if region["stitched"]]
    assert len(stitched) >= 5
    for region in stitched:
        assert region["proof"]["passed"] and region["proof"]["informative"], region["name"]
    assert "wrong_result" not in report["refusals"]
    assert "unmeasured: " not in verified.files["report.json"].decode()


def native_check() -> graphs.Check:
    """The plug-in's own, its shim loaded: what TensorFlow would ask when it makes the node."""
    folder = str(build.library_folder())
    library = plugin.open_native(folder)
    error = ctypes.create_string_buffer(plugin.ERROR_BYTES)
    version = "".join(tf.__version__.split(".")[:2])
    shim = Path(folder) / f"shim_tf{version}.so"
    assert library.stitch_load_shim(str(shim).encode(), error, plugin.ERROR_BYTES), error.value
    return plugin.Plugin(library).check_fusion


@pytest.mark.slow
def test_the_patched_step_runs_its_kernels_on_the_gpu(produced: Produced) -> None:
    """As the job patches it: every added node is on the GPU, and such that the plug-in's kernel for
    GPUs can be made of it."""
    made = produced.made
    manifest = check_files(made.key, made.files, {"digest": DIGEST, "target": "sm_90"})
    document = msgspec.to_builtins(manifest.patch)
    numbering = digest.number(produced.graph, produced.preserve)
    applied = patch.apply(produced.graph, numbering, document, made.key[:12], produced.preserve)
    assert not applied.taken_back
    patched = applied.graph
    fusions = [node for node in patched.node if node.op in ("StitchedFusion", "StitchedUpdate")]
    assert fusions and {node.op for node in fusions} == {"StitchedFusion", "StitchedUpdate"}
    known = {f"{one.key}:{one.symbol}" for one in manifest.kernels}
    added = [node for node in patched.node if node.name.startswith("stitch/")]
    assert {node.device for node in added} == {GPU}
    assert not graphs.check_fusions(patched, known, native_check())
    attributes = [value for node in patched.node for value in node.attr.values()]
    assert all(value.WhichOneof("value") for value in attributes), "TensorFlow takes no empty one"
    on_host = [node for node in fusions if structure.types_of(node, "Thost")]
    assert not on_host, "of this step with known sizes no kernel looks at a shape"
    assert graphs.devices(patched, 2.0) == 1.0
    timed = graphs.add_timer(patched, 0, 1)
    assert [node.device for node in timed.node if node.op == "StitchTimer"] == [GPU]


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
    ("low", "high", "fits"),
    [(-(2.0**31), 2.0**31 - 1, True), (0.0, 9.0, True), (-(2.0**31), 2.0**31, False),
     (-(2.0**40), 1.0, False), (float("-inf"), 1.0, False), (float("nan"), 1.0, False)],
)  # fmt: skip
def test_a_float_between_limits_that_an_integer_holds_may_become_one(
    low: float, high: float, fits: bool
) -> None:
    """Whatever the processor: what meaning.py lowers casts to."""
    x = Buffer("x", "f64", (4,), Scope.DEVICE, Role.INPUT)
    y = Buffer("y", "s32", (4,), Scope.DEVICE, Role.OUTPUT)
    i = Variable("i")
    above = Apply(op.MAXIMUM, (Load(x, (i,)), Literal(low, "f64")), "f64")
    inside = Apply(op.MINIMUM, (Literal(high, "f64"), Scalar("v", "f64")), "f64")
    made = Apply(op.CONVERT, (inside,), "s32")
    lanes = (Let(Scalar("v", "f64"), above), Store(y, (i,), made))
    body = (Loop(i.name, 0, 4, LoopKind.LANES, lanes),)
    kernel = Kernel("kept", (), (x, y), (Phase((Section("task", 1, body),)),))
    assert (differs(kernel) is None) is fits


@pytest.mark.parametrize(
    ("made", "has", "runs"),
    [("sm_80", "sm_86", True), ("sm_86", "sm_80", False), ("sm_80", "sm_90", False),
     ("sm_100", "sm_100", True), ("sm_90", "cpu-x86-64-v4", False)],
)  # fmt: skip
def test_a_gpu_runs_its_own_major_number(made: str, has: str, runs: bool) -> None:
    assert runs_on(made, has) is runs
