"""Beside the job: reads step intervals, settles the breaker, keeps or rolls back, reports."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import client, crash_breaker, memory, plugin, reasons, savings, settings, timer, verdicts
from . import program as program_module
from .program import (
    CANARY_BLOCK,
    CANARY_FIRST,
    FOREVER,
    HISTORY,
    ORIGINAL,
    ORIGINAL_BLOCK,
    STITCHED,
    STITCHED_BLOCK,
    WIDE_BLOCK,
    Instance,
    Program,
)
from .speedup import speedup_text

OFTEN = 8  # calls that a kernel did not fit
LONG = 50e6  # nanoseconds of a step of which a hundredth is more than threads being woken take


class Charge(NamedTuple):
    """A program of which a kernel cannot run: its step is to run its original."""

    program: Program
    failure: str


class Fault(NamedTuple):
    """What the job's own data has shown of a region; `lasting` when it is to be left out."""

    program: Program
    region: str
    reason: str
    message: str
    lasting: bool


class StepMonitor:
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
        self._reported: Dict[str, savings.Saved] = {}
        self._timed = False

    def follow(self, instance: Instance) -> None:
        """Takes in what has been timed since the last look, and decides."""
        self._follow_memory(instance)
        instance.cursor, fresh = self._plugin.read(instance.step, instance.cursor)
        if not fresh:
            return
        if not self._timed:  # whatever ends the job from here on is not how it was started
            self._timed = True
            self._events.write("timed", digest=instance.program.reported)
        counted = [interval for interval in fresh if interval.block > instance.ignored]
        instance.history = (instance.history + counted)[-HISTORY:]
        program = instance.program
        if instance.swapped_late and instance.beside is None:
            alone = [each.nanoseconds for each in instance.history if each.arm == ORIGINAL]
            if alone:
                steps = self._plugin.passes(instance.step, ORIGINAL)
                instance.beside = (steps, statistics.median(alone))
        if program.swapped and not program.settled:
            if self._plugin.passes(instance.step, STITCHED) >= crash_breaker.OK_STEPS:
                self.settle(program)
        if not program.ready or not program.swapped or not instance.can_alternate:
            return
        if instance.decided is False:
            return  # gone back, or with all replicas going back
        if self._config.baseline > 0:
            savings.advance(instance.record, fresh)
        if not instance.history or instance.history[-1].block == instance.compared:
            return
        # The last block may still be running: it is left out.
        instance.compared = last = instance.history[-1].block
        done = [interval for interval in instance.history if interval.block != last]
        instance.comparison = timer.compare(done)
        if instance.place == plugin.IN_TURNS:
            if not self._place(instance, done):
                if self._config.baseline > 0:
                    self._stretch(instance)
                return
        keep = timer.verdict(instance.comparison, self._config.guard)
        if keep is False:
            ratio = instance.comparison.ratio if instance.comparison is not None else 1.0
            told = f"speed-up {speedup_text(1 / ratio)}"
            self._roll_back(instance, reasons.SLOWER, told)
        elif program.joined:
            instance.decided = instance.decided or keep  # blocks are the group's (timer.cc)
        elif self._config.baseline > 0:
            instance.decided = instance.decided or keep
            self._stretch(instance)
        elif instance.decided:
            return
        elif keep:
            instance.decided = True
            self._remember(instance)
            # Only the control share keeps running the original.
            original = ORIGINAL_BLOCK
            stitched = max(STITCHED_BLOCK, int(original / self._config.control) - original)
            self._plugin.schedule(instance.step, STITCHED, original, stitched)
        elif instance.comparison is not None and not instance.widened:
            # Short blocks bring a verdict early where it is clear; of longer ones more counts.
            instance.widened = instance.comparison.pairs >= timer.MINIMUM_PAIRS
            if instance.widened:
                self._plugin.schedule(instance.step, STITCHED, WIDE_BLOCK, WIDE_BLOCK)

    def _place(self, instance: Instance, done: Sequence[plugin.Interval]) -> bool:
        """Whether it is known where stitched calls are quicker, in the thread that makes them or in
        TensorFlow's pool; from then on they run there. Long ones stay TensorFlow's."""
        longest = timer.pause(timer.blocks(done))
        pool, caller = (
            timer.compare(timer.placed(done, here), longest=longest) for here in (False, True)
        )
        if pool is None or caller is None:
            return False
        here, told = caller.ratio < pool.ratio, ""
        if pool.original > LONG:
            here, told = False, "its steps are long"
        elif min(pool.pairs, caller.pairs) < timer.PLACE_PAIRS:
            return False
        instance.place = plugin.CALLER_THREAD if here else plugin.POOL
        self._plugin.place(instance.step, instance.place)
        instance.ignored = instance.history[-1].block  # it runs in the other place, or in both
        instance.history = timer.placed(done, here)
        instance.comparison = timer.compare(instance.history)
        times = {"pool_ns": round(pool.stitched), "caller_ns": round(caller.stitched)}
        named = {"digest": instance.program.reported, "caller_thread": here, "detail": told}
        self._events.write("executor", **named, **times)
        return True

    def _stretch(self, instance: Instance) -> None:
        """Stitched blocks of random length, longer as evidence grows, up to the control share."""
        original, least = CANARY_BLOCK, CANARY_FIRST
        most = int(original / max(self._config.control, 1e-6)) - original
        if instance.decided is None:
            most = STITCHED_BLOCK
        stitched = self._plugin.calls(instance.step, STITCHED)
        length = savings.block_length(stitched, least, max(least, most))
        self._plugin.stretch(instance.step, length)

    def charge(self, programs: Iterable[Program]) -> List[Charge]:
        """What is newly found of kernels that could not run: one that cannot will not the next
        time, and its artifact's breaker stays."""
        of_data = (reasons.GUARD_FAILED, reasons.WRONG_RESULT)
        broken = {
            failure.kernel: failure.message
            for failure in self._plugin.failures()
            if plugin.reason_of(failure.message) not in of_data
        }
        charged = []
        for program in programs if broken else ():
            keys = sorted(program.kernels & broken.keys())
            if keys and program.failure is None:
                self.blame(program, broken[keys[0]])
                charged.append(Charge(program, broken[keys[0]]))
        return charged

    def faults(self, programs: Iterable[Program], instances: Sequence[Instance]) -> List[Fault]:
        """What is newly found of regions on the job's own data.

        One whose results were not TensorFlow's is left out from here on, and by the next start. So
        is one whose sizes were not its kernel's in half of the calls, but not by the next start: a
        size that did not fit may fit the next time, so the first one is only told.
        """
        failures: Dict[str, List[plugin.Failure]] = {}
        for failure in self._plugin.failures():
            # A function that was put into another has its nodes' names behind that one's.
            name = failure.node[max(failure.node.find("stitch/"), 0) :]
            failures.setdefault(name, []).append(failure)
        found = []
        for program in programs if failures else ():
            if program.artifact is None or program.reason is not None:
                continue
            users = [instance for instance in instances if instance.runs(program)]
            calls = sum(self._plugin.passes(instance.step, STITCHED) for instance in users)
            regions = program_module.regions_of_nodes(program.artifact)
            wrong: Dict[str, str] = {}
            for name in sorted(regions.keys() & failures.keys()):
                region = regions[name]
                if region in program.left_out:
                    continue
                fault = _fault(program, region, failures[name], calls)
                if fault is None or (program.unfit and not fault.lasting):
                    continue
                found.append(fault)
                program.unfit = program.unfit or fault.reason == reasons.GUARD_FAILED
                if fault.lasting:
                    program.left_out = {**program.left_out, region: fault.reason}
                if fault.reason == reasons.WRONG_RESULT:
                    wrong[region] = fault.message
            if wrong:
                store, key = self._config.store, program.artifact.key
                crash_breaker.record_wrong(store, program.digest, key, self._config.session, wrong)
        return found

    def blame(self, program: Program, failure: str) -> None:
        """The next start leaves the artifacts of a program alone and says why."""
        verdicts.forget(self._config.store, program.digest)
        for part in program.parts or [program]:
            program.failure = part.failure = failure
            if part.artifact is not None:
                key, session = part.artifact.key, self._config.session
                crash_breaker.record_failure(self._config.store, part.digest, key, session, failure)

    def finish(self, programs: Iterable[Program], instances: List[Instance]) -> None:
        """At an orderly exit: settles what has run, forgets swaps that never came to run, and tells
        of memory what is known."""
        for instance in instances:
            if instance.watch is not None:
                self._tell_memory(instance, instance.watch.last())
            if instance.decided and self._config.baseline == 0:
                self._remember(instance)
        for program in programs:
            if not program.swapped or program.settled or program.failure is not None:
                continue
            users = [user for user in instances if user.runs(program)]
            if not users or any(map(self.has_passed, users)):
                self.settle(program)
            else:
                crash_breaker.swap_ok(self._config.store, program.digest)

    def has_passed(self, instance: Instance) -> bool:
        """True when a stitched pass has finished: a timer counts a pass when it begins."""
        return self._plugin.passes(instance.step, STITCHED) > instance.raised

    def _remember(self, instance: Instance) -> None:
        """For later starts, what has been found of a step that was compared and kept."""
        program, comparison = instance.program, instance.comparison
        if program.artifact is None or comparison is None or not program.ready:
            return
        if program.on_gpu or program.joined:
            return  # they begin with their original
        holds_for = verdicts.circumstances(program.artifact.key, program.left_out)
        verdict = verdicts.Verdict(self._config.session, comparison, instance.place)
        store, guard = self._config.store, self._config.guard
        verdicts.remember(store, program.digest, holds_for, verdict, guard)

    def settle(self, program: Program) -> None:
        """The swap has survived: closes the breaker's account."""
        for part in program.parts or [program]:
            crash_breaker.swap_ok(self._config.store, part.digest)
            self._events.write("swap_ok", digest=part.digest, key=part.key)
            part.settled = True
        program.settled = True

    def _follow_memory(self, instance: Instance) -> None:
        """Takes the swap back where the stitched steps' peak is too high."""
        watch = instance.watch
        if watch is None:
            return
        if not instance.program.ready or instance.decided is False:  # it runs its original
            self._tell_memory(instance, watch.last())
            return
        seen = instance.comparison
        enough = seen is not None and seen.pairs >= timer.ENOUGH_PAIRS
        finding = watch.look(instance.decided is True, enough)
        if finding is None:
            return
        self._tell_memory(instance, finding)
        if finding.over:
            self._roll_back(instance, reasons.MEMORY, finding.detail)

    def _tell_memory(self, instance: Instance, finding: memory.Finding) -> None:
        instance.watch = None
        named = {"digest": instance.program.reported, "key": instance.program.key}
        self._events.write("memory", **named, **finding.fields())

    def _roll_back(self, instance: Instance, reason: str, detail: str) -> None:
        instance.decided = False
        if instance.member is not None:
            instance.member.ask_back(reason, detail)
            return
        self._plugin.schedule(instance.step, ORIGINAL, FOREVER, 0)
        self.rolled_back(instance, reason, detail)

    def rolled_back(self, instance: Instance, reason: str, detail: str) -> None:
        """Reports a step that runs its original for good, after a swap."""
        program = instance.program
        verdicts.forget(self._config.store, program.digest)
        program.reason, instance.decided = reason, False
        fields = {"reason": reason, "detail": detail, **comparison_fields(instance.comparison)}
        self._events.write("rolled_back", digest=program.reported, key=program.key, **fields)
        self._say(reason, f"rolled back ({detail})")

    def report_savings(self, instances: List[Instance]) -> None:
        for instance in instances:
            steps, figures = self._plugin.passes(instance.step, STITCHED), told(instance)
            if not steps or not figures:
                continue
            if instance.beside is not None:
                figures["beside_steps"], figures["beside_ns"] = instance.beside
            self._events.write("savings", digest=instance.program.reported, steps=steps, **figures)

        for program, whole in self.totals(instances):
            if self._reported.get(program.digest) == whole:
                continue  # said already
            self._reported[program.digest] = whole
            bounds = (whole.low, whole.high)
            self._events.write(
                "savings_total",
                digest=program.reported,
                key=program.key,
                steps=whole.steps,
                baseline_ns=round(whole.stitched + whole.saved),
                stitched_ns=round(whole.stitched),
                lost_ns=round(whole.lost),
                interval=[round(bound) for bound in bounds if bound is not None] or None,
                pairs=whole.pairs,
                devices=program.devices,
            )

    def totals(self, instances: List[Instance]) -> List[Tuple[Program, savings.Saved]]:
        """What all callers of each graph have saved since the start, where savings are reported."""
        totals = []
        all_programs = (instance.program for instance in instances)
        programs = {program.digest: program for program in all_programs if program.swapped}
        for program in programs.values() if self._config.baseline > 0 else ():
            users = [instance for instance in instances if instance.program is program]
            passes = [self._plugin.passes(instance.step, STITCHED) for instance in users]
            parts = [_with_loss(instance, n) for instance, n in zip(users, passes) if n > 0]
            totals += [(program, savings.summed(parts))] if parts else []
        return totals

    def step_figures(self, instances: List[Instance]) -> List[Dict[str, Any]]:
        """For the `end` event: passes and median nanoseconds of each arm, measured or not."""
        figures = []
        for instance in instances:
            blocks = timer.blocks(instance.history)
            entry: Dict[str, Any] = {"digest": instance.program.reported}
            for arm, name in ((ORIGINAL, "original"), (STITCHED, "stitched")):
                times = [time for block_arm, block in blocks if block_arm == arm for time in block]
                entry[f"{name}_steps"] = self._plugin.passes(instance.step, arm)
                entry[f"{name}_ns"] = statistics.median(times) if times else None
            figures.append(entry)
        return figures


