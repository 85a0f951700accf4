"""From nothing to the first stitched step, with a stopwatch: what a new user's first minutes are.

    python tools/stopwatch.py [--wheel FILE] [--cached]

An empty virtual environment gets the wheel (built of this checkout where none is given) and
TensorFlow from the index, without pip's cache unless `--cached`; then `stitch run` starts the
example's script, and its events tell the rest. Prints the seconds of each part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "train_mlp.py"
STEPS = 100_000
"""More than are run."""
PARTS = {
    "started": "the job has imported TensorFlow",
    "submitted": "its step is known, and handed in",
    "ready": "its kernels are compiled, proved and loaded",
    "swap_ok": "its first stitched steps have run",
}
"""Events of the job, and what lies behind it then."""


def environment(home: Path) -> dict[str, str]:
    """Nothing of this checkout's, and no folder of the user's."""
    kept = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
    network = {n: v for n, v in os.environ.items() if "proxy" in n.lower() or n.startswith("PIP_")}
    return {**kept, **network, "HOME": str(home), "TF_CPP_MIN_LOG_LEVEL": "3"}


def timed(command: Sequence[object], env: dict[str, str]) -> float:
    """Seconds of a command that must succeed."""
    begin = time.monotonic()
    done = subprocess.run(
        [str(word) for word in command], env=env, cwd="/", capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - begin


def first_run(binaries: Path, home: Path, env: dict[str, str]) -> list[tuple[str, float]]:
    """What `stitch run` takes to each of PARTS, from its start or the part before. The job is ended
    then."""
    job = [binaries / "stitch", "run", "--", binaries / "python", SCRIPT, "--steps", STEPS]
    first: dict[str, float] = {}
    begin = time.time()
    with (home / "job.log").open("w+") as log:
        process = subprocess.Popen([*map(str, job)], env=env, cwd="/", stdout=log, stderr=log)
        while not set(PARTS) <= set(first):
            ended = process.poll() is not None
            first = first_events(home)
            if ended:
                break
            time.sleep(0.2)
        process.terminate()
        process.wait()
        if not set(PARTS) <= set(first):
            log.seek(0)
            raise SystemExit(
                f"the job has ended, and told only of {', '.join(first)}\n{log.read()}"
            )
    ends = [begin, *(first[kind] for kind in PARTS)]
    return [
        (text, after - before)
        for text, before, after in zip(PARTS.values(), ends[:-1], ends[1:], strict=True)
    ]


def first_events(home: Path) -> dict[str, float]:
    """When each type of event was first told."""
    first: dict[str, float] = {}
    for file in (home / ".cache" / "stitch" / "store" / "sessions").glob("*/events.jsonl"):
        *lines, _ = file.read_text().split("\n")
        for event in map(json.loads, lines):
            first.setdefault(event["type"], event["time"])
    return first


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--cached", action="store_true", help="let pip use its cache")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name) / "home"
        home.mkdir()
        env = environment(home)
        wheel = given.wheel
        if wheel is None:
            build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
            timed([sys.executable, *build], env)
            [wheel] = folder.glob("*.whl")
        if given.cached:
            env["HOME"] = str(Path.home())
        binaries = folder / "venv" / "bin"
        parts = [("an empty virtual environment", timed(
            [sys.executable, "-m", "venv", folder / "venv"], env))]  # fmt: skip
        install = [binaries / "python", "-m", "pip", "install", "--quiet", wheel.resolve()]
        parts.append(("the wheel and tensorflow-cpu are installed", timed(
            [*install, "tensorflow-cpu<2.22"], env)))  # fmt: skip
        parts += first_run(binaries, home, environment(home))
        for text, seconds in [*parts, ("all of it", sum(s for _, s in parts))]:
            sys.stdout.write(f"{seconds:7.1f} s  {text}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
