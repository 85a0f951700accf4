"""The job of `stitch run`: its environment, its events, how it ended.

The job is the user's own command with a few variables set (docs/contracts.md section 6). It writes
events into its session's folder; whoever started it follows that file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stitchcore.inject
from stitchcore.report.step_parts import Recorded
from stitchcore.sandbox import isolate

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
    """What became of one graph of one process of the job, as its events tell. Nanoseconds and
    ratios."""

    digest: str
    process: int = 0
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
    measured_in: str = ""  # the earlier run that these figures are of; "": this one
    memory: dict[str, Any] = field(default_factory=dict)  # of the `memory` event; empty: none
    taken_back: dict[str, int] = field(default_factory=dict)  # regions of its artifact, by reason
    partly: dict[str, str] = field(default_factory=dict)  # why some calls run it as it was; details
    compile_seconds: float = 0.0  # that its worker took in this run, and the processor seconds
    processor_seconds: float = 0.0
    waited: bool = False  # for the worker, by the job
    beside_steps: int = 0  # before a late swap: while the worker was at it
    beside_ns: float = 0.0
    recorded: dict[str, Recorded] = field(default_factory=dict)  # by arm: original, stitched
    medians_ns: dict[str, float] = field(default_factory=dict)  # of steps by arm, compared or not
    executor: dict[str, Any] = field(default_factory=dict)  # of the last `executor` event


@dataclass
class Process:
    """One process of the job: its graphs by digest, and refusals that concern no single graph.
    `ended`: what it was to do is done; it may take some seconds more. One that did not say that it
    has TensorFlow has no `tf`."""

    number: int
    command: str = ""  # its arguments, as far as it has told them
    rank: str = ""
    tf: str = ""  # the version that it has imported
    ended: bool = False
    graphs: dict[str, Graph] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)  # of the last refusal of each reason

    def add(self, event: Event) -> None:
        """Take one event in; later ones overrule earlier ones."""
        digest, kind = str(event.get("digest") or ""), event["type"]
        reason = str(event.get("reason") or "")
        if kind == "refused" and reason:
            self.refusals[reason] = self.refusals.get(reason, 0) + 1
            self.details[reason] = str(event.get("detail") or "")
        if kind == "end":
            self.ended = True
            self._take_medians(event.get("steps"))
        if not digest:
            return
        graph = self.graphs.setdefault(digest, Graph(digest, self.number))
        graph.step = str(event.get("step") or graph.step)
        status = _STATUS.get(str(kind))
        if status is not None:
            graph.status = status
        if kind in ("disabled", "rolled_back"):
            graph.reason, graph.detail = reason, str(event.get("detail") or "")
        if kind == "refused" and event.get("region"):
            graph.taken_back[reason] = graph.taken_back.get(reason, 0) + 1
            if graph.partly.pop(reason, None) is not None:
                self.refusals[reason] -= 1  # the same, told while it was of few calls
        elif kind == "refused":
            graph.partly[reason] = str(event.get("detail") or "")
        graph.key = str(event.get("key") or graph.key)
        if kind == "memory":
            fields = ("of", "stitched", "untouched", "ratio", "why")
            graph.memory = {name: event[name] for name in fields if name in event}
        if kind in ("savings", "rolled_back") and event.get("baseline_ns"):
            _take_figures(graph, event)
        if kind == "executor":
            names = ("caller_thread", "detail", "pool_ns", "caller_ns")
            graph.executor = {name: event[name] for name in names if name in event}
        if kind == "parts":
            recorded = Recorded(float(event["call"]), dict(event["shares"]))
            graph.recorded[str(event["arm"])] = recorded

    def _take_medians(self, steps: Any) -> None:
        for step in steps or ():
            graph = self.graphs.get(str(step.get("digest")))
            if graph is not None:
                told = ((arm, step.get(f"{arm}_ns")) for arm in ARMS)
                graph.medians_ns |= {arm: float(median) for arm, median in told if median}


@dataclass
class Record:
    """A run so far: its processes, in the order in which they were first heard of, and how the
    command has ended."""

    processes: list[Process] = field(default_factory=list)
    exit_code: int = 0  # 0 as long as it runs

    def add(self, event: Event) -> None:
        """Take one event in. A number that begins once more is another process."""
        if event["type"] == "exited":
            self.exit_code = int(event["code"])
            return
        number = int(event.get("process") or 0)
        known = [one for one in self.processes if one.number == number][-1:]
        if not known or (event["type"] == "started" and known[0].tf):
            self.processes.append(Process(number))
            known = self.processes[-1:]
        if event["type"] == "started":
            known[0].tf = str(event.get("tf") or "")
            known[0].command = str(event.get("command") or "")
            known[0].rank = str(event.get("rank") or "")
        known[0].add(event)

    @property
    def graphs(self) -> list[Graph]:
        return [graph for process in self.processes for graph in process.graphs.values()]

    def of(self, digest: str) -> list[Graph]:
        """What is known of a graph, by each process that has it: at least by one."""
        found = [graph for graph in self.graphs if graph.digest == digest]
        if not found:
            self.add({"type": "asked", "digest": digest})
            found = self.graphs[-1:]
        return found

    @property
    def refusals(self) -> Counter[str]:
        return sum((Counter(process.refusals) for process in self.processes), Counter())

    @property
    def details(self) -> dict[str, str]:
        """Of the last refusal of each reason."""
        return {why: told for one in self.processes for why, told in one.details.items()}

    @property
    def tf(self) -> str:
        """The version that the job has imported."""
        return next((process.tf for process in self.processes if process.tf), "")

    @property
    def ended(self) -> bool:
        """Whether no process that has TensorFlow has anything left to do."""
        begun = [process for process in self.processes if process.tf]
        return bool(begun) and all(process.ended for process in begun)


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
    graph.measured_in = str(event.get("measured_in") or "")
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


def unfollowed(job: int) -> dict[int, str]:
    """Processes below `job` that have TensorFlow and no hook, with their commands: a Python program
    has started them, and the hook hides from what that starts. What a process with a hook forks has
    its environment, and is told of by the hook."""
    found = {}
    for number in isolate.tree(job):
        folder = Path("/proc", str(number))
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes()
            if (
                str(BOOTSTRAP).encode() in environment
                or LIBRARY not in (folder / "maps").read_bytes()
            ):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
            found[number] = command.decode(errors="replace").strip()[:COMMAND]
    return found


LIBRARY, COMMAND = b"libtensorflow", 300
