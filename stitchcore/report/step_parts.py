"""Where the time of a step goes, before and after, and what stitching can gain of it at most.

A job records a few of its own calls (inject/step_parts.py) and tells what part of a call each part
is; here the parts are laid over the step's own time, which was measured without recording. So they
add up to the step as it is told everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stitchcore.inject.speedup import speedup_text
from stitchcore.inject.step_parts import EXECUTOR, INPUT, MATRIX, MEMORY, OTHER

NAMES: Mapping[str, str] = {
    MATRIX: "matrix work",
    MEMORY: "memory-intensive work",
    EXECUTOR: "executor",
    INPUT: "input and Python",
    OTHER: "other",
}
"""Parts in the order in which they are told."""
STITCHED_AWAY = (MEMORY, EXECUTOR)
"""Parts that stitching takes time from."""


@dataclass(frozen=True)
class Part:
    """Seconds of a step that are one part's: before, and after (None: no stitched call was
    recorded)."""

    name: str
    before: float
    after: float | None = None


@dataclass(frozen=True)
class Recorded:
    """What an arm's calls tell: what part of a step the call is, the rest lying between calls, and
    what part of the call each part is."""

    call: float
    shares: Mapping[str, float]


def laid_over(step_seconds: float, recorded: Recorded) -> dict[str, float]:
    """Seconds of a step by part. What of the step lies between calls is the input pipeline's and
    Python's."""
    call = step_seconds * min(1.0, max(0.0, recorded.call))
    whole = sum(max(0.0, recorded.shares.get(part, 0.0)) for part in NAMES) or 1.0
    spent = {part: call * max(0.0, recorded.shares.get(part, 0.0)) / whole for part in NAMES}
    return {**spent, INPUT: spent[INPUT] + step_seconds - call}


def parts(
    before_seconds: float,
    before: Recorded | None,
    after_seconds: float = 0.0,
    after: Recorded | None = None,
) -> tuple[Part, ...]:
    """The parts of a step; none where no original call was recorded."""
    if before is None or before_seconds <= 0:
        return ()
    original = laid_over(before_seconds, before)
    stitched = None if after is None or after_seconds <= 0 else laid_over(after_seconds, after)
    return tuple(
        Part(name, original[part], None if stitched is None else stitched[part])
        for part, name in NAMES.items()
    )


def bound(told: tuple[Part, ...]) -> float | None:
    """The speed-up of a step of which stitching takes all that it could take (Amdahl's law); None
    where nothing is known, or nothing else is left."""
    names = {NAMES[part] for part in STITCHED_AWAY}
    kept = sum(part.before for part in told if part.name not in names)
    return sum(part.before for part in told) / kept if kept > 0 else None


def bound_text(told: tuple[Part, ...]) -> str:
    """What can be gained at most, in a sentence; "" where that is not known."""
    most = bound(told)
    if most is None:
        return ""
    gone = " and ".join(NAMES[part] for part in STITCHED_AWAY)
    return f"a speed-up of {speedup_text(most)} at most, were {gone} gone"
