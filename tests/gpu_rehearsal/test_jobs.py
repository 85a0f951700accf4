"""Whole jobs on a fake GPU: what they compute stitched is what they compute untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.gpu_rehearsal import jobs

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
