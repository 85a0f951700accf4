"""Waiting for what happens in another thread or process: asserted at once, it would be a race."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

Found = TypeVar("Found")
PATIENCE_SECONDS = 240.0
"""Nothing is claimed of this time: a machine that is many times as slow gets there too. It is less
than what pytest gives a test, so that one that waits in vain says for what."""
RUN_SECONDS = 1000.0
"""What a whole command may take, a job with all its steps too: one that hangs is ended."""
LONGEST_PAUSE = 0.1


def wait_for(
    condition: Callable[[], Found | Literal[False] | None],
    what: str | Callable[[], object] = "",
    seconds: float = PATIENCE_SECONDS,
) -> Found:
    """The first true value of `condition`, asked now and then. Raises AssertionError with `what`,
    or what it then returns."""
    end, pause = time.monotonic() + seconds, 0.005
    while not (found := condition()):
        told = what if isinstance(what, str) or time.monotonic() < end else what()
        assert time.monotonic() < end, f"not within {seconds:g} s: {told}"
        time.sleep(pause)
        pause = min(1.3 * pause, LONGEST_PAUSE)
    return found
