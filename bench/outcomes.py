"""One real job of each outcome under `stitch serve`: what each place says that it saved.

    python -m bench.outcomes [--seconds 60]

A job that is stitched, one whose graph is refused, one that is killed at half time, and one whose
kernels are made slow afterwards, so that it goes back to its own graph. What the jobs posted (their
events), what the gateway's page has, what the chart's rules record in a real Prometheus, and what
`stitch savings` prints must be one figure. bench/results/outcomes.md has them; the panels of the
chart's dashboards, as that Prometheus answers them, are drawn beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.pictures import draw
from stitch_operator.dashboards.savings import JOBS, SAVINGS
from stitch_operator.dashboards.service import WORKERS
from tests import lean
from tests.inject.jobs import BOOTSTRAP
from tests.jobs import judge
from tests.jobs.slowed import slow_down
from tests.operator.gateway.processes import free_port, wait_for
from tests.operator.gateway.prometheus import asked, scraping
from tests.operator.gateway.test_serve import NAMES, serve

RESULTS = Path(__file__).parent / "results" / "outcomes"
SCRIPT = Path(__file__).parent / "outcomes_step.py"
RULES = judge.ROOT / "helm" / "stitch" / "files" / "rules.yaml"
POSTED_SECONDS = 15.0
"""Between two reports of a job (docs/service.md, The job's side)."""
SLOWER = 0.004
"""Seconds that each phase of each kernel waits, in the job that is to go back."""
PRICE = """  - name: prices
    rules:
      - {record: 'stitch:price_per_hour', expr: vector(0.05), labels: {gpu: cpu}}
"""


@dataclass(frozen=True)
class Job:
    """What a job posted in the end: core-seconds, net of what it lost; `unposted` is the time from
    the last word of it to its end, of a job that was killed."""

    outcome: str
    events: list[str]
    reason: str
    net: float
    unposted: float


@dataclass(frozen=True)
class Outcome:
    """Core-seconds net by place, and the jobs they are made of."""

    jobs: list[Job]
    posted: float
    ledger: float
    page: float
    rules: float
    command: float
    spent: float
    headline: float


def run(
    outcome: str, folder: Path, settings: Mapping[str, str], seconds: float, *arguments: str
) -> Job:
    """Run one job to its end, or half of it."""
    store = folder / outcome
    environment = lean.environment(
        **{**settings, "STITCH_STORE": str(store), "PYTHONPATH": str(BOOTSTRAP)}
    )
    command = [sys.executable, str(SCRIPT), str(seconds), *arguments]
    with (folder / f"{outcome}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        if outcome == "killed":
            time.sleep(seconds / 2)
            process.send_signal(signal.SIGKILL)
        process.wait(seconds + 120)
    ended = time.time()
    events = judge.events_of(store / "sessions")
    posted = [one for one in events if one["type"] == "savings_total"]
    last = posted[-1] if posted else None
    reasons = [str(one["reason"]) for one in events if one.get("reason")]
    return Job(
        outcome,
        sorted({str(one["type"]) for one in events}),
        reasons[-1] if reasons else "",
        _net(last) if last else 0.0,
        ended - float(last["time"]) if last and outcome == "killed" else 0.0,
    )


def _net(total: Mapping[str, Any]) -> float:
    if total["interval"] is None:
        return -float(total["lost_ns"]) / 1e9 * float(total["devices"])
    nanoseconds = total["baseline_ns"] - total["stitched_ns"] - total["lost_ns"]
    return float(nanoseconds) / 1e9 * float(total["devices"])


def measure(folder: Path, seconds: float) -> Outcome:
    """All jobs, one after another, and what every place says afterwards; pictures of it."""
    rules, metrics = folder / "rules.yaml", free_port()
    rules.write_text(RULES.read_text() + PRICE)
    served, began = folder / "serve", time.time()
    serving = ("--workers", "1", "--metrics-port", str(metrics))
    with scraping(folder, [f"http://127.0.0.1:{metrics}/metrics"], rules) as port:
        with serve(served, *serving) as (_, said):
            settings = {name: said[name] for name in NAMES}
            jobs = [
                run("stitched", folder, settings, 1.5 * seconds),  # it waits for its kernels
                run("refused", folder, settings, seconds / 4, "--tiny"),
                run("killed", folder, settings, seconds),
            ]
        for artifact in (served / "store" / "artifacts").iterdir():
            slow_down(artifact, served / "signing.key", SLOWER)
        with serve(served, *serving) as (_, said):  # on the same ledger
            settings = {name: said[name] for name in NAMES}
            jobs.append(run("rolled back", folder, settings, seconds))
            return _compared(jobs, folder, port, f"http://127.0.0.1:{metrics}/metrics", began)


def _compared(jobs: list[Job], folder: Path, port: int, metrics: str, began: float) -> Outcome:
    name = "stitch:cpu_core_seconds_{}:total"
    net = f"sum({name.format('saved')}) - sum({name.format('lost')})"
    page = _page(metrics)
    wait_for("the scrape", lambda: [v for _, v in asked(port, net)] == [page])
    ((_, recorded),) = asked(port, net)
    ((_, headline),) = asked(port, "stitch:cpu_core_seconds_net:sum")
    ((_, spent),) = asked(port, f"sum({name.format('spent')})")
    for dashboard in (SAVINGS, JOBS, WORKERS):
        picture = RESULTS.with_name(f"dashboard-{dashboard.name}.png")
        draw(port, dashboard, picture, began, time.time())
    with contextlib.closing(sqlite3.connect(next((folder / "serve").glob("*.sqlite")))) as ledger:
        (held,) = ledger.execute("SELECT sum(saved - lost) / 1e9 FROM totals").fetchone()
    posted = sum(job.net for job in jobs)
    return Outcome(jobs, posted, held, page, recorded, _command(port), spent, headline)


def _page(url: str) -> float:
    found = {"saved": 0.0, "lost": 0.0}
    for line in httpx.get(url, trust_env=False).text.splitlines():
        for name in found:
            if line.startswith(f"stitch_cpu_core_seconds_{name}_total{{"):
                found[name] += float(line.rpartition(" ")[2])
    return found["saved"] - found["lost"]


def _command(port: int) -> float:
    command = [sys.executable, "-m", "stitchcore.cli", "savings", "--json"]
    command += ["--prometheus", f"http://127.0.0.1:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    found = json.loads(done.stdout)["cores"]
    return float(found["saved"] - found["lost"])


def page(found: Outcome, seconds: float) -> str:
    """The result, for people."""
    what = "one after another, under `stitch serve`. Core-seconds, saved less lost."
    lines = [f"Jobs of about {seconds:g} s on {os.cpu_count()} cores, {what}", ""]
    lines += ["| job | net | what became of it |", "|---|---|---|"]
    for job in found.jobs:
        said = [one for one in job.events if one in ("swap_ok", "rolled_back", "refused")]
        word = ", ".join([*said, job.reason] if job.reason else said)
        if job.outcome == "killed":
            word += f"; last word {job.unposted:.1f} s before its end"
        lines.append(f"| {job.outcome} | {job.net:.3f} | {word} |")
    lines += ["", "| place | net |", "|---|---|"]
    places = {"posted by the jobs": found.posted, "ledger": found.ledger, "gateway": found.page,
              "rules in Prometheus": found.rules, "`stitch savings`": found.command}  # fmt: skip
    lines += [f"| {place} | {value:.3f} |" for place, value in places.items()]
    tail = f"Workers used {found.spent:.3f}: the headline is {found.headline:.3f}."
    return "\n".join([*lines, "", tail, ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.outcomes")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a job")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stitch-outcomes-") as folder:
        found = measure(Path(folder), given.seconds)
    RESULTS.with_suffix(".json").write_text(json.dumps(asdict(found), indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(page(found, given.seconds))
    sys.stdout.write(page(found, given.seconds))
    places = (found.ledger, found.page, found.rules, found.command)
    return 0 if all(abs(one - found.posted) < 1e-3 for one in places) else 1


if __name__ == "__main__":
    raise SystemExit(main())
