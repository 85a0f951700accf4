"""Which schedule of a kernel a GPU runs quickest, by the latency-evaluator, while it is compiled.

FusionStitching 2020 (arXiv 2009.10924, section 4.3) does so for every kernel: it enumerates
schedules and launch dimensions and takes the one of the least estimated latency. Here the device's
own schedule stays where it is near what memory allows, or nothing else is estimated far quicker:
estimates of an H100 lay within a factor of two of what it took (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from stitchcore.compiler import latency
from stitchcore.compiler.performance_library import ESTIMATED, Entry
from stitchcore.device.records import Device
from stitchcore.errors import Refused
from stitchcore.loop_ir import index
from stitchcore.loop_ir.layout import bytes_of
from stitchcore.loop_ir.nodes import Kernel, Role
from stitchcore.schedule import space
from stitchcore.schedule.space import DEFAULT, Schedule
from stitchcore.schedule.tiling import SYMBOL_SIZE

NEAR = 1.25
"""So many times what memory and a launch take is near it."""
QUICKER = 0.85
"""Of the default's estimate: what another one has to be below."""

KernelOf = Callable[[Schedule], Kernel]
"""A pattern's kernel by a schedule. Raises Refused where it is none of this kernel, NoBinary where
a compiler was given it already."""


class NoBinary(Exception):
    """A schedule that was chosen before, of whose kernel there is no binary."""


def entry_of(kernel_of: KernelOf, device: Device) -> Entry:
    """The schedule to take in place of the device's own, with the estimated seconds of both.

    One choice at a time: of each the best goes on to the next, as in a descent by coordinates. It
    is the device's own again once a compiler has refused another.
    """
    kernel = kernel_of(DEFAULT)
    own = latency.seconds(kernel, device)
    best, least = DEFAULT, own
    if own > NEAR * _least(kernel, device):
        with suppress(NoBinary):
            best, least = _descended(kernel_of, device, own)
    if least >= QUICKER * own:
        best, least = DEFAULT, own
    return Entry(best, least, own, ESTIMATED)


def _descended(kernel_of: KernelOf, device: Device, own: float) -> tuple[Schedule, float]:
    best, least = DEFAULT, own
    for choices in space.unmeasured(device):
        before = best
        for choice in choices:
            chosen = replace(before, **choice.chosen)
            with suppress(Refused):
                found = latency.seconds(kernel_of(chosen), device)
                if found < least:
                    best, least = chosen, found
    return best, least


def _least(kernel: Kernel, device: Device) -> float:
    """Seconds of a launch that moves each input and output once."""
    sizes = dict.fromkeys(kernel.symbols, SYMBOL_SIZE)
    moved = sum(
        index.evaluate(bytes_of(buffer), sizes)
        for role in (Role.INPUT, Role.OUTPUT)
        for buffer in kernel.with_role(role)
    )
    return device.launch_seconds + moved / device.bytes_per_second
