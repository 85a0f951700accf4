"""Limits per namespace: of rates, by token buckets over a clock that is passed in, so that time
can be tested; and of the bytes that calls hold at the same moment."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stitch_operator.gateway.problems import Problem, Rejected

LOG = logging.getLogger("stitch.gateway")
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


def take(
    level: Level | None, rate: Rate, amount: float, now: float, debt: float = 0.0
) -> tuple[Level, float]:
    """The bucket afterwards, and the seconds to wait (0: taken). What is refused costs nothing;
    what is taken may leave the bucket `debt` below empty. Less than nothing is given back."""
    held = rate.burst if level is None else level.held
    since = 0.0 if level is None else max(0.0, now - level.time)
    held = min(rate.burst, held + since * rate.per_second)
    if amount <= held + debt:
        return Level(min(rate.burst, held - amount), now), 0.0
    missing = min(amount, rate.burst) - held
    return Level(held, now), max(missing / rate.per_second, 0.001)


class Buckets:
    """One bucket per name; the one used longest ago is forgotten (and so full again). `totals` is
    what was taken here, by name."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._levels: OrderedDict[str, Level] = OrderedDict()
        self.totals: dict[str, float] = {}

    def take(self, name: str, amount: float, now: float, begun: bool = False) -> float:
        """Seconds to wait before `amount` may be taken; 0 when it has been. What has `begun` may
        take a whole burst on credit: refused half-way, it would have paid and be asked to pay
        again."""
        debt = self._rate.burst if begun else 0.0
        level, wait = take(self._levels.pop(name, None), self._rate, amount, now, debt)
        self._keep(name, level)
        if not wait and amount:
            self.totals[name] = self.totals.get(name, 0.0) + amount
        return wait

    def charge(self, name: str, amount: float, now: float) -> None:
        """Takes what has been used already, down to a burst's debt."""
        self.charge_others(name, amount, now)
        self.totals[name] = self.totals.get(name, 0.0) + amount

    def charge_others(self, name: str, amount: float, now: float) -> None:
        """The same of what was taken elsewhere."""
        level, _ = take(self._levels.pop(name, None), self._rate, 0, now, self._rate.burst)
        held = min(self._rate.burst, max(level.held - amount, -self._rate.burst))
        self._keep(name, Level(held, now))

    def _keep(self, name: str, level: Level) -> None:
        self._levels[name] = level
        if len(self._levels) > MOST_NAMESPACES:
            forgotten, _ = self._levels.popitem(last=False)
            self.totals.pop(forgotten, None)


class Held:
    """Bytes that calls hold at the same moment: at most `most`, and of one name at most half of
    that, so that nobody alone can take it all from the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._names: dict[str, int] = {}

    @contextmanager
    def holding(self, name: str) -> Iterator[Callable[[int], None]]:
        """What is given to the function is held until the block ends. It raises Rejected:
        RATE_LIMITED, UNAVAILABLE."""
        own = 0

        def hold(amount: int) -> None:
            nonlocal own
            of_name = self._names.get(name, 0) + amount
            if of_name > self._most // 2:
                raise Rejected(Problem.RATE_LIMITED, "too many bytes of bodies at the same time")
            if self._total + amount > self._most:
                LOG.error("bodies of %d namespaces take up their memory", len(self._names))
                raise Rejected(Problem.UNAVAILABLE, "the memory for bodies is in use")
            self._names[name] = of_name
            self._total += amount
            own += amount

        try:
            yield hold
        finally:
            self._total -= own
            left = self._names.pop(name, 0) - own
            if left:
                self._names[name] = left
