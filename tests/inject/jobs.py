"""Runs a user's program untouched or under the hook, in a process of its own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server, lean
from tests.waiting import RUN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = ROOT / "stitchcore" / "inject" / "bootstrap"
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Run:
    code: int
    losses: list[float]
    lines: list[str]  # what we wrote to stderr
    events: list[dict[str, Any]]

    def event(self, kind: str) -> dict[str, Any]:
        found = [event for event in self.events if event["type"] == kind]
        assert found, f"no {kind} event; {[e['type'] for e in self.events]} {self.lines}"
        return found[-1]

    def complaints(self) -> list[str]:
        """What we wrote, but for the timer's verdict: steps of microseconds may well be slower."""
        return [line for line in self.lines if not line.startswith("[stitch] slower: rolled back")]

    def kinds(self) -> set[str]:
        return {event["type"] for event in self.events}


def python_of(version: str) -> str:
    """The interpreter with that TensorFlow. Skips, loudly, where there is none."""
    if version == "2.21":
        return sys.executable
    named = os.environ.get("STITCH_TEST_TF215_PYTHON", str(ROOT / ".venv-tf215/bin/python"))
    if not Path(named).exists():
        pytest.skip(
            "no TensorFlow 2.15: run `make .venv-tf215/.installed` or set STITCH_TEST_TF215_PYTHON"
        )
    return named


@functools.cache
def untouched(version: str, script: str, *arguments: object) -> tuple[float, ...]:
    """Losses of a program that nobody stitches; run once for all tests of a process."""
    done = fork_server.run([python_of(version), str(SCRIPTS / script), *map(str, arguments)])
    losses = tuple(float(line) for line in done.stdout.splitlines())
    assert done.returncode == 0 and len(losses) >= 30
    return losses


def run(python: str, script: str, *arguments: object, store: Path | None = None,
        session: str = "s", forked: bool = True, **settings: str) -> Run:  # fmt: skip
    """Without a `store` the job runs untouched. Not `forked`, it imports TensorFlow itself: where
    its memory is measured."""
    extra = {f"STITCH_{name.upper()}": value for name, value in settings.items()}
    if store is not None:
        extra |= {"STITCH_STORE": str(store), "STITCH_SESSION": session}
        extra["PYTHONPATH"] = str(BOOTSTRAP)
    command = [python, str(SCRIPTS / script), *map(str, arguments)]
    environment = lean.environment(**extra)
    if forked:
        done = fork_server.run(command, environment)
    else:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS
        )
    losses = [float(line) for line in done.stdout.splitlines()]
    lines = [line for line in done.stderr.splitlines() if "stitch" in line]
    events: list[dict[str, Any]] = []
    path = store / "sessions" / session / "events.jsonl" if store is not None else None
    if path is not None and path.exists():
        events = [json.loads(line) for line in path.read_text().splitlines()]
    return Run(done.returncode, losses, lines, events)
