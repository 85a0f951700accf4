"""Runs a program of the zoo: untouched in several equally right ways, under XLA, and stitched.

What is not ours is run once for a program's text and TensorFlow and kept under .cache/zoo, so that
judging again costs the stitched run alone.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.zoo.judge import Run, Verdict, judge
from tests import lean

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
WATCH = PROGRAMS / "watch.py"
KEPT = ROOT / ".cache" / "zoo"
PACKAGES = ("deepctr", "keras_hub", "tensorflow_recommenders", "tf_keras", "transformers")
"""A program that imports one of them runs in .venv-zoo, others in this environment."""

PLAIN: Mapping[str, str] = {}
RIGHT: tuple[Mapping[str, Mapping[str, str]], ...] = (
    {
        "onednn_off": {"TF_ENABLE_ONEDNN_OPTS": "0"},
        "one_thread": {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
        "ulp1": {"ZOO_ULP": "1"},
    },
    {f"ulp{seed}": {"ZOO_ULP": str(seed)} for seed in range(2, 6)},
    {f"ulp{seed}": {"ZOO_ULP": str(seed)} for seed in range(6, 16)},
)
"""Equally right untouched runs, some from variables that are an ulp away. Each can only widen what
is allowed, so they are made where the narrower bars do not hold. Ten more: a deep network of ReLUs
turns one here and there, which of them is a matter of the draw."""
XLA = {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"}
UNTOUCHED_SECONDS, STITCHED_SECONDS = 300.0, 900.0


@dataclass(frozen=True)
class Stitched:
    """A stitched run and what it told of its steps. `refused`: why steps were left whole; `left`:
    bytes that operations of the others move and why they were left, by reason and operation."""

    run: Run
    steps: tuple[Mapping[str, Any], ...]
    refused: tuple[str, ...]
    left: Mapping[str, Mapping[str, int]]
    compile_seconds: float

    @property
    def stitched(self) -> int:
        """Steps with kernels of ours in them when the job ended."""
        ours = (s["status"] == "stitched" and s["kernels_after"] > 0 for s in self.steps)
        return sum(ours)

    @property
    def saved(self) -> float:
        """Share of the saveable bytes of all steps, whether optimized or not, that is saved."""
        saveable = sum(step["bytes_saveable"] for step in self.steps)
        kept = [step for step in self.steps if step["status"] == "stitched"]
        return sum(step["bytes_saved"] for step in kept) / saveable if saveable else 0.0


class Failed(Exception):
    """A run that says nothing: it did not end in time, or the untouched program is broken."""


def programs() -> dict[str, Path]:
    """The zoo's programs by name."""
    return {path.stem: path for path in sorted(PROGRAMS.glob("*.py")) if path != WATCH}


def python_of(program: Path) -> str:
    """The interpreter that has the packages which `program` imports."""
    text = program.read_text(encoding="utf-8")
    needed = any(f"import {name}" in text or f"from {name}" in text for name in PACKAGES)
    return str(ROOT / ".venv-zoo" / "bin" / "python") if needed else sys.executable


def judged(program: Path) -> tuple[Run, Stitched, Verdict]:
    """The untouched run, the stitched one and what the judge says of it. Raises Failed."""
    plain = untouched(program, "plain", PLAIN)
    ours = stitched(program)
    right: list[Run] = []
    verdict = judge(plain, right, ours.run)
    for kinds in RIGHT:
        if verdict.wrong:
            right += [untouched(program, *kind) for kind in kinds.items()]
            verdict = judge(plain, right, ours.run)
    return plain, ours, verdict


def untouched(program: Path, kind: str, environ: Mapping[str, str]) -> Run:
    """The program as its author runs it, or what was kept of that run. Raises Failed."""
    python = python_of(program)
    told = (program.read_text(), WATCH.read_text(), _tensorflow(python), sorted(environ.items()))
    key = hashlib.sha256(repr(told).encode()).hexdigest()[:16]
    folder = KEPT / "untouched" / program.stem / f"{kind}-{key}"
    if not (folder / "code").exists():
        for old in folder.parent.glob(f"{kind}-*"):
            shutil.rmtree(old)
        run([python, str(program)], folder, environ, UNTOUCHED_SECONDS)
    return read(folder)


