"""Row buffers are taken over once they were read last; what does not fit on chip waits in scratch
or is computed again, by one price for the scheduler and the cost model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stitchcore.codegen import cuda
from stitchcore.device.records import DEVICES, Device
from stitchcore.fusion import row_values
from stitchcore.fusion.cost import crosses_tasks, prices_of, terms
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.loop_ir.nodes import Allocate, Apply, Kernel, Let, Role, Scope, Store
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule.pipeline import choices, schedule, trace
from tests.emulator import kernels
from tests.emulator.program import compile_text
from tests.emulator.twins import RUNS
from tests.schedule import agree
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    instruction,
    module_of,
    parameter,
    reduce,
    whole,
)
from tests.schedule.twins import toy

CPU, H100 = DEVICES["cpu-x86-64-v3"], DEVICES["sm_90"]


def softmaxes(count: int, columns: int, rows: int = 4) -> Module:
    """`count` one after the other: exponentials are read in the stage after theirs, no later."""
    x = value = parameter(0, (rows, columns))
    for _ in range(count):
        raised = apply(op.EXPONENTIAL, value)
        value = apply(op.DIVIDE, raised, spread(raised))
    return module_of([value], [x])


def spread(value: Instruction) -> Instruction:
    return broadcast(reduce(value, (1,)), value.shape.dims, (0,))


def converted(value: Instruction, dtype: str) -> Instruction:
    return instruction(op.CONVERT, Shape(dtype, value.shape.dims), (value,))


def saved(kernel: Kernel) -> tuple[int, int]:
    """LOCAL buffers that are not the lanes' own, and how often a row is written into one."""
    body = [s for p in kernel.phases for section in p.sections for s in statements(section.body)]
    buffers = {s.buffer for s in body if isinstance(s, Allocate) and s.buffer.scope != Scope.LANE}
    return len(buffers), sum(isinstance(s, Store) and s.buffer in buffers for s in body)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_chain_has_one_buffer(count: int) -> None:
    """Each stage writes its row over the one that it reads."""
    module = softmaxes(count, 12_000)
    kernel = schedule(whole(module), module, H100, "chain", verify=True)
    assert saved(kernel) == (1, count)
    assert cuda.shared_bytes(kernel) == 48_000


@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_90"])
def test_chains_compute_what_numpy_does(target: str) -> None:
    module = softmaxes(4, 9_000)
    pattern = whole(module)
    agree.check(pattern, module, draw_inputs(pattern, 0), device=DEVICES[target])


