"""Random modules: numpy, the interpreter (random lane order, races) and C agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir.module import Module
from stitchcore.schedule import limits, merge_phases, section_reuse
from stitchcore.schedule.pipeline import choices
from tests.fuzz.draw import FuzzOptions
from tests.fuzz.modules import random_module
from tests.schedule.agree import check
from tests.schedule.modules import draw_inputs, modules, whole
from tests.schedule.test_section_reuse import paying

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
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.slow
@SETTINGS
@given(modules())
def test_random_modules_agree_with_numpy(module: Module) -> None:
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0))


@pytest.mark.slow
@SETTINGS
@given(modules())
def test_random_modules_agree_when_tasks_are_tiny(
    monkeypatch: pytest.MonkeyPatch, module: Module
) -> None:
    """Toy limits, so that small arrays are split over tasks, lane blocks and parts."""
    with monkeypatch.context() as patch:
        patch.setattr(limits, "of", lambda *_: TOY)
        pattern = whole(module)
        check(pattern, module, draw_inputs(pattern, 0))


@pytest.mark.slow
@SETTINGS
@given(modules(), st.sampled_from([0, 8, 64]))
def test_random_modules_agree_when_scheduled_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, module: Module, warp_elements: int
) -> None:
    """With its own limits, where warps have rows of their own, and with toy ones."""
    pattern, device = whole(module), DEVICES["sm_80"]
    check(pattern, module, draw_inputs(pattern, 0), device=device)
    toy = replace(
        TOY, stage_depth=0, warp_elements=warp_elements, run_lanes=2, flat_below=4, lanes=256
    )
    with monkeypatch.context() as patch:
        patch.setattr(limits, "of", lambda *_: toy)
        check(pattern, module, draw_inputs(pattern, 0), device=device)


RANDOM_LIMITS = {
    "task_elements": (4, 16, 64, 256),
    "inline_size": (1, 2, 8),
    "lane_block": (8, 12, 64),
    "enough_tasks": (2, 5, 12),
    "max_splits": (2, 4, 16),
    "max_part_rows": (2, 8, 32),
    "few_rows": (2, 3, 10, 100),
    "long_row": (2, 8, 16, 256),
    "local_bytes": (128, 1024, 8192),
    "warp_elements": (0, 8, 16, 64),
    "run_lanes": (0, 1, 2, 8),
    "flat_below": (2, 4, 8),
    "register_words": (0, 4, 96),
}
MANY_REDUCTIONS = FuzzOptions(
    instructions=24,
    outputs=4,
    weights=(
        ("elementwise", 3.0),
        ("broadcast", 2.5),
        ("reduce", 3.0),
        ("reshape", 1.0),
        ("transpose", 1.0),
        ("concatenate", 0.5),
        ("pad", 0.5),
        ("gather", 0.5),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 50])
def test_deep_modules_agree_under_any_limits(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """With 24 operations and limits drawn anew each time, as no device has them together."""
    for seed in range(first, first + 50):
        rng = np.random.default_rng(seed)
        module = random_module(rng, MANY_REDUCTIONS)
        own = limits.of(device := DEVICES[("cpu-x86-64-v3", "sm_80")[seed % 2]])
        drawn = {name: int(rng.choice(some)) for name, some in RANDOM_LIMITS.items()}
        pattern = whole(module)
        if any(value in pattern.inputs for value in pattern.outputs):
            continue
        with monkeypatch.context() as patch:
            patch.setattr(limits, "of", lambda *_, own=own, drawn=drawn: replace(own, **drawn))
            check(pattern, module, draw_inputs(pattern, seed), device=device)


@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_80"])
def test_deep_modules_agree_with_every_section_as_early_as_can_be(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Which the scheduler does only where it saves phases, as it often would with such tasks."""
    monkeypatch.setattr(merge_phases, "merge", lambda *given: tuple(merge_phases.earliest(*given)))
    small = {"task_elements": 16, "max_part_rows": 4, "few_rows": 2, "warp_elements": 8}
    own = limits.of(DEVICES[target])
    monkeypatch.setattr(limits, "of", lambda *_: replace(own, **small))
    for seed in range(12):
        module = random_module(np.random.default_rng(seed), MANY_REDUCTIONS)
        pattern = whole(module)
        if not any(value in pattern.inputs for value in pattern.outputs):
            check(pattern, module, draw_inputs(pattern, seed), device=DEVICES[target])


@pytest.mark.slow
@settings(SETTINGS, max_examples=25)
@given(modules())
def test_random_modules_agree_as_c(module: Module) -> None:
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_80"])
def test_deep_modules_agree_when_all_is_passed_on_or_nothing(
    monkeypatch: pytest.MonkeyPatch, target: str, passes: bool
) -> None:
    """What phases, sections and stages share, however small, through scratch always or never."""
    monkeypatch.setattr(section_reuse, "SMALL_BYTES", 0)
    device = paying(target, passes)
    own = replace(limits.of(device), local_bytes=128)
    monkeypatch.setattr(limits, "of", lambda *_: own)
    chosen = []
    for seed in range(40):
        module = random_module(np.random.default_rng(seed), MANY_REDUCTIONS)
        pattern = whole(module)
        if any(value in pattern.inputs for value in pattern.outputs):
            continue
        check(pattern, module, draw_inputs(pattern, seed), device=device)
        chosen += [
            text.startswith("stored to scratch") for _, text in choices(pattern, module, device)
        ]
    assert passes in chosen
