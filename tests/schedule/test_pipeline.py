"""Schedules of known graphs: their shape is pinned, their values agree with numpy."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest

from stitchcore.device.records import DEVICES, Device
from stitchcore.errors import Reason
from stitchcore.fusion import planner_exhaustive
from stitchcore.fusion.cost import cost
from stitchcore.hlo.ir import dim, literal
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, computation, instruction
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.transforms.simplify import simplify
from stitchcore.loop_ir.nodes import Kernel, Loop, LoopKind, Role, Statement
from stitchcore.loop_ir.verifier import check as check_kernel
from stitchcore.schedule.pipeline import feasible, schedule
from tests import tiers
from tests.schedule.agree import DEVICE, check
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    scalar,
    whole,
)

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"


def lane_loops(kernel: Kernel, phase: int, section: int = 0, depth: int = 1) -> int:
    """Lane loops inside `depth` serial loops of a section."""

    def count(body: tuple[Statement, ...], level: int) -> int:
        found = 0
        for statement in body:
            if isinstance(statement, Loop):
                if statement.kind is LoopKind.LANES:
                    found += level == depth
                else:
                    found += count(statement.body, level + 1)
        return found

    return count(kernel.phases[phase].sections[section].body, 0)


def shape_of(kernel: Kernel) -> list[int]:
    return [len(phase.sections) for phase in kernel.phases]


def layer_norm_gradient(rows: Any, columns: Any) -> list[Instruction]:
    """dx, dgamma, dbeta from x, gamma, dy, mean and 1 / deviation."""
    large = (rows, columns)
    x, dy = parameter(0, large), parameter(2, large)
    gamma = broadcast(parameter(1, (columns,)), large, (1,))
    mean = broadcast(parameter(3, (rows,)), large, (0,))
    scale = broadcast(parameter(4, (rows,)), large, (0,))
    normal = apply(op.MULTIPLY, apply(op.SUBTRACT, x, mean), scale)
    weighted = apply(op.MULTIPLY, dy, gamma)
    ratio = broadcast(scalar(1 / 768), (rows,), ())
    first = apply(op.MULTIPLY, reduce(weighted, (1,)), ratio)
    second = apply(op.MULTIPLY, reduce(apply(op.MULTIPLY, weighted, normal), (1,)), ratio)
    inner = apply(op.SUBTRACT, weighted, broadcast(first, large, (0,)))
    inner = apply(op.SUBTRACT, inner, apply(op.MULTIPLY, normal, broadcast(second, large, (0,))))
    dx = apply(op.MULTIPLY, scale, inner)
    dgamma = reduce(apply(op.MULTIPLY, dy, normal), (0,))
    return [dx, dgamma, reduce(dy, (0,))]


def parameters_of(outputs: list[Instruction]) -> list[Instruction]:
    from stitchcore.hlo.ir.instruction import topological

    found = [v for v in topological(outputs) if v.opcode == op.PARAMETER]
    return sorted(found, key=lambda p: int(p["number"]))


def test_layer_norm_gradient_is_one_kernel_of_two_lane_loops() -> None:
    outputs = layer_norm_gradient(200, 96)
    module = module_of(outputs, parameters_of(outputs))
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert shape_of(kernel) == [1, 1]
    assert lane_loops(kernel, 0, depth=2) == 2  # in rows, in blocks of rows


@pytest.mark.slow
def test_softmax_gradient_of_tensorflow_is_one_phase_of_four_lane_loops() -> None:
    module = workload("softmax_grad")
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert shape_of(kernel) == [1]
    assert lane_loops(kernel, 0, depth=2) == 4
    assert not kernel.with_role(Role.SCRATCH)


def test_layer_norm_gelu_gradient_of_tensorflow_is_one_kernel() -> None:
    """Of two phases where several tasks leave parts of the sums over rows, else of one."""
    module = workload("layernorm_gelu_grad")
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert shape_of(kernel) == [1]
    assert shape_of(schedule(pattern, module, DEVICES["sm_80"], "kernel", verify=True)) == [1, 1]


def batch_norm_gradient(count: Any, channels: int) -> list[Instruction]:
    large = (count, 3, channels)
    x, dy = parameter(0, large), parameter(1, large)
    scale, shift = (parameter(i, (channels,)) for i in (2, 3))
    scaled = apply(op.MULTIPLY, x, _wide(scale, large))
    normal = apply(op.ADD, scaled, _wide(shift, large))
    zero = broadcast(scalar(0.0), large, ())
    positive = instruction(op.COMPARE, Shape("pred", large), (normal, zero), direction="GT")
    masked = instruction(op.SELECT, dy.shape, (positive, dy, zero))
    total = reduce(masked, (0, 1))
    weighted = reduce(apply(op.MULTIPLY, masked, x), (0, 1))
    back = apply(op.SUBTRACT, masked, _wide(apply(op.MULTIPLY, total, scale), large))
    back = apply(op.SUBTRACT, back, apply(op.MULTIPLY, x, _wide(weighted, large)))
    return [apply(op.MULTIPLY, back, _wide(scale, large)), total, weighted]


def _wide(value: Instruction, dims: tuple[Any, ...]) -> Instruction:
    return broadcast(value, dims, (len(dims) - 1,))


@pytest.mark.slow
def test_batch_norm_relu_gradient_is_one_kernel_of_three_phases() -> None:
    """Parts of both sums; their combination; the input gradient: no large scratch."""
    outputs = batch_norm_gradient(700, 24)
    module = module_of(outputs, parameters_of(outputs))
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert shape_of(kernel) == [1, 1, 1]
    large = 700 * 3 * 24
    sizes = [buffer.dims for buffer in kernel.with_role(Role.SCRATCH)]
    assert all(_product(dims) < large / 4 for dims in sizes)


def _product(dims: Any) -> int:
    total = 1
    for extent in dims:
        total *= int(extent)
    return total


def test_deep_chain_is_cut_into_lane_loops_over_the_rows_of_a_task() -> None:
    x, gate = parameter(0, (50, 36)), parameter(1, (50,))
    value = x
    for _ in range(12):
        moved = apply(op.ADD, apply(op.LOGISTIC, value), broadcast(gate, (50, 36), (0,)))
        value = apply(op.SUBTRACT, apply(op.TANH, moved), apply(op.MULTIPLY, value, x))
    module = module_of([value], [x, gate])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert shape_of(kernel) == [1]
    assert lane_loops(kernel, 0) > 4


@pytest.mark.parametrize("rows", tiers.slow_but(1, 7, of=[1, 7, 300]))
def test_symbolic_rows(rows: int) -> None:
    outputs = layer_norm_gradient(dim.symbol("B"), 40)
    module = module_of(outputs, parameters_of(outputs), ("B",))
    pattern = whole(module)
    bindings = {"B": rows}
    kernel = check(pattern, module, draw_inputs(pattern, 0, bindings), bindings, compiled=True)
    assert kernel.symbols == ("B",)


@pytest.mark.parametrize("size", [1, 33, 5000])
def test_symbolic_lanes(size: int) -> None:
    outputs = layer_norm_gradient(6, dim.symbol("N"))
    module = module_of(outputs, parameters_of(outputs), ("N",))
    pattern = whole(module)
    bindings = {"N": size}
    check(pattern, module, draw_inputs(pattern, 0, bindings), bindings, compiled=True)


def test_long_rows_are_split_over_tasks_and_combined() -> None:
    x = parameter(0, (3, 70000))
    module = module_of([reduce(x, (1,))], [x])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert kernel.phases[0].sections[0].tasks >= 4  # type: ignore[operator]


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2", "bf16", "f16", "f64"])
def test_softmax_in_other_float_types(dtype: str) -> None:
    dims = (20, 33)
    x = parameter(0, dims, dtype)
    top = reduce(x, (1,), op.MAXIMUM)
    raised = apply(op.EXPONENTIAL, apply(op.SUBTRACT, x, broadcast(top, dims, (0,))))
    total = reduce(raised, (1,))
    module = module_of([apply(op.DIVIDE, raised, broadcast(total, dims, (0,)))], [x])
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


@pytest.mark.parametrize("dtype", ["s8", "s32", "s64", "u8", "u32", "u64"])
def test_integers(dtype: str) -> None:
    dims = (9, 14)
    x = parameter(0, dims, dtype)
    ramp = instruction(op.IOTA, Shape(dtype, dims), iota_dimension=1)
    y = apply(op.ADD, apply(op.MULTIPLY, x, x), ramp)
    module = module_of([y, reduce(y, (0,)), reduce(y, (0, 1), op.MAXIMUM)], [x])
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


def test_value_plus_its_transpose_and_an_update_in_place() -> None:
    x, y = parameter(0, (24, 24)), parameter(1, (24, 24))
    turned = instruction(op.TRANSPOSE, x.shape, (x,), dimensions=(1, 0))
    both = apply(op.ADD, x, turned)
    module = module_of([both, apply(op.ADD, y, both)], [x, y])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert [source for source, _ in kernel.aliases] == [1], "x is read by other lanes too"


def test_sums_that_are_read_along_what_they_sum_keep_axes_of_their_own() -> None:
    """A column sum of equal columns is an output, and is compared with the rows it was made of."""
    x = parameter(0, (17,))
    spread = broadcast(x, (17, 17), (0,))
    total = reduce(spread, (0,))
    module = module_of([apply(op.MAXIMUM, spread, broadcast(total, (17, 17), (0,))), total], [x])
    check(whole(module), module, draw_inputs(whole(module), 0), compiled=True)


def test_what_one_lane_writes_takes_over_no_input() -> None:
    """A step's counter, and a running maximum of rows: all lanes read what one of them writes.
    Elements that lanes have one each are taken over, of one row too."""
    count, x, before, vector = (parameter(n, d) for n, d in enumerate(((), (9, 40), (9,), (40,))))
    row = apply(op.MAXIMUM, reduce(x, (1,), op.MAXIMUM), before)
    module = module_of(
        [apply(op.NEGATE, count), row, apply(op.NEGATE, vector)], [count, x, before, vector]
    )
    pattern = whole(module)
    for device in (DEVICE, DEVICES["sm_80"]):
        kernel = check(pattern, module, draw_inputs(pattern, 0), device=device)
        names = [b.name for b in kernel.with_role(Role.INPUT)]
        assert [(names[i], o) for i, o in kernel.aliases] == [("in3", 2)]


def test_an_optimizers_slots_are_updated_in_place_before_its_gradient() -> None:
    """Adam's shape: each next slot is made of slot and gradient, the parameter of both slots."""
    p, m, g, v = (parameter(i, (40,)) for i in range(4))
    slot = apply(op.ADD, apply(op.MULTIPLY, m, m), g)
    other = apply(op.ADD, v, apply(op.MULTIPLY, g, g))
    next_p = apply(op.SUBTRACT, p, apply(op.DIVIDE, slot, apply(op.EXPONENTIAL, other)))
    module = module_of([slot, other, next_p], [p, m, g, v])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    names = [b.name for b in kernel.with_role(Role.INPUT)]
    assert {(names[i], o) for i, o in kernel.aliases} == {
        (names[1], 0), (names[3], 1), (names[0], 2)
    }  # fmt: skip


