"""Random modules: numpy, the interpreter (random lane order, races) and C agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stitchcore.device.records import DEVICES
from stitchcore.hlo.module import Module
from stitchcore.schedule import dominant, limits
from tests.schedule.agree import check
from tests.schedule.modules import draw_inputs, modules, whole

TOY = replace(
    limits.CPU,
    task_elements=16,
    enough_tasks=5,
    lane_block=12,
    max_part_rows=2,
    chain_elements=8,
    stage_depth=10,
    inline_size=2,
    few_rows=3,
    long_row=16,
)
SETTINGS = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@SETTINGS
@given(modules())
def test_random_modules_agree_with_numpy(module: Module) -> None:
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0))


@SETTINGS
@given(modules())
def test_random_modules_agree_when_tasks_are_tiny(
    monkeypatch: pytest.MonkeyPatch, module: Module
) -> None:
    """Toy limits, so that small arrays are split over tasks, lane blocks and parts."""
    with monkeypatch.context() as patch:
        patch.setattr(limits, "of", lambda device: TOY)
        patch.setattr(dominant, "CROSSING", 4)
        pattern = whole(module)
        check(pattern, module, draw_inputs(pattern, 0))


@SETTINGS
@given(modules(), st.sampled_from([0, 8, 64]))
def test_random_modules_agree_when_scheduled_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, module: Module, warp_elements: int
) -> None:
    """With its own limits, where warps have rows of their own, and with toy ones."""
    pattern, device = whole(module), DEVICES["sm_80"]
    check(pattern, module, draw_inputs(pattern, 0), device=device)
    toy = replace(TOY, stage_depth=0, warp_elements=warp_elements, run_lanes=2, flat_below=4)
    with monkeypatch.context() as patch:
        patch.setattr(limits, "of", lambda device: toy)
        check(pattern, module, draw_inputs(pattern, 0), device=device)


@pytest.mark.slow
@settings(SETTINGS, max_examples=25)
@given(modules())
def test_random_modules_agree_as_c(module: Module) -> None:
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)
