"""Whole jobs on a fake GPU: what they compute stitched is what they compute untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.gpu_rehearsal import jobs
from tests.tiers import nightly_but

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_nvrtc")]
TOLERANCE = 1e-5
POISON = {"FAKE_GPU_POISON": "1", "FAKE_GPU_MEMORY_MB": "64"}
"""Each page that was ever touched costs time whenever a stream's work begins and ends."""
STAGES = ("05_verify", "06_measure")


def test_a_custom_loop_trains_stitched(tmp_path: Path) -> None:
    """Kernels cost a tenth of an operation: the step is kept, with the losses of the plain run."""
    costs = {"FAKE_GPU_OP_US": "100", "FAKE_GPU_KERNEL_US": "10", **POISON}
    arguments = ("custom_loop", "--optimizer", "adam", "--steps", 60)
    plain = jobs.untouched(tmp_path, *arguments)
    ours = jobs.stitched(tmp_path, *arguments, **costs)
    assert "GPU:0" in str(ours.made["device"])
    for figures in ("losses", "norms"):
        np.testing.assert_allclose(ours.made[figures], plain.made[figures], rtol=TOLERANCE)
    [step] = ours.steps
    assert step["steps"] >= 20 and step["kernels_after"] < step["kernels_before"], ours


@pytest.mark.parametrize(
    ("kernel", "every", "status"),
    nightly_but(
        (2000, 1000, "rolled_back"),
        of=((kernel, every, status) for kernel, status in ((10, "stitched"), (2000, "rolled_back"))
            for every in (1, 1000)),
    ),
)  # fmt: skip
def test_a_step_is_judged_by_the_device(
    kernel: int, every: int, status: str, tmp_path: Path
) -> None:
    """Of a step that costs 10 us an operation, whether the host waits for it or runs ahead."""
    costs = {"FAKE_GPU_OP_US": "10", "FAKE_GPU_KERNEL_US": str(kernel)}
    ours = jobs.stitched(tmp_path, "custom_loop", "--steps", 100, "--every", every, **costs)
    [step] = ours.steps
    assert step["status"] == status, ours


def test_a_driver_that_crashes_in_loading_does_so_once(tmp_path: Path) -> None:
    """The first start says what happened, the next leaves those kernels alone."""
    arguments = ("custom_loop", "--steps", 3)
    first = jobs.stitched(tmp_path, *arguments, code=134, FAKE_GPU_CRASH="1")
    [step] = first.steps
    assert step["status"] == "loading", first
    second = jobs.stitched(tmp_path, *arguments, FAKE_GPU_CRASH="1")
    assert len(second.made["losses"]) == 3 and second.refusals == {"crashed_before": 1}, second


def test_a_worker_proves_and_times_on_the_gpu(tmp_path: Path) -> None:
    """Without leave to try what nobody proved. What is timed there is the emulator: regions may be
    left as slower, but each was right, beside TensorFlow's own operations on the same GPU."""
    plain = jobs.untouched(tmp_path, "custom_loop", "--steps", 40)
    ours = jobs.stitched(tmp_path, "custom_loop", "--steps", 40, proved=True)
    np.testing.assert_allclose(ours.made["losses"], plain.made["losses"], rtol=TOLERANCE)
    [dump] = (tmp_path / "dump").iterdir()
    verified, measured = ((dump / f"{stage}.txt").read_text() for stage in STAGES)
    outputs = [line for line in verified.splitlines() if line.startswith("  output ")]
    assert len(outputs) > 10 and all(": ok: 0 of " in line for line in outputs), verified
    assert "Distinct regions timed: 0 " not in measured, measured
    assert set(ours.refusals or {}) <= {"slower"}, ours


def test_unaligned_data_is_left_to_tensorflow(tmp_path: Path) -> None:
    """Kernels read 16 bytes at a time: such a call is TensorFlow's, and the job goes on."""
    arguments = ("kinds", "unaligned", 20)
    plain, ours = jobs.untouched(tmp_path, *arguments), jobs.stitched(tmp_path, *arguments)
    np.testing.assert_allclose(ours.made["figures"], plain.made["figures"], rtol=TOLERANCE)
    assert ours.refusals == {"guard_failed": 1}, ours


@pytest.mark.nightly
def test_a_call_that_failed_leaves_nothing_to_the_end_of_its_thread(tmp_path: Path) -> None:
    """The driver is not to be called then: the fake one ends the process."""
    ours = jobs.stitched(tmp_path, "kinds", "failing", code=1)
    [step] = ours.steps
    assert step["status"] == "stitched", ours


@pytest.mark.nightly
def test_a_job_with_a_step_on_a_gpu_and_one_on_the_processor(tmp_path: Path) -> None:
    """Each has an artifact for what it runs on, and is judged by the clock there."""
    plain = jobs.untouched(tmp_path, "kinds", "both")
    ours = jobs.stitched(tmp_path, "kinds", "both")
    np.testing.assert_allclose(ours.made["figures"], plain.made["figures"], rtol=TOLERANCE)
    assert [step["steps"] > 0 for step in ours.steps] == [True, True], ours


KINDS = {"fit": 1, "while_loop": 1, "inference": 1, "session": 1, "mixed": 1, "mirrored": 2}
"""Kinds of jobs, and the GPUs that each has."""


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_each_kind(kind: str, tmp_path: Path) -> None:
    """Kept by device time, with the figures of the plain run."""
    gpus = {"FAKE_GPU_COUNT": str(KINDS[kind]), **POISON}
    costs = {"FAKE_GPU_OP_US": "100", "FAKE_GPU_KERNEL_US": "10"}
    plain = jobs.untouched(tmp_path, "kinds", kind, **gpus)
    ours = jobs.stitched(tmp_path, "kinds", kind, **gpus, **costs)
    tolerance = 1e-4 if kind == "mixed" else TOLERANCE
    np.testing.assert_allclose(ours.made["figures"], plain.made["figures"], rtol=tolerance)
    [step] = ours.steps
    assert step["status"] == "stitched" and step["steps"] >= 10, ours
    assert step["seconds_after"] < step["seconds_before"], ours
