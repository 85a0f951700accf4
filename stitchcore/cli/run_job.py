"""The job of `stitch run`: its environment, its events, how it ended.

The job is the user's own command with a few variables set (docs/contracts.md section 6). It writes
events into its session's folder; whoever started it follows that file.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stitchcore.inject
from stitchcore.report.step_parts import Recorded

BOOTSTRAP = Path(stitchcore.inject.__file__).resolve().parent / "bootstrap"

Event = Mapping[str, Any]


def session_name(process: int, now: float) -> str:
    """A name no other run of this user has: start time and process."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{process}"


def environment(
    inherited: Mapping[str, str], store: Path, session: str, public_key: str, wait: float
) -> dict[str, str]:
    """The job's environment: its own, with the hook in front of PYTHONPATH. `wait` in seconds."""
    paths = [str(BOOTSTRAP), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(paths),
        "STITCH_STORE": str(store),
        "STITCH_SESSION": session,
        "STITCH_PUBLIC_KEY": public_key,
        "STITCH_WAIT": f"{wait:g}",
        "STITCH_MODE": inherited.get("STITCH_MODE", "optimize"),
    }


class EventFile:
    """Follows an events.jsonl that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[Event]:
        """Events since the last call; a line that is not whole yet waits for the next one."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        self._offset += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        return [event for event in map(_decoded, lines) if event is not None]


def _decoded(line: bytes) -> Event | None:
    """The event in a line; None for one that another program wrote into the file."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "type" in event else None


@dataclass
class Graph:
    """What became of one graph of the job, as its events tell. Nanoseconds and ratios."""

    digest: str
    step: str = ""  # training | evaluation | inference
    status: str = "seen"  # seen | submitted | loading | ready | stitched | rolled_back | left
    reason: str = ""
    detail: str = ""
    key: str = ""
    steps: int = 0
    baseline_ns: float = 0.0
    stitched_ns: float = 0.0
    ratio: float = 0.0
    interval: tuple[float, float] | None = None  # None: too few pairs of blocks to tell
    pairs: int = 0
    memory: dict[str, Any] = field(default_factory=dict)  # of the `memory` event; empty: none
    taken_back: dict[str, int] = field(default_factory=dict)  # regions of its artifact, by reason
    compile_seconds: float = 0.0  # that its worker took in this run, and the processor seconds
    processor_seconds: float = 0.0
    waited: bool = False  # for the worker, by the job
    beside_steps: int = 0  # before a late swap: while the worker was at it
    beside_ns: float = 0.0
    recorded: dict[str, Recorded] = field(default_factory=dict)  # by arm: original, stitched
    medians_ns: dict[str, float] = field(default_factory=dict)  # of steps by arm, compared or not


@dataclass
class Record:
    """A run so far: its graphs by digest, and refusals that concern no single graph. `ended`: what
    the job was to do is done; its process may take some seconds more."""

    graphs: dict[str, Graph] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)  # of the last refusal of each reason
    events: int = 0
    tf: str = ""  # the version that the job has imported
    ended: bool = False

    def add(self, event: Event) -> None:
        """Take one event in; later ones overrule earlier ones."""
        self.events += 1
        digest, kind = str(event.get("digest") or ""), event["type"]
        reason = str(event.get("reason") or "")
        if kind == "refused" and reason:
            self.refusals[reason] = self.refusals.get(reason, 0) + 1
            self.details[reason] = str(event.get("detail") or "")
        if kind == "started":
            self.tf, self.ended = str(event.get("tf") or ""), False
        if kind == "end":
            self.ended = True
            self._take_medians(event.get("steps"))
        if not digest:
            return
        graph = self.graphs.setdefault(digest, Graph(digest))
        graph.step = str(event.get("step") or graph.step)
        status = _STATUS.get(str(kind))
        if status is not None:
            graph.status = status
        if kind in ("disabled", "rolled_back"):
            graph.reason, graph.detail = reason, str(event.get("detail") or "")
        if kind == "refused" and event.get("region"):
            graph.taken_back[reason] = graph.taken_back.get(reason, 0) + 1
        graph.key = str(event.get("key") or graph.key)
        if kind == "memory":
            fields = ("of", "stitched", "untouched", "ratio", "why")
            graph.memory = {name: event[name] for name in fields if name in event}
        if kind in ("savings", "rolled_back") and event.get("baseline_ns"):
            _take_figures(graph, event)
        if kind == "parts":
            recorded = Recorded(float(event["call"]), dict(event["shares"]))
            graph.recorded[str(event["arm"])] = recorded

    def _take_medians(self, steps: Any) -> None:
        for step in steps or ():
            graph = self.graphs.get(str(step.get("digest")))
            if graph is not None:
                told = ((arm, step.get(f"{arm}_ns")) for arm in ARMS)
                graph.medians_ns |= {arm: float(median) for arm, median in told if median}


ARMS = ("original", "stitched")

_STATUS: Mapping[str, str] = {
    "submitted": "submitted",
    "loading": "loading",
    "ready": "ready",
    "swap_begin": "stitched",
    "rolled_back": "rolled_back",
    "disabled": "left",
}


def _take_figures(graph: Graph, event: Event) -> None:
    graph.steps = int(event.get("steps") or graph.steps)
    graph.baseline_ns = float(event["baseline_ns"])
    graph.stitched_ns = float(event["stitched_ns"])
    graph.ratio = float(event["ratio"])
    graph.pairs = int(event.get("pairs") or graph.pairs)
    graph.beside_steps = int(event.get("beside_steps") or graph.beside_steps)
    graph.beside_ns = float(event.get("beside_ns") or graph.beside_ns)
    if event.get("interval") is None:
        return
    low, high = event["interval"]
    graph.interval = (float(low), float(high))


def shell_code(code: int) -> int:
    """An exit code as a shell shows it: 128 + signal number for a killed process."""
    return 128 - code if code < 0 else code


def start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the job on this process's standard streams. Raises OSError."""
    return subprocess.Popen(list(command), env=dict(env))
