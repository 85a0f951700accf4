"""A device record's coefficients for which estimates differ least from measured seconds.

Coefficients have names as in the record, with dots where one lies deeper ("timing.lanes.special").
Each is moved as long as that helps, in smaller and smaller steps; the error is the root mean square
of log(estimate / measured).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stitchcore.device.records import Device
from stitchcore.fusion.pattern import Pattern

STEPS = (1.5, 1.2, 1.08, 1.03, 1.01)
"""Factors by which a coefficient is moved, one after the other."""

Seconds = Callable[[Pattern, Device], float]
"""What a device is estimated to take for a pattern, counted as it was measured."""


@dataclass(frozen=True)
class Measured:
    """A calibration kernel: its pattern, the seconds measured, and of the estimate that was fitted
    to all of them."""

    name: str
    pattern: Pattern
    seconds: float
    estimate: float = 0.0


def coefficient(device: Device, name: str) -> float:
    """The coefficient `name` of a record."""
    value: Any = device
    for part in name.split("."):
        value = getattr(value, part)
    return float(value)


def with_coefficient(record: Any, name: str, value: float) -> Any:
    """`record` with its coefficient `name` changed."""
    first, _, rest = name.partition(".")
    inner = with_coefficient(getattr(record, first), rest, value) if rest else value
    return replace(record, **{first: inner})


def error(device: Device, measured: Sequence[Measured], seconds: Seconds) -> float:
    """How far estimates are from what was measured."""
    ratios = [math.log(seconds(kernel.pattern, device) / kernel.seconds) for kernel in measured]
    return math.sqrt(sum(ratio * ratio for ratio in ratios) / len(ratios))


def descended(
    device: Device, measured: Sequence[Measured], names: Sequence[str], seconds: Seconds
) -> Device:
    """`device` with the coefficients `names` moved to where the error is least."""
    best, least = device, error(device, measured, seconds)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for name in names:
                for factor in (step, 1 / step):
                    value = coefficient(best, name) * factor
                    if name == "overlap" and value > 1:
                        continue
                    tried: Device = with_coefficient(best, name, value)
                    tried_error = error(tried, measured, seconds)
                    if tried_error < least * (1 - 1e-6):
                        best, least, moved = tried, tried_error, True
    return best
