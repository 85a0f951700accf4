"""What `stitch run` says at the end: step before and after, kernels, bytes, refusals, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from stitchcore.artifact import manifest as manifests
from stitchcore.artifact.manifest import Manifest
from stitchcore.cli import common
from stitchcore.cli.run_job import Graph, Record
from stitchcore.errors import Reason
from stitchcore.inject.contract import MANIFEST
from stitchcore.report.markup import saved_text

FEW_CALLS = Reason.FEW_CALLS.value
NEXT_RUN = "ready: the next run starts stitched"


@dataclass(frozen=True)
class Step:
    """One graph's outcome; `kind` is training, evaluation or inference. Seconds are medians of
    steps; `ratio` is stitched/original with its 95 % interval, None where the job ended before
    there were enough blocks of both to tell."""

    digest: str
    kind: str
    status: str
    reason: str = ""
    detail: str = ""
    steps: int = 0
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    ratio: tuple[float, float, float] | None = None
    pairs: int = 0  # pairs of blocks compared
    kernels_before: int = 0
    kernels_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_saved: int = 0
    bytes_saveable: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    report: str = ""
    memory: Mapping[str, Any] = field(default_factory=dict)  # the job's peak, bytes: `memory` event


@dataclass(frozen=True)
class Summary:
    """A whole run. `ready` counts artifacts that came too late for this run."""

    steps: tuple[Step, ...]
    refusals: Mapping[str, int]
    exit_code: int = 0
    ready: int = 0
    session: str = ""


def of(record: Record, store: Path) -> Summary:
    """The summary of `record`, with the manifests of the artifacts in `store`."""
    steps = tuple(_step(graph, store) for graph in record.graphs.values() if graph.status != "seen")
    return Summary(steps, dict(record.refusals))


def _step(graph: Graph, store: Path) -> Step:
    folder = store / "artifacts" / graph.key if graph.key else None
    manifest = _manifest(folder)
    ratio = None
    if graph.interval is not None and graph.baseline_ns:
        ratio = (graph.ratio, *graph.interval)
    step = Step(
        graph.digest,
        graph.step,
        graph.status,
        graph.reason,
        graph.detail,
        graph.steps,
        graph.baseline_ns / 1e9,
        graph.stitched_ns / 1e9,
        ratio,
        graph.pairs,
        memory=graph.memory,
        refusals=graph.taken_back,
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
        }
    )


def _manifest(folder: Path | None) -> Manifest | None:
    """The artifact's manifest; None where there is none to read (the job said so already)."""
    if folder is None:
        return None
    try:
        return manifests.decode((folder / MANIFEST).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def document(summary: Summary) -> dict[str, Any]:
    """The summary as plain data."""
    return asdict(summary)


def show(summary: Summary, console: Console) -> None:
    """Print the summary."""
    for step in summary.steps:
        for line in _lines(step):
            console.print(line, markup=False, soft_wrap=True)
    if not summary.steps:
        known = ", ".join(f"{count} x {reason}" for reason, count in summary.refusals.items())
        console.print(f"[stitch] nothing stitched: {known or 'no step seen'}", markup=False)
    elif FEW_CALLS in summary.refusals:
        left = f"{summary.refusals[FEW_CALLS]} functions called too few times were left alone"
        console.print(f"[stitch] {left} ({FEW_CALLS})", markup=False)
    if summary.ready:
        console.print(f"[stitch] {NEXT_RUN}", markup=False)


def _lines(step: Step) -> list[str]:
    name = f"[stitch] {step.kind} step {step.digest[:12]}".replace("  ", " ")
    lines = [f"{name}: {_verdict(step)}"]
    if step.kernels_before:
        saved = saved_text(step.bytes_saved, step.bytes_saveable)
        kernels = f"kernels {step.kernels_before} → {step.kernels_after}"
        lines.append(f"  {kernels}, bytes saved per step {saved}")
    if step.memory.get("untouched"):
        untouched, stitched = (float(step.memory[name]) for name in ("untouched", "stitched"))
        both = f"{common.bytes_text(untouched)} → {common.bytes_text(stitched)}"
        lines.append(f"  peak {step.memory['of']} memory {both} ({stitched / untouched:.3f})")
    if step.refusals:
        counts = ", ".join(f"{count} x {reason}" for reason, count in step.refusals.items())
        lines.append(f"  left as it was: {counts}")
    if step.report:
        lines.append(f"  report: {step.report}")
    return lines


def _verdict(step: Step) -> str:
    if step.reason:
        return f"runs as it was, {step.reason}" + (f" ({step.detail})" if step.detail else "")
    if step.ratio is None and step.pairs:
        before = common.seconds_text(step.seconds_before)
        after = common.seconds_text(step.seconds_after)
        return f"{before} → {after}, but too few steps to tell ({step.pairs} pairs of blocks)"
    if step.ratio is None:
        return _UNMEASURED.get(step.status, step.status)
    value, low, high = step.ratio
    before = common.seconds_text(step.seconds_before)
    after = common.seconds_text(step.seconds_after)
    return f"{before} → {after}, {value:.3f} of the time before [{low:.3f}, {high:.3f}]"


_UNMEASURED: Mapping[str, str] = {
    "stitched": "stitched; the run was too short to compare with original steps",
    "submitted": "not ready before the job ended",
    "loading": "the job ended in loading its kernels; if by a crash, the next run leaves them",
    "ready": "ready, not swapped in before the job ended",
}
"""What became of a step without a measurement, by its status."""
