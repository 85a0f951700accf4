"""`python -m bench.gpu.jobs --output DIR`: whole jobs on the GPU, untouched and by `stitch run`.

Needs a TensorFlow that sees a GPU; without one it says so, and nothing is wrong. The programs are
those of the rehearsal (tests/gpu_rehearsal), `--dry-run` is the rehearsal. What `stitch run` says
of each goes to `jobs.json` in it, a table to a page beside.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "gpu_rehearsal" / "programs"
STEPS = 300
JOBS = {
    "custom loop, Adam": ("custom_loop", "--optimizer", "adam", "--steps"),
    "Keras fit": ("kinds", "fit"),
    "while loop": ("kinds", "while_loop"),
    "inference": ("kinds", "inference"),
    "mixed float16": ("kinds", "mixed"),
    "TensorFlow 1 session": ("kinds", "session"),
}
"""Programs and arguments; the number of steps comes last."""
SECONDS = 100.0
"""Of one run."""


@dataclass(frozen=True)
class Way:
    """What begins a program and what begins `stitch`, and the environment of both."""

    python: tuple[str, ...]
    stitch: tuple[str, ...]
    environment: Mapping[str, str]


def real() -> Way:
    return Way((sys.executable,), (sys.executable, "-m", "stitchcore.cli"), {})


def rehearsal(dump: Path) -> Way:
    """On the fake GPU, on which our kernels are quick; it finds their text in `dump`. The worker
    sees it, too."""
    from tests.gpu_rehearsal.build import fake_gpu

    python = (sys.executable, "-m", "tests.gpu_rehearsal.with_gpu")
    stitch = (sys.executable, "-m", "tests.gpu_rehearsal.stitch")
    environment = {
        "FAKE_GPU_DEVICE": str(fake_gpu().device),
        "FAKE_GPU_OP_US": "100",
        "FAKE_GPU_KERNEL_US": "10",
        "STITCH_PLUGIN": str(fake_gpu().plugin),
        "STITCH_DUMP": str(dump),
    }
    return Way(python, stitch, environment)


def _said(way: Way, folder: Path, command: Sequence[str]) -> str:
    """What it printed. Raises RuntimeError with what it complained of."""
    path = f"{ROOT}:{ROOT}/operator:{ROOT}/worker:{os.environ.get('PYTHONPATH', '')}"
    own = {"STITCH_CACHE": str(folder / "cache"), "STITCH_KEY": str(folder / "signing.key")}
    environment = {**os.environ, **own, **way.environment, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stderr[-600:]}")
    return done.stdout


SEES = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"


def sees_gpu(way: Way, folder: Path) -> bool:
    """Whether TensorFlow sees one."""
    program = folder / "sees_gpu.py"
    program.write_text(SEES)
    return _said(way, folder, [*way.python, str(program)]).strip() != "0"


def run(way: Way, folder: Path, name: str, *arguments: str) -> tuple[Any, Any, Any]:
    """What the program left untouched, and stitched, and what `stitch run` said."""
    plain, ours = folder / "plain.json", folder / "ours.json"
    program = [*way.python, str(PROGRAMS / f"{name}.py")]
    _said(way, folder, [*program, str(plain), *arguments])
    stitch = [*way.stitch, "run", "--wait", "--json", "--store", str(folder / "store"), "--"]
    said = _said(way, folder, [*stitch, *program, str(ours), *arguments])
    return json.loads(plain.read_text()), json.loads(ours.read_text()), _last(said)


def _last(said: str) -> Any:
    return json.loads(said.strip().splitlines()[-1])


def row(name: str, plain: Any, ours: Any, summary: Any) -> dict[str, Any]:
    """How far the figures lie apart, and each step's end."""
    pairs = [np.asarray(made.get("losses", made.get("figures"))) for made in (plain, ours)]
    apart = float(np.max(np.abs(pairs[1] - pairs[0]) / (np.abs(pairs[0]) + 1e-12)))
    return {"job": name, "apart": apart, "refusals": summary["refusals"],
            "steps": [dict(step) for step in summary["steps"]]}  # fmt: skip


def failed(name: str, error: Exception) -> dict[str, Any]:
    """A job that did not end: the others are run all the same."""
    return {"job": name, "apart": None, "refusals": None, "steps": [], "failed": str(error)[-800:]}


def table(rows: Sequence[dict[str, Any]], dry: bool) -> str:
    head = "| job | step | us before | us after | figures apart | refusals |"
    lines = [head, "|---" * 6 + "|"]
    for one in rows:
        for step in one["steps"] or [{}]:
            times = [step.get(f"seconds_{when}") for when in ("before", "after")]
            shown = ["" if seconds is None else f"{1e6 * seconds:.1f}" for seconds in times]
            apart = "" if one["apart"] is None else f"{one['apart']:.1e}"
            end = "failed" if "failed" in one else step.get("status", "not seen")
            cells = [one["job"], end, *shown, apart]
            lines.append(f"| {' | '.join([*cells, str(one['refusals'] or '')])} |")
    note = "The fake GPU's clock: nothing here was measured on a GPU.\n\n" if dry else ""
    return f"{note}{chr(10).join(lines)}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.jobs", description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", choices=sorted(JOBS))
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    given = parser.parse_args(arguments)
    if find_spec("tensorflow") is None:
        print("bench.gpu.jobs: no TensorFlow here: no job was run")
        return 0
    rows = []
    for name, (program, *words) in JOBS.items():
        if given.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="stitch-gpu-jobs-") as scratch:
            folder = Path(scratch)
            try:
                way = rehearsal(folder / "dump") if given.dry_run else real()
                if not sees_gpu(way, folder):
                    print("bench.gpu.jobs: TensorFlow sees no GPU here: no job was run")
                    return int(given.dry_run)
                found = run(way, folder, program, *words, str(given.steps))
                rows.append(row(name, *found))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                rows.append(failed(name, error))
                print(error, file=sys.stderr, flush=True)
        given.output.mkdir(parents=True, exist_ok=True)
        document = {"dry": given.dry_run, "jobs": rows}
        (given.output / "jobs.json").write_text(json.dumps(document, indent=1) + "\n")
        (given.output / "jobs.md").write_text(table(rows, given.dry_run))
        print(table(rows[-1:], given.dry_run), flush=True)
    return int(any("failed" in one for one in rows))


if __name__ == "__main__":
    sys.exit(main())
