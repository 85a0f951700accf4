"""Row buffers are taken over once they were read last, and what does not fit is computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stitchcore.codegen import cuda
from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Allocate, Kernel, Scope, Store
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule.pipeline import schedule
from tests.schedule import agree
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    whole,
)

H100 = DEVICES["sm_90"]


def softmaxes(count: int, columns: int) -> Module:
    """`count` one after the other: exponentials are read in the stage after theirs, no later."""
    x = value = parameter(0, (4, columns))
    for _ in range(count):
        raised = apply(op.EXPONENTIAL, value)
        value = apply(op.DIVIDE, raised, spread(raised))
    return module_of([value], [x])


def spread(value: Instruction) -> Instruction:
    return broadcast(reduce(value, (1,)), value.shape.dims, (0,))


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
