"""The model of kernels against a GPU's bandwidth: its parts fit together on a workload."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import cuda_model

pytestmark = pytest.mark.usefixtures("needs_nvrtc")


def test_a_workload_is_modelled() -> None:
    [softmax] = cuda_model.modelled("softmax_grad", "sm_90", None)
    assert softmax.uses == 1 and softmax.registers > 0 and softmax.instructions["memory"] > 0
    asked = softmax.asked
    assert not asked.cut and asked.lines > 0
    assert asked.sectors == asked.least_sectors, "rows of neighbours: no sector has waste"
    assert 0 < softmax.roofline <= softmax.seconds
    assert softmax.lost == softmax.seconds - softmax.roofline / cuda_model.SHARE
    slower = replace(softmax, module="other", name="k_slow", seconds=2 * softmax.seconds)
    text = cuda_model.table([softmax, slower], "sm_90")
    *_, first, second = (line for line in text.splitlines() if line.startswith("|"))
    assert "k_slow" in first and softmax.name in second, "what loses most comes first"
