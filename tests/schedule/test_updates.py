"""Dynamic updates inside kernels: numpy's own slices, in place where the memory is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.device.records import DEVICES
from stitchcore.fusion import planner_exhaustive
from stitchcore.fusion.cost import cost, single
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Kernel, Role, Section
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.loop_ir.verifier import IllegalKernel
from stitchcore.loop_ir.verifier import check as legal
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.schedule.pipeline import feasible, schedule
from stitchcore.toolchain.c_compiler import compile_c
from tests.schedule.agree import DEVICE, check
from tests.schedule.modules import apply, broadcast, module_of, parameter, reduce, whole

ROWS, WIDTH, TALL = 7, 24, 2
X = parameter(0, (ROWS, WIDTH))
WINDOW = parameter(1, (TALL, WIDTH))
AT, ZERO = parameter(2, (), "s32"), parameter(3, (), "s32")
GIVEN = [X, WINDOW, AT, ZERO]


def arrays(at: int) -> dict[Instruction, Any]:
    random = np.random.default_rng(5)
    x, window = (random.normal(size=v.shape.static).astype(np.float32) for v in (X, WINDOW))
    return {X: x, WINDOW: window, AT: np.array(at, np.int32), ZERO: np.array(0, np.int32)}


def made(outputs: list[Instruction], at: int, compiled: bool = False) -> Kernel:
    """The kernel, which computes what numpy does by the evaluator."""
    module = module_of(outputs, GIVEN)
    pattern, given = whole(module), arrays(at)
    return check(pattern, module, [given[v] for v in pattern.inputs], compiled=compiled)


def pushed() -> Instruction:
    return builder.dynamic_update_slice(X, apply(op.TANH, WINDOW), [AT, ZERO])


def sections(kernel: Kernel) -> list[Section]:
    return [section for phase in kernel.phases for section in phase.sections]


def test_only_the_window_is_written_where_the_memory_is_the_same() -> None:
    """By ctypes, without the copy that a caller could make: what lies around stays what it was."""
    module = module_of([pushed()], GIVEN)
    pattern, given = whole(module), arrays(3)
    kernel = schedule(pattern, module, DEVICE, "kernel", verify=True)
    [around] = [s for s in sections(kernel) if s.copy_unless_aliased is not None]
    assert kernel.aliases == ((0, 0),) and [b.name for b in around.copy_unless_aliased or ()] == [
        "in0",
        "out0",
    ]
    text = c.render([kernel])
    assert text.count("return 0;\n  for") == 1
    library = CpuKernel(compile_c(text, DEVICE).data, kernel)
    inputs = [given[v] for v in pattern.inputs]
    [apart] = library.run(inputs, {}, 2)
    expected = given[X].copy()
    expected[3:5] = np.tanh(given[WINDOW])
    np.testing.assert_allclose(apart, expected, rtol=1e-6)
    [shared] = interpret(kernel, inputs, {}, share_aliases=True)
    np.testing.assert_allclose(shared, expected, rtol=1e-6)


@pytest.mark.parametrize("at", [-9, 0, 4, 5, 6, 2**31 - 1])
def test_the_window_is_clamped_into_the_operand(at: int) -> None:
    made([pushed()], at)
    made([apply(op.NEGATE, pushed())], at)
    begin = min(max(at, 0), ROWS - TALL)
    module = module_of([pushed()], GIVEN)
    pattern, given = whole(module), arrays(at)
    kernel = schedule(pattern, module, DEVICE, "kernel", verify=True)
    [found] = interpret(kernel, [given[v] for v in pattern.inputs])
    assert not np.array_equal(found[begin : begin + TALL], given[X][begin : begin + TALL])
    kept = [row for row in range(ROWS) if not begin <= row < begin + TALL]
    assert np.array_equal(found[kept], given[X][kept])


def test_a_window_that_is_read_where_it_is_written_is_still_in_place() -> None:
    """A slot that a loop adds to: TensorList's accumulators."""
    before = builder.dynamic_slice(X, [AT, ZERO], [TALL, WIDTH])
    added = apply(op.ADD, before, WINDOW)
    assert made([builder.dynamic_update_slice(X, added, [AT, ZERO])], 2).aliases == ((0, 0),)


