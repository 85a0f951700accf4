"""Assume, relax, apply: how many blocks of a kernel a multiprocessor is to hold (AStitch 4.4).

Blocks that meet at grid barriers must all be resident, so a grid is at most one wave; how large a
wave is depends on registers, which only the compiler knows. *Assume*: from shared memory, from the
number of tasks and from the schedule's estimate of registers follows how many blocks are worth
holding, and so the registers that a thread may have at most. The compiler is told (the second
number of __launch_bounds__), and its log is read. *Relax*: where it spills under that bound, fewer
blocks are held and threads have more registers. *Apply*: the first bound without spills stays; a
kernel that spills with one block of a multiprocessor is refused.

Left without a bound NVRTC 12.9 assumes that six blocks should be held, and spills at 40 registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from stitchcore.codegen import cuda
from stitchcore.device.occupancy import blocks_per_multiprocessor, multiprocessor
from stitchcore.errors import Reason, Refused
from stitchcore.launch.cuda_parameters import is_cooperative
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.schedule import register_pressure
from stitchcore.schedule.limits import blocks_per_unit
from stitchcore.toolchain.nvrtc import Resources

MOST_REGISTERS = 255
"""Of one thread, on every architecture here."""

SPILLED_BYTES = 8
"""Of stores that ptxas counts for a spilled word: where it is made, and where it changes."""


@dataclass(frozen=True)
class Fit:
    """How a compiled kernel lies on a device.

    `predicted` registers a thread by the schedule, `resources` what ptxas says. The compiler was
    told that a multiprocessor holds `bound` blocks, `assumed` before any was compiled; it holds
    `blocks`, all of them `wave`. `shared_bytes` of a block, static and dynamic. Blocks of a
    `cooperative` kernel meet at grid barriers; each has `threads`.
    """

    kernel: str
    predicted: int
    assumed: int
    bound: int
    resources: Resources
    shared_bytes: int
    blocks: int
    wave: int
    cooperative: bool
    threads: int

    def __str__(self) -> str:
        used = self.resources
        return (
            f"{self.kernel}: {used.registers} registers ({self.predicted} predicted), "
            f"{used.spill_bytes} bytes spilled, {self.shared_bytes} bytes of shared memory, "
            f"{self.blocks} blocks a multiprocessor, {self.wave} in one wave"
        )


def assumed(kernel: Kernel, target: str) -> int:
    """Blocks that a multiprocessor of `target` should hold: what its shared memory and the
    predicted registers allow, not more than have tasks, at most blocks_per_unit, at least 1.
    """
    shared = cuda.shared_bytes(kernel)
    wanted = [blocks_per_unit(kernel.threads), _with_tasks(kernel, target)]
    for registers in (0, register_pressure.registers(kernel)):
        wanted.append(blocks_per_multiprocessor(target, kernel.threads, registers, shared))
    return max(min(wanted), 1)


def require_shared(kernel: Kernel, target: str, static_bytes: int = 0) -> int:
    """Shared memory of a block, beside `static_bytes` of the compiler's.

    Raises Refused(SHARED_MEMORY) where not one block of it fits a multiprocessor of `target`.
    """
    shared = cuda.shared_bytes(kernel) + static_bytes
    if blocks_per_multiprocessor(target, kernel.threads, 0, shared) == 0:
        most = multiprocessor(target).shared_bytes_per_block
        detail = f"{shared} bytes a block, {target} has {most}: cut the pattern or its rows"
        raise Refused(kernel.name, Reason.SHARED_MEMORY, detail)
    return shared


def relaxed(fit: Fit, target: str) -> int:
    """A bound for `fit`'s kernel, which spilled under its own: fewer blocks, so that what was
    spilled finds registers too.

    Raises Refused(REGISTERS) where one block was all there was to hold.
    """
    used = fit.resources
    if fit.bound == 1:
        detail = (
            f"{used.spill_bytes} bytes spilled at {used.registers} registers a thread, blocks of "
            f"{fit.threads} threads, one on a multiprocessor of {target}: cut the pattern"
        )
        raise Refused(fit.kernel, Reason.REGISTERS, detail)
    needed = min(used.registers + -(-used.spill_bytes // SPILLED_BYTES), MOST_REGISTERS)
    fitting = blocks_per_multiprocessor(target, fit.threads, needed, fit.shared_bytes)
    return max(min(fitting, fit.bound - 1), 1)


def judged(kernel: Kernel, resources: Resources, bound: int, target: str) -> Fit:
    """How `kernel`, compiled under `bound`, lies on `target`; its spills are relaxed' matter.

    Raises Refused(SHARED_MEMORY) or Refused(REGISTERS) where not one block is resident: a grid of
    any size would not be one wave.
    """
    shared = require_shared(kernel, target, resources.shared_bytes)
    blocks = blocks_per_multiprocessor(target, kernel.threads, resources.registers, shared)
    if blocks == 0:
        detail = f"{resources.registers} a thread, {kernel.threads} threads, {target}"
        raise Refused(kernel.name, Reason.REGISTERS, detail)
    return Fit(
        kernel=kernel.name,
        predicted=register_pressure.registers(kernel),
        assumed=assumed(kernel, target),
        bound=bound,
        resources=resources,
        shared_bytes=shared,
        blocks=blocks,
        wave=blocks * multiprocessor(target).count,
        cooperative=is_cooperative(kernel),
        threads=kernel.threads,
    )


def _with_tasks(kernel: Kernel, target: str) -> int:
    """Blocks a multiprocessor that have something to do in the kernel's widest phase; any number
    where a symbol decides."""
    most = 1
    for phase in kernel.phases:
        blocks = index.total(section.blocks(kernel.threads) for section in phase.sections)
        if not isinstance(blocks, int):
            return blocks_per_unit(kernel.threads)
        most = max(most, blocks)
    return -(-most // multiprocessor(target).count)
