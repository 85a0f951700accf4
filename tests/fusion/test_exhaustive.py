"""The exhaustive planner on real modules: complete, acyclic, and no larger than its rules allow."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from stitchcore.device.records import DEVICES, Device
from stitchcore.errors import Reason, Refusal
from stitchcore.fusion import candidates, planner_exhaustive
from stitchcore.fusion.candidates import Role
from stitchcore.fusion.cost import cost, unfused
from stitchcore.fusion.pattern import Estimate, Pattern, Plan
from stitchcore.fusion.planners import PLANNERS
from stitchcore.hlo.ir import builder, opcodes
from stitchcore.hlo.ir.instruction import Instruction, computation, instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.text.parser import parse
from tests.calls import calls

DEVICE = DEVICES["cpu-x86-64-v3"]
FOLDER = Path(__file__).resolve().parents[2] / "tests" / "workloads"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "workloads"
WORKLOADS = sorted((FOLDER if FOLDER.exists() else SHARED).glob("*.hlo.xz"))


def load(name: str) -> Module:
    path = next((p for p in WORKLOADS if p.name == f"{name}.hlo.xz"), None)
    if path is None:
        pytest.skip(f"workload {name} is not in {FOLDER} or {SHARED}: copy the modules there")
    with lzma.open(path, "rt") as file:
        return parse(file.read())


def anything(pattern: Pattern, device: Device) -> Refusal | None:
    return None


def planned(module: Module) -> Plan:
    return PLANNERS["exhaustive"](module, DEVICE, cost, anything)


def check(plan: Plan) -> None:
    """Every value is made before it is read, once, by a runnable order of patterns."""
    graph = candidates.build(plan.module, {})
    owner: dict[Instruction, int] = {}
    for number, pattern in enumerate(plan.patterns):
        inside = set(pattern.instructions)
        assert len(inside) == len(pattern.instructions)
        assert set(pattern.outputs) <= inside
        assert not set(pattern.inputs) & inside
        known = set(pattern.inputs)
        for node in pattern.instructions:
            assert all(operand in known for operand in node.operands), "not closed, or no order"
            known.add(node)
        for value in pattern.outputs:
            assert value not in owner, "two kernels make one value"
            owner[value] = number
    placed = {graph.instructions[v] for v in graph.placed()}
    covered = {node for pattern in plan.patterns for node in pattern.instructions}
    assert placed <= covered
    runnable(plan, owner)


def runnable(plan: Plan, owner: dict[Instruction, int]) -> None:
    """Fails when patterns and opaque instructions wait for each other in a cycle."""
    state: dict[int | Instruction, int] = {}
    stack: list[tuple[int | Instruction, bool]] = [
        (owner.get(v, v), False) for v in plan.module.outputs
    ]
    while stack:
        step, ready = stack.pop()
        if ready:
            state[step] = 2
            continue
        if state.get(step) == 2:
            continue
        assert state.get(step) != 1, "cycle"
        state[step] = 1
        stack.append((step, True))
        needed = plan.patterns[step].inputs if isinstance(step, int) else step.operands
        for value in needed:
            key = owner.get(value, value)
            assert state.get(key) != 1, "cycle"
            if key not in state:
                stack.append((key, False))


@pytest.mark.slow
@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.name.removesuffix(".hlo.xz"))
def test_every_workload_plans_completely_and_without_cycles(path: Path) -> None:
    plan = planned(load(path.name.removesuffix(".hlo.xz")))
    check(plan)
    for body in plan.nested.values():
        check(body)
    graph = candidates.build(plan.module, {})
    placed = {graph.instructions[v] for v in graph.placed()}
    for pattern in plan.patterns:
        own = [node for node in pattern.instructions if node in placed]
        whole = cost(pattern, DEVICE)
        assert len(own) == 1 or whole.seconds <= unfused(own, DEVICE).seconds * (1 + 1e-9)
    assert plan.planned.seconds <= plan.unfused.seconds


def test_what_is_sliced_for_a_library_call_is_made_before_it() -> None:
    """The call reads a view of the slice, and what reads the call reads the slice's operand: no
    kernel may hold both the slice and that reader."""
    p = builder.parameter(0, "s32", (128, 2))
    view = builder.reshape(builder.slice_(p, [(0, 128, 1), (0, 1, 1)]), (128,))
    left, right = builder.parameter(0, "s32"), builder.parameter(1, "s32")
    less = computation(
        (left, right), builder.elementwise(opcodes.COMPARE, left, right, direction="LT")
    )
    call = instruction(
        opcodes.SORT, view.shape, (view,), dimensions=(0,), is_stable=True, to_apply=less
    )
    last = builder.elementwise(opcodes.ADD, builder.broadcast(call, (128, 2), (0,)), p)
    check(planned(Module("m", computation((p,), builder.tuple_([last])))))


def test_what_reads_a_large_sum_and_fits_the_cache_is_in_its_kernel() -> None:
    """The update alone would find its operands in the cache, were they not too large together."""
    text = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[64,65536] parameter(0)
  old = f32[65536] parameter(1)
  rate = f32[] parameter(2)
  other = f32[65536] parameter(3)
  none = f32[] constant(0)
  s = f32[65536] reduce(x, none), dimensions={0}, to_apply=sum
  rates = f32[65536] broadcast(rate), dimensions={}
  step = f32[65536] multiply(s, rates)
  new = f32[65536] subtract(old, step)
  more = f32[65536] add(other, new)
  ROOT both = (f32[65536], f32[65536]) tuple(new, more)
}
"""
    plan = planned(parse(text))
    assert len(plan.patterns) == 1