def stitched(program: Path) -> Stitched:
    """The program through `stitch run`, no step left to the original, from an empty store."""
    folder = KEPT / "stitched" / program.stem
    shutil.rmtree(folder, ignore_errors=True)
    settings = {
        "PYTHONPATH": str(ROOT),
        "STITCH_CACHE": str(folder / "cache"),
        "STITCH_KEY": str(folder / "key"),
        "STITCH_CONTROL": "0",
    }
    ours = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--json", "--store"]
    command = [*ours, str(folder / "store"), "--", python_of(program), str(program)]
    run(command, folder, settings, STITCHED_SECONDS)
    made = read(folder)
    printed, summary = summed_up(made.printed)
    steps = tuple(summary.get("steps", ()))
    refused = {step["reason"] for step in steps if step["reason"]} | set(
        summary.get("refusals", ())
    )
    left, seconds = reports(folder / "store" / "artifacts")
    judged = Run(made.code, printed, made.steps, made.seconds)
    return Stitched(judged, steps, tuple(sorted(refused)), left, seconds)


def summed_up(printed: Sequence[str]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """What a job printed, and the summary that `stitch run --json` ends with; {} without one."""
    *lines, last = printed or ("",)
    try:
        summary: Mapping[str, Any] = json.loads(last)
    except ValueError:
        return tuple(printed), {}
    return tuple(lines), summary


def run(command: Sequence[str], folder: Path, environ: Mapping[str, str], limit: float) -> None:
    """Leaves what `read` reads. Raises Failed where it does not end in `limit` seconds."""
    folder.mkdir(parents=True)
    out = folder / "out"
    out.mkdir()
    env = lean.environment(**{**environ, "ZOO_OUT": str(out)})
    with (folder / "stdout").open("wb") as printed, (folder / "stderr").open("wb") as said:
        child = subprocess.Popen(command, env=env, stdout=printed, stderr=said, cwd=out)
        try:
            code = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            child.terminate()  # `stitch run` passes it on
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            raise Failed(f"no end within {limit:.0f} s") from None
    (folder / "code").write_text(str(128 - code if code < 0 else code))


def read(folder: Path) -> Run:
    """What a run left in `folder`."""
    steps = []
    for path in sorted((folder / "out").glob("step*.npz")):
        with np.load(path) as saved:
            steps.append({name: saved[name] for name in saved.files})
    times = folder / "out" / "times"
    ends = np.loadtxt(times, ndmin=1) if times.exists() else np.zeros(0)
    printed = (folder / "stdout").read_text(encoding="utf-8", errors="replace").splitlines()
    code = int((folder / "code").read_text())
    return Run(code, tuple(printed), tuple(steps), tuple(map(float, np.diff(ends))))


def step_seconds(made: Run) -> float | None:
    """Median of the later half of the steps: what comes first is tracing and compiling."""
    later = made.seconds[len(made.seconds) // 2 :]
    return float(np.median(later)) if later else None


def reports(artifacts: Path) -> tuple[dict[str, dict[str, int]], float]:
    """Why bytes were left, over all artifacts, and the seconds that these took."""
    left: defaultdict[str, Counter[str]] = defaultdict(Counter)
    seconds = 0.0
    for path in artifacts.glob("*/report.json"):
        told = json.loads(path.read_text())
        seconds += sum(s for name, s in told["seconds"].items() if not name.startswith("build."))
        for node in told["nodes"]:
            if node.get("reason") and node.get("bytes", 0) > 0:
                left[node["reason"]][node["op"]] += node["bytes"]
    return {reason: dict(operations) for reason, operations in left.items()}, seconds


@functools.cache
def _tensorflow(python: str) -> str:
    """The versions that an interpreter's runs hang on."""
    code = """if True:
        from importlib.metadata import PackageNotFoundError, version
        try:
            print("tensorflow-cpu", version("tensorflow-cpu"), version("keras"))
        except PackageNotFoundError:
            print("tensorflow", version("tensorflow"), version("keras"))"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{python} has no TensorFlow and Keras: run `make zoo`")
    return done.stdout.strip()