def test_what_is_read_elsewhere_too_is_copied() -> None:
    """Else a task could find what another has overwritten."""
    before = builder.dynamic_slice(X, [ZERO, ZERO], [TALL, WIDTH])
    added = apply(op.ADD, before, WINDOW)
    kernel = made([builder.dynamic_update_slice(X, added, [AT, ZERO])], 2)
    assert kernel.aliases == () and not any(s.copy_unless_aliased for s in sections(kernel))
    twice = [pushed(), builder.dynamic_update_slice(X, WINDOW, [AT, ZERO])]
    assert made(twice, 1).aliases == ()


def test_reductions_before_and_after_an_update() -> None:
    """The window from row sums, the operand from row sums, and the update read by later rows."""
    sums = broadcast(reduce(WINDOW, (1,)), (TALL, WIDTH), (0,))
    update = builder.dynamic_update_slice(X, apply(op.SUBTRACT, WINDOW, sums), [AT, ZERO])
    made([update, apply(op.TANH, update)], 4, compiled=True)
    centred = apply(op.SUBTRACT, X, broadcast(reduce(X, (1,)), (ROWS, WIDTH), (0,)))
    made([builder.dynamic_update_slice(centred, WINDOW, [AT, ZERO])], 4, compiled=True)
    made([reduce(pushed(), (1,))], 4, compiled=True)
    place = apply(op.ADD, builder.convert(builder.reduce(WINDOW, [0, 1], op.MAXIMUM), "s32"), AT)
    made([builder.dynamic_update_slice(X, WINDOW, [place, ZERO])], 4, compiled=True)


@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_90"])
def test_an_update_joins_what_makes_its_window(target: str) -> None:
    """One kernel, which costs what the window costs; as two kernels the window moves twice more."""
    module, device = module_of([pushed()], GIVEN), DEVICES[target]
    plan = planner_exhaustive.plan(module, device, cost, feasible)
    [pattern] = plan.patterns
    window = TALL * WIDTH * 4
    assert not plan.opaque and cost(pattern, device).bytes == 2 * window + 8
    assert single(pushed(), device).bytes == 2 * window
    busy = module_of([pushed(), apply(op.TANH, X)], GIVEN)
    whole_bytes = ROWS * WIDTH * 4
    assert cost(whole(busy), device).bytes == 3 * whole_bytes + window + 8


def test_the_pair_stands_in_the_text_and_must_be_forwarded() -> None:
    kernel = schedule(
        whole(module_of([pushed()], GIVEN)), module_of([], GIVEN), DEVICE, "kernel", verify=True
    )
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert " apart in0 out0 {" in print_kernel(kernel)
    [line] = [line for line in print_kernel(kernel).split("\n") if "forward" in line]
    with pytest.raises(IllegalKernel, match="apart"):
        legal(parse_kernel(print_kernel(kernel).replace(line + "\n", "")))


def test_starts_in_one_vector_are_refused() -> None:
    """HLO's old form: the importer's texts have scalars."""
    vector = parameter(2, (2,), "s32")
    update = builder.instruction(op.DYNAMIC_UPDATE_SLICE, X.shape, (X, WINDOW, vector))
    refusal = feasible(whole(module_of([update], [X, WINDOW, vector])), DEVICE)
    assert refusal is not None and "one vector" in refusal.detail


def test_no_scratch_for_what_is_only_put_elsewhere() -> None:
    kernel = made([pushed()], 1, compiled=True)
    assert not kernel.with_role(Role.SCRATCH) and len(kernel.phases) == 1


def test_what_every_lane_reads_is_not_overwritten() -> None:
    """A scalar has no lane of its own: lane 0 would write before the others have read."""
    step = parameter(0, ())
    module = module_of([apply(op.TANH, step)], [step])
    assert check(whole(module), module, [np.array(0.5, np.float32)]).aliases == ()
