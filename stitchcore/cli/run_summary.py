"""What `stitch run` says at the end: step before and after, kernels, bytes, refusals, report."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from stitchcore.artifact import manifest as manifests
from stitchcore.artifact.manifest import Manifest
from stitchcore.cli import common, stored
from stitchcore.cli.run_job import ARMS, Graph, Process, Record
from stitchcore.errors import Reason
from stitchcore.inject.contract import MANIFEST
from stitchcore.inject.speedup import speedup_text
from stitchcore.report import schema
from stitchcore.report.job import Measured
from stitchcore.report.markup import saved_text
from stitchcore.report.reasons import PAGE, meaning, mend
from stitchcore.report.render import html
from stitchcore.report.step_parts import Part, bound, bound_text, parts
from stitchcore.report.view import ReasonRow, change, reasons

FEW_CALLS = Reason.FEW_CALLS.value
NEXT_RUN = "ready: the next run starts stitched"
SHOWN = 4
"""Reasons shown of a step; `stitch explain` lists them all."""


@dataclass(frozen=True)
class BreakEven:
    """What a step's compilation in this run cost, and when that is won back. `seconds` are those
    that its worker took, `processor_seconds` those of all its processes. `job_seconds` is what the
    job itself lost: its wait for the worker, or by how much the steps beside it were longer than
    untouched ones later; None where nothing tells. `steps` stitched steps win `seconds` back, as if
    the job had stood still for all of it, which takes `after_seconds` of such steps. `state` is
    "after" (so many steps), "never" (no faster), or "unknown"."""

    seconds: float
    processor_seconds: float
    job_seconds: float | None
    state: str
    steps: int | None = None
    after_seconds: float | None = None


@dataclass(frozen=True)
class Step:
    """One graph's outcome in one process; `kind` is training, evaluation or inference.
    `seconds_before` is the median step, `seconds_after` that by the speed-up; `speedup` is the time
    of a whole step before over its time after, with its 95 % interval: None where the job ended
    before there were enough blocks of both to tell. `measured_in` names the earlier run that has
    measured them, where this one began stitched by its verdict and ended before it compared."""

    digest: str
    kind: str
    status: str
    reason: str = ""
    detail: str = ""
    steps: int = 0
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    speedup: tuple[float, float, float] | None = None
    pairs: int = 0  # pairs of blocks compared
    measured_in: str = ""
    kernels_before: int = 0
    kernels_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_saved: int = 0
    bytes_saveable: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    report: str = ""
    memory: Mapping[str, Any] = field(default_factory=dict)  # the job's peak, bytes: `memory` event
    left: tuple[ReasonRow, ...] = ()  # operations that stay TensorFlow's, the most bytes first
    break_even: BreakEven | None = None  # None: compiled before this run, or not at all
    key: str = ""  # of its artifact
    parts: tuple[Part, ...] = ()  # where the step's time goes; none where no call was recorded
    speedup_bound: float | None = None  # what stitching could gain of it at most
    process: int = 0
    partly: Mapping[str, str] = field(default_factory=dict)  # why some calls run as they were
    executor: Mapping[str, Any] = field(default_factory=dict)  # in whose thread: `executor` event


@dataclass(frozen=True)
class Cause:
    """Why no step was seen: a reason, how many graphs it is of, and what to do."""

    reason: str
    count: int
    because: str
    mend: str
    detail: str = ""


@dataclass(frozen=True)
class JobProcess:
    """A process of the job that has TensorFlow: what its arguments are, and its rank, where a
    launcher gave it one, and which of the run's steps are its. `nothing` says why it has none."""

    number: int
    command: str
    rank: str
    steps: tuple[int, ...] = ()
    nothing: tuple[Cause, ...] = ()


@dataclass(frozen=True)
class Summary:
    """A whole run. `ready` counts artifacts that came too late for this run; `nothing` says why
    there is no step in any process."""

    steps: tuple[Step, ...]
    refusals: Mapping[str, int]
    exit_code: int = 0
    ready: int = 0
    session: str = ""
    nothing: tuple[Cause, ...] = ()
    processes: tuple[JobProcess, ...] = ()


def of(record: Record, store: Path) -> Summary:
    """The summary of `record`, with the manifests of the artifacts in `store`."""
    steps: list[Step] = []
    processes: list[JobProcess] = []
    for process in record.processes:
        begin = len(steps)
        graphs = process.graphs.values()
        steps += (_step(graph, store) for graph in graphs if graph.status != "seen")
        own = tuple(range(begin, len(steps)))
        if process.tf or own:
            why = () if own else why_nothing(process, record.exit_code)
            told = JobProcess(process.number, process.command, process.rank, own, why)
            processes.append(told)
    return Summary(
        tuple(steps),
        dict(record.refusals),
        record.exit_code,
        nothing=() if steps else why_nothing(record, record.exit_code),
        processes=tuple(processes),
    )


