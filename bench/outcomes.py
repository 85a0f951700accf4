"""One real job of each outcome: what each place says that it saved, and what it truly did.

    python -m bench.outcomes [--seconds 60]

A job that is stitched, one whose graph is refused, one that is killed at half time, and one whose
kernels are made slow afterwards, so that it goes back to its own graph; each in a pod of its own
(outcomes_cluster.py). What the jobs posted (their events), what the gateway's ledger and page have,
what the chart's rules record in a real Prometheus, what the StitchedJobs say and what `stitch
savings` prints must be one figure, and what became of each job one word. The killed job is watched
from outside (outcomes_watch.py): its figure is at most what it truly saved, and less by no more
than what it saved since its last post. bench/results/outcomes.md has them; the panels of the
chart's dashboards, as that Prometheus answers them, are drawn beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
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

from bench import record
from bench.outcomes_cluster import Statuses, reconciling, serving
from bench.outcomes_watch import EVERY, Truth, Watched, truth
from bench.pictures import draw
from stitch_operator.commands.serve import Served
from stitch_operator.dashboards.savings import JOBS, SAVINGS
from stitch_operator.dashboards.service import WORKERS
from stitch_operator.gateway.waiting import LOOK_SECONDS
from tests import lean
from tests.inject.jobs import BOOTSTRAP
from tests.jobs import judge
from tests.jobs.slowed import slow_down
from tests.operator.gateway import pods as api
from tests.operator.gateway.pods import Pods
from tests.operator.gateway.prometheus import asked, scraping
from tests.ports import free_port
from tests.waiting import wait_for

TABLE = record.RESULTS / "outcomes.md"
SCRIPT = Path(__file__).parent / "outcomes_step.py"
RULES = judge.ROOT / "helm" / "stitch" / "files" / "rules.yaml"
NAMESPACE = "team"
POSTED_SECONDS = 15.0
"""Between two reports of a job (docs/service.md, The job's side)."""
LONGEST = 400.0
"""Seconds that a job waits for its kernels and runs, at most."""
BASELINE = 600
"""Original steps of a job before its swap: what a step takes is known to a percent or so then."""
JOB_CORES, OTHER_CORES = ({max(os.sched_getaffinity(0))}, {min(os.sched_getaffinity(0))})
"""A job has a core to itself (outcomes_watch.py); gateway, worker and Prometheus have the other."""
SLOWER = 0.004
"""Seconds that each phase of each kernel waits, in the job that is to go back."""
PHASES = {"stitched": "Optimized", "refused": "Refused", "killed": "Optimized",
          "rolled-back": "RolledBack"}  # fmt: skip
PRICE = """  - name: prices
    rules:
      - {record: 'stitch:price_per_hour', expr: vector(0.05), labels: {gpu: cpu}}
"""


@dataclass(frozen=True)
class Job:
    """A job's pod and its namespace's word of it: core-seconds, net, by what it posted, by the
    ledger and by its StitchedJob; `phase` and `reason` are the StitchedJob's."""

    outcome: str
    pod: str
    events: list[str]
    posted: float
    ledger: float = 0.0
    stitched_job: float = 0.0
    phase: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Killed:
    """The killed job by the gateway's word and from outside: what was counted of it, its steps and
    how long before its end that was posted; the truth then, and an interval of posts before it.
    `posted` is its own last word: the gateway counts no ratio beyond 1.25 x the one that the worker
    has measured, which a busy machine can give."""

    claimed: float
    posted: float
    steps: int
    unposted: float
    then: Truth
    before: Truth

    @property
    def holds(self) -> bool:
        """Never above the truth, and below it by at most an interval of posts."""
        late = self.unposted <= POSTED_SECONDS + 2.0
        return late and self.before.low <= self.claimed <= self.then.high


@dataclass(frozen=True)
class Outcome:
    """Core-seconds by place (net of what was lost), the headline with what it is made of, counts
    of swaps and refusals, and the jobs they are of."""

    jobs: list[Job]
    places: dict[str, float]
    saved: float
    lost: float
    spent: dict[str, float]
    headline: float
    shown: float
    outcomes: dict[str, float]
    refusals: dict[str, float]
    killed: Killed


@dataclass(frozen=True)
class Place:
    """Where jobs run: a folder, pods and StitchedJobs."""

    folder: Path
    pods: Pods
    statuses: Statuses


def run(place: Place, served: Served, outcome: str, seconds: float, *arguments: str) -> Job:
    """Run one job until `seconds` after its graph was swapped or refused; then it ends, or is
    killed."""
    made = place.pods.add(NAMESPACE, outcome, {"cpu": str(len(JOB_CORES))})
    store, token = place.folder / outcome, place.folder / f"{outcome}.token"
    token.write_text(made.token)
    settings = {"STITCH_TOKEN_FILE": str(token), "STITCH_BASELINE": str(BASELINE),
                "STITCH_STORE": str(store), "PYTHONPATH": str(BOOTSTRAP)}  # fmt: skip
    environment = lean.environment(**{**served.environment, **settings})
    watched = Watched(place.folder / f"{outcome}.steps")
    command = [sys.executable, str(SCRIPT), str(LONGEST), str(watched.path), *arguments]
    seen = place.statuses.began(outcome, made)
    with (place.folder / f"{outcome}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        os.sched_setaffinity(process.pid, JOB_CORES)
        deadline = math.inf
        while process.poll() is None and time.monotonic() < deadline:
            watched.look(process.pid)
            time.sleep(EVERY)
            if deadline == math.inf and _decided(store / "sessions"):
                deadline = time.monotonic() + seconds
        watched.stop()
        if outcome == "killed":
            process.send_signal(signal.SIGKILL)
        process.wait(60)
    place.statuses.ended(seen, "Failed" if process.returncode else "Succeeded")
    (place.folder / f"{outcome}.json").write_text(
        json.dumps({"ended": time.time(), "clock": time.monotonic(), "used": watched.used})
    )
    events = judge.events_of(store / "sessions")
    posted = [one for one in events if one["type"] == "savings_total"]
    kinds = sorted({str(one["type"]) for one in events})
    return Job(outcome, made.uid, kinds, _net(posted[-1]) if posted else 0.0)


def _decided(sessions: Path) -> bool:
    kinds = {str(one["type"]) for one in judge.events_of(sessions)}
    return bool(kinds & {"swap_begin", "disabled"})


def _net(total: Mapping[str, Any]) -> float:
    if total["interval"] is None:
        return -float(total["lost_ns"]) / 1e9 * float(total["devices"])
    nanoseconds = total["baseline_ns"] - total["stitched_ns"] - total["lost_ns"]
    return float(nanoseconds) / 1e9 * float(total["devices"])


def measure(folder: Path, seconds: float) -> Outcome:
    """All jobs, one after another, and what every place says afterwards; pictures of it."""
    rules, port, metrics = folder / "rules.yaml", free_port(), free_port()
    rules.write_text(RULES.read_text() + PRICE)
    service, began = folder / "serve", time.time()
    page = f"http://127.0.0.1:{metrics}/metrics"
    with scraping(folder, [page], rules) as prometheus, api.serving() as pods:
        with (
            serving(service, pods, port, metrics) as served,
            reconciling(served, pods, folder, NAMESPACE) as statuses,
        ):
            place = Place(folder, pods, statuses)
            jobs = [
                run(place, served, "stitched", seconds),
                run(place, served, "refused", 5.0, "--random"),
                run(place, served, "killed", seconds),
            ]
            _settled(service, statuses, jobs)
        for artifact in (service / "store" / "artifacts").iterdir():
            slow_down(artifact, service / "signing.key", SLOWER)
        with (
            serving(service, pods, port, metrics) as served,  # on the same ledger
            reconciling(served, pods, folder, NAMESPACE) as later,
        ):
            jobs.append(run(Place(folder, pods, later), served, "rolled-back", seconds))
            _settled(service, later, jobs[-1:])
            told = [*_told(service, statuses, jobs[:-1]), *_told(service, later, jobs[-1:])]
            return _compared(told, folder, prometheus, page, began)


def _settled(service: Path, statuses: Statuses, jobs: list[Job]) -> None:
    """The reconciler has written what the ledger has: figures are told twice a minute."""
    wait_for(
        lambda: all(
            abs(one.ledger - one.stitched_job) < 0.11 for one in _told(service, statuses, jobs)
        ),
        "StitchedJobs with the ledger's figures",
    )


def _told(service: Path, statuses: Statuses, jobs: list[Job]) -> list[Job]:
    """With what the ledger and the StitchedJobs say of each."""
    made = []
    with contextlib.closing(sqlite3.connect(next(service.glob("*.sqlite")))) as ledger:
        for one in jobs:
            (net,) = ledger.execute(
                "SELECT coalesce(sum(saved - lost), 0) / 1e9 FROM savings WHERE pod = ?",
                (one.pod,),
            ).fetchone()
            status = statuses.of(one.outcome)
            job = (0.0, "", "")
            if status is not None:
                job = (status.cpu_core_seconds_saved - status.cpu_core_seconds_lost,
                       status.phase, status.reason)  # fmt: skip
            made.append(Job(one.outcome, one.pod, one.events, one.posted, net, *job))
    return made


def _compared(jobs: list[Job], folder: Path, port: int, metrics: str, began: float) -> Outcome:
    name = "stitch:cpu_core_seconds_{}:total"
    net = f"sum({name.format('saved')}) - sum({name.format('lost')})"
    time.sleep(LOOK_SECONDS + 2)  # what the worker has waited until now is read
    page = _page(metrics)
    wait_for(lambda: [v for _, v in asked(port, net)] == [page], "the scrape")
    ((_, recorded),) = asked(port, net)
    ((_, headline),) = asked(port, "stitch:cpu_core_seconds_net:sum")
    spent = {labels["purpose"]: value for labels, value in asked(port, name.format("spent"))}
    (panel,) = (one for one in SAVINGS.panels if "Core-hours net, since" in one.title)
    ((_, shown),) = asked(port, panel.queries[0].expr)
    for dashboard in (SAVINGS, JOBS, WORKERS):
        picture = TABLE.with_name(f"dashboard-{dashboard.name}.png")
        if dashboard is not SAVINGS:
            picture = record.raw(picture)
            picture.parent.mkdir(exist_ok=True)
        draw(port, dashboard.document(), picture, began, time.time())
    with contextlib.closing(sqlite3.connect(next((folder / "serve").glob("*.sqlite")))) as ledger:
        (held,) = ledger.execute("SELECT sum(saved - lost) / 1e9 FROM totals").fetchone()
        killed = _killed(ledger, folder, next(job for job in jobs if job.outcome == "killed"))
    said = _command(port)
    places = {
        "posted by the jobs": sum(job.posted for job in jobs),
        "ledger": held,
        "gateway's page": page,
        "rules in Prometheus": recorded,
        "StitchedJobs": sum(job.stitched_job for job in jobs),
        "`stitch savings`": said["cores"]["saved"] - said["cores"]["lost"],
    }
    by = {labels["outcome"]: value for labels, value in asked(port, "stitch_jobs_total")}
    left = {labels["reason"]: value for labels, value in asked(port, "stitch_fallbacks_total > 0")}
    ((_, saved),) = asked(port, f"sum({name.format('saved')})")
    ((_, lost),) = asked(port, f"sum({name.format('lost')})")
    assert said["outcomes"] == by and said["fallbacks"] == left
    return Outcome(jobs, places, saved, lost, spent, headline, shown * 3600, by, left, killed)


def _killed(ledger: sqlite3.Connection, folder: Path, job: Job) -> Killed:
    """By the gateway's clock and ledger, and from outside."""
    (swapped,) = ledger.execute(
        "SELECT min(time) FROM events WHERE pod = ? AND type = 'swap-begin'", (job.pod,)
    ).fetchone()
    posted, steps = ledger.execute(
        "SELECT max(time), sum(steps) FROM savings WHERE pod = ?", (job.pod,)
    ).fetchone()
    kept = json.loads((folder / "killed.json").read_text())
    watched = Watched(folder / "killed.steps", [(at, used) for at, used in kept["used"]])
    end = float(watched.ends()[-1])
    clocks = kept["clock"] - kept["ended"]
    then, before = (
        truth(watched, swapped + clocks, moment, float(len(JOB_CORES)))
        for moment in (end, end - POSTED_SECONDS)
    )
    return Killed(job.ledger, job.posted, steps, kept["ended"] - posted, then, before)


def _page(url: str) -> float:
    found = {"saved": 0.0, "lost": 0.0}
    for line in httpx.get(url, trust_env=False).text.splitlines():
        for name in found:
            if line.startswith(f"stitch_cpu_core_seconds_{name}_total{{"):
                found[name] += float(line.rpartition(" ")[2])
    return found["saved"] - found["lost"]


def _command(port: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "stitchcore.cli", "savings", "--json"]
    command += ["--prometheus", f"http://127.0.0.1:{port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def agrees(found: Outcome) -> bool:
    """Whether every place has the same figure, every job ended as it should, the headline is what
    it is made of, and the killed job claims no more than the truth. StitchedJobs are told in tenths
    of a second."""
    posted = found.places["posted by the jobs"]
    near = all(abs(value - posted) < 1e-3 for name, value in found.places.items()
               if name != "StitchedJobs")  # fmt: skip
    near = near and abs(found.places["StitchedJobs"] - posted) < 0.1 * 2 * len(found.jobs)
    phases = {job.outcome: job.phase for job in found.jobs} == PHASES
    net = found.saved - found.lost - sum(found.spent.values())
    headline = abs(found.headline - net) < 1e-6 and abs(found.shown - net) < 1e-6
    waited = found.spent.get("idle", 0.0) > 0
    swaps = found.outcomes == {"optimized": 3.0, "rolled_back": 1.0, "crashed": 0.0}
    refused = found.refusals.get("kernel_random_state") == 1.0
    return near and phases and headline and waited and swaps and refused and found.killed.holds


def page(found: Outcome, seconds: float) -> str:
    """The result, for people."""
    what = "one after another, each in a pod of its own. Core-seconds, saved less lost."
    lines = [f"Jobs of about {seconds:g} s on {len(JOB_CORES)} core, {what}", ""]
    lines += ["| job | posted | ledger | StitchedJob | its phase | what happened |",
              "|---|---|---|---|---|---|"]  # fmt: skip
    for job in found.jobs:
        said = [one for one in job.events if one in ("swap_ok", "rolled_back", "disabled")]
        phase = f"{job.phase} {job.reason}".strip()
        figures = f"{job.posted:.3f} | {job.ledger:.3f} | {job.stitched_job:.1f}"
        lines.append(f"| {job.outcome} | {figures} | {phase} | {', '.join(said)} |")
    lines += ["", "| place | all jobs |", "|---|---|"]
    lines += [f"| {place} | {value:.3f} |" for place, value in found.places.items()]
    spent = ", ".join(f"{purpose} {value:.3f}" for purpose, value in sorted(found.spent.items()))
    counted = [*found.outcomes.items(), *found.refusals.items()]
    killed, then, before = found.killed, found.killed.then, found.killed.before
    lines += [
        "",
        f"Headline {found.headline:.3f}: saved {found.saved:.3f} less lost {found.lost:.3f} less "
        f"spent ({spent}); the dashboard's first panel shows {found.shown:.3f}.",
        "",
        "Prometheus counts " + ", ".join(f"{name} {value:g}" for name, value in counted) + ".",
        "",
        f"The killed job was posted {killed.unposted:.1f} s before its end (every "
        f"{POSTED_SECONDS:g} s) and claims {killed.claimed:.3f} over {killed.steps} stitched "
        "steps. "
        f"Seen from outside it had saved {then.middle:.3f} [{then.low:.3f}, {then.high:.3f}] over "
        f"{then.steps} steps when it was killed, and {before.middle:.3f} [{before.low:.3f}, "
        f"{before.high:.3f}] over {before.steps} an interval before; by the kernel's account of "
        f"its processor time {then.processor:.3f} and {before.processor:.3f}. "
        f"Never above the truth, and at most an interval below: {killed.holds}. Its own last word "
        f"was {killed.posted:.3f}; reports of all jobs that the gateway did not believe: "
        f"{found.refusals.get('implausible', 0):g}. Load of the machine at the end: "
        f"{os.getloadavg()[2]:.1f} over 15 minutes.",
    ]
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.outcomes")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a job")
    given = parser.parse_args()
    os.sched_setaffinity(0, OTHER_CORES)
    with tempfile.TemporaryDirectory(prefix="stitch-outcomes-") as folder:
        found = measure(Path(folder), given.seconds)
    figures = record.raw(TABLE.with_suffix(".json"))
    record.write_figures(figures, asdict(found))
    record.write_table(TABLE, page(found, given.seconds), "python -m bench.outcomes")
    sys.stdout.write(page(found, given.seconds))
    return 0 if agrees(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
