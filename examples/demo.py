"""`make demo`: trains examples/train_mlp.py twice, untouched and stitched, and compares.

The script is the same file both times; the first run ends after SECONDS on a slow machine, and the
second makes as many steps. It waits for its kernels (`--wait`), so that all of its steps are
stitched but the control steps that it keeps for comparison. What counts is the ratio that
`stitch run` measured inside that one run, original and stitched steps in turn: the two runs' own
medians are shown too, but a shared machine drifts between runs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("train_mlp.py")
STEPS = 200
SECONDS = 10
LOSS = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)
MEDIAN = re.compile(r"^median step (\S+) ms$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One training run: losses by step, the script's own median step in milliseconds, and the
    summary of `stitch run` (empty for the untouched run)."""

    losses: dict[int, float]
    milliseconds: float
    summary: dict[str, Any]


def train(arguments: Sequence[str], prefix: Sequence[str] = ()) -> Run:
    """Run the script with `arguments` behind `prefix`, its output shown as it comes; a run behind
    `stitch run --json` ends with its summary."""
    command = [*prefix, sys.executable, str(SCRIPT), *arguments]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            lines.append(line)
            if not line.startswith("{"):
                print("  " + line, end="", flush=True)
    if process.returncode != 0:
        raise SystemExit(f"demo: the {'stitched' if prefix else 'untouched'} run failed")
    text = "".join(lines)
    losses = {int(step): float(loss) for step, loss in LOSS.findall(text)}
    summary = json.loads(lines[-1]) if prefix else {}
    return Run(losses, float(MEDIAN.findall(text)[-1]), summary)


def difference(one: Run, other: Run) -> float:
    """Largest relative difference of two runs' losses."""
    return max(abs(other.losses[s] - loss) / abs(loss) for s, loss in one.losses.items())


def compare(plain: Run, stitched: Run) -> bool:
    """Print the comparison; True when a step was stitched."""
    print("\nuntouched and stitched")
    print(f"  losses differ by at most {difference(plain, stitched):.1e} (relative)")
    print(f"  median step of each run: {plain.milliseconds:.2f} ms, {stitched.milliseconds:.2f} ms")
    steps = stitched.summary["steps"]
    for step in steps:
        print(
            f"  kernels {step['kernels_before']} → {step['kernels_after']}, "
            f"{step['bytes_saved'] / 2**20:.0f} of {step['bytes_saveable'] / 2**20:.0f} MiB of "
            "memory traffic saved per step"
        )
        print(f"  report: {step['report']}")
    print("\n" + closing(steps))
    return any(step["status"] == "stitched" for step in steps)


def closing(steps: Sequence[dict[str, Any]]) -> str:
    """The one line that says how it went, of the step that ran most often."""
    if not steps:
        return "demo: nothing was stitched; the lines of [stitch] above say why"
    step = max(steps, key=lambda one: one["steps"])
    if step["status"] == "stitched" and step["speedup"] is None:
        return "demo: the step is stitched, but ran too few times to be compared; see the report"
    if step["status"] != "stitched":
        why = f"{step['reason'] or step['status']} {step['detail']}".strip()
        return f"demo: the step runs as it was: {why}"
    before, after = step["seconds_before"] * 1e3, step["seconds_after"] * 1e3
    speedup, low, high = step["speedup"]
    return (
        f"demo: a step of this run took {before:.1f} ms before and {after:.1f} ms stitched: "
        f"speed-up {speedup:.3f} [{low:.3f}, {high:.3f}]. Yours: stitch run -- python train.py"
    )


def main() -> int:
    asked = ["--steps", str(STEPS), "--seconds", str(SECONDS)]
    print(f"1. untouched: python {SCRIPT.name} {' '.join(asked)}")
    plain = train(asked)
    asked = ["--steps", str(max(plain.losses) + 1)]
    print(f"\n2. stitched: stitch run --wait -- python {SCRIPT.name} {' '.join(asked)}")
    stitch = [sys.executable, "-m", "stitchcore.cli", "run", "--wait", "--fresh", "--json", "--"]
    return 0 if compare(plain, train(asked, stitch)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