def why_nothing(told: Record | Process, exit_code: int) -> tuple[Cause, ...]:
    """Why a run, or a process of it, has no step: that the command failed, then what was refused,
    most graphs first; or else what never happened."""
    known = sorted(told.refusals.items(), key=lambda item: -item[1])
    if exit_code:
        known.insert(0, (Reason.COMMAND_FAILED.value, 0))
    absent = Reason.EAGER if told.tf else Reason.NOT_IMPORTED
    return tuple(
        Cause(reason, count, meaning(reason), mend(reason), told.details.get(reason, ""))
        for reason, count in known or [(absent.value, 0)]
    )


def _step(graph: Graph, store: Path) -> Step:
    folder = store / "artifacts" / graph.key if graph.key else None
    manifest = _manifest(folder)
    speedup = None
    if graph.interval is not None and graph.baseline_ns and min(graph.interval) > 0:
        low, high = graph.interval
        speedup = (1 / graph.ratio, 1 / high, 1 / low)
    told = _parts(graph)
    step = Step(
        graph.digest,
        graph.step,
        graph.status,
        graph.reason,
        graph.detail,
        graph.steps,
        graph.baseline_ns / 1e9,
        graph.stitched_ns / 1e9,
        speedup,
        graph.pairs,
        graph.measured_in,
        memory=graph.memory,
        refusals=graph.taken_back,
        break_even=_break_even(graph) if graph.compile_seconds else None,
        key=graph.key,
        parts=told,
        speedup_bound=bound(told),
        process=graph.process,
        partly=graph.partly,
        executor=graph.executor,
    )
    if manifest is None or folder is None:
        return step
    expect = manifest.expect
    page = folder / "report.html"
    return Step(
        **{
            **vars(step),
            "kernels_before": expect.kernels_before,
            "kernels_after": expect.kernels_after,
            "bytes_before": expect.bytes_before,
            "bytes_after": expect.bytes_after,
            "bytes_saved": expect.bytes_saved,
            "bytes_saveable": expect.bytes_saveable,
            "refusals": dict(Counter(manifest.refusals) + Counter(graph.taken_back)),
            "report": str(page) if page.exists() else "",
            "left": _left(folder),
        }
    )


def _parts(graph: Graph) -> tuple[Part, ...]:
    """Of the step's times as they are told: compared ones, or else those of a step that was never
    compared."""
    original, stitched = (graph.recorded.get(arm) for arm in ARMS)
    before, after = (graph.medians_ns.get(arm, 0.0) for arm in ARMS)
    if graph.baseline_ns:
        before, after = graph.baseline_ns, graph.stitched_ns
    return parts(before / 1e9, original, after / 1e9, stitched)


def _left(folder: Path) -> tuple[ReasonRow, ...]:
    """What the artifact's report says of what stays TensorFlow's; nothing where it cannot be
    read."""
    try:
        return reasons(schema.decode((folder / stored.REPORT).read_bytes()))
    except (OSError, msgspec.DecodeError):
        return ()


def _break_even(graph: Graph) -> BreakEven:
    """At the median saving of a step, where it is shown to be one."""
    lost: float | None = None
    if graph.waited:
        lost = graph.compile_seconds
    elif graph.beside_steps:
        lost = max(0.0, graph.beside_steps * (graph.beside_ns - graph.baseline_ns) / 1e9)
    cost = BreakEven(graph.compile_seconds, graph.processor_seconds, lost, "unknown")
    if graph.status in ("left", "rolled_back"):
        return replace(cost, state="never")
    if graph.interval is None or graph.interval[0] < 1.0 <= graph.interval[1]:
        return cost
    if graph.ratio >= 1.0:
        return replace(cost, state="never")
    saved = graph.baseline_ns * (1.0 - graph.ratio) / 1e9
    steps = math.ceil(graph.compile_seconds / saved)
    after = steps * graph.baseline_ns * graph.ratio / 1e9
    return replace(cost, state="after", steps=steps, after_seconds=after)


