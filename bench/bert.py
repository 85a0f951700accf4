"""`python -m bench.bert`: seconds from partition to package for BERT-base's training graph.

Runs the job (bench/bert_job.py) for a few steps in `observe` mode to get the graph that Grappler
shows, then optimizes it three times, each in a process of its own: *cold* with nothing cached,
*kernels cached* (the artifact is gone, compiled kernels are not), and *warm* (the artifact is
there). Proof and timing of regions are shown beside the build, which the bar is about.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.record import RESULTS, processor, raw, write_figures
from stitchcore.cli import run_job

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "bench" / "bert_job.py"
PROOF = frozenset({"verify", "measure", "prove"})
"""Stages beside the build."""

OPTIMIZE = """
import json, sys, time
from pathlib import Path
from stitchcore import options, pipeline
from stitchcore.device.records import DEVICES
request = Path(sys.argv[1])
device = DEVICES[json.loads((request / "meta.json").read_text())["target"]]
start = time.perf_counter()
answer = pipeline.optimize(request, sys.argv[2], device, options.of_this_process())
print(json.dumps({"answer": str(answer), "seconds": time.perf_counter() - start}))
"""


def environment(folder: Path, **extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("STITCH_")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "STITCH_CACHE": str(folder / "cache"),
        "STITCH_KEY": str(folder / "signing.key"),
        **extra,
    }


def capture(folder: Path, arguments: list[str]) -> Path:
    """The request of the training graph: the largest that the job hands over."""
    store = folder / "store"
    env = run_job.environment(
        environment(folder, STITCH_MODE="observe"), store, "bert", "0" * 64, 0
    )
    subprocess.run([sys.executable, str(JOB), *arguments], env=env, check=True, capture_output=True)
    found = sorted(store.glob("requests/*/graph.pb"), key=lambda path: path.stat().st_size)
    if not found:
        raise SystemExit("the job handed over no graph: run it by `stitch run` to see the reason")
    return found[-1].parent


def optimize(request: Path, store: Path, folder: Path) -> dict[str, Any]:
    """Optimize `request` in a process of its own: wall seconds, and seconds by stage."""
    command = [sys.executable, "-c", OPTIMIZE, str(request), str(store)]
    start = time.perf_counter()
    done = subprocess.run(
        command, env=environment(folder), check=True, capture_output=True, text=True
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    report = store / "artifacts" / answer["answer"] / "report.json"
    if not report.exists():
        raise SystemExit(f"refused: {answer['answer']}")
    told = json.loads(report.read_text())
    stages = {name: seconds for name, seconds in told["seconds"].items() if "." not in name}
    return {
        "process_seconds": time.perf_counter() - start,
        "seconds": answer["seconds"],
        "stages": stages,
        "kernels_before": told["kernels_before"],
        "kernels_after": told["kernels_after"],
        "refusals": told["refusals"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.bert", description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--out", type=Path, default=raw(RESULTS / "bert.json"))
    options = parser.parse_args()
    arguments = ["--layers", str(options.layers), "--hidden", str(options.hidden)]
    with tempfile.TemporaryDirectory(prefix="stitch-bert-") as name:
        folder = Path(name)
        request = capture(folder, arguments)
        stores = [folder / "cold", folder / "kernels", folder / "cold"]
        rows = {}
        for label, store in zip(("cold", "kernels cached", "warm"), stores, strict=True):
            rows[label] = optimize(request, store, folder)
    for label, row in rows.items():
        built = row["seconds"]
        if label != "warm":
            built -= sum(s for stage, s in row["stages"].items() if stage in PROOF)
        row["build_seconds"] = built
        stages = ", ".join(f"{k} {v:.1f}" for k, v in row["stages"].items())
        print(f"{label:15} partition to package {built:6.2f} s ({stages})")
    cold = rows["cold"]
    print(f"{cold['kernels_before']} operations -> {cold['kernels_after']} launches")
    record = {"processor": processor(), "layers": options.layers, "hidden": options.hidden}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_figures(options.out, {**record, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
