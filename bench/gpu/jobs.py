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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "gpu_rehearsal" / "programs"
STEPS = 300
JOBS = {
    "custom loop, Adam": ("custom_loop", "--optimizer", "adam", "--steps"),
    "Keras fit": ("kinds", "fit"),
    "inference": ("kinds", "inference"),
}
"""Programs and arguments; the number of steps comes last."""
SECONDS = 100.0
"""Of one run."""


def _said(command: Sequence[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/operator:{ROOT}/worker"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stderr[-600:]}")
    return done.stdout


def sees_gpu() -> bool:
    """Whether TensorFlow is here, and sees one."""
    asked = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() != "0"


def run(folder: Path, name: str, *arguments: str) -> tuple[Any, Any, Any]:
    """What the program left untouched, and stitched, and what `stitch run` said."""
    plain, ours = folder / "plain.json", folder / "ours.json"
    program = [sys.executable, str(PROGRAMS / f"{name}.py")]
    _said([*program, str(plain), *arguments])
    stitch = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json"]
    said = _said([*stitch, "--store", str(folder / "store"), "--", *program, str(ours), *arguments])
    return json.loads(plain.read_text()), json.loads(ours.read_text()), _last(said)


def rehearsed(folder: Path, name: str, *arguments: str) -> tuple[Any, Any, Any]:
    """The same on the fake GPU, on which our kernels are quick."""
    from tests.gpu_rehearsal import jobs

    costs = {"FAKE_GPU_OP_US": "100", "FAKE_GPU_KERNEL_US": "10"}
    plain = jobs.untouched(folder, name, *arguments)
    ours = jobs.stitched(folder, name, *arguments, **costs)
    return plain.made, ours.made, {"steps": ours.steps, "refusals": ours.refusals}


def _last(said: str) -> Any:
    return json.loads(said.strip().splitlines()[-1])


def row(name: str, plain: Any, ours: Any, summary: Any) -> dict[str, Any]:
    """How far the figures lie apart, and each step's end."""
    pairs = [np.asarray(made.get("losses", made.get("figures"))) for made in (plain, ours)]
    apart = float(np.max(np.abs(pairs[1] - pairs[0]) / (np.abs(pairs[0]) + 1e-12)))
    return {"job": name, "apart": apart, "refusals": summary["refusals"],
            "steps": [dict(step) for step in summary["steps"]]}  # fmt: skip


def table(rows: Sequence[dict[str, Any]], dry: bool) -> str:
    head = "| job | step | us before | us after | figures apart | refusals |"
    lines = [head, "|---" * 6 + "|"]
    for one in rows:
        for step in one["steps"] or [{}]:
            times = [step.get(f"seconds_{when}") for when in ("before", "after")]
            shown = ["" if seconds is None else f"{1e6 * seconds:.1f}" for seconds in times]
            cells = [one["job"], step.get("status", "not seen"), *shown, f"{one['apart']:.1e}"]
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
    if not given.dry_run and not sees_gpu():
        print("bench.gpu.jobs: no TensorFlow here that sees a GPU: no job was run")
        return 0
    rows = []
    for name, (program, *words) in JOBS.items():
        if given.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="stitch-gpu-jobs-") as scratch:
            way = rehearsed if given.dry_run else run
            found = way(Path(scratch), program, *words, str(given.steps))
        rows.append(row(name, *found))
        given.output.mkdir(parents=True, exist_ok=True)
        document = {"dry": given.dry_run, "jobs": rows}
        (given.output / "jobs.json").write_text(json.dumps(document, indent=1) + "\n")
        (given.output / "jobs.md").write_text(table(rows, given.dry_run))
        print(table(rows[-1:], given.dry_run), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