@pytest.mark.parametrize("device", [DEVICE, DEVICES["sm_80"]], ids=["cpu", "gpu"])
def test_a_part_that_rows_of_other_axes_make_is_read_back(device: Device) -> None:
    """Sums of rows [i, j] beside their transpose: the second part's loops run over j and a new
    axis, so its sums are not those of the row that the loops are in."""
    sums = reduce(parameter(0, (4, 4, 40)), (2,))
    turned = instruction(op.TRANSPOSE, sums.shape, (sums,), dimensions=(1, 0))
    parts = (apply(op.TANH, turned), apply(op.NEGATE, sums))
    joined = instruction(op.CONCATENATE, Shape("f32", (8, 4)), parts, dimensions=(0,))
    module = module_of([joined, sums], [parameter(0, (4, 4, 40))])
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), device=device)


def test_concatenation_output_is_written_in_pieces_by_one_loop() -> None:
    a, b = parameter(0, (32, 64)), parameter(1, (32, 64))
    parts = (apply(op.TANH, a), apply(op.MULTIPLY, apply(op.TANH, a), b))
    joined = instruction(op.CONCATENATE, Shape("f32", (32, 128)), parts, dimensions=(1,))
    module = module_of([joined], [a, b])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0), compiled=True)
    assert shape_of(kernel) == [1]


