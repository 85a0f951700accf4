"""What regions for a GPU are lowered to is what TensorFlow's kernels computed on one.

The recording is of a real GPU (recorded_operations.py). That a recording can be made at all, and
that one of this machine's processor agrees with the lowering for processors, is tested beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

from stitchcore.tensorflow import op_allowlist, semantics
from stitchcore.tensorflow.updates import UPDATES
from tests.tensorflow import gpu_conformance, recorded_operations
from tests.tensorflow.conformance_cases import Case
from tests.tensorflow.recorded_operations import Outcome, Probe, digest, probes

ROOT = Path(__file__).resolve().parents[2]
SOME = ("Exp", "SparseSoftmaxCrossEntropyWithLogits", "FusedBatchNormGradV3", "SelectV2",
        "ResourceApplyAdaMax", "_FusedMatMul")  # fmt: skip


KNOWN = {
    ("FusedBatchNormGradV3", "ordinary"): "cuDNN takes the saved 1 / deviation with its sign; one "
    "that was saved has none, and then it agrees",
    ("LeakyReluGrad", "denormal"): "whether a feature is above 0 is decided before it is flushed",
    ("SeluGrad", "denormal"): "whether an output is below 0 is decided before it is flushed",
    ("ResourceApplyAdagradV2", "denormal"): "its product is neither flushed nor rounded",
}
"""By operation and class of input why they differ."""
LATER = {
    ("Einsum", "float64"),
    ("BatchMatMulV2", "float64"),
    *(("_UnaryOpsComposition", t) for t in ("float32", "float64", "float16", "bfloat16")),
}
"""Operations and types of which cases were written after the recording."""
LIKE_THE_BRIDGE = {"EnsureShape", "SparseSoftmaxCrossEntropyWithLogits", "_FusedBatchNormEx"}
"""Whose rules for a GPU say what this TensorFlow's bridge to XLA does, too."""


@pytest.mark.slow
@pytest.mark.parametrize("operation", sorted({*op_allowlist.ALLOWED, *UPDATES}))
def test_operation_means_what_a_gpu_computed(operation: str) -> None:
    found = gpu_conformance.verdicts(operation, gpu_conformance.RECORDED, "gpu")
    asked = {probe.key: probe.case for probe in probes() if probe.case.operation == operation}
    missing = asked.keys() - {one.probe.key for one in found}
    assert {(operation, asked[key].dtypes[0]) for key in missing} <= LATER
    members = [one for one in found if one.member]
    different = {
        kind: f"{one.probe.key}: {text}"
        for one in members for kind, text in one.differences.items()
    }  # fmt: skip
    known = {kind for name, kind in KNOWN if name == operation}
    assert {kind: text for kind, text in different.items() if kind not in known} == {}
    assert known <= set(different), "known differences that are none"


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation", sorted({n for n, k in semantics.REWRITES if k == "gpu"} - LIKE_THE_BRIDGE)
)
def test_rewrite_is_needed(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its rewrite the lowering differs from what a GPU computed."""
    known = {kind for name, kind in KNOWN if name == operation}
    monkeypatch.delitem(semantics.REWRITES, (operation, "gpu"))
    found = gpu_conformance.verdicts(operation, gpu_conformance.RECORDED, "gpu")
    assert any(set(one.differences) - known for one in found if one.member)


@pytest.mark.slow
def test_a_recording_of_this_processor_agrees(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench.gpu.operations", "--output", str(tmp_path)]
    command += ["--device", "CPU:0", "--seconds", "300", "--only", *SOME]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    recording = recorded_operations.read(tmp_path)
    made = {probe.key for probe in probes() if probe.case.operation in SOME}
    assert set(recording.outcomes) == made and not recording.begun
    for operation in SOME:
        found = gpu_conformance.verdicts(operation, tmp_path, "cpu")
        assert {one.probe.key: one.differences for one in found if one.differences} == {}
        assert any(gpu_conformance.EQUAL in one.classes.values() for one in found)


def recorded(probe: Probe) -> dict[str, Outcome]:
    """Right outcomes of an operation of one input, but where they lie."""
    return {
        kind: Outcome(digest(arrays), (np.negative(arrays[0]),), ("GPU:0",))
        for kind, arrays in probe.inputs()
    }


def test_a_difference_is_found() -> None:
    probe = Probe(Case("Neg", ("float32",), ((6, 8),)))
    right = recorded(probe)
    found = gpu_conformance.verdict(probe, right, "gpu")
    assert found.member and set(found.classes.values()) == {"equal"}
    one = right["ordinary"]
    value = one.results[0] + np.float32(1)
    for wrong in (
        replace(one, results=(value,)),
        replace(one, digest="0"),
        replace(one, devices=("CPU:0",)),
        Outcome(one.digest, error="InvalidArgumentError: none"),
    ):
        different = gpu_conformance.verdict(probe, {**right, "ordinary": wrong}, "gpu")
        assert set(different.differences) == {"ordinary"}
    lost = Outcome(one.digest, error="NotFoundError: Could not find device for node")
    assert not gpu_conformance.verdict(probe, {**right, "ordinary": lost}, "gpu").differences


def test_what_was_written_before_the_end_is_read_bit_for_bit(tmp_path: Path) -> None:
    bits = np.array([0x7FC1, 0xFF80, 0x8000, 1], np.uint16).view(ml_dtypes.bfloat16)
    outcome = Outcome("0", (bits.reshape(2, 2), np.float64(-0.0).reshape(())), ("GPU:0", "CPU:0"))
    written = recorded_operations.outcome_to_json(outcome)
    lines = [{"about": {"gpus": 1}}, {"begun": "a"}, {"key": "a", "outcomes": {"nan": written}},
             {"begun": "b"}]  # fmt: skip
    text = "\n".join(json.dumps(line) for line in lines) + '\n{"key":"b","outco'
    (tmp_path / "operations-0.jsonl").write_text(text)
    recording = recorded_operations.read(tmp_path)
    assert recording.about == {"gpus": 1} and recording.begun == {"b"}
    read = recording.outcomes["a"]["nan"]
    assert (read.digest, read.devices) == (outcome.digest, outcome.devices)
    for have, want in zip(read.results, outcome.results, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        assert have.tobytes() == want.tobytes()


def test_probes_begin_with_what_is_worth_most_and_are_told_apart() -> None:
    all_probes = probes()
    assert len({probe.key for probe in all_probes}) == len(all_probes)
    types = dict.fromkeys(probe.case.dtypes[0] for probe in all_probes if probe.case.dtypes)
    floats = [dtype for dtype in types if dtype in ("float16", "float32", "float64", "bfloat16")]
    assert floats == ["float32", "float16", "bfloat16", "float64"]


def test_without_the_device_nothing_is_recorded(tmp_path: Path) -> None:
    """Its absence would stand there as the absence of every kernel."""
    output = tmp_path / "recording"
    command = [sys.executable, "-m", "bench.gpu.operations", "--output", str(output)]
    done = subprocess.run([*command, "--device", "GPU:7"], capture_output=True, text=True)
    assert done.returncode == 2 and "TensorFlow sees no GPU:7" in done.stderr
    assert not output.exists()
