"""The plan's text form: read back, it is the same plan."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from stitchcore.device.records import DEVICES
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Plan
from stitchcore.fusion.planners import PLANNERS
from stitchcore.fusion.text import bodies, parse_plan, plan_text
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.transforms.expand import expand

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
DEVICE = DEVICES["cpu-x86-64-v3"]
NAMES = sorted(path.name for path in WORKLOADS.glob("*.hlo.xz"))


def planned(name: str) -> Plan:
    module = expand(parse(lzma.decompress((WORKLOADS / name).read_bytes()).decode())).module
    return PLANNERS["exhaustive"](module, DEVICE, cost, lambda pattern, device: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_read_back(name: str) -> None:
    plan = planned(name)
    text = plan_text(plan)
    read = parse_plan(text, plan.module, DEVICE, cost, "02_plan.txt", "exhaustive").plan
    assert read.patterns == plan.patterns
    assert read.opaque == plan.opaque
    assert read.refusals == plan.refusals
    assert (read.unfused, read.planned) == (plan.unfused, plan.planned)
    assert {b: p.patterns for b, p in bodies(read).items()} == {
        b: p.patterns for b, p in bodies(plan).items()
    }
    assert plan_text(read) == text


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_outputs_follow_from_the_instructions(name: str) -> None:
    """The same instructions and inputs; an output that two kernels could make may change place."""
    plan = planned(name)
    lines = plan_text(plan).splitlines()
    short = "\n".join(line for line in lines if not line.startswith(("  inputs", "  outputs")))
    read = parse_plan(short, plan.module, DEVICE, cost, "02_plan.txt", "exhaustive").plan
    assert [set(p.instructions) for p in read.patterns] == [
        set(p.instructions) for p in plan.patterns
    ]
    outputs = [{value for p in one.patterns for value in p.outputs} for one in (read, plan)]
    assert outputs[0] == outputs[1]
