"""What an earlier start of the job has found of its stitched step: that it is faster, and where.

A comparison runs its original in half of the first calls, and has TensorFlow build the graph once
more for it. A job that is started again and again would pay for that each time. So a step that was
shown to be faster begins stitched at the next start on the same processors, and is compared once
the job has run so long that this costs little: what is not faster any more is taken back then. A
start in every STARTS compares at once, for jobs that never run so long.

`verdicts/<digest>.json` holds one verdict, with what it holds for: the artifact, its regions that
are left out, the processors. It is written when a comparison ends well and at an orderly exit, and
removed where one ends ill.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Dict, Iterable, Optional

from . import plugin, records, target, timer

FOLDER = "verdicts"
STARTS = 10
COMPARING = 0.1
"""Seconds of a job that a comparison is worth, over the share of steps that the user gives to it:
with the usual hundredth it begins after ten seconds."""


@dataclass(frozen=True)
class Verdict:
    """`session` has compared; `place` is where its stitched calls were quicker (plugin.POOL or
    CALLER_THREAD), None where only one was tried; `starts` have relied on it since."""

    session: str
    comparison: timer.Comparison
    place: Optional[int] = None
    starts: int = 0

    def after(self, control: float) -> float:
        """Seconds from a job's first stitched step to its comparison. `control` > 0."""
        return 0.0 if self.starts % STARTS == 0 else COMPARING / control


def circumstances(key: str, left_out: Iterable[str]) -> Dict[str, Any]:
    """What a verdict holds for: an artifact without some of its regions, on these processors."""
    processors = [target.cpu_name(), len(os.sched_getaffinity(0))]
    return {"key": key, "left_out": sorted(left_out), "processors": processors}


def rely_on(store: str, digest: str, holds_for: Dict[str, Any], guard: float) -> Optional[Verdict]:
    """The verdict by which a step may begin stitched; it is on record that one more start does.
    None where there is none, of other circumstances, or by which it would not be kept."""
    try:
        record = records.read(_path(store, digest))
        if record["holds_for"] != holds_for:
            return None
        comparison, place = _comparison(record["comparison"]), record["place"]
        if place not in (None, plugin.POOL, plugin.CALLER_THREAD) or not _faster(comparison, guard):
            return None
        known = Verdict(str(record["session"]), comparison, place, int(record["starts"]) + 1)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    _write(store, digest, holds_for, known)
    return known


def remember(
    store: str, digest: str, holds_for: Dict[str, Any], verdict: Verdict, guard: float
) -> None:
    """For later starts, where it is shown to be faster; else there is none any more."""
    if _faster(verdict.comparison, guard):
        _write(store, digest, holds_for, replace(verdict, starts=0))
    else:
        forget(store, digest)


def forget(store: str, digest: str) -> None:
    """The next start compares at once."""
    with contextlib.suppress(OSError):
        os.unlink(_path(store, digest))


def forget_all(store: str) -> None:
    """Called by the parent of a run that is to start afresh."""
    shutil.rmtree(os.path.join(store, FOLDER), ignore_errors=True)


def _comparison(told: Dict[str, Any]) -> timer.Comparison:
    """Raises KeyError, TypeError or ValueError where it is none."""
    names = [each.name for each in fields(timer.Comparison) if each.name != "pairs"]
    figures = {name: float(told[name]) for name in names}
    if not all(math.isfinite(figure) and figure > 0 for figure in figures.values()):
        raise ValueError("figures of a comparison are positive")
    return timer.Comparison(pairs=int(told["pairs"]), **figures)


def _faster(comparison: timer.Comparison, guard: float) -> bool:
    """Kept, and not only for want of a proof that it is slower."""
    return comparison.high < 1.0 and timer.verdict(comparison, guard) is True


def _write(store: str, digest: str, holds_for: Dict[str, Any], verdict: Verdict) -> None:
    record = {**asdict(verdict), "holds_for": holds_for}
    with contextlib.suppress(OSError):  # the store is gone: the next start compares
        records.write(_path(store, digest), record)


def _path(store: str, digest: str) -> str:
    return os.path.join(store, FOLDER, f"{digest}.json")
