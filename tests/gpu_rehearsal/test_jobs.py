"""Whole jobs on a fake GPU: what they compute stitched is what they compute untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.gpu_rehearsal import jobs
from tests.tiers import nightly_but

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_nvrtc")]
TOLERANCE = 1e-5


def test_a_custom_loop_trains_stitched(tmp_path: Path) -> None:
    """Kernels cost a tenth of an operation: the step is kept, with the losses of the plain run."""
    costs = {"FAKE_GPU_OP_US": "100", "FAKE_GPU_KERNEL_US": "10", "FAKE_GPU_POISON": "1"}
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
        (10, 1000, "stitched"), (2000, 1000, "rolled_back"),
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
