"""The latency-evaluator counts what kernels execute and move, and its estimates follow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from stitchcore.codegen import cuda
from stitchcore.compiler import latency
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.records import DEVICES, Device
from stitchcore.fusion.cost import cost
from stitchcore.fusion.instructions import combined, combining, counted, element
from stitchcore.hlo.ir import builder, dim
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, computation
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.schedule.pipeline import schedule
from stitchcore.schedule.space import DEFAULT, Schedule
from tests.codegen.test_cuda import summed
from tests.schedule.modules import apply, module_of, parameter, whole

GPU = DEVICES["sm_90"]


def kernel_of(
    parameters: list[Instruction], roots: list[Instruction], chosen: Schedule = DEFAULT
) -> Kernel:
    module = Module("m", computation(tuple(parameters), builder.tuple_(roots)))
    return schedule(whole(module), module, GPU, "k", verify=True, chosen=chosen)


def elementwise(size: int, *opcodes: str, **chosen: Any) -> tuple[Kernel, list[Instruction]]:
    x = value = builder.parameter(0, "f32", (size,))
    made = []
    for opcode in opcodes:
        value = builder.elementwise(opcode, value)
        made.append(value)
    return kernel_of([x], [value], Schedule(**chosen)), made


def row_sums(rows: int, columns: int, **chosen: Any) -> Kernel:
    x = builder.parameter(0, "f32", (rows, columns))
    total = builder.reduce(x, (1,), op.ADD)
    less = builder.elementwise(op.SUBTRACT, x, builder.broadcast(total, (rows, columns), (0,)))
    return kernel_of([x], [less], Schedule(**chosen))


def tasks_of(kernel: Kernel) -> list[tuple[int, latency._Task]]:
    assert GPU.timing is not None
    return [
        (int(str(section.tasks)), latency._Task(section, kernel.threads, GPU.timing, {}))
        for phase in kernel.phases
        for section in phase.sections
    ]


@pytest.mark.parametrize("chosen", [{}, {"threads": 64}, {"threads": 1024}, {"run_lanes": 0}])
def test_what_lanes_execute_is_what_elements_take(chosen: dict[str, int]) -> None:
    """By fusion/instructions.py, which prices a pattern before there is a kernel."""
    kernel, made = elementwise(2**22, op.TANH, op.NEGATE, op.EXPONENTIAL, **chosen)
    wanted = sum((element(value).times(2**22) for value in made), latency.NOTHING)
    [(count, task)] = tasks_of(kernel)
    executed = task.counts.times(count)
    assert executed.special == wanted.special > 0 and executed.float32 == wanted.float32 > 0
    assert executed.memory == 2 * 2**22 / task.run


@pytest.mark.parametrize(("rows", "columns"), [(2**14, 512), (2**13, 4096)])
def test_rows_execute_what_the_pattern_is_priced_at(rows: int, columns: int) -> None:
    kernel = row_sums(rows, columns)
    [(count, task)] = tasks_of(kernel)
    x = builder.parameter(0, "f32", (rows, columns))
    wanted = counted(builder.reduce(x, (1,), op.ADD), lambda _: False)
    wanted += element(builder.elementwise(op.SUBTRACT, x, x)).times(rows * columns)
    executed = task.counts.times(count)
    assert executed.float32 == wanted.float32 and executed.shuffle == wanted.shuffle
    assert executed.barrier == wanted.barrier


def test_what_a_row_reads_twice_moves_once() -> None:
    for kernel in (row_sums(2**13, 4096), row_sums(2**13, 4096, register_words=0)):
        [(count, task)] = tasks_of(kernel)
        assert count * sum(task.moved.values()) == 2 * 4 * 2**13 * 4096


def test_lanes_across_memory_move_whole_sectors() -> None:
    x = builder.parameter(0, "f32", (2048, 2048))
    dense = kernel_of([x], [builder.elementwise(op.NEGATE, x)])
    turned = builder.transpose(x, (1, 0))
    across = kernel_of([x], [builder.elementwise(op.NEGATE, turned)])
    moved = [
        sum(count * sum(task.moved.values()) for count, task in tasks_of(kernel))
        for kernel in (dense, across)
    ]
    assert moved[0] == 2 * 4 * 2048 * 2048 and moved[1] == (4 + latency.SECTOR) * 2048 * 2048
    assert latency.seconds(across, GPU) > 2 * latency.seconds(dense, GPU)


@pytest.mark.parametrize("target", ["sm_70", "sm_80", "sm_90", "sm_100"])
def test_what_only_moves_takes_what_the_cost_function_says(target: str) -> None:
    device = DEVICES[target]
    x, y = (builder.parameter(number, "f32", (2**26,)) for number in (0, 1))
    module = Module("m", computation((x, y), builder.elementwise(op.ADD, x, y)))
    pattern = whole(module)
    kernel = schedule(pattern, module, device, "k")
    wanted = cost(pattern, device).seconds
    assert latency.seconds(kernel, device) == pytest.approx(wanted, rel=0.1)


def test_more_of_anything_takes_longer() -> None:
    sizes = [latency.seconds(elementwise(2**n, op.TANH)[0], GPU) for n in (18, 20, 22, 24)]
    assert sizes == sorted(sizes)
    chains = [latency.seconds(elementwise(2**20, *[op.TANH] * n)[0], GPU) for n in (1, 8, 32)]
    assert chains == sorted(chains) and chains[0] < chains[-1]
    slower = replace(GPU, bytes_per_second=GPU.bytes_per_second / 4)
    kernel, _ = elementwise(2**26, op.NEGATE)
    assert latency.seconds(kernel, slower) > 3 * latency.seconds(kernel, GPU)
    assert latency.seconds(kernel, GPU, held=1) >= latency.seconds(kernel, GPU)


def test_a_block_that_does_not_fit_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "shared_bytes", lambda kernel: 2**20)
    assert math.isinf(latency.seconds(row_sums(64, 512), GPU))


def test_symbols_are_bound() -> None:
    value = parameter(0, (dim.symbol("B"), 512))
    module = module_of([apply(op.TANH, value)], [value], symbols=("B",))
    kernel = schedule(whole(module), module, GPU, "k")
    few, many = (latency.seconds(kernel, GPU, {"B": rows}) for rows in (1024, 2**20))
    assert few < many and latency.seconds(kernel, GPU) == few


def test_prices_of_meeting_lanes_are_the_planners() -> None:
    assert combined(1).times(32) == combining(512)
    assert combined(8).times(256) == combining(2048)


def launches(device: Device, name: str) -> list[tuple[float, float]]:
    """What each kernel of a workload is estimated at, by its pattern and by its statements."""
    from tests.hlo import workloads

    state = run(PLANNED, ModuleState(workloads.module(name), device, BuildOptions()))
    assert state.plan is not None
    kernels = [state.kernels[number] for number in state.of]
    return [
        (cost(pattern, device).seconds, latency.seconds(kernel, device))
        for pattern, kernel in zip(state.plan.patterns, kernels, strict=True)
    ]


@pytest.mark.slow
def test_no_kernel_of_a_workload_is_quicker_than_its_transfers() -> None:
    """Or hundreds of times slower, but where few tasks walk many rows."""
    for name in ("mlp_train", "crnn_infer", "transformer_dec_step"):
        pairs = launches(GPU, name)
        assert all(0.5 * planned < counted for planned, counted in pairs), name
        assert sorted(counted / planned for planned, counted in pairs)[len(pairs) // 2] < 5, name


def test_rows_that_are_loaded_together_are_waited_for_once() -> None:
    """Of 392 rows that a lane adds up sixteen are under way, as the text asks the compiler."""
    timing = GPU.timing
    assert timing is not None
    [phase] = latency.phases(summed(256), GPU, None, 4)
    together = 392 / 16 * timing.cpi.memory / timing.hertz
    assert together <= phase.task < 2 * together
