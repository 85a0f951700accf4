"""Scatters inside kernels: sums in the order of the indices, whatever the threads; rows outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason
from stitchcore.fusion import candidates, planner_exhaustive
from stitchcore.fusion.cost import cost
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction, computation
from stitchcore.hlo.ir.query import scatter_refusal
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.schedule.pipeline import feasible, schedule
from tests.schedule.agree import DEVICE, check, collapsed
from tests.schedule.modules import apply, module_of, parameter, reduce, whole

ROWS, COUNT = 9, 40


def combined(opcode: str, dtype: str = "f32") -> Computation:
    pair = parameter(0, (), dtype), parameter(1, (), dtype)
    return computation(pair, builder.elementwise(opcode, *pair) if opcode else pair[1])


def rows(
    into: Instruction, ids: Instruction, updates: Instruction, opcode: str = op.ADD
) -> Instruction:
    """What tf2xla makes of segment sums and embeddings' gradients."""
    window = range(ids.shape.rank, updates.shape.rank)
    body = combined(opcode, into.shape.dtype)
    rank = ids.shape.rank
    return builder.scatter(into, ids, updates, body, window=window, scattered=[0], vector_dim=rank)


def drawn(width: int, ids: str = "s32") -> tuple[list[Instruction], list[Any]]:
    """A table, updates and indices of which some lie outside; sums that depend on their order."""
    random = np.random.default_rng(width)
    table, values = parameter(0, (ROWS, width)), parameter(1, (COUNT, width))
    places = random.integers(-3 if ids[0] == "s" else 0, ROWS + 3, COUNT)
    given = [random.normal(size=v.shape.static).astype(np.float32) for v in (table, values)]
    given[1] *= 10.0 ** random.integers(-4, 4, COUNT)[:, None]
    kind = np.dtype(f"{'u' if ids[0] == 'u' else ''}int{ids[1:]}")
    return [table, values, parameter(2, (COUNT,), ids)], [*given, places.astype(kind)]


def run(outputs: list[Instruction], inputs: list[Instruction], given: list[Any]) -> Kernel:
    module = module_of(outputs, inputs)
    pattern, arrays = whole(module), dict(zip(inputs, given, strict=True))
    return check(pattern, module, [arrays[v] for v in pattern.inputs], compiled=True)