def _fault(
    program: Program, region: str, failures: Sequence[plugin.Failure], calls: int
) -> Optional[Fault]:
    """What `failures` of one node say of its region, after so many calls of its step."""
    said = [(plugin.reason_of(failure.message), failure) for failure in failures]
    for reason, failure in said:
        if reason == reasons.WRONG_RESULT:
            return Fault(program, region, reason, failure.message[len(plugin.WRONG) :], True)
    unfit = [failure for reason, failure in said if reason == reasons.GUARD_FAILED]
    if not unfit:
        return None
    times = sum(failure.times for failure in unfit)
    lasting = times >= OFTEN and 2 * times >= calls
    return Fault(program, region, reasons.GUARD_FAILED, unfit[0].message, lasting)


def _with_loss(instance: Instance, steps: int) -> savings.Saved:
    """Totals of one caller. A swap that was rolled back before there were pairs enough for an
    interval saved nothing, but what its slower steps took is lost."""
    whole, seen = savings.total(instance.record, steps), instance.comparison
    if whole.measured or instance.decided is not False or seen is None:
        return whole
    return replace(whole, lost=whole.lost + max(0.0, steps * (seen.stitched - seen.original)))


def told(instance: Instance) -> Dict[str, Any]:
    """Figures of a step for events: this run's, or those that it relies on until there are any."""
    seen, earlier = instance.comparison, instance.program.earlier
    relies = instance.decided is None and instance.program.ready
    if relies and earlier is not None and (seen is None or seen.pairs < timer.MINIMUM_PAIRS):
        return {**comparison_fields(earlier.comparison), "measured_in": earlier.session}
    return comparison_fields(seen)


def comparison_fields(comparison: Optional[timer.Comparison]) -> Dict[str, Any]:
    if comparison is None:
        return {}
    return {
        "baseline_ns": comparison.original,
        "stitched_ns": comparison.stitched,
        "ratio": comparison.ratio,
        # Infinity is no JSON, and no finding either: too few pairs to tell.
        "interval": [comparison.low, comparison.high] if math.isfinite(comparison.high) else None,
        "pairs": comparison.pairs,
    }