def _manifest(folder: Path | None) -> Manifest | None:
    """The artifact's manifest; None where there is none to read (the job said so already)."""
    if folder is None:
        return None
    try:
        return manifests.decode((folder / MANIFEST).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def measured(step: Step, command: str, machine: str) -> Measured:
    """A step for its page."""
    return Measured(
        _verdict(step),
        step.seconds_before,
        step.seconds_after,
        step.speedup,
        step.parts,
        _won_back(step.break_even) if step.break_even is not None else "",
        command,
        machine,
    )


def with_pages(summary: Summary, store: Path, command: Sequence[str], tf: str) -> Summary:
    """Write the page of each step into the session's folder, with what the job measured; where that
    cannot be done the artifact's own page is named."""
    line = shlex.join(["stitch", "run", "--", *command])
    cores = len(os.sched_getaffinity(0))
    machine = f"{processor()}, {cores} cores, Linux {platform.release()}, TensorFlow {tf}"
    steps: list[Step] = []
    for step in summary.steps:
        again = any(step.digest == other.digest for other in steps)
        name = f"{step.digest[:12]}-{step.process}" if again else step.digest[:12]
        page = store / "sessions" / summary.session / f"report-{name}.html"
        told = measured(step, line, machine)
        with contextlib.suppress(OSError):
            page.write_text(html(_report(step, store), measured=told), encoding="utf-8")
            step = replace(step, report=str(page))
        steps.append(step)
    return replace(summary, steps=tuple(steps))


def _report(step: Step, store: Path) -> schema.Report:
    """What the step's artifact tells; of a step that has none, that it has none."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        file = store / "artifacts" / step.key / stored.REPORT
        return schema.decode(file.read_bytes())
    return schema.Report(f"graph {step.digest[:12]}", "")


def processor() -> str:
    """The processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def document(summary: Summary) -> dict[str, Any]:
    """The summary as plain data. `ratio`, the inverse of `speedup`, is what scripts of earlier
    releases read."""
    told = asdict(summary)
    for step in told["steps"]:
        found = step["speedup"]
        step["ratio"] = found and (1 / found[0], 1 / found[2], 1 / found[1])
    return told


def show(summary: Summary, console: Console) -> None:
    """Print the summary."""
    for line in _of_processes(summary):
        common.say(line, console)
    for line in _of_nothing(summary.nothing, summary.exit_code):
        common.say(line, console)
    if summary.steps and FEW_CALLS in summary.refusals:
        count = summary.refusals[FEW_CALLS]
        left = "1 function was" if count == 1 else f"{count} functions were"
        common.say(f"[stitch] {left} called too few times, and left alone ({FEW_CALLS})", console)
    if summary.ready:
        common.say(f"[stitch] {NEXT_RUN}", console)
    if summary.nothing or any(step.left or step.reason for step in summary.steps):
        common.say(f"[stitch] what a code means: stitch explain CODE, or {PAGE}", console)


def _of_processes(summary: Summary) -> list[str]:
    """Lines of all steps, under those of their processes where there are several."""
    if len(summary.processes) < 2 or not summary.steps:
        return [line for step in summary.steps for line in _lines(step)]
    lines = []
    for process in summary.processes:
        rank = f" (rank {process.rank})" if process.rank else ""
        name = f"[stitch] process {process.number}{rank}: {process.command}"
        lines.append(name + (": no step" if process.nothing else ""))
        lines += [f"  {one.reason}: {one.because}; {one.mend}" for one in process.nothing]
        lines += [line for one in process.steps for line in _lines(summary.steps[one])]
    return lines


def _of_nothing(causes: Sequence[Cause], exit_code: int) -> list[str]:
    """A command that failed may have ended before there was a step."""
    failed = f"; the command ended with exit code {exit_code}" if exit_code else ""
    lines = [f"[stitch] nothing stitched{failed}"] if causes else []
    for cause in causes:
        what = f"{cause.count} graphs: " if cause.count > 1 else ""
        detail = f" ({cause.detail})" if cause.detail else ""
        lines.append(f"  {cause.reason}: {what}{cause.because}{detail}")
        lines.append(f"    what to do: {cause.mend}")
    return lines


def line_of(step: Step) -> str:
    """Which step, and what became of it."""
    return f"{step.kind} step {step.digest[:12]}: {_verdict(step)}".lstrip()


def _lines(step: Step) -> list[str]:
    lines = [f"[stitch] {line_of(step)}", *_of_parts(step.parts)]
    if step.kernels_before:
        saved = saved_text(step.bytes_saved, step.bytes_saveable)
        kernels = f"kernels {step.kernels_before:,} → {step.kernels_after:,}"
        lines.append(f"  {kernels}, bytes saved per step {saved}")
    if not step.reason and step.executor:
        lines.append(f"  {_executor_text(step.executor)}")
    if not step.reason:
        lines += [f"  in part as it was: {why} ({told})" for why, told in step.partly.items()]
    if step.memory.get("untouched"):
        untouched, stitched = (float(step.memory[name]) for name in ("untouched", "stitched"))
        both = f"{common.bytes_text(untouched)} → {common.bytes_text(stitched)}"
        lines.append(f"  peak {step.memory['of']} memory {both} ({change(stitched / untouched)})")
    if step.break_even is not None:
        lines.append(f"  {_won_back(step.break_even)}")
    lines += _of_left(step)
    if step.report:
        lines.append(f"  report: {step.report}")
    return lines


def _executor_text(executor: Mapping[str, Any]) -> str:
    places = ["in TensorFlow's threads", "in the thread that calls it"]
    here = bool(executor["caller_thread"])
    if executor["detail"]:
        return f"runs {places[here]}: {executor['detail']}"
    pool, caller = (float(executor[name]) / 1e9 for name in ("pool_ns", "caller_ns"))
    own, other = (caller, pool) if here else (pool, caller)
    times = f"{common.seconds_text(own)} a step, {common.seconds_text(other)} {places[not here]}"
    return f"runs {places[here]}: {times}"


def _of_parts(told: Sequence[Part]) -> list[str]:
    """A line each, and what can be gained at most. Shares are of the step then."""
    before = sum(part.before for part in told)
    after = sum(part.after or 0.0 for part in told)
    lines = []
    for part in told:
        line = (
            f"  {part.name:<21} {common.seconds_text(part.before):>8} {_share(part.before, before)}"
        )
        if part.after is not None:
            line += f" → {common.seconds_text(part.after):>8} {_share(part.after, after)}"
        lines.append(line)
    most = bound_text(tuple(told))
    return [*lines, f"  {most}"] if most else lines


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:>4.0%}"