def test_small_array_constant_and_empty_concatenation_operand() -> None:
    import numpy as np

    x, empty = parameter(0, (3, 5)), parameter(1, (3, 0))
    weights = literal.from_array(np.arange(5, dtype=np.float32), "f32")
    value = instruction(op.CONSTANT, Shape("f32", (5,)), value=weights)
    scaled = apply(op.MULTIPLY, x, broadcast(value, (3, 5), (1,)))
    joined = instruction(op.CONCATENATE, Shape("f32", (3, 5)), (scaled, empty), dimensions=(1,))
    module = module_of([apply(op.NEGATE, joined)], [x, empty])
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)


def test_refuses_what_it_cannot_schedule() -> None:
    x = parameter(0, (4, 8))
    pair = instruction(op.DOT, Shape("f32", (4, 4)), (x, x))
    refusal = feasible(whole(module_of([pair], [x])), DEVICE)
    assert refusal is not None and refusal.reason is Reason.UNSUPPORTED_OPCODE
    left, right = parameter(0, ()), parameter(1, ())
    odd = computation((left, right), apply(op.SUBTRACT, left, right))
    value = instruction(
        op.REDUCE, Shape("f32", (4,)), (x, scalar(0.0)), dimensions=(1,), to_apply=odd
    )
    refusal = feasible(whole(module_of([value], [x])), DEVICE)
    assert refusal is not None and refusal.reason is Reason.UNSUPPORTED_OPCODE


