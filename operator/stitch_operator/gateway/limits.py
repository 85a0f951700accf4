"""Rates per namespace: token buckets over a clock that is passed in, so that time can be tested."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MOST_NAMESPACES = 10_000


@dataclass(frozen=True)
class Rate:
    """`per_second` flows in, at most `burst` is kept."""

    per_second: float
    burst: float


@dataclass(frozen=True)
class Level:
    """What a bucket held at a time (seconds of a monotonic clock)."""

    held: float
    time: float


def take(level: Level | None, rate: Rate, amount: float, now: float) -> tuple[Level, float]:
    """The bucket afterwards, and the seconds to wait (0: taken). What is refused costs nothing."""
    held = rate.burst if level is None else level.held
    since = 0.0 if level is None else max(0.0, now - level.time)
    held = min(rate.burst, held + since * rate.per_second)
    if amount <= held:
        return Level(held - amount, now), 0.0
    missing = min(amount, rate.burst) - held
    return Level(held, now), max(missing / rate.per_second, 0.001)


class Buckets:
    """One bucket per name; the one used longest ago is forgotten (and so full again)."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._levels: OrderedDict[str, Level] = OrderedDict()

    def take(self, name: str, amount: float, now: float) -> float:
        """Seconds to wait before `amount` may be taken; 0 when it has been."""
        level, wait = take(self._levels.pop(name, None), self._rate, amount, now)
        self._levels[name] = level
        if len(self._levels) > MOST_NAMESPACES:
            self._levels.popitem(last=False)
        return wait