def _of_left(step: Step) -> list[str]:
    """Reasons with the operations that move most bytes, where the report names them."""
    lines = []
    for row in step.left[:SHOWN]:
        moved = f", {common.bytes_text(row.bytes)} a step" if row.bytes else ""
        lines.append(f"  left to TensorFlow: {_times(step, row)}{moved}: {row.meaning}")
        if row.operations:
            lines.append(f"    most: {', '.join(row.operations)}")
    told = {row.reason for row in step.left}
    others = [f"{n} x {reason}" for reason, n in step.refusals.items() if reason not in told]
    others += [_times(step, row) for row in step.left[SHOWN:]]
    return [*lines, f"  left as it was: {', '.join(others)}"] if others else lines


def _times(step: Step, row: ReasonRow) -> str:
    """How often a reason was given: a region that was dropped is one refusal of many operations."""
    times = step.refusals.get(row.reason, row.count)
    operations = f" ({row.count} operations)" if row.count != times else ""
    return f"{times} x {row.reason}{operations}"


def _won_back(cost: BreakEven) -> str:
    text = f"compiled in {cost.seconds:.1f} s ({cost.processor_seconds:.1f} s of processors"
    if cost.job_seconds is not None:
        text += f", {cost.job_seconds:.1f} s lost to the job"
    if cost.state == "after":
        return f"{text}): won back after {cost.steps:,} steps, {cost.after_seconds:.1f} s"
    unknown = "not known when it is won back: not shown to be faster"
    return f"{text}): {'never won back' if cost.state == 'never' else unknown}"


def _verdict(step: Step) -> str:
    if step.reason:
        detail = f" ({step.detail})" if step.detail else ""
        return f"runs as it was, {step.reason}{detail}: {meaning(step.reason)}; {mend(step.reason)}"
    if step.speedup is None and step.pairs:
        before = common.seconds_text(step.seconds_before)
        after = common.seconds_text(step.seconds_after)
        return f"{before} → {after}, but too few steps to tell ({step.pairs} pairs of blocks)"
    if step.speedup is None:
        return _UNMEASURED.get(step.status, step.status)
    before = common.seconds_text(step.seconds_before)
    after = common.seconds_text(step.seconds_after)
    measured = f"{before} → {after}, speed-up {speedup_text(*step.speedup)}"
    return f"{measured}, as measured in run {step.measured_in}" if step.measured_in else measured


_UNMEASURED: Mapping[str, str] = {
    "stitched": "stitched; not compared: too few steps, or it cannot run both ways in turn",
    "submitted": "its kernels were not ready when the job ended; with --wait it begins stitched, "
    "with --finish the next run does",
    "loading": "the job ended in loading its kernels; if by a crash, the next run leaves them",
    "ready": "ready, not swapped in before the job ended",
}
"""What became of a step without a measurement, by its status."""