def workload(name: str) -> Any:
    with lzma.open(WORKLOADS / f"{name}.hlo.xz", "rt") as file:
        return simplify(parse(file.read())).module


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    tiers.nightly_but(
        *("asr_train", "bert_train", "dien_train", "lstm_lm_train", "resnet50_train"),
        of=sorted(path.name.removesuffix(".hlo.xz") for path in WORKLOADS.glob("*.hlo.xz")),
    ),
)
def test_every_pattern_of_every_workload_schedules(name: str) -> None:
    module = workload(name)
    plan = planner_exhaustive.plan(module, DEVICE, cost, feasible)
    assert plan.patterns
    for number, pattern in enumerate(plan.patterns):
        if feasible(pattern, DEVICE) is not None:
            assert not pattern.outputs
            continue
        kernel = schedule(pattern, module, DEVICE, f"kernel{number}", verify=True)
        check_kernel(kernel)


@pytest.mark.parametrize("device", ["cpu-x86-64-v4", "sm_90"])
def test_scheduling_is_a_function_of_its_arguments(device: str) -> None:
    outputs = layer_norm_gradient(64, 768)
    module = module_of(outputs, parameters_of(outputs))
    pattern = whole(module)
    one = schedule(pattern, module, DEVICES[device], "kernel", verify=True)
    assert one == schedule(pattern, module, DEVICES[device], "kernel", verify=True)


@pytest.mark.parametrize("dims", [(0, 8), (8, 0), (0,)])
def test_arrays_of_no_elements(dims: tuple[int, ...]) -> None:
    x = parameter(0, dims)
    axis = len(dims) - 1
    module = module_of([apply(op.NEGATE, x), reduce(x, (axis,)), reduce(x, (0,))], [x])
    pattern = whole(module)
    check(pattern, module, draw_inputs(pattern, 0), compiled=True)
