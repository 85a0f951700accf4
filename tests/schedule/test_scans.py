"""Cumulative sums inside kernels: numpy's values, whatever the axis; what is made of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.codegen import c
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason
from stitchcore.fusion import candidates, planner_exhaustive
from stitchcore.fusion.cost import cost
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.attributes import WindowDim
from stitchcore.hlo.ir.dim import symbol
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.shape import Shape
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Kernel, Loop, LoopKind, Phase, Role
from stitchcore.loop_ir.visitor import statements
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.schedule.pipeline import feasible, schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.schedule.agree import DEVICE, check, collapsed
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    whole,
)

GPU = DEVICES["sm_90"]


def scanned(
    value: Instruction,
    dim: int,
    reducer: str = op.ADD,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    total: bool = False,
) -> Instruction:
    """What tf2xla makes of Cumsum; with `total` as it is before the slice of `exclusive`."""
    extent, dtype = value.shape.dims[dim], value.shape.dtype
    before, after = (extent if exclusive else extent - 1), -int(exclusive and not total)
    low, high = (after, before) if reverse else (before, after)
    window = [WindowDim(1)] * value.shape.rank
    window[dim] = WindowDim(extent, 1, low, high)
    dims = list(value.shape.dims)
    dims[dim] = extent + total
    identity = op.record(reducer).identity
    assert identity is not None
    return instruction(
        op.REDUCE_WINDOW,
        Shape(dtype, tuple(dims)),
        (value, builder.constant(identity(dtype), dtype)),
        window=tuple(window),
        to_apply=builder.monoid(reducer, dtype),
    )


def run(outputs: list[Instruction], inputs: list[Instruction], **rest: Any) -> Kernel:
    module = module_of(outputs, inputs)
    pattern = whole(module)
    return check(pattern, module, draw_inputs(pattern, 1), **rest)


DIMS = (((5, 40), 1), ((40, 6), 0), ((3, 40, 7), 1), ((40,), 0), ((20, 2, 3), 0), ((150, 33), 1))
WAYS: tuple[dict[str, bool], ...] = (
    {},
    {"reverse": True},
    {"exclusive": True},
    {"exclusive": True, "reverse": True},
    {"exclusive": True, "total": True},
    {"exclusive": True, "reverse": True, "total": True},
)


@pytest.mark.slow
@pytest.mark.parametrize(("dims", "dim"), DIMS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way) or "plain")
def test_every_axis_and_direction(dims: tuple[int, ...], dim: int, way: dict[str, bool]) -> None:
    """The operand is computed on the way, what is made of the elements where they are: one pass."""
    value = parameter(0, dims)
    sums = scanned(apply(op.TANH, value), dim, **way)
    kernel = run([apply(op.MULTIPLY, sums, sums)], [value], compiled=True)
    assert len(kernel.phases) == 1 and not kernel.with_role(Role.SCRATCH)
    run([sums, apply(op.NEGATE, sums)], [value])


@pytest.mark.parametrize("reducer", [op.MULTIPLY, op.MAXIMUM, op.MINIMUM])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "s32"])
def test_every_reducer_and_type(reducer: str, dtype: str) -> None:
    value = parameter(0, (6, 20), dtype)
    exclusive = reducer == op.MULTIPLY  # the others' neutral elements have no finite scale
    run([scanned(value, 1, reducer), scanned(value, 0, reducer, exclusive=exclusive)], [value])


@pytest.mark.parametrize(("dims", "dim"), [((4, 9000), 1), ((9000, 70), 0), ((9000,), 0)])
def test_long_sums_are_those_of_a_loop(dims: tuple[int, ...], dim: int) -> None:
    """To the last bit, on a CPU: so are TensorFlow's (tests/tensorflow/test_scans.py)."""
    value = parameter(0, dims)
    module = module_of([scanned(value, dim)], [value])
    kernel = schedule(whole(module), module, DEVICE, "kernel", verify=True)
    given = np.random.default_rng(0).random(dims).astype(np.float32)
    library = compile_c(c.render([kernel]), DEVICE)
    [found] = CpuKernel(library.data, kernel).run(collapsed(kernel, [given], {}), {}, 2)
    assert np.array_equal(np.asarray(found).reshape(dims), np.add.accumulate(given, dim))


