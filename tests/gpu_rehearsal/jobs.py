"""Runs a program on the fake GPU: untouched, or by `stitch run` with a worker of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import lean
from tests.gpu_rehearsal.build import fake_gpu

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
FAULTY = ROOT / "tests" / "jobs" / "scripts" / "faulty.py"
SECONDS = 300.0
"""A run that takes longer hangs."""


@dataclass(frozen=True)
class Ran:
    """`made` is what the program left, `steps` what `stitch run` says of each step."""

    made: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...] = ()
    refusals: Mapping[str, int] | None = None
    lines: tuple[str, ...] = ()


def _program(name: str, out: Path, *arguments: object) -> list[str]:
    line = [sys.executable, "-m", "tests.gpu_rehearsal.with_gpu", str(PROGRAMS / f"{name}.py")]
    return [*line, str(out), *map(str, arguments)]


def _finished(command: list[str], environment: dict[str, str], code: int = 0) -> tuple[str, str]:
    given = {"PYTHONPATH": str(ROOT), "FAKE_GPU_DEVICE": str(fake_gpu().device), **environment}
    done = subprocess.run(
        command, env=lean.environment(**given), capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout, done.stderr


def untouched(folder: Path, name: str, *arguments: object, **environment: str) -> Ran:
    """As its user would run it."""
    out = folder / f"{name}.untouched.json"
    _finished(_program(name, out, *arguments), environment)
    return Ran(json.loads(out.read_text()))


def stitched(
    folder: Path,
    name: str,
    *arguments: object,
    code: int = 0,
    proved: bool = False,
    fault: tuple[str, int] | None = None,
    **environment: str,
) -> Ran:
    """By `stitch run --wait`, which is to end with `code`; store, cache and dump are in `folder`.
    `proved`: by a worker that has such a GPU, too. `fault`: one on purpose, of FAULTY, and the pass
    at which it happens."""
    given = {
        "STITCH_CACHE": str(folder / "cache"),
        "STITCH_KEY": str(folder / "signing.key"),
        "STITCH_DUMP": str(folder / "dump"),
        "STITCH_PLUGIN": str(fake_gpu().plugin),
        "STITCH_ALLOW_UNMEASURED": str(int(not proved)),
        **environment,
    }
    module = "tests.gpu_rehearsal.stitch" if proved else "stitchcore.cli"
    command = [sys.executable, "-m", module, "run", "--wait", "--json"]
    command += ["--store", str(folder / "store"), "--"]
    program = _program(name, folder / f"{name}.json", *arguments)
    command += (
        program if fault is None else [*program[:3], str(FAULTY), *map(str, fault), *program[3:]]
    )
    said, complained = _finished(command, given, code)
    summary = json.loads(said.strip().splitlines()[-1])
    lines = tuple(line for line in complained.splitlines() if line.startswith("[stitch]"))
    made = json.loads((folder / f"{name}.json").read_text()) if code == 0 else {}
    return Ran(made, tuple(summary["steps"]), summary["refusals"], lines)
