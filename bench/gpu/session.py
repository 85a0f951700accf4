"""`python -m bench.gpu.session --seconds 570 --output DIR`: all that only a GPU can show.

The tests that need one, what a launch costs, compute-sanitizer's tools over whole modules, whole
jobs, the calibration record, then `bench.gpu` with the time that is left. A device is lent for
minutes at a time: what went well is in DIR/session.json and is not done again by the same command,
which goes on until nothing is left (code 0; else 3, or 1 for what went wrong, whose words are in
DIR/session.txt). `--dry-run` runs the same parts where there is no GPU, on stand-ins, so that a
device's first minute is not lost to a mistake.

What a lent machine's Python lacks travels as wheels; PYTHONPATH names where they were put.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bench.gpu.__main__ import LEFT

SANITIZED = ("softmax_grad", "layernorm_gelu_grad", "mlp_train", "transformer_dec_step")
"""Small modules with all kinds of kernels: a sanitizer makes each many times slower."""
TOOLS = ("memcheck", "racecheck", "synccheck")
LEAST_SECONDS = 15.0
ABSENT = 127
"""A command that is not there, as a shell says it."""
WORDS = "session.txt"
"""What all parts say."""


@dataclass(frozen=True)
class Part:
    """A command, and the most seconds that it may take."""

    name: str
    command: tuple[str, ...]
    seconds: float


def parts(output: Path, python: str, dry: bool = False) -> list[Part]:
    """In the order in which they are worth most."""
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    if find_spec("xdist"):  # most of a test is NVRTC and numpy
        pytest += ("-n", str(max(1, min(8, (os.cpu_count() or 2) // 2))))
    rehearsed = ("--dry-run",) if dry else ()
    collected = ("--collect-only",) if dry else ()
    launches = (python, "-m", "bench.gpu.launches", "--output", str(output / "launches.json"))
    found = [
        Part("tests", (*pytest, *collected, "-m", "gpu", "tests/runtime"), 240.0),
        Part("launches", (*launches, *rehearsed), 60.0),
    ]
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    for tool in TOOLS:
        command = (sanitizer, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all")
        if tool == "memcheck":  # loading asks for a second parameter, and is to hear there is none
            command += ("--report-api-errors", "no")
        once = (python, "-m", "bench.gpu.once", *rehearsed, *SANITIZED[: 1 if dry else None])
        found.append(Part(f"sanitizer-{tool}", once if dry else (*command, *once), 120.0))
    jobs = (python, "-m", "bench.gpu.jobs", "--output", str(output), *rehearsed)
    jobs += ("--steps", "60", "--only", "inference") if dry else ()
    calibration = (python, "-m", "bench.gpu.calibration", "--output", str(output / "device.json"))
    bench = (python, "-m", "bench.gpu", *rehearsed, "--output", str(output))
    return [
        *found,
        Part("jobs", jobs, 240.0),
        Part("calibration", (*calibration, *rehearsed), 90.0),
        Part("bench", bench, 1e6),
    ]


def run(given: Sequence[Part], output: Path, deadline: float) -> int:
    """What is not done yet, while there is time; the exit code."""
    output.mkdir(parents=True, exist_ok=True)
    record = output / "session.json"
    codes: dict[str, int] = json.loads(record.read_text()) if record.exists() else {}
    for part in given:
        left = deadline - time.monotonic()
        if codes.get(part.name) == 0:
            print(f"{part.name}: done before")
            continue
        if left < LEAST_SECONDS:
            codes[part.name] = LEFT
            continue
        codes[part.name] = _run(part, output, min(part.seconds, left - LEAST_SECONDS / 3))
        record.write_text(json.dumps(codes, indent=1) + "\n")
    wrong = sorted(name for name, code in codes.items() if code not in (0, LEFT))
    later = sorted(name for name, code in codes.items() if code == LEFT)
    print(f"went wrong: {', '.join(wrong) or 'nothing'}; left: {', '.join(later) or 'nothing'}")
    return 1 if wrong else LEFT if later else 0


def _run(part: Part, output: Path, seconds: float) -> int:
    """Its exit code; LEFT where its time was up: then no process of it is left either, which would
    have the device."""
    began = time.monotonic()
    command = part.command
    if part.name == "bench":  # it ends by itself, with what it has
        command = (*command, "--seconds", str(seconds - 5))
    log = output / WORDS
    with log.open("ab") as words:
        words.write(f"\n==== {part.name}\n".encode())
        words.flush()
        try:
            process = subprocess.Popen(
                command, stdout=words, stderr=subprocess.STDOUT, start_new_session=True
            )
            code = process.wait(seconds)
        except OSError as error:
            words.write(f"{error}\n".encode())
            code = ABSENT
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = LEFT
    last = log.read_text(errors="replace").strip().splitlines()[-1]
    print(f"{part.name}: {code} after {time.monotonic() - began:.0f} s: {last}", flush=True)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.session", description=__doc__)
    parser.add_argument("--seconds", type=float, default=570.0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args(arguments)
    deadline = time.monotonic() + given.seconds
    return run(parts(given.output, sys.executable, given.dry_run), given.output, deadline)


if __name__ == "__main__":
    sys.exit(main())
