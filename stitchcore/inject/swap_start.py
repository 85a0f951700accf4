"""When a step is swapped, and that it is on record before the first stitched pass.

Without a baseline a step may start stitched, or change over when its artifact comes, and takes
turns with its original, or relies on an earlier start's verdict for a while (verdicts.py); on a GPU
it runs its original first, whose peak tells whether there is room for the stitched one. With a
baseline (savings are reported) it first runs so many original steps; then canary blocks of the
original go on all job long. Where a step cannot be swapped later, it is swapped unmeasured or not
at all.
"""

from __future__ import annotations

import time
from typing import Callable, Optional

from . import client, crash_breaker, memory, plugin, reasons, settings, verdicts
from . import program as program_module
from .program import (
    CANARY_BLOCK,
    CANARY_FIRST,
    FIRST_BLOCK,
    FOREVER,
    ORIGINAL,
    ORIGINAL_BLOCK,
    SHORT_MEAN,
    STITCHED,
    WARM_UP,
    Instance,
    Program,
    View,
)

Disable = Callable[[Program, str, str], None]
Begun = Callable[[str, str], bool]


class Swapper:
    """Acts on programs and instances; `disable` keeps one on its original for good; `begun`
    is a source's."""

    def __init__(
        self,
        config: settings.Settings,
        native: plugin.Plugin,
        events: client.Events,
        disable: Disable,
        begun: Begun,
    ) -> None:
        self._config = config
        self._plugin = native
        self._events = events
        self._disable = disable
        self._begun = begun

    def open(self, program: Program) -> bool:
        """Opens the breaker's account of this swap, once. False when there must be no swap."""
        if self._config.mode != "optimize" or not program.ready:
            return False
        if program.parts:
            opened = [self.open(part) for part in program.parts]
            program.swapped = all(opened)
            return program.swapped
        if program.artifact is None:
            return False
        with program.lock:
            if program.swapped:
                return True
            try:
                key, session = program.artifact.key, self._config.session
                crash_breaker.swap_begin(self._config.store, program.digest, key, session)
            except OSError as error:
                self._disable(program, reasons.STORE_UNREADABLE, f"breaker: {error.strerror}")
                return False
            program.swapped = True
        self._events.write("swap_begin", digest=program.digest, key=program.artifact.key)
        return True

    def fits(self, program: Program, untouched: bool = False) -> bool:
        """Whether its GPUs have room for the stitched step; `untouched`: its original has run."""
        why = self._no_room(program, untouched)
        if why is not None:
            self._disable(program, reasons.MEMORY, why)
        return why is None

    def _no_room(self, program: Program, untouched: bool) -> Optional[str]:
        if not program.on_gpu:
            return None
        estimate, more = program.live_bytes, self._config.memory
        return memory.no_room(memory.allocators(), untouched, estimate, more)

    def first_arm(self, program: Program) -> int:
        """The arm that a new caller of `found` starts with."""
        never_later = program.refused_late is not None
        unmeasured = never_later and self._config.allow_unmeasured
        at_once = self._config.baseline == 0 or unmeasured
        at_once = at_once and not program.joined and (never_later or not program.on_gpu)
        if at_once and program.ready and self.fits(program) and self.open(program):
            return STITCHED
        return ORIGINAL

    def rehearse(self, program: Program, view: View) -> None:
        """Raises Refused where the swap of a joined step could fail: at the agreed step the others
        swap, whatever becomes of this one."""
        why = self._no_room(program, untouched=True)
        if why is not None:
            raise reasons.Refused(reasons.MEMORY, why)
        if program.artifact is not None:
            program_module.stitched_graph(view, program, self._plugin)
            try:
                key, session = program.artifact.key, self._config.session
                crash_breaker.swap_begin(self._config.store, program.digest, key, session)
            except OSError as error:
                raise reasons.Refused(
                    reasons.STORE_UNREADABLE, f"breaker: {error.strerror}"
                ) from error
            crash_breaker.swap_ok(self._config.store, program.digest)

    def start(self, instance: Instance) -> None:
        """The schedule of a new caller."""
        self._plugin.schedule(instance.step, instance.first_arm, 0, 0)
        if instance.first_arm == STITCHED and instance.can_alternate:
            self._begin(instance)

    def late(self, instance: Instance) -> None:
        """Swaps a step in that has been running its original, once its time has come."""
        if instance.tried:
            return
        if self._config.mode != "optimize" or instance.swapped_late or not instance.program.ready:
            return
        if instance.program.joined:
            return  # swap_group_member.py
        if instance.first_arm != ORIGINAL or instance.arm[0] != ORIGINAL or not self.due(instance):
            return
        program = instance.program
        if program.refused_late is None and not self._on_record(program):
            return
        instance.swapped_late = True
        if program.refused_late is not None:
            self._disable(program, program.refused_late, "not to be swapped after the first step")
        elif self.fits(program, untouched=True) and self.open(program):
            if self._config.control <= 0:
                self._plugin.schedule(instance.step, STITCHED, 0, FOREVER)
            elif self._config.baseline > 0:
                instance.watch_memory(self._plugin, self._config.memory)
                self._plugin.schedule(instance.step, STITCHED, CANARY_BLOCK, CANARY_FIRST)
            else:
                self._begin(instance)

    def look_back(self, program: Program) -> None:
        """Takes up an earlier start's verdict on an artifact that has just come, where nobody has
        asked for a baseline of this run's own."""
        compared_here = self._config.control > 0 and self._config.baseline == 0
        alone = not (program.joined or program.on_gpu) and program.refused_late is None
        if self._config.mode == "optimize" and compared_here and alone and program.artifact:
            holds_for = verdicts.circumstances(program.artifact.key, program.left_out)
            store, guard = self._config.store, self._config.guard
            program.earlier = verdicts.rely_on(store, program.digest, holds_for, guard)

    def _begin(self, instance: Instance) -> None:
        """Stitched steps alone for a while where an earlier start has compared; else in turns."""
        earlier = instance.program.earlier
        wait = earlier.after(self._config.control) if earlier is not None else 0.0
        if earlier is None or wait <= 0:
            self._take_turns(instance)
            return
        instance.compare_at, instance.place = time.monotonic() + wait, earlier.place
        if earlier.place is not None:
            self._plugin.place(instance.step, earlier.place)
        self._plugin.schedule(instance.step, STITCHED, ORIGINAL_BLOCK, FOREVER)

    def compare(self, instance: Instance) -> None:
        """Has a step that relies on an earlier verdict be compared, once it is time."""
        if instance.compare_at is None or time.monotonic() < instance.compare_at:
            return
        instance.compare_at = None
        if instance.program.ready and instance.decided is None:
            self._take_turns(instance)

    def _take_turns(self, instance: Instance) -> None:
        """Short blocks of both arms, the stitched ones of random length: equal ones fall in step
        with what a job does every few calls (an epoch's end), which then counts as one arm's."""
        if not self._plugin.passes(instance.step, STITCHED):  # else no peak is the original's
            instance.watch_memory(self._plugin, self._config.memory)
        self._plugin.schedule(instance.step, STITCHED, ORIGINAL_BLOCK, FIRST_BLOCK)
        self._plugin.stretch(instance.step, SHORT_MEAN)

    def _on_record(self, program: Program) -> bool:
        """Whether the swap stands where the workload's next pod is told of it; the step runs its
        original until then."""
        try:
            known = [
                self._begun(part.digest, part.artifact.key)
                for part in program.parts or [program]
                if part.artifact is not None
            ]
        except reasons.Refused as error:
            self._disable(program, error.reason, error.detail)
            return False
        return all(known)

    def back(self, instance: Instance, reason: str, detail: str) -> None:
        """To the original for good: at once, or with all replicas at the step they agree on.

        A step in which TensorFlow's kernels hold random numbers keeps its instantiation, or it
        would draw the first ones again: its stitched operations leave their work to TensorFlow's.
        """
        if instance.member is not None:
            instance.member.ask_back(reason, detail)
        elif instance.program.refused_late is not None and instance.has_begun():
            self._plugin.retire(instance.program.kernels)
        else:
            self._plugin.schedule(instance.step, ORIGINAL, FOREVER, 0)

    def renew(self, instance: Instance) -> None:
        """Has the stitched graph built anew, without what has been left out since; until then, and
        where an instantiation is for good, functions of TensorFlow's operations do that work."""
        program = instance.program
        fixed = program.refused_late is not None or program.bodies is not None
        instance.renew = not fixed and instance.member is None

    def pause(self, instance: Instance) -> None:
        """Has the next call run the original."""
        self._plugin.schedule(instance.step, ORIGINAL, FOREVER, 0)

    def resume(self, instance: Instance) -> None:
        """Goes on where `pause` was called in vain."""
        if instance.program.reason is not None:
            return
        if instance.first_arm == STITCHED:
            self.start(instance)
        else:
            instance.swapped_late = False

    def due(self, instance: Instance) -> bool:
        """True once the baseline has been run; on a GPU, once its allocator knows the step."""
        baseline = self._config.baseline > 0 or instance.on_gpu
        if not baseline or instance.program.refused_late is not None:
            return True
        least = WARM_UP + self._config.baseline
        return self._plugin.passes(instance.step, ORIGINAL) >= least
