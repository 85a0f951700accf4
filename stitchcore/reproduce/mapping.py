"""Adaptive thread mapping (AStitch 2022): how a kernel that reduces
each of R rows of C elements, and goes on with its result, lies on a GPU.

Counted from the schedule itself: no device and no compiler. Registers are those that the schedule
predicts; blocks beyond one wave are walked by resident ones (vertical packing).
"""

from __future__ import annotations

from dataclasses import dataclass

from stitchcore.codegen import cuda
from stitchcore.device.occupancy import blocks_per_multiprocessor, multiprocessor
from stitchcore.device.records import DEVICES
from stitchcore.fusion.mechanisms import ALL, Mechanisms
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import computation
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.schedule import register_pressure
from stitchcore.schedule.pipeline import schedule


@dataclass(frozen=True)
class Mapping:
    """`scheme` of the rows: "warp", "block" (each row is one's) or "split" (over several blocks).
    `rows` of one block, `parts` of one row; `blocks` there is work for in the first phase, of which
    a device holds `wave` at once, with `occupancy` of its threads."""

    scheme: str
    rows: int
    parts: int
    blocks: int
    wave: int
    occupancy: float

    @property
    def waves(self) -> float:
        return self.blocks / self.wave

    def __str__(self) -> str:
        rows = f" of {self.rows:,} rows" if self.rows > 1 else ""
        rows = f" in {self.parts}" if self.parts > 1 else rows
        filled = f"{self.waves:.2f} waves, {self.occupancy:.0%}"
        return f"{self.scheme}: {self.blocks:,} blocks{rows}, {filled}"


def mapping(rows: int, columns: int, target: str, mechanisms: Mechanisms = ALL) -> Mapping:
    """Where a row's elements less their sum are computed."""
    kernel = _kernel(rows, columns, target, mechanisms)
    section = kernel.phases[0].sections[0]
    assert isinstance(section.tasks, int)
    parts = next((b.dims[0] for b in kernel.buffers if b.name.startswith("part")), 1)
    assert isinstance(parts, int)
    warps = section.side_by_side(kernel.threads)
    blocks = -(-section.tasks // warps)
    unit = multiprocessor(target)
    registers = register_pressure.registers(kernel)
    shared = cuda.shared_bytes(kernel)
    held = blocks_per_multiprocessor(target, kernel.threads, registers, shared)
    split = len(kernel.phases) > 1
    return Mapping(
        "split" if split else ("warp" if warps > 1 else "block"),
        max(-(-rows // blocks), 1),
        parts if split else 1,
        blocks,
        held * unit.count,
        held * kernel.threads / unit.threads,
    )


def _kernel(rows: int, columns: int, target: str, mechanisms: Mechanisms) -> Kernel:
    x = builder.parameter(0, "f32", (rows, columns))
    total = builder.reduce(x, (1,), op.ADD)
    spread = builder.broadcast(total, x.shape.dims, (0,))
    result = builder.elementwise(op.SUBTRACT, x, spread)
    module = Module("rows", computation((x,), result))
    inside = (total.operands[1], total, spread, result)
    pattern = Pattern(inside, (x,), (result,))
    return schedule(pattern, module, DEVICES[target], "rows", mechanisms=mechanisms)
