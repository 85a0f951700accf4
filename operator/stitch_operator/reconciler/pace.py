"""How fast is written: each asks once for its turn and is told when that is, however many wait.

Nobody asks again and again, so ten thousand that wait cost nothing while they do.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Pace:
    """`per_second` turns, and `burst` at once after a quiet time."""

    per_second: float
    burst: float
    _next: float = 0.0
    _turns: dict[str, float] = field(default_factory=dict)

    def wait(self, who: str, amount: int, now: float) -> float:
        """Seconds until it is the turn of `who`; at 0 it has been taken."""
        if who not in self._turns:
            since = max(self._next, now - self.burst / self.per_second)
            self._next = since + amount / self.per_second
            self._turns[who] = self._next
        wait = self._turns[who] - now
        if wait > 0:
            return wait
        del self._turns[who]
        return 0.0

    def forget(self, who: str) -> None:
        """It needs no turn any more."""
        self._turns.pop(who, None)
