"""Rows of matrix products on a device that has warps: whose lanes compute one.

What a product's rows are made of, and what is made of them, mostly has as many rows: layers behind
layers, the softmax between two products of an attention head. Where all of these are dealt to tasks
alike, each goes on in the task that has its row, and phases merge (merge_phases.py). A row is a
group's or a warp's throughout a kernel, whichever takes it fewer steps: FusionStitching's block and
warp composition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stitchcore.device.records import Device
from stitchcore.fusion.contraction import is_contraction
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import LaneReduce, Loop, LoopKind, Phase, Scope, Statement
from stitchcore.schedule import limits, tiling
from stitchcore.schedule.axes import Axes

STEP_CYCLES = 20
"""Of one iteration of a lane's loop, as tiling.py counts them."""


@dataclass(frozen=True)
class ProductRows:
    """Whose lanes compute a row, which is a task, and the numbers of rows that products have."""

    scope: Scope
    counts: frozenset[int]


def counts(values: Iterable[Instruction], axes: Axes, device: Device) -> frozenset[int]:
    """The numbers of rows that a kernel's products have; none where there are no warps."""
    if not limits.of(device).warp_elements:
        return frozenset()
    return frozenset(
        tiling.size_of(axes.extents[axis] for axis in axes.of(value)[:-1])
        for value in values
        if is_contraction(value)
    )


def choices(rows: frozenset[int]) -> Sequence[ProductRows | None]:
    """The ways to deal the rows of a kernel's products, which has so many; None where it has no
    products."""
    if not rows:
        return (None,)
    return tuple(ProductRows(scope, rows) for scope in (Scope.WARP, Scope.GROUP))


def steps(phases: Sequence[Phase], device: Device) -> float:
    """Iterations that lanes take one after another in a kernel of these phases, in as many waves as
    there are tasks for; a grid barrier counts as what passes meanwhile."""
    timing = device.timing
    assert timing is not None, f"{device.target} has warps"
    barrier = device.phase_seconds * timing.hertz / STEP_CYCLES
    return sum(barrier + _phase(phase, device) for phase in phases)


def _phase(phase: Phase, device: Device) -> float:
    total = longest = 0.0
    for section in phase.sections:
        warps = limits.of(device).warps if section.scope is Scope.WARP else 1
        groups = limits.blocks_per_unit(device.lanes) * device.units * warps
        own = _steps(section.body, device.lanes // warps)
        tasks = section.tasks if isinstance(section.tasks, int) else tiling.SYMBOL_SIZE
        longest = max(longest, own)
        total += own * tasks / groups
    return max(total, longest)


def _steps(body: Sequence[Statement], lanes: int) -> float:
    """Of one task, whose rows `lanes` compute."""
    total = 0.0
    for statement in body:
        if isinstance(statement, Loop):
            extent = index.gather(index.add(statement.end, index.multiply(statement.begin, -1)))
            times = extent if isinstance(extent, int) else tiling.SYMBOL_SIZE
            if statement.kind is LoopKind.LANES:
                times = -(-times // lanes)
            total += times * (1 + _steps(statement.body, lanes))
        elif isinstance(statement, LaneReduce) and statement.scope is Scope.GROUP:
            total += tiling.GROUP_STEPS
    return total