@pytest.mark.parametrize("name", ["softmax_grad", "layernorm_gelu_grad"])
def test_a_gradient_block_is_one_kernel(name: str) -> None:
    plan = planned(load(name))
    assert len(plan.patterns) == 1
    assert not plan.opaque


@pytest.mark.slow
def test_every_opaque_instruction_has_its_reason() -> None:
    plan = planned(load("bert_train"))
    assert len(plan.refusals) == len(plan.opaque)
    assert {r.reason for r in plan.refusals} <= {
        Reason.LIBRARY_CALL,
        Reason.CONTROL_FLOW,
        Reason.UNSUPPORTED_OPCODE,
        Reason.UNSUPPORTED_TYPE,
    }


def test_loop_bodies_are_planned() -> None:
    plan = planned(load("lstm_lm_train"))
    assert any(body.patterns for body in plan.nested.values())


F32 = "f32"


def parameter(number: int, *dims: int) -> Instruction:
    return instruction(opcodes.PARAMETER, Shape(F32, dims), number=number)


def binary(opcode: str, left: Instruction, right: Instruction) -> Instruction:
    return instruction(opcode, left.shape, (left, right))


def dot(left: Instruction, right: Instruction) -> Instruction:
    shape = Shape(F32, (left.shape.dims[0], right.shape.dims[1]))
    return instruction(
        opcodes.DOT, shape, (left, right), lhs_contracting_dims=(1,), rhs_contracting_dims=(0,)
    )


def module_of(parameters: list[Instruction], *outputs: Instruction) -> Module:
    shape = Shape("tuple", (), tuple(output.shape for output in outputs))
    root = instruction(opcodes.TUPLE, shape, outputs)
    return Module("m", computation(parameters, root))


def test_a_value_read_on_both_sides_of_a_library_call_does_not_make_a_cycle() -> None:
    x, w = parameter(0, 64, 64), parameter(1, 64, 64)
    before = binary(opcodes.MULTIPLY, x, x)
    after = binary(opcodes.ADD, dot(before, w), before)
    plan = planned(module_of([x, w], after))
    check(plan)
    assert len(plan.patterns) == 2


def test_cheap_work_moves_to_its_reader() -> None:
    """x*x is only needed after the library call: x crosses anyway, the square must not."""
    x, w = parameter(0, 256, 256), parameter(1, 256, 256)
    y = dot(x, w)
    square = binary(opcodes.MULTIPLY, y, y)
    z = binary(opcodes.ADD, dot(binary(opcodes.ADD, y, y), w), square)
    plan = planned(module_of([x, w], z))
    check(plan)
    last = plan.patterns[-1]
    assert square in last.instructions
    assert y in last.inputs


