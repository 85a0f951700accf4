"""Small products of matrices as CUDA: one kernel where the prices say so, right and free of races
on the emulator, and no register spilled. Judged by float64, as any kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stitchcore.compiler.stages import ModuleState
from stitchcore.device.records import DEVICES
from stitchcore.fusion.mechanisms import ALL, Mechanism
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.nodes import Role, Scope
from stitchcore.toolchain import cuda_compiler
from tests.emulator import kernels, twins
from tests.emulator.launch import Order, Schedule
from tests.emulator.program import compile_text
from tests.schedule.modules import apply, broadcast, module_of, reduce, scalar
from tests.schedule.test_contractions import (
    attention,
    batched,
    biased,
    dot,
    lstm_cell,
    parameters,
    planned,
    policy,
)
from tests.schedule.twins import Twin, toy

RUNS = [(Schedule(), 3), (Schedule(Order.REVERSE), 1), (Schedule(Order.RANDOM, 1, preempt=True), 5)]


def cubes() -> tuple[Module, Any]:
    left, right = parameters((24, 16, 16), (24, 16, 16))
    return module_of([dot(left, right, (2, 1))], [left, right]), None


def layer() -> tuple[Module, Any]:
    x, w, b = parameters((32, 64), (64, 64), (64,))
    zero = broadcast(scalar(0.0), (32, 64), ())
    return module_of([apply(op.MAXIMUM, biased(dot(x, w), b), zero)], [x, w, b]), None


def halves() -> tuple[Module, Any]:
    """bfloat16, multiplied and summed in float32."""
    text = """HloModule halves
ENTRY main {
  x = bf16[6,16,32] parameter(0)
  w = bf16[6,32,16] parameter(1)
  b = bf16[6,16,16] parameter(2)
  y = bf16[6,16,16] dot(x, w), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2},
    rhs_contracting_dims={1}
  ROOT z = bf16[6,16,16] add(y, b)
}"""
    return parse(text.replace(",\n   ", ",")), None


MODELS = (halves, cubes, layer, policy, attention, lstm_cell, batched)


def products(state: ModuleState) -> int:
    assert state.plan is not None
    return sum(node.opcode == op.DOT for node in state.plan.opaque)


@pytest.mark.parametrize("model", MODELS)
def test_a_small_model_is_one_kernel_and_right(model: Callable[[], tuple[Module, Any]]) -> None:
    state = planned(model()[0], twins.DEVICE)
    assert state.plan is not None and not products(state)
    [pattern], [kernel] = state.plan.patterns, state.kernels
    twin = Twin(pattern, state.module, kernel, {}, ())
    found = twins.emulated(twin, compile_text(kernels.rendered([kernel])), RUNS)
    assert found.right and found.check.informative, (str(found.check), found.findings)


@pytest.mark.parametrize("model", MODELS)
def test_without_it_every_product_is_a_call(model: Callable[[], tuple[Module, Any]]) -> None:
    calls = products(planned(model()[0], twins.DEVICE, ALL - {Mechanism.GEMM}))
    assert calls == {"policy": 3, "attention": 2, "lstm_cell": 2}.get(model.__name__, 1)


def test_a_conversion_of_a_factor_waits_for_no_other_task() -> None:
    [kernel] = planned(halves()[0], twins.DEVICE).kernels
    assert len(kernel.phases) == 1 and not kernel.with_role(Role.SCRATCH)
    with toy({"factor_cost": 1}):
        [kernel] = planned(halves()[0], twins.DEVICE).kernels
    assert len(kernel.phases) == 2


@pytest.mark.parametrize("model", [policy, attention, lstm_cell])
def test_what_a_row_is_made_of_stays_in_its_task(model: Callable[[], tuple[Module, Any]]) -> None:
    """Layers, a softmax between two products, gates: one phase, and nothing through memory."""
    [kernel] = planned(model()[0], twins.DEVICE).kernels
    assert len(kernel.phases) == 1 and not kernel.with_role(Role.SCRATCH)
    apart = planned(model()[0], twins.DEVICE, ALL - {Mechanism.REGIONAL}).kernels
    assert any(kernel.with_role(Role.SCRATCH) for kernel in apart)


@pytest.mark.usefixtures("needs_nvrtc")
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_none_spills(target: str) -> None:
    states = [planned(model()[0], DEVICES[target]) for model in MODELS]
    given = [kernel for state in states for kernel in state.kernels]
    units, refused = cuda_compiler.compile_kernels(given, target)
    assert not refused and not any(map(products, states))
    fits = [fit for unit in units for fit in unit.fits]
    assert len(fits) == len(MODELS)
    assert all(fit.resources.spill_bytes == 0 and fit.blocks >= 1 for fit in fits)


@pytest.mark.parametrize(
    ("rows", "columns", "scope"), [(40, 96, Scope.WARP), (9, 256, Scope.GROUP)]
)
def test_columns_that_a_lane_takes_together_are_right(
    rows: int, columns: int, scope: Scope
) -> None:
    """Of rows of a warp and of a block, where a lane has several; on a GPU so small that the first
    are many. The left factor is computed by the task, the result is read across it."""
    x, w, v = parameters((rows, 20), (20, columns), (rows, columns))
    value = apply(op.MULTIPLY, dot(apply(op.TANH, x), w), v)
    total = broadcast(reduce(value, (1,)), (rows, columns), (0,))
    module = module_of([apply(op.SUBTRACT, value, total)], [x, w, v])
    state = planned(module, replace(twins.DEVICE, units=2), ALL - {Mechanism.SEARCH})
    assert state.plan is not None
    [pattern], [kernel] = state.plan.patterns, state.kernels
    [[section]] = [phase.sections for phase in kernel.phases]
    text = kernels.rendered([kernel])
    assert (
        section.scope is scope and f"_tile[{columns // 64 if scope is Scope.GROUP else 3}]" in text
    )
    found = twins.emulated(Twin(pattern, state.module, kernel, {}, ()), compile_text(text), RUNS)
    assert found.right, (str(found.check), found.findings)


def test_steps_backwards_go_on_in_their_rows_past_the_sums_over_them() -> None:
    """A recurrent layer's gradients: each step's is added up over all rows for its bias, which no
    step waits for, so all sums come after all steps."""
    steps = 4
    g, w, *states = parameters((200, 36), (36, 36), *[(200, 36)] * steps)
    outputs = []
    for state in states:
        one = broadcast(scalar(1.0), (200, 36), ())
        slope = apply(op.SUBTRACT, one, apply(op.MULTIPLY, state, state))
        g = apply(op.MULTIPLY, dot(g, w, (1, 1)), slope)
        outputs += [g, reduce(g, (0,))]
    module = module_of(outputs, parameters((200, 36), (36, 36), *[(200, 36)] * steps))
    state = planned(module, twins.DEVICE)
    assert state.plan is not None
    [pattern], [kernel] = state.plan.patterns, state.kernels
    assert len(kernel.phases) == 3
    program = compile_text(kernels.rendered([kernel]))
    found = twins.emulated(Twin(pattern, state.module, kernel, {}, ()), program, RUNS)
    assert found.right and found.check.informative, (str(found.check), found.findings)
