"""Random modules: numpy, the interpreter (random lane order, races) and C agree."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from stitchcore.hlo.module import Module
from stitchcore.schedule import dominant, mapping, stages
from tests.schedule.agree import check
from tests.schedule.modules import draw_inputs, modules, whole

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
        patch.setattr(mapping, "TASK_ELEMENTS", 16)
        patch.setattr(mapping, "ENOUGH_TASKS", 5)
        patch.setattr(mapping, "LANE_BLOCK", 12)
        patch.setattr(mapping, "MAX_PART_ROWS", 2)
        patch.setattr(mapping, "CHAIN_ELEMENTS", 8)
        patch.setattr(stages, "STAGE_DEPTH", 10)
        patch.setattr(dominant, "INLINE_SIZE", 2)
        patch.setattr(dominant, "CROSSING", 4)
        patch.setattr(dominant, "FEW_ROWS", 3)
        patch.setattr(dominant, "LONG_ROW", 16)
        pattern = whole(module)
        check(pattern, module, draw_inputs(pattern, 0))


@pytest.mark.slow
@settings(SETTINGS, max_examples=25)
@given(modules())
def test_random_modules_agree_as_c(module: Module) -> None:
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)