def test_a_refused_instruction_is_left_out_and_the_rest_is_planned_around_it() -> None:
    x = parameter(0, 128, 128)
    bad = instruction(opcodes.TANH, x.shape, (binary(opcodes.ADD, x, x),))
    out = binary(opcodes.MULTIPLY, bad, x)

    def no_tanh(pattern: Pattern, device: Device) -> Refusal | None:
        if any(node is bad for node in pattern.instructions):
            return Refusal("p", Reason.UNSUPPORTED_OPCODE, "tanh")
        return None

    plan = planner_exhaustive.plan(module_of([x], out), DEVICE, cost, no_tanh)
    assert bad in plan.opaque
    assert [r.detail for r in plan.refusals] == ["tanh"]
    assert sum(len(p.outputs) for p in plan.patterns) == 2


def test_an_estimate_above_the_parts_is_never_emitted() -> None:
    x = parameter(0, 128, 128)
    out = binary(opcodes.MULTIPLY, binary(opcodes.ADD, x, x), x)

    def dear(pattern: Pattern, device: Device) -> Estimate:
        estimate = cost(pattern, device)
        return replace(estimate, seconds=1.0) if len(pattern.instructions) > 1 else estimate

    plan = planner_exhaustive.plan(module_of([x], out), DEVICE, dear, anything)
    assert [len(p.instructions) for p in plan.patterns] == [1, 1]


@pytest.mark.slow
def test_planning_work_grows_linearly() -> None:
    """Three times the layers, about three times the calls (seconds are in bench/planning.py)."""

    def chain(layers: int) -> Module:
        x, w = parameter(0, 64, 64), parameter(1, 64, 64)
        value = x
        for _ in range(layers):
            y = dot(value, w)
            for _ in range(8):
                y = binary(opcodes.MULTIPLY, binary(opcodes.ADD, y, x), y)
            value = y
        return module_of([x, w], value)

    small, large = chain(200), chain(600)
    assert len(list(topological([large.entry.root]))) > 10000
    planned(large)  # what is cached by instruction is cached for both: `small` is its beginning
    assert calls(lambda: planned(large)) < 3.5 * calls(lambda: planned(small))


def test_roles_of_constants_views_and_scalars() -> None:
    x, lr = parameter(0, 128, 128), parameter(1)
    half = instruction(opcodes.MULTIPLY, lr.shape, (lr, lr))
    wide = instruction(opcodes.BROADCAST, x.shape, (half,), dimensions=())
    out = binary(opcodes.MULTIPLY, x, wide)
    graph = candidates.build(module_of([x, lr], out), {})
    roles = {graph.instructions[v]: role for v, role in enumerate(graph.roles)}
    assert roles[half] is Role.DUPLICABLE
    assert roles[out] is Role.PLACED
    plan = planned(module_of([x, lr], out))
    assert [set(p.inputs) for p in plan.patterns] == [{x, lr}]


LARGE = "f32[2048,1024]"


def test_lone_instructions_of_one_level_share_a_kernel() -> None:
    """Three large independent sums, as the biases of attention's projections."""
    operands = ", ".join(f"p{k}: {LARGE}" for k in range(6))
    lines = [f"  p{k} = {LARGE} parameter({k})" for k in range(6)]
    lines += [f"  s{k} = {LARGE} add(p{2 * k}, p{2 * k + 1})" for k in range(3)]
    result = f"({', '.join([LARGE] * 3)})"
    text = (
        f"HloModule lone\n\nENTRY main ({operands}) -> {result} {{\n"
        + "\n".join(lines)
        + f"\n  ROOT t = {result} tuple(s0, s1, s2)\n}}\n"
    )
    plan = planned(parse(text))
    check(plan)
    assert [len(pattern.outputs) for pattern in plan.patterns] == [3]


def test_a_view_of_an_input_is_left_to_the_framework() -> None:
    """An output that only reshapes a parameter is copied by no kernel."""
    text = (
        f"HloModule view\n\nENTRY main (p: {LARGE}) -> (f32[2097152], {LARGE}) {{\n"
        f"  p = {LARGE} parameter(0)\n  v = f32[2097152] reshape(p)\n"
        f"  e = {LARGE} exponential(p)\n  ROOT t = (f32[2097152], {LARGE}) tuple(v, e)\n}}\n"
    )
    plan = planned(parse(text))
    assert [[n.opcode for n in pattern.instructions] for pattern in plan.patterns] == [
        ["exponential"]
    ]
