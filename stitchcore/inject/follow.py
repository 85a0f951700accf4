"""Beside the job: reads step intervals, settles the breaker, keeps or rolls back, reports."""

from __future__ import annotations

import statistics
from typing import Any, Callable, Dict, List, Optional

from . import client, guard, plugin, program, reasons, settings, timer
from .program import FOREVER, ORIGINAL, STITCHED, Instance, Program


class Follower:
    """Acts on instances; `say` prints the job's one line."""

    def __init__(
        self,
        config: settings.Settings,
        native: plugin.Plugin,
        events: client.Events,
        say: Callable[[str, str], None],
    ) -> None:
        self._config = config
        self._plugin = native
        self._events = events
        self._say = say

    def follow(self, instance: Instance) -> None:
        """Takes in what has been timed since the last look, and decides."""
        instance.cursor, fresh = self._plugin.read(instance.step, instance.cursor)
        if not fresh:
            return
        instance.history = (instance.history + fresh)[-program.HISTORY :]
        found = instance.program
        if found.swapped and not found.settled:
            if self._plugin.passes(instance.step, STITCHED) >= guard.OK_STEPS:
                self.settle(found)
        if not found.ready or not found.swapped or not instance.can_alternate:
            return
        # The last block may still be running: it is left out.
        done = [one for one in instance.history if one.block != instance.history[-1].block]
        instance.comparison = timer.compare(done)
        keep = timer.verdict(instance.comparison)
        if keep is False:
            self._roll_back(instance)
        elif keep and instance.decided is None:
            instance.decided = True
            # Only the control share keeps running the original.
            original = program.ORIGINAL_BLOCK
            stitched = max(program.STITCHED_BLOCK, int(original / self._config.control) - original)
            self._plugin.schedule(instance.step, STITCHED, original, stitched)
        elif instance.comparison is not None and not instance.widened:
            # Not hopeless: more of the steps may be stitched while evidence grows.
            instance.widened = instance.comparison.pairs >= 2
            if instance.widened:
                blocks = (program.ORIGINAL_BLOCK, program.STITCHED_BLOCK)
                self._plugin.schedule(instance.step, STITCHED, *blocks)

    def settle(self, found: Program) -> None:
        """The swap has survived: closes the breaker's account."""
        for part in found.parts or [found]:
            guard.swap_ok(self._config.store, part.digest)
            self._events.write("swap_ok", digest=part.digest)
            part.settled = True
        found.settled = True

    def _roll_back(self, instance: Instance) -> None:
        found, comparison = instance.program, instance.comparison
        instance.decided = False
        found.reason = reasons.SLOWER
        self._plugin.schedule(instance.step, ORIGINAL, FOREVER, 0)
        detail = f"{comparison.ratio:.3f} of the original's time" if comparison else ""
        fields = {"reason": reasons.SLOWER, "detail": detail, **_figures(comparison)}
        self._events.write("rolled_back", digest=found.reported, **fields)
        self._say(reasons.SLOWER, f"rolled back ({detail})")

    def report_savings(self, instances: List[Instance]) -> None:
        for instance in instances:
            if instance.comparison is None:
                continue
            steps = self._plugin.passes(instance.step, STITCHED)
            figures = _figures(instance.comparison)
            self._events.write("savings", digest=instance.program.reported, steps=steps, **figures)

    def step_figures(self, instances: List[Instance]) -> List[Dict[str, Any]]:
        """For the `end` event: passes and median nanoseconds of each arm, measured or not."""
        figures = []
        for instance in instances:
            entry: Dict[str, Any] = {"digest": instance.program.reported}
            for arm, name in ((ORIGINAL, "original"), (STITCHED, "stitched")):
                times = [i.nanoseconds for i in instance.history if i.arm == arm and i.position > 0]
                entry[f"{name}_steps"] = self._plugin.passes(instance.step, arm)
                entry[f"{name}_ns"] = statistics.median(times) if times else None
            figures.append(entry)
        return figures


def _figures(comparison: Optional[timer.Comparison]) -> Dict[str, Any]:
    if comparison is None:
        return {}
    return {
        "baseline_ns": comparison.original,
        "stitched_ns": comparison.stitched,
        "interval": [comparison.low, comparison.high],
        "pairs": comparison.pairs,
    }
