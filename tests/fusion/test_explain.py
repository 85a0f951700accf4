"""Why two kernels of a plan are not one: each rule is named, and costs by their terms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stitchcore.device.records import DEVICES, Device
from stitchcore.errors import Reason, Refusal
from stitchcore.fusion import planner_rules
from stitchcore.fusion.cost import cost, terms
from stitchcore.fusion.explain import apart
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.fusion.planners import PLANNERS
from stitchcore.fusion.text import parse_plan
from stitchcore.hlo.text.parser import parse
from tests.fusion.test_exhaustive import anything, load

DEVICE = DEVICES["cpu-x86-64-v3"]
SUMS = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[64,64] parameter(0)
  none = f32[] constant(0)
  s = f32[64] reduce(x, none), dimensions={0}, to_apply=sum
  wide = f32[64,64] broadcast(s), dimensions={1}
  ROOT p = f32[64,64] multiply(x, wide)
}
"""
BESIDE = """HloModule m

ENTRY main {
  x = f32[64,64] parameter(0)
  y = f32[32,32] parameter(1)
  a = f32[64,64] exponential(x)
  b = f32[32,32] exponential(y)
  ROOT t = (f32[64,64], f32[32,32]) tuple(a, b)
}
"""


def split(text: str, *kernels: str) -> Plan:
    """A plan of `text` with these kernels."""
    module = parse(text)
    lines = "".join(f"kernel\n  instructions {kernel}\n" for kernel in kernels)
    return parse_plan(lines, module, DEVICE, cost, "plan", "exhaustive").plan


def test_the_term_that_keeps_two_apart_is_named() -> None:
    """A column sum must be whole before it is read: one phase more costs more than one launch."""
    plan = split(SUMS, "reduce.2", "multiply.4")
    slow = replace(DEVICES["sm_70"], launch_seconds=4e-6, phase_seconds=9e-6)
    reason, detail, path = apart(plan, (0, 1), slow, cost, anything)
    assert (reason, path) == (Reason.NOT_PROFITABLE.value, ())
    assert detail.startswith("one kernel is estimated at 13.")
    assert "most is lost on phases" in detail
    assert "phases 9.0 against 0.0" in detail
    assert "launch 4.0 against 8.0" in detail


def test_what_is_cheaper_together_was_not_chosen() -> None:
    plan = split(BESIDE, "exponential.2", "exponential.3")
    _, detail, _ = apart(plan, (0, 1), DEVICE, cost, anything)
    assert detail.startswith("nothing forbids it; the exhaustive planner did not choose it")


def test_levels_are_named() -> None:
    plan = PLANNERS["exhaustive"](load("mlp_train"), DEVICE, cost, anything)
    _, detail, _ = apart(plan, (0, 1), DEVICE, cost, anything)
    assert "the first is computed at level 0 between library calls, the second at level 1" in detail


def test_a_limit_and_a_refusal_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = split(BESIDE, "exponential.2", "exponential.3")

    def never(pattern: Pattern, device: Device) -> Refusal | None:
        return Refusal("pattern", Reason.MEMORY, "too much")

    assert apart(plan, (0, 1), DEVICE, cost, never)[:2] == ("memory", "too much")
    monkeypatch.setattr(planner_rules, "INSTRUCTION_LIMIT", 1)
    answer = apart(plan, (0, 1), DEVICE, cost, anything)
    assert answer[:2] == ("too_many_buffers", "2 instructions; a kernel has at most 1")


@pytest.mark.parametrize("name", ["mlp_train", "lstm_lm_train", "bert_infer"])
def test_terms_add_up_to_the_estimate(name: str) -> None:
    plan = PLANNERS["exhaustive"](load(name), DEVICE, cost, anything)
    for pattern in plan.patterns:
        estimate = terms(pattern, DEVICE)
        parts = (
            estimate.transfers,
            estimate.rereads,
            estimate.arithmetic,
            estimate.launch,
            estimate.phases,
        )
        assert sum(parts) == pytest.approx(cost(pattern, DEVICE).seconds)
        assert min(parts) >= -1e-15
