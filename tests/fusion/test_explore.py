"""The explorer: the paper's worked example, the delta-evaluator against cost.py, what is pruned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason, Refusal
from stitchcore.fusion import cells, planner_explore, planner_rules
from stitchcore.fusion.cells import Delta, Part, bits
from stitchcore.fusion.cost import cost, terms
from stitchcore.fusion.planner_explore import DEFAULTS, ExploreOptions
from stitchcore.fusion.planners import PLANNERS, STITCHING
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import LaneReduce, Scope
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule.pipeline import feasible, schedule
from tests.calls import calls
from tests.fusion import test_exhaustive as known
from tests.fusion.test_exhaustive import DEVICE, anything, binary, check
from tests.schedule import modules as draw

# Figure 4 of FusionStitching (Zheng et al. 2020): V8 feeds 5, 6 and 7, these 2, 3 and 4, all 1.
# Cells are numbered in topological order.
ORDER = (8, 5, 6, 7, 2, 3, 4, 1)
EDGES = {(8, 5): 2, (8, 6): 2, (8, 7): 3, (5, 2): 2, (6, 3): 2, (7, 4): 3}
EDGES |= {(2, 1): 2, (3, 1): 2, (4, 1): 3}


def mask(*names: int) -> int:
    return sum(1 << ORDER.index(name) for name in set(names))


def figure() -> cells.Dag:
    consumers = [0] * len(ORDER)
    for producer, consumer in EDGES:
        consumers[ORDER.index(producer)] |= mask(consumer)
    return cells.dag(consumers)


def inner_edges(some: int, known: int = 0) -> float:
    """The bytes that a kernel keeps inside: the score of the figure, whose numbers are not told."""
    names = {ORDER[c] for c in bits(some)}
    return float(sum(size for edge, size in EDGES.items() if names >= set(edge)))


def numbers(parts: Sequence[Part]) -> list[int]:
    return [part.cells for part in parts]


def test_the_candidates_of_figure_4() -> None:
    """Longest first: {5,2,1}, {5,2}, {5} and so on, as the figure lists them."""
    sets = planner_explore.candidates(figure(), inner_edges, DEFAULTS)
    for one, two in ((5, 2), (6, 3), (7, 4)):
        expected = [mask(one, two, 1), mask(one, two), mask(one)]
        assert numbers(sets[ORDER.index(one)]) == expected


def test_the_reduction_of_figure_4() -> None:
    """Of V8's consumers {5, 6} are enumerated together and 7 apart; the figure's three results are
    unions of whole chains. Two of them wait for what they leave out, and so may not stay."""
    dag = figure()
    sets = planner_explore.candidates(dag, inner_edges, DEFAULTS)
    base = cells.lone(dag, 0)
    groups = [[p for p in sets[c] if p.cells & mask(1)] for c in (1, 2, 3)]
    unions = planner_explore.reduction(base, groups, inner_edges, DEFAULTS)
    chains = {5: (5, 2, 1), 6: (6, 3, 1), 7: (7, 4, 1)}
    assert numbers(unions) == [
        mask(8, *chains[5], *chains[6], *chains[7]),
        mask(8, *chains[5], *chains[7]),
        mask(8, *chains[6], *chains[7]),
    ]
    everything = mask(*ORDER)
    assert [dag_hull(dag, part) for part in unions] == [everything] * 3
    assert numbers(sets[0])[0] == everything


def dag_hull(dag: cells.Dag, part: Part) -> int:
    hull = cells.hull(part, inner_edges)
    assert hull is not None
    return hull.cells


def test_all_combinations_of_a_group_are_tried() -> None:
    """Four choices each for 5 and 6 (the paper counts 15 without the empty one), three of which are
    the same set: 1 may come with either chain or both."""
    dag = figure()
    sets = planner_explore.candidates(dag, inner_edges, DEFAULTS)
    everything = ExploreOptions(patterns=100)
    unions = planner_explore.reduction(
        cells.lone(dag, 0), [sets[1], sets[2]], inner_edges, everything
    )
    assert len(unions) == 4 * 4 - 2


@given(st.lists(st.integers(0, 2**9 - 1), min_size=1, max_size=9), st.integers(1, 2**9 - 1))
def test_a_hull_has_no_way_out_and_back(readers: list[int], some: int) -> None:
    count = len(readers)
    consumers = [r & (2**count - 1) & ~(2 ** (c + 1) - 1) for c, r in enumerate(readers)]
    dag = cells.dag(consumers)
    some &= 2**count - 1
    part = Part(0, 0, 0, 0.0)
    for c in bits(some):
        union = cells.union(part, cells.lone(dag, c), lambda a, b: 0.0)
        assert union is not None
        part = union
    union = cells.hull(part, lambda a, b: 0.0)
    assert union is not None
    for c in range(count):
        between = dag.below[c] & union.cells and dag.above[c] & union.cells
        assert bool(union.cells >> c & 1) == bool(between)
        assert some & ~union.cells == 0


def test_sets_that_wait_for_each_other_are_not_both_chosen() -> None:
    """0 -> 3 and 1 -> 2, with {0, 2} and {1, 3} as kernels: each waits for the other."""
    dag = cells.dag([0b1000, 0b0100, 0, 0])

    def part(some: int, saved: float) -> Part:
        down = sum(dag.below[c] for c in bits(some))
        return Part(some, down, sum(dag.above[c] for c in bits(some)), saved)

    crossed = [[part(0b0101, 2.0)], [part(0b1010, 1.0)]]
    best, *_ = planner_explore.beam(crossed, DEFAULTS)
    assert numbers(best) == [0b0101]
    straight = [[part(0b1001, 1.0)], [part(0b0110, 1.0)]]
    assert numbers(planner_explore.beam(straight, DEFAULTS)[0]) == [0b1001, 0b0110]


MEMORY_ALONE = replace(
    DEVICES["sm_70"], launch_seconds=1e-12, cache_bytes=64, flops_per_second=1e21, timing=None
)
"""A device on which a wrong byte or phase shows, be values as small as they are: nothing hides
them."""


def windows(module: Module) -> list[tuple[planner_rules.Problem, cells.Window]]:
    problem = planner_rules.problem(module, {}, MEMORY_ALONE, cost, anything)
    parts = planner_explore.windows(problem, DEFAULTS)
    return [(problem, cells.window(problem, members)) for _, members in parts]


@settings(max_examples=150)
@given(draw.modules(), st.integers(0, 2**32 - 1))
def test_the_delta_evaluator_agrees_with_the_cost(module: Module, seed: int) -> None:
    """On sets without a way out and back, but for what overlaps of one value: slices, lookups."""
    for node in topological([module.entry.root]):
        if node.opcode == op.SLICE or op.record(node.opcode).kind == "lookup":
            return
    random = np.random.default_rng(seed)
    for problem, window in windows(module):
        delta = Delta(window)
        for _ in range(4):
            part = Part(0, 0, 0, 0.0)
            for c in range(len(window.cells)):
                if random.random() < 0.6:
                    union = cells.union(part, cells.lone(window.dag, c), delta.judge)
                    part = union if union is not None else part
            union = cells.hull(part, delta.judge) if part.cells else None
            if union is None:
                continue
            pattern = problem.extractor.pattern(window.members(union.cells))
            expected = cost(pattern, MEMORY_ALONE).seconds
            assert delta.seconds(union.cells) == pytest.approx(expected, rel=1e-9)


def test_the_delta_evaluator_counts_phases_and_what_they_read_again() -> None:
    """Two sums over columns, the second of what the first one scales: three phases read x."""
    x = draw.parameter(0, (64, 64))
    once = draw.apply(op.MULTIPLY, x, draw.broadcast(draw.reduce(x, (0,)), (64, 64), (1,)))
    twice = draw.apply(op.ADD, x, draw.broadcast(draw.reduce(once, (0,)), (64, 64), (1,)))
    ((problem, window),) = windows(draw.module_of([twice], [x]))
    everything = (1 << len(window.cells)) - 1
    pattern = problem.extractor.pattern(window.members(everything))
    parts = terms(pattern, MEMORY_ALONE)
    assert parts.phases == pytest.approx(2 * MEMORY_ALONE.phase_seconds)
    assert parts.rereads == pytest.approx(2 * 64 * 64 * 4 / MEMORY_ALONE.bytes_per_second)
    assert Delta(window).seconds(everything) == pytest.approx(
        cost(pattern, MEMORY_ALONE).seconds, rel=1e-9
    )


@pytest.mark.parametrize("name", ["bert_infer", "mlp_train", "lstm_lm_train", "asr_train"])
def test_workloads_plan_completely_and_without_cycles(name: str) -> None:
    module = known.load(name)
    plan = PLANNERS["explore"](module, DEVICE, cost, anything)
    check(plan)
    for body in plan.nested.values():
        check(body)


def test_a_refused_pattern_is_split_and_a_refused_instruction_left_out() -> None:
    x = known.parameter(0, 128, 128)
    bad = known.instruction(op.TANH, x.shape, (binary(op.ADD, x, x),))
    out = binary(op.MULTIPLY, bad, x)

    def no_tanh(pattern: object, device: object) -> Refusal | None:
        if any(node is bad for node in pattern.instructions):  # type: ignore[attr-defined]
            return Refusal("p", Reason.UNSUPPORTED_OPCODE, "tanh")
        return None

    for name in PLANNERS:
        plan = PLANNERS[name](known.module_of([x], out), DEVICE, cost, no_tanh)
        assert bad in plan.opaque
        assert [r.detail for r in plan.refusals] == ["tanh"]


def test_smaller_windows_cut_and_stay_in_order() -> None:
    x = known.parameter(0, 64, 64)
    value = other = x
    for _ in range(30):
        value, other = binary(op.ADD, value, other), binary(op.MULTIPLY, other, value)
    module = known.module_of([x], value, other)
    plan = planner_explore.planner(ExploreOptions(window=8))(module, DEVICE, cost, anything)
    check(plan)
    assert 1 < len(plan.patterns) <= 30


@pytest.mark.slow
def test_exploring_work_grows_linearly() -> None:
    def chain(layers: int) -> Module:
        x, w = known.parameter(0, 64, 64), known.parameter(1, 64, 64)
        value: Instruction = x
        for _ in range(layers):
            y = known.dot(value, w)
            for _ in range(8):
                y = binary(op.MULTIPLY, binary(op.ADD, y, x), y)
            value = y
        return known.module_of([x, w], value)

    def planned(module: Module) -> object:
        return PLANNERS["explore"](module, DEVICE, cost, anything)

    small, large = chain(60), chain(180)
    planned(large)
    assert calls(lambda: planned(large)) < 3.5 * calls(lambda: planned(small))


def figure_7(rows: int, columns: int, many: int) -> Module:
    """Figure 7 of AStitch (Zheng et al. 2022), Pw.1 along the columns that R.2 sums over."""
    p1 = draw.parameter(0, (rows, columns))
    p2, p3 = draw.parameter(1, (rows,)), draw.parameter(2, (many, rows))
    b1 = draw.broadcast(p2, (rows, columns), (0,))
    r1 = draw.reduce(draw.apply(op.ADD, p1, b1), (1,))
    d1 = draw.apply(op.DIVIDE, p2, r1)
    pw1 = draw.apply(op.POWER, d1, draw.broadcast(draw.scalar(2.0), (rows,), ()))
    b2 = draw.broadcast(pw1, (many, rows), (1,))
    r2 = draw.reduce(draw.apply(op.DIVIDE, p3, b2), (1,))
    b3 = draw.broadcast(r2, (many, rows), (0,))
    return draw.module_of([draw.apply(op.MULTIPLY, b2, b3)], [p1, p2, p3])


@pytest.mark.parametrize("name", list(STITCHING))
def test_astitchs_figure_7_is_one_kernel_of_one_block_and_two_grid_barriers(name: str) -> None:
    """XLA makes four kernels of it, TVM three."""
    device, module = DEVICES["sm_70"], figure_7(30_000, 256, 64)
    plan = PLANNERS[name](module, device, cost, feasible)
    (pattern,) = plan.patterns
    kernel = schedule(pattern, module, device, "figure_7", verify=True)
    assert len(kernel.phases) - 1 == 2
    combines = [
        statement
        for phase in kernel.phases
        for section in phase.sections
        for statement in statements(section.body)
        if isinstance(statement, LaneReduce) and statement.scope is Scope.GROUP
    ]
    assert len(combines) == 1
