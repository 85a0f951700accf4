"""Has TensorFlow record a few of a step's calls, for where their time goes (step_parts.py).

A recorded call is slower by some per cent and is followed by the reading of what was recorded
(under a ms). So where arms take turns it is one whose interval does not count (timer.py): the last
of a block; or, once stitched blocks are long, one of a block, which does not move their median.
What part of a step its call is, the rest being between calls, is taken from calls that nobody
records.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, Hashable, List, Optional, Set, Tuple

from .plugin import Plugin
from .program import ORIGINAL, ORIGINAL_BLOCK, STITCHED, WIDE_BLOCK, Instance, Program
from .step_parts import XLA_OPERATION, shares

RECORDED = 3  # calls of each arm
WARM_CALLS = 5  # before the first that is recorded
TIMED = 64  # calls of each arm of which it is kept how long they were, and what lay behind them
MOST_BYTES = 64 * 2**20  # of a record that is read


def _for_arms() -> Dict[int, Deque[int]]:
    return {arm: deque(maxlen=TIMED) for arm in (ORIGINAL, STITCHED)}


@dataclass
class _Followed:
    """A caller whose calls are followed. `position` counts calls in a row of one arm."""

    arm: int = -1
    position: int = 0
    recorded_here: bool = False  # in this row
    ended: int = 0  # when the last call did, unless it was recorded
    lengths: Dict[int, Deque[int]] = field(default_factory=_for_arms)
    gaps: Dict[int, Deque[int]] = field(default_factory=_for_arms)
    records: Dict[int, List[Tuple[str, int, int]]] = field(
        default_factory=lambda: {ORIGINAL: [], STITCHED: []}
    )
    early: bool = False  # its original calls were recorded before the swap

    def enough(self) -> bool:
        """Of both arms, and not before the swap."""
        seen = zip(self.records.values(), self.lengths.values())
        return not self.early and all(
            len(records) >= RECORDED and len(lengths) >= WARM_CALLS for records, lengths in seen
        )


class Recorder:
    """Records calls of those that are `followed`, one at a time, until it has enough of them."""

    def __init__(self, native: Plugin) -> None:
        self.followed: Set[Hashable] = set()
        self._plugin = native
        self._known: Dict[Hashable, _Followed] = {}
        self._open: Optional[Tuple[Hashable, int]] = None

    def follow(self, caller: Hashable) -> None:
        if caller not in self._known:
            self._known[caller] = _Followed()
            self.followed.add(caller)

    def begin(self, caller: Hashable, instance: Instance, arm: int) -> None:
        """A call begins."""
        known = self._known[caller]
        if instance.program.reason is not None and len(known.records[ORIGINAL]) >= RECORDED:
            self.followed.discard(caller)  # no other calls will come
        if known.ended and arm == known.arm:
            known.gaps[arm].append(time.perf_counter_ns() - known.ended)
        if arm == known.arm:
            known.position += 1
        else:
            known.arm, known.position, known.recorded_here = arm, 0, False
        if self._open is None and self._may(known, instance, arm) and self._plugin.start_trace():
            known.recorded_here = True
            self._open = (caller, time.time_ns())

    def end(self, caller: Hashable, arm: int, nanoseconds: int) -> None:
        """A call that took so long has ended."""
        known = self._known[caller]
        if self._open is None or self._open[0] != caller:
            known.lengths[arm].append(nanoseconds)
            known.ended = time.perf_counter_ns()
            if known.enough():
                self.followed.discard(caller)
            return
        begin, now = self._open[1], time.time_ns()
        self._open, known.ended = None, 0
        text = self._plugin.stop_trace()
        if len(text) <= MOST_BYTES:
            known.records[arm].append((text, begin, now))

    @staticmethod
    def _may(known: _Followed, instance: Instance, arm: int) -> bool:
        program = instance.program
        both = program.swapped and program.reason is None and instance.decided is not False
        if both and known.early and arm == ORIGINAL:
            known.early = False  # beside stitched ones they are recorded anew
            known.records[ORIGINAL].clear()
        if not both:
            known.early = not program.swapped
        if len(known.records[arm]) >= RECORDED or len(known.lengths[arm]) < WARM_CALLS:
            return False
        if not both or not instance.can_alternate:
            return True
        if instance.decided and arm == STITCHED:
            return known.position > 1 and not known.recorded_here
        wide = instance.widened and instance.decided is None
        return known.position == (WIDE_BLOCK if wide else ORIGINAL_BLOCK) - 1

    def told(self, caller: Hashable, program: Program) -> List[Dict[str, Any]]:
        """Of each arm with records: what part of a step its call is (all, where the step is its
        call), and what part of that each part is."""
        known = self._known.get(caller)
        figures: List[Dict[str, Any]] = []
        for arm, name in ((ORIGINAL, "original"), (STITCHED, "stitched")):
            if known is None or not known.records[arm] or not known.lengths[arm]:
                continue
            silent = program.bodies is not None and arm == ORIGINAL  # XLA's, before 2.21
            each = [
                shares(text, begin, end, silent and XLA_OPERATION not in text)
                for text, begin, end in known.records[arm]
            ]
            mean = {part: statistics.fmean(one[part] for one in each) for part in each[0]}
            call = statistics.median(known.lengths[arm])
            gaps = () if program.for_results else known.gaps[arm]
            whole = call + (statistics.median(gaps) if gaps else 0)
            told = {"arm": name, "calls": len(each), "call": call / whole, "shares": mean}
            figures.append(told)
        return figures
