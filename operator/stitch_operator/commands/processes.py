"""The processes of `stitch serve`: started, started again when they die, ended together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stitchcore.service.startup import CANNOT_START

LAUNCH = Path(__file__).with_name("launch.py")
MOST_STARTS = 10
START_WINDOW = 60.0
"""A process that dies MOST_STARTS times in so many seconds is given up."""
STOP_SECONDS = 20.0
AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Command:
    """One process. `environment` is all it gets; `stdin` is written to it at each start."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    stdin: bytes | None = None


@dataclass
class Child:
    """A command's running process, when it was started (monotonic seconds), and whether that was
    not the first time."""

    command: Command
    log: Path
    process: subprocess.Popen[bytes]
    starts: list[float] = field(default_factory=list)
    again: bool = False


class GaveUp(RuntimeError):
    """A process dies again and again; says which, its exit code and its last words."""


class Processes:
    """Children in the order they were started. `logs` is a folder."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: dict[str, Child] = {}
        logs.mkdir(parents=True, exist_ok=True, mode=0o700)

    def start(self, command: Command) -> None:
        """Start a command; its output goes to LOGS/NAME.log."""
        log = self._logs / f"{command.name}.log"
        child = Child(command, log, _spawn(command, log), [time.monotonic()])
        self._children[command.name] = child

    def pids(self) -> dict[str, int]:
        return {name: child.process.pid for name, child in self._children.items()}

    def look(self) -> list[str]:
        """Start again what has died; names of those. Raises GaveUp."""
        again = []
        for name, child in self._children.items():
            code = child.process.poll()
            if code is None:
                continue
            now = time.monotonic()
            child.starts = [one for one in child.starts if now - one < START_WINDOW]
            if code == CANNOT_START and not child.again:
                raise GaveUp(f"{name} cannot start: {self.tail(name)}")
            if len(child.starts) >= MOST_STARTS:
                raise GaveUp(
                    f"{name} ended {MOST_STARTS} times (exit code {code}): {self.tail(name)}"
                )
            if child.starts and now - child.starts[-1] < AGAIN_SECONDS:
                continue
            child.process = _spawn(child.command, child.log)
            child.starts.append(now)
            child.again = True
            again.append(name)
        return again

    def tail(self, name: str) -> str:
        """The last line a child wrote, and where the rest is."""
        log = self._children[name].log
        lines = log.read_bytes().decode(errors="replace").strip().splitlines() or ["no output"]
        first = -2 if len(lines) > 1 and lines[-1].startswith("  to mend it:") else -1
        words = "; ".join(line.strip() for line in lines[first:])
        return f"{words[:500]} (all of it: {log})"

    def stop(self) -> None:
        """End all, the last started first; what does not end in time is killed."""
        children = list(reversed(self._children.values()))
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)  # and what it left in its session
            child.process.wait()
        self._children.clear()


def _spawn(command: Command, log: Path) -> subprocess.Popen[bytes]:
    launch = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid())]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*launch, *command.arguments],
            env=dict(command.environment),
            stdin=subprocess.DEVNULL if command.stdin is None else subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    if command.stdin is not None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(command.stdin)
    return process