def test_a_gpu_rounds_long_sums_once() -> None:
    """Half a unit in the last place of each, where a loop in f32 is hundreds off."""
    value = parameter(0, (1500, 256))
    module = module_of([scanned(value, 0)], [value])
    kernel = schedule(whole(module), module, GPU, "kernel", verify=True)
    given = np.random.default_rng(0).random((1500, 256)).astype(np.float32)
    [found] = interpret(kernel, collapsed(kernel, [given], {}))
    exact = np.add.accumulate(given.astype(np.float64), 0).astype(np.float32)
    assert np.array_equal(found.reshape(1500, 256), exact)


def test_products_out_of_range_stay_so() -> None:
    """TensorFlow's kernel multiplies f32 along the axis: 1e30 x 1e30 x 1e-30 is infinite there."""
    value = parameter(0, (20, 2))
    given = np.full((20, 2), 1e30, np.float32)
    given[2:] = 1e-30
    module = module_of([scanned(value, 0, op.MULTIPLY)], [value])
    kernel = schedule(whole(module), module, DEVICE, "kernel", verify=True)
    [found] = interpret(kernel, [given])
    assert np.isinf(found[1:]).all() and np.isfinite(found[0]).all()
    assert np.array_equal(found, evaluate(module, [given])[0])


def loops(phase: Phase) -> list[Loop]:
    """Passes along an axis: serial loops that are inside a lane loop."""
    lanes = [s for section in phase.sections for s in statements(section.body)
             if isinstance(s, Loop) and s.kind is LoopKind.LANES]  # fmt: skip
    return [s for lane in lanes for s in statements(lane.body) if isinstance(s, Loop)]


def test_what_comes_before_and_after_is_in_the_same_kernel() -> None:
    """Softmax, its sums (top-p sampling's), what a reduction makes of them, and a transpose."""
    value = parameter(0, (24, 70))
    raised = apply(op.EXPONENTIAL, apply(op.TANH, value))
    shares = apply(op.DIVIDE, raised, broadcast(reduce(raised, (1,)), (24, 70), (0,)))
    sums = scanned(shares, 1)
    turned = instruction(op.TRANSPOSE, Shape("f32", (70, 24)), (sums,), dimensions=(1, 0))
    most = reduce(apply(op.SUBTRACT, sums, value), (1,), op.MAXIMUM)
    kernel = run([apply(op.NEGATE, turned), most], [value], compiled=True)
    assert [len(loops(phase)) for phase in kernel.phases[:2]] == [0, 1]  # rows first, then scans
    module = module_of([apply(op.NEGATE, turned), most], [value])
    plan = planner_exhaustive.plan(module, DEVICE, cost, feasible)
    assert len(plan.patterns) == 1 and not plan.opaque


def test_a_scan_of_a_scan_and_two_scans_of_one_value() -> None:
    value, other = parameter(0, (30, 18)), parameter(1, (30, 18))
    first = scanned(value, 0)
    run([scanned(first, 1), apply(op.ADD, first, scanned(value, 0, reverse=True))], [value])
    run([apply(op.ADD, scanned(value, 1), scanned(other, 1))], [value, other], compiled=True)


def test_operands_that_vary_along_nothing() -> None:
    value, row = parameter(0, (18,)), builder.constant(0.5, "f32")
    run(
        [scanned(broadcast(value, (4, 18), (1,)), 0), scanned(broadcast(row, (19,), ()), 0)],
        [value],
    )
    places = builder.iota("f32", (20, 18), 0)
    run([apply(op.ADD, scanned(places, 0), broadcast(value, (20, 18), (1,)))], [value])
    split = builder.reshape(value, (6, 3))
    run([builder.reshape(scanned(broadcast(split, (20, 6, 3), (1, 2)), 0), (20, 18))], [value])


def test_unknown_sizes() -> None:
    batch = symbol("B")
    for dims, dim in (((batch, 20), 1), ((batch, 20), 0), ((3, batch), 1)):
        value = parameter(0, dims)
        for way in WAYS[:4]:
            module = module_of([scanned(value, dim, **way)], [value], ("B",))
            pattern = whole(module)
            check(pattern, module, draw_inputs(pattern, 1, {"B": 9}), {"B": 9})


