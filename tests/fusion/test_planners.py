"""What every planner's plan must be on any module, and how the planners compare."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal
from stitchcore.fusion import planner_exact, planner_rules
from stitchcore.fusion.candidates import build
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Bound, Estimate, Pattern, Plan
from stitchcore.fusion.planners import PLANNERS
from stitchcore.fusion.text import bodies, parse_plan, plan_text
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.module import Module
from stitchcore.report import planners as told
from stitchcore.schedule.pipeline import feasible
from tests.fusion.test_exhaustive import (
    DEVICE,
    WORKLOADS,
    anything,
    binary,
    check,
    load,
    module_of,
    parameter,
)
from tests.fuzz.modules import random_module
from tests.schedule.modules import modules

EACH = ("exhaustive", "explore", "exact")
ROUNDING = 1 + 1e-9
NEVER = float("inf")


def all_plans(module: Module) -> dict[str, Plan]:
    """Each planner's, every kernel of which the scheduler was asked about."""
    return {name: judged(name, module) for name in PLANNERS}


def judged(planner: str, module: Module) -> Plan:
    asked: set[Pattern] = set()

    def judge(pattern: Pattern, device: Device) -> Refusal | None:
        asked.add(pattern)
        return feasible(pattern, device)

    plan = PLANNERS[planner](module, DEVICE, cost, judge)
    for one in (plan, *bodies(plan).values()):
        assert asked >= set(one.patterns)
    return plan


def owners(plan: Plan) -> None:
    """Every value that memory must hold is written by one kernel, and read after."""
    check(plan)
    written = [value for pattern in plan.patterns for value in pattern.outputs]
    assert len(written) == len(set(written))
    graph = build(plan.module, {})
    demanded = {graph.instructions[v] for v in graph.placed() if graph.demanded[v]}
    assert demanded <= set(written) | set(plan.opaque)


def compare(plans: dict[str, Plan]) -> None:
    """Computation by computation: exact is no worse than the other two, auto than any."""
    inner = {name: bodies(plan) for name, plan in plans.items()}
    for body in (None, *inner["auto"]):
        choices = {
            name: (plan if body is None else inner[name][body]).planned.seconds
            for name, plan in plans.items()
        }
        assert choices["exact"] <= min(choices["explore"], choices["exhaustive"]) * ROUNDING
        assert choices["auto"] <= min(choices[name] for name in EACH) * ROUNDING


@settings(max_examples=60)
@given(modules())
def test_plans_of_random_modules_are_complete_disjoint_and_acyclic(module: Module) -> None:
    plans = all_plans(module)
    for plan in plans.values():
        owners(plan)
    compare(plans)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_plans_of_fuzzed_modules_too(seed: int) -> None:
    plans = all_plans(random_module(np.random.default_rng(seed)))
    for plan in plans.values():
        check(plan)
    compare(plans)