def test_what_does_not_fit_is_computed_again() -> None:
    """All exponentials are read at the end as well: their rows would have to live until then."""
    x = value = parameter(0, (4, 12_000))
    kept = []
    for _ in range(4):
        raised = apply(op.EXPONENTIAL, value)
        kept.append(raised)
        value = apply(op.DIVIDE, raised, spread(raised))
    for raised in kept:
        value = apply(op.ADD, value, raised)
    module = module_of([value], [x])
    pattern = whole(module)
    small = replace(H100, group_bytes=H100.group_bytes // 2)
    kernel = agree.check(pattern, module, draw_inputs(pattern, 0), device=small)
    assert cuda.shared_bytes(kernel) <= small.group_bytes


# ---- what has no room on chip --------------------------------------------------------------------
TARGETS = ["cpu-x86-64-v3", "sm_70", "sm_80", "sm_90"]


def paying(device: Device, scratch: bool) -> Device:
    """`device` with memory, or arithmetic, that costs nothing: always scratch, or never."""
    if scratch:
        return replace(device, bytes_per_second=1e30)
    timing = device.timing and replace(device.timing, hertz=1e30)
    return replace(device, flops_per_second=1e30, timing=timing)


def raised(kernel: Kernel) -> int:
    """How many exponentials the kernel's text has."""
    body = [s for p in kernel.phases for section in p.sections for s in statements(section.body)]
    values = [s.value for s in body if isinstance(s, Let)]
    return sum(isinstance(v, Apply) and v.opcode == op.EXPONENTIAL for v in values)


@pytest.mark.parametrize("target", TARGETS)
def test_a_chain_of_long_rows_is_not_computed_again_and_again(target: str) -> None:
    """Without scratch the last of eight softmaxes would compute all that is before it again: the
    number of exponentials grows with the square."""
    module, device = softmaxes(8, 200_000, 256), DEVICES[target]
    pattern = whole(module)

    def kernel(device: Device) -> Kernel:
        return schedule(pattern, module, device, "chain", verify=True)

    scratch, nowhere = (kernel(paying(device, chosen)) for chosen in (True, False))
    assert (raised(scratch), raised(nowhere)) == (8, 44)
    assert scratch.with_role(Role.SCRATCH) and not nowhere.with_role(Role.SCRATCH)
    assert 8 <= raised(kernel(device)) < 36


@pytest.mark.parametrize("scratch", [True, False])
@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_80"])
def test_what_is_demoted_is_right(target: str, scratch: bool) -> None:
    """In the interpreter, whose lanes come in random order, and as C."""
    module = softmaxes(4, 300)
    pattern, device = whole(module), paying(DEVICES[target], scratch)
    with toy({"local_bytes": 128}):
        kernel = agree.check(
            pattern, module, draw_inputs(pattern, 0), device=device, compiled=device.kind == "cpu"
        )
    assert bool(kernel.with_role(Role.SCRATCH)) == scratch


@pytest.mark.parametrize("columns", [40, 300])
def test_scratch_of_rows_has_no_races(columns: int) -> None:
    """As CUDA on the emulator, a row a warp's and a row a block's."""
    module = softmaxes(3, columns)
    pattern, device = whole(module), paying(H100, True)
    inputs = draw_inputs(pattern, 0)
    with toy({"local_bytes": 128, "warp_elements": 64}):
        kernel = agree.check(pattern, module, inputs, device=device)
    assert kernel.with_role(Role.SCRATCH)
    program = compile_text(kernels.rendered([kernel]))
    shaped = agree.collapsed(kernel, inputs, {})
    made = []
    for order, blocks in RUNS:
        run = kernels.run(kernel, program, shaped, {}, order, blocks=blocks)
        assert not run.findings, list(map(str, run.findings))
        made.append(run.outputs[0])
    assert all((made[0] == one).all() for one in made[1:])


def test_the_largest_is_demoted_first() -> None:
    """Of two rows for one sum, with room for either alone: that of float32, not that of float16."""
    x = parameter(0, (4, 16_000))
    wide, narrow = apply(op.EXPONENTIAL, x), apply(op.EXPONENTIAL, converted(x, "f16"))
    total = spread(apply(op.ADD, wide, converted(narrow, "f32")))
    halves = apply(op.DIVIDE, narrow, converted(total, "f16"))
    module = module_of([apply(op.DIVIDE, wide, total), halves], [x])
    room = replace(H100, group_bytes=4 * 70_000)
    demoted = [value for value, _ in choices(whole(module), module, room)]
    assert demoted == [wide]


def demoted(pattern: Pattern, device: Device) -> list[tuple[Instruction, str]]:
    """What the cost model takes for demoted, and how."""
    phases = dict.fromkeys(pattern.instructions, 0)
    found = row_values.of_pattern(pattern, phases, crosses_tasks)
    prices, room = prices_of(pattern, device), row_values.room(device)
    placed = [row_values.place(rows, room, prices) for rows in found]
    return [(one.value, str(one)) for placement in placed for one in placement.demoted]


@pytest.mark.parametrize("columns", [8_000, 12_000, 50_000, 128_000, 250_000])
@pytest.mark.parametrize("target", TARGETS)
def test_estimate_and_kernel_demote_the_same(target: str, columns: int) -> None:
    device = DEVICES[target]
    for count in (1, 2, 4):
        module = softmaxes(count, columns, 256)
        pattern = whole(module)
        assert demoted(pattern, device) == [*choices(pattern, module, device)]


def test_an_estimate_pays_for_what_is_demoted() -> None:
    """A chain whose rows fit costs its transfers; of longer rows also what stages pass on."""

    def extra(columns: int) -> float:
        parts = terms(whole(softmaxes(4, columns, 256)), H100)
        return parts.rereads + parts.recomputed

    assert extra(12_000) == 0.0 < extra(50_000)


def test_a_trace_says_where_rows_wait() -> None:
    module = softmaxes(4, 200_000, 256)
    text = trace(whole(module), module, CPU, "chain")
    assert "# chain: exponential" in text
    assert "stored to scratch (rows of 800000 bytes for " in text