def test_tasks_share_rows_and_columns() -> None:
    """As many tasks as leave each a few cache lines a step; sums do not depend on their number."""
    long = run([scanned(parameter(0, (40, 300)), 0)], [parameter(0, (40, 300))], compiled=True)
    assert long.phases[0].sections[0].tasks == 1
    wide = parameter(0, (600, 130))
    many = schedule(
        whole(module_of([scanned(wide, 0)], [wide])),
        module_of([], [wide]),
        DEVICE,
        "k",
        verify=True,
    )
    assert many.phases[0].sections[0].tasks == 3
    rows = schedule(
        whole(module_of([scanned(wide, 1)], [wide])),
        module_of([], [wide]),
        DEVICE,
        "k",
        verify=True,
    )
    assert rows.phases[0].sections[0].tasks == 75


@settings(max_examples=30)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=3), st.data())
def test_scans_of_drawn_values(dims: list[int], data: st.DataObject) -> None:
    """Scans of views, of sums and of each other, as outputs and on the way."""
    values = [parameter(0, tuple(dims))]
    for _ in range(data.draw(st.integers(1, 4))):
        value = data.draw(st.sampled_from(values))
        rank = value.shape.rank
        kind = data.draw(
            st.sampled_from(["scan", "scan", "unary", "turn", "reverse", "add", "row"])
        )
        if kind == "scan":
            way = data.draw(st.sampled_from(WAYS[:4]))
            value = scanned(value, data.draw(st.integers(0, rank - 1)), **way)
        elif kind == "unary":
            value = apply(op.TANH, value)
        elif kind == "turn":
            order = tuple(data.draw(st.permutations(range(rank))))
            shape = Shape("f32", tuple(value.shape.dims[d] for d in order))
            value = instruction(op.TRANSPOSE, shape, (value,), dimensions=order)
        elif kind == "reverse":
            value = builder.reverse(value, [data.draw(st.integers(0, rank - 1))])
        elif kind == "row":
            d = data.draw(st.integers(0, rank - 1))
            rest = tuple(k for k in range(rank) if k != d)
            value = broadcast(reduce(value, (d,)), value.shape.dims, rest)
        else:
            alike = [v for v in values if v.shape == value.shape]
            value = apply(op.ADD, value, data.draw(st.sampled_from(alike)))
        values.append(value)
    outputs = [v for v in dict.fromkeys(values[1:]) if v.opcode != op.PARAMETER]
    chosen = data.draw(st.lists(st.sampled_from(outputs), min_size=1, max_size=2, unique=True))
    run(list(dict.fromkeys([*chosen, values[-1]])) if values[-1] in outputs else chosen, values[:1])


def test_what_is_no_scan_is_refused_with_its_reason() -> None:
    value = parameter(0, (40, 300))
    sums = scanned(value, 0)

    def changed(**rest: Any) -> Instruction:
        operands = rest.pop("operands", sums.operands)
        shape = rest.pop("shape", sums.shape)
        return instruction(op.REDUCE_WINDOW, shape, operands, **{**dict(sums.attributes), **rest})

    for window in (WindowDim(45, 1, 44, 5), WindowDim(39, 1, 39, 0), WindowDim(20, 1, 10, 9),
                   WindowDim(40, 1, 38, 1), WindowDim(40, 1, 39, 0, reversed=True)):  # fmt: skip
        why = candidates.refused(changed(window=(window, WindowDim(1))))
        detail = "a window that is neither small nor from an end of its axis"
        assert why == (Reason.UNSUPPORTED_OPCODE, detail)
    started = changed(operands=(value, builder.constant(1.0, "f32")))
    detail = "a window that does not start at its function's neutral element"
    assert candidates.refused(started) == (Reason.UNSUPPORTED_OPCODE, detail)
    assert candidates.refused(sums) is None


def test_a_gpu_takes_what_is_as_wide_as_a_block() -> None:
    """Beside the axis must lie an element for each lane, else a block would mostly wait."""
    for dims, dim in itertools.product(((40, 300), (40, 30)), (0, 1)):
        value = parameter(0, dims)
        pattern = whole(module_of([scanned(value, dim)], [value]))
        refusal = feasible(pattern, GPU)
        if (dims, dim) == ((40, 300), 0):
            assert refusal is None
            run([apply(op.NEGATE, scanned(value, dim))], [value], device=GPU)
        else:
            assert refusal is not None and refusal.reason is Reason.NOT_PROFITABLE
