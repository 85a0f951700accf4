"""A million reports of savings, repeated, out of order, while the ledger's process is killed.

    python -m bench.replay [--reports 1000000] [--kills 40]

What jobs have truly saved and lost is known beforehand, because each job's figures only grow: the
last report's. Afterwards the ledger's totals must be these, to the nanosecond. The ledger is the
gateway's own, on its own settings, in a process of its own; each kill is SIGKILL at a random
moment, and the next process goes on some reports before the last one that was acknowledged, as
clients do that heard no answer. bench/results/replay.md keeps what it prints.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import record
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.ledger import COUNTED, OLD, Ledger
from stitch_operator.gateway.savings import Report

EACH = 50
"""Reports of one job."""
AT_ONCE = 200
"""Jobs that are under way at a time: their reports are mixed."""
REPEATED = 0.2
"""Share of reports that are sent twice."""
BACK = 500
"""Reports before the last acknowledged one from which a new process goes on, at most."""
SAID = 100
"""Reports between two acknowledgements that the one who sends notes down."""
NAMESPACES, HOUR, SECOND = 1000, 3600.0, 10**9
GPUS = ("a100", "h100", "h200", "l4", "cpu", "other")


@dataclass(frozen=True)
class Sent:
    """Report `seq` of a job, by the job's number."""

    job: int
    seq: int


@dataclass(frozen=True)
class Outcome:
    """Device-nanoseconds that the ledger has and that are true, as (saved, lost)."""

    reports: int
    kills: int
    seconds: float
    found: tuple[int, int]
    true: tuple[int, int]
    rows: int


def order(reports: int, seed: int) -> Iterator[Sent]:
    """All reports as they arrive: `AT_ONCE` jobs mixed at random, a fifth of reports twice, the
    second time at any later moment of their group."""
    chosen = random.Random(seed)
    for first in range(0, reports // EACH, AT_ONCE):
        jobs = range(first, min(first + AT_ONCE, reports // EACH))
        group = [Sent(job, seq) for job in jobs for seq in range(1, EACH + 1)]
        group += [one for one in group if chosen.random() < REPEATED]
        chosen.shuffle(group)
        yield from group


def change(one: Sent) -> int:
    """What the job has saved by then, net, in nanoseconds: three of four jobs save, and more with
    each report; the fourth loses."""
    rate = (one.job * 7919) % 1000 * 1000 + 1
    return one.seq * (rate if one.job % 4 else -rate)


def truth(reports: int) -> tuple[int, int]:
    """What all jobs have saved and lost in the end."""
    last = [change(Sent(job, EACH)) for job in range(reports // EACH)]
    return sum(max(one, 0) for one in last), sum(max(-one, 0) for one in last)


def send(path: Path, reports: int, seed: int, start: int) -> None:
    """Put reports into the ledger from the `start`th on; say after each SAID which was done."""
    ledger = Ledger(path, namespaces=200)
    for number, one in enumerate(order(reports, seed)):
        if number < start:
            continue
        taken, saved = one.seq * SECOND, change(one)
        who = Identity(
            *(f"team-{one.job % NAMESPACES}", "train", f"pod-{one.job}", 1.0),
            *(GPUS[one.job % len(GPUS)], 0.0),
        )
        said = Report(one.seq, one.seq, taken + saved, taken, 0, 1.0, True, (saved - 1, saved + 1))
        outcome = ledger.save(who, "s", "cd" * 32, said, ratio=2.0, now=HOUR)
        if outcome not in (COUNTED, OLD):
            raise SystemExit(f"report {number}: {outcome}")
        if number % SAID == 0:
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
    ledger.close()
    sys.stdout.write("done\n")


def replay(path: Path, reports: int, kills: int, seed: int) -> Outcome:
    """Send all reports to a ledger at `path` whose process is killed so often on the way."""
    began, chosen, start, killed = time.monotonic(), random.Random(seed), 0, 0
    moments = sorted(chosen.randrange(SAID, reports) for _ in range(kills))
    while True:
        command = [sys.executable, "-m", "bench.replay", "--child", str(path)]
        command += [f"--reports={reports}", f"--seed={seed}", f"--start={start}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            done = False
            for line in process.stdout:
                done = line == "done\n"
                if done:
                    break
                start = int(line)
                if killed < kills and start >= moments[killed]:
                    process.kill()
                    killed += 1
                    break
            code = process.wait()
        if done:
            break
        if code >= 0:
            raise SystemExit("the process that writes the ledger ended")
        start = max(0, start - chosen.randrange(BACK))
    ledger = Ledger(path)
    totals = ledger.totals()
    ledger.close()
    found = sum(row[2] for row in totals), sum(row[3] for row in totals)
    seconds = time.monotonic() - began
    return Outcome(reports, killed, seconds, found, truth(reports), len(totals))


def page(found: Outcome) -> str:
    """The result, for people."""
    lines = [
        f"{found.reports:,} reports of {found.reports // EACH:,} jobs in {NAMESPACES:,} namespaces "
        f"on {len(GPUS)} kinds of device, a fifth of them sent twice, {AT_ONCE} jobs mixed at "
        f"random; the ledger's process killed {found.kills} times: {found.seconds:.0f} s.",
        "",
        "| device-nanoseconds | in the ledger | true |",
        "|---|---|---|",
    ]
    for name, seen, true in zip(("saved", "lost"), found.found, found.true, strict=True):
        lines.append(f"| {name} | {seen} | {true} |")
    return "\n".join([*lines, "", f"Rows of totals: {found.rows}.", ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.replay")
    parser.add_argument("--reports", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--child", type=Path, help="(itself) write this ledger")
    parser.add_argument("--start", type=int, default=0)
    given = parser.parse_args()
    if given.child:
        send(given.child, given.reports, given.seed, given.start)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = replay(Path(folder) / "ledger.sqlite", given.reports, given.kills, given.seed)
    sys.stdout.write(page(found))
    record.write_table(record.RESULTS / "replay.md", page(found), "python -m bench.replay")
    return 0 if found.found == found.true else 1


if __name__ == "__main__":
    raise SystemExit(main())