NAMES = [path.name.removesuffix(".hlo.xz") for path in WORKLOADS]
ELSEWHERE = ("B384", "B48", "B28", "transformer_train", "resnet50_train", "bert_train", "asr_train")
"""Steps at a second batch size, and the slowest: bench/planners.py has all modules."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(ELSEWHERE)])
def test_auto_is_never_worse_on_workloads(name: str) -> None:
    """And the beam is within 5 % of what is proved."""
    plans = {n: PLANNERS[n](load(name), DEVICE, cost, anything) for n in PLANNERS}
    for plan in plans.values():
        check(plan)
        for body in bodies(plan).values():
            check(body)
    compare(plans)
    bound = told.bound([plans["auto"]])
    assert bound is not None  # closed but where the machine is too busy for the limit
    assert told.gap(bound, bound.found["explore"]) <= 0.05


# ---- exact: cuts and limits --------------------------------------------------------------------
def problem_of(module: Module) -> planner_rules.Problem:
    return planner_rules.problem(module, {}, DEVICE, cost, anything)


def crossing() -> tuple[Module, list[list[int]]]:
    """Two chains of two; kernels that hold one end of each wait for each other."""
    x, y = parameter(0, 128, 128), parameter(1, 128, 128)
    a, b = binary(op.ADD, x, y), binary(op.MULTIPLY, x, y)
    c, d = binary(op.SUBTRACT, a, b), binary(op.MAXIMUM, b, a)
    module = module_of([x, y], a, b, c, d)
    graph = build(module, {})
    return module, [[graph.position[v] for v in pair] for pair in ((a, d), (b, c))]


def test_a_cycle_is_forbidden_and_the_next_best_taken() -> None:
    module, pairs = crossing()
    given_ = problem_of(module)
    proposed = [partial(tuple, sorted(pair)) for pair in pairs]
    search = planner_exact._Search(given_, {}, proposed, NEVER)
    scopes = search.run()
    assert scopes is not None
    assert sorted(len(scope.members) for scope in scopes) == [1, 1, 2]
    bound = search.bound()
    assert (bound.closed, bound.rounds) == (True, 2)
    assert bound.limit == pytest.approx(bound.saved)


def test_what_the_scheduler_refuses_is_forbidden() -> None:
    module, pairs = crossing()

    def no_pairs(pattern: Pattern, device: Device) -> Refusal | None:
        return Refusal("p", Reason.MEMORY) if len(pattern.instructions) > 1 else None

    problem = planner_rules.problem(module, {}, DEVICE, cost, no_pairs)
    scopes = planner_exact._Search(problem, {}, [partial(tuple, sorted(pairs[0]))], NEVER).run()
    assert scopes is not None
    assert [len(scope.members) for scope in scopes] == [1, 1, 1, 1]


def test_the_scheduler_is_asked_about_what_is_left_alone() -> None:
    """A worker needs the kernel that the scheduler makes as it judges: without one the whole job
    was left as it was (the moments of tests/jobs/scripts/cnn_fit.py, under `exact` and `auto`)."""
    module, _ = crossing()
    asked: list[Pattern] = []

    def judge(pattern: Pattern, device: Device) -> None:
        asked.append(pattern)

    problem = planner_rules.problem(module, {}, DEVICE, cost, judge)
    scopes = planner_exact._Search(problem, {}, [], NEVER).run()
    assert scopes is not None
    assert [scope.pattern for scope in scopes] == asked
    assert len(asked) == 4


def test_a_packing_that_leaves_alone_what_is_refused_alone_is_no_plan() -> None:
    module, pairs = crossing()

    def company(pattern: Pattern, device: Device) -> Refusal | None:
        return Refusal("p", Reason.MEMORY) if len(pattern.instructions) == 1 else None

    given_ = planner_rules.problem(module, {}, DEVICE, cost, company)
    search = planner_exact._Search(given_, {}, [partial(tuple, sorted(pairs[0]))], NEVER)
    assert search.run() is None
    bound = search.bound()
    assert not bound.closed
    assert bound.limit > bound.saved == 0.0


def test_exact_stops_at_its_limit_and_says_so() -> None:
    """No time at all: the plan is the best of the others, and the bound is not said to be met."""
    module, pairs = crossing()
    proposed = [partial(tuple, sorted(pair)) for pair in pairs]
    search = planner_exact._Search(problem_of(module), {}, proposed, NEVER)
    search._deadline = 0.0
    assert search.run() is None
    bound = search.bound()
    assert not bound.closed
    assert bound.limit > bound.saved == 0.0
    assert "stopped at its limit" in told.bound_text(bound)
    late = planner_exact._Search(problem_of(module), {}, proposed, 0.0)
    assert late.bound().missed == 2
    plan = planner_exact.planner(planner_exact.ExactOptions(seconds=0.0))(
        load("mlp_train"), DEVICE, cost, anything
    )
    check(plan)
    assert plan.bound is not None
    assert not plan.bound.closed
    assert "were not looked at" in told.bound_text(plan.bound)


def test_the_order_of_sets_and_their_cycle() -> None:
    reads: list[list[int]] = [[], [0], [], [2, 1]]
    depth, cycle = planner_exact.ordered([(0, 2), (1,), (3,)], reads)
    assert (depth, cycle) == ({(0, 2): 0, (1,): 1, (3,): 2}, [])
    _, cycle = planner_exact.ordered([(0, 3), (1,), (2,)], reads)
    assert set(cycle) == {(0, 3), (1,)}


@pytest.mark.slow
def test_exact_mixes_what_others_found() -> None:
    """Where large kernels are dear, no planner's choice is the others'."""

    def dear(pattern: Pattern, device: Device) -> Estimate:
        estimate = cost(pattern, device)
        return replace(estimate, seconds=estimate.seconds * (1 + len(pattern.instructions) / 50))

    module = load("mlp_train")
    plans = {name: PLANNERS[name](module, DEVICE, dear, anything) for name in PLANNERS}
    for plan in plans.values():
        check(plan)
    compare(plans)


# ---- what is told ------------------------------------------------------------------------------
def test_auto_tells_what_each_planner_reached() -> None:
    plan = PLANNERS["auto"](load("lstm_lm_train"), DEVICE, cost, anything)
    assert [one.planner for one in plan.tried] == list(EACH)
    total = plan.planned.seconds + sum(one.planned.seconds for one in bodies(plan).values())
    assert total <= min(one.seconds for one in plan.tried) * ROUNDING
    rows = told.side_by_side([plan, plan])
    assert [row.name for row in rows] == [*EACH, "auto"]
    assert [row.chosen for row in rows] == [False, False, False, True]
    assert rows[0].kernels == told.tried([plan, plan])[0].kernels
    assert rows[-1].seconds == pytest.approx(2 * total)
    assert all(row.gap is not None and 0 <= row.gap < 1 for row in rows[:3])


def test_a_planner_that_was_asked_alone_is_told_alone() -> None:
    plan = PLANNERS["exhaustive"](load("softmax_grad"), DEVICE, cost, anything)
    [row] = told.side_by_side([plan])
    assert (row.name, row.chosen, row.gap) == ("exhaustive", True, None)
    assert row.kernels == len(plan.patterns)
    assert told.side_by_side([]) == ()


def test_bounds_of_several_computations_are_summed() -> None:
    plan = PLANNERS["exhaustive"](load("softmax_grad"), DEVICE, cost, anything)
    one = replace(plan, bound=Bound(3, 1.0, 2.0, False, 1, {"explore": 0.5}))
    other = replace(plan, bound=Bound(4, 2.0, 2.0, True, 5, {"explore": 1.0}))
    assert told.bound([one, other, plan]) == Bound(7, 3.0, 4.0, False, 5, {"explore": 1.5})
    assert told.bound([plan]) is None


@pytest.mark.parametrize("name", list(PLANNERS))
def test_plans_read_back_as_they_were_printed(name: str) -> None:
    plan = PLANNERS[name](load("mlp_train"), DEVICE, cost, anything)
    read = parse_plan(plan_text(plan), plan.module, DEVICE, cost, "02_plan.txt", name).plan
    assert set(read.patterns) == set(plan.patterns)