@pytest.mark.parametrize("width", [1, 18, 64, 512])
@pytest.mark.parametrize("opcode", [op.ADD, op.SUBTRACT, op.MAXIMUM, ""])
def test_rows_are_combined_in_order_to_the_last_bit(opcode: str, width: int) -> None:
    """A loop in numpy, one update after another; several tasks own the rows of wide tables."""
    inputs, given = drawn(width)
    module = module_of([rows(inputs[0], inputs[2], inputs[1], opcode)], inputs)
    pattern = whole(module)
    kernel = schedule(pattern, module, DEVICE, "kernel", verify=True)
    arrays = dict(zip(inputs, given, strict=True))
    shaped = collapsed(kernel, [arrays[v] for v in pattern.inputs], {})
    expected = given[0].copy()
    for place, new in zip(given[2], given[1], strict=True):
        if 0 <= place < ROWS:
            old = expected[place]
            by = {op.ADD: old + new, op.SUBTRACT: old - new, op.MAXIMUM: np.maximum(old, new)}
            expected[place] = by.get(opcode, new)
    for shared in (False, True):
        [found] = interpret(kernel, shaped, share_aliases=shared)
        assert np.array_equal(found.reshape(expected.shape), expected)
    assert kernel.aliases == ((0, 0),)
    tasks = kernel.phases[-1].sections[-1].tasks
    assert tasks == min(max(width // 16, 1), ROWS)
    run([rows(inputs[0], inputs[2], inputs[1], opcode)], inputs, given)


@pytest.mark.parametrize("ids", ["s8", "u8", "s64", "u64"])
def test_indices_of_any_type_and_rows_outside(ids: str) -> None:
    """The greatest u64 is no row, and not the one before the first either."""
    inputs, given = drawn(5, ids)
    given[2][:2] = [np.iinfo(given[2].dtype).max, np.iinfo(given[2].dtype).min]
    run([rows(inputs[0], inputs[2], inputs[1])], inputs, given)


def test_a_segment_sum_goes_on_in_the_same_kernel() -> None:
    """Zeros that nobody stores but the sum itself, updates computed on the way, Adam after it."""
    inputs, given = drawn(18)
    table, values, ids = inputs
    zeros = builder.splat(0.0, table)
    sums = rows(zeros, ids, apply(op.TANH, values))
    module = module_of([apply(op.SUBTRACT, table, sums), reduce(sums, (1,))], inputs)
    plan = planner_exhaustive.plan(module, DEVICE, cost, feasible)
    [pattern] = plan.patterns
    assert not plan.opaque and sums in pattern.instructions
    run([apply(op.SUBTRACT, table, sums), reduce(sums, (1,))], inputs, given)
    twice = rows(sums, ids, values, op.MAXIMUM)
    run([twice], inputs, given)


def test_updates_that_reductions_make_and_places_that_they_decide() -> None:
    inputs, given = drawn(6)
    table, values, ids = inputs
    means = builder.broadcast(reduce(values, (1,)), values.shape.dims, (0,))
    first = builder.reduce(ids, [0], op.MINIMUM)
    moved = apply(op.SUBTRACT, ids, builder.broadcast(first, ids.shape.dims, ()))
    run([rows(table, moved, apply(op.MULTIPLY, values, means))], inputs, given)


def test_vectors_of_indices_in_another_order() -> None:
    """[1, 0] of three dimensions, the index vector first, the window in the middle."""
    table, values = parameter(0, (4, 5, 3)), parameter(1, (2, 3, 7))
    ids = parameter(2, (2, 2, 7), "s32")
    random = np.random.default_rng(3)
    given: list[Any] = [random.normal(size=v.shape.static).astype("f4") for v in (table, values)]
    given.append(random.integers(-1, 6, ids.shape.static).astype(np.int32))
    made = builder.scatter(
        table, ids, values, combined(op.ADD), window=[1], scattered=[1, 0], vector_dim=0
    )
    run([made], [table, values, ids], given)
    zeros = builder.elementwise(op.SUBTRACT, table, builder.splat(1.0, table))
    made = builder.scatter(
        zeros, ids, values, combined(op.ADD), window=[1], scattered=[1, 0], vector_dim=0
    )
    run([made], [table, values, ids], given)


def test_what_is_no_sum_of_whole_rows_is_refused_with_its_reason() -> None:
    inputs, _ = drawn(8)
    table, values, ids = inputs
    pair = parameter(0, (), "f32"), parameter(1, (), "f32")
    product = builder.elementwise(op.MULTIPLY, *pair)
    body = computation(pair, builder.elementwise(op.ADD, product, pair[1]))
    odd = builder.scatter(table, ids, values, body, window=[1], scattered=[0], vector_dim=1)
    assert candidates.refused(odd) == (
        Reason.UNSUPPORTED_OPCODE, "a scatter with a function that is not one opcode",
    )  # fmt: skip
    narrow = parameter(1, (COUNT, 4))
    part = builder.scatter(table, ids, narrow, combined(op.ADD), window=[1], scattered=[0],
                         vector_dim=1)  # fmt: skip
    assert scatter_refusal(part) == "windows that are no whole rows"
    half = [builder.convert(value, "bf16") for value in (table, values)]
    assert scatter_refusal(rows(half[0], ids, half[1])) == "sums of bf16"
    flipped = computation(pair, builder.elementwise(op.SUBTRACT, pair[1], pair[0]))
    wrong = builder.scatter(table, ids, values, flipped, window=[1], scattered=[0], vector_dim=1)
    assert scatter_refusal(wrong) == "a function that is not one opcode"
    refusal = feasible(whole(module_of([rows(table, ids, values)], inputs)), DEVICES["sm_90"])
    assert refusal is not None and refusal.reason is Reason.NOT_PROFITABLE
