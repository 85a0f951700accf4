"""How a speed-up is written: the one figure of a step, in the job's lines as on every page.

A speed-up is the time of a whole step before over its time after, measured in turn in one job, with
the 95 % interval where there is one; above 1 stitched is faster (docs/glossary.md).
"""

from __future__ import annotations

from typing import Optional


def speedup_text(speedup: float, low: Optional[float] = None, high: Optional[float] = None) -> str:
    """`1.758 [1.675, 1.825]`."""
    interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{speedup:.3f}{interval}"
