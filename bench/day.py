"""A day of a cluster of 70,000 tasks a week, replayed in minutes against a real gateway.

    python -m bench.day [--minutes 6] [--tasks 10000] [--workers 8]

Tasks come in bursts of a namespace, whose jobs mostly train what others of it train; at noon one
namespace hands in a tenth of the day's tasks at once, a burst a hundred times as large as others',
of graphs that all differ. Each job
asks as often as it is told to until its artifact is there. Gateway, ledger, store, numbering
processes and bodies are the real ones; calls reach it without TLS (bench/service.py has that), and
workers stand in: each takes one task at a time, for the time that is drawn for it, and leaves an
artifact. One day passes `day / minutes` times as fast and compilations take their real time, so
that this is a harder day than the real one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import queue
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench import record
from stitch_operator.gateway.app import application
from stitch_operator.gateway.digests import Digests
from stitch_operator.gateway.identity import Cached, Identity
from stitch_operator.gateway.ledger import Ledger
from stitch_operator.gateway.limits import Rate
from stitch_operator.gateway.metrics import Durable, Metrics
from stitch_operator.gateway.queue import queue_name
from stitch_operator.gateway.service import RATES, Parts, Rates, Service
from stitchcore.artifact.store import Store, open_store
from tests.operator.gateway.support import TARGET, graph, publish, submission

WEEK_TASKS, NAMESPACES = 70_000, 40
BURST = 10
"""Tasks of an ordinary burst, in the mean."""
LOUD, LOUD_SHARE, LOUD_SECONDS = "ns-0", 0.1, 20.0
AGAIN = 0.9
"""Share of tasks that train what an earlier task of their namespace did."""
SECONDS = (0.5, 1.0, 2.0)
"""What a compilation takes a worker that stands in: least, most often, most."""
CALLS = Rate(2000, 4000)
"""Of a namespace, whose day is compressed."""


@dataclass(frozen=True)
class Task:
    """A job's graph, `at` seconds of the day, by a salt that makes it that one."""

    at: float
    namespace: str
    salt: int
    burst: int


@dataclass
class Workers:
    """A queue whose workers are threads; when each task began and ended."""

    store: Store
    count: int
    seconds: random.Random
    tasks: queue.Queue[str] = field(default_factory=queue.Queue)
    began: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        for _ in range(self.count):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(self, request_key: str, target: str, tf_minor: str) -> None:
        self.tasks.put(request_key)

    def served(self) -> frozenset[str]:
        return frozenset((queue_name(TARGET, "2.21"),))

    def places(self, name: str) -> int:
        return self.count

    def depth(self, name: str) -> int:
        return self.tasks.qsize()

    def close(self) -> None:
        pass

    def _work(self) -> None:
        while True:
            request = self.tasks.get()
            self.began[request] = time.monotonic()
            low, often, high = SECONDS
            time.sleep(self.seconds.triangular(low, high, often))
            publish(self.store, request, request)
            self.ended[request] = time.monotonic()


class Tokens:
    """A token is a namespace's name."""

    def identify(self, token: str) -> Identity:
        return Identity(token, "train", f"pod-{token}", 2.0, "cpu", time.time() - 86400)


@dataclass(frozen=True)
class Outcome:
    """Of one task: what it waited from its arrival to its artifact, and what was compiled for it
    (its request), and whether another one had asked before."""

    task: Task
    wait: float
    request: str
    calls: int


@dataclass(frozen=True)
class Figures:
    """What a day brought. Seconds."""

    outcomes: Sequence[Outcome]
    lost: int
    compiled: int
    seconds: float
    cores: float
    memory: float
    answers: Sequence[float]
    refused: int
    begun: dict[str, float]


def day(tasks: int, seed: int, speed: float) -> list[Task]:
    """All tasks of a day that passes so many times as fast, by time: bursts at random, and the one
    at noon, which takes LOUD_SECONDS of real time."""
    drawn = random.Random(seed)
    loud = int(tasks * LOUD_SHARE)
    salts, known = itertools.count(), {f"ns-{n}": [-1 - n] for n in range(NAMESPACES)}
    made: list[Task] = []
    bursts = itertools.count(1)
    while len(made) < tasks - loud:
        namespace = f"ns-{min(int(drawn.paretovariate(0.9)), NAMESPACES - 1)}"
        begin, burst = drawn.uniform(0, 86400), next(bursts)
        for _ in range(1 + int(drawn.expovariate(1 / BURST))):
            if drawn.random() > AGAIN:
                known[namespace].append(next(salts))
            salt = drawn.choice(known[namespace])
            made.append(Task(begin + drawn.expovariate(1 / 60), namespace, salt, burst))
    apart = speed * LOUD_SECONDS / loud
    made += [Task(43200 + n * apart, LOUD, 10**6 + n, 0) for n in range(loud)]
    return sorted(made, key=lambda one: one.at)


async def run(tasks: Sequence[Task], folder: Path, workers: int, seconds: float) -> Figures:
    """The day, in so many seconds."""
    store = open_store(str(folder / "store"))
    crew = Workers(store, workers, random.Random(1))
    crew.start()
    ledger = Ledger(folder / "ledger.sqlite")
    metrics = Metrics(lambda: Durable(ledger.totals(), ledger.spent(), ledger.counts()), "bench")
    rates = Rates(CALLS, RATES.bytes, Rate(1000, 10_000))
    parts = Parts(store, crew, ledger, Digests(), Cached(Tokens()), metrics, rates=rates)
    service = Service(parts)
    await service.start()
    while service.trust is None:
        await asyncio.sleep(0.05)
    transport = httpx.ASGITransport(application(service))
    used, began = _used(), time.monotonic()
    client = Client(httpx.AsyncClient(transport=transport, base_url="http://gateway"))
    jobs = []
    for task in tasks:
        await asyncio.sleep(began + task.at * seconds / 86400 - time.monotonic())
        jobs.append(asyncio.create_task(client.job(task)))
    ended = await asyncio.gather(*jobs, return_exceptions=True)
    passed = time.monotonic() - began
    outcomes = [one for one in ended if isinstance(one, Outcome)]
    cores = (_used() - used) / passed
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    await service.stop()
    return Figures(
        *(outcomes, len(ended) - len(outcomes), len(crew.ended), passed, cores, memory),
        *(client.answers, client.refused, crew.began),
    )


def _used() -> float:
    """Seconds of processors that this process has had."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass
class Client:
    """Jobs of all namespaces."""

    http: httpx.AsyncClient
    answers: list[float] = field(default_factory=list)
    refused: int = 0

    async def job(self, task: Task) -> Outcome:
        """Hands its graph in and asks until it is ready."""
        arrived, body, calls = time.monotonic(), submission(graph(salt=task.salt + 2**40)), 0
        headers = {"Authorization": f"Bearer {task.namespace}"}
        path = ""
        while True:
            before, calls = time.monotonic(), calls + 1
            if path:
                answer = await self.http.get(path, headers=headers)
            else:
                answer = await self.http.post("/v1/graphs", json=body, headers=headers)
            self.answers.append(time.monotonic() - before)
            document: dict[str, Any] = answer.json()
            if answer.status_code == 200:
                wait = time.monotonic() - arrived
                return Outcome(task, wait, str(document["request"]), calls)
            if answer.status_code == 202:
                path = f"/v1/graphs/{document['request']}"
            elif answer.status_code in (429, 503):
                self.refused += 1
            else:
                raise RuntimeError(f"{answer.status_code} {document}")
            pause = float(answer.headers.get("Retry-After", 1))
            await asyncio.sleep(pause * (1 + 0.25 * random.random()))


def _cuts(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile, largest."""
    cuts = statistics.quantiles(values, n=100) if len(values) > 1 else [*values] * 99
    return cuts[49], cuts[98], max(values)


def rows(found: Figures) -> Iterator[tuple[str, Sequence[Outcome]]]:
    """Groups of tasks that the table tells apart. It is a graph's first task that it is compiled
    for."""
    noon = [one for one in found.outcomes if one.task.burst == 0]
    end = max(one.task.at for one in noon) + 86400 / found.seconds * max(o.wait for o in noon)
    first: set[str] = set()
    asked = []
    for one in sorted(found.outcomes, key=lambda one: one.task.at):
        if one.request not in first and one.task.burst:
            asked.append(one)
        first.add(one.request)
    yield "the burst's own graphs", noon
    yield (
        "new graphs of others while it lasts",
        [one for one in asked if one.task.namespace != LOUD and 43200 <= one.task.at <= end],
    )
    yield "new graphs at other times", [one for one in asked if not 43200 <= one.task.at <= end]
    made = {id(one) for one in (*noon, *asked)}
    yield "graphs that were handed in before", [o for o in found.outcomes if id(o) not in made]


def page(found: Figures, workers: int) -> str:
    """The figures, for people."""
    p50, p99, worst = (1e3 * one for one in _cuts(found.answers))
    calls, per_second = len(found.answers), len(found.answers) / found.seconds
    lines = [
        f"{len(found.outcomes):,} tasks of {NAMESPACES} namespaces, a day, "
        f"in {found.seconds:.0f} s, {86400 / found.seconds:.0f} times as fast; {found.compiled:,} "
        f"compilations by {workers} workers of {SECONDS[1]:g} s each; lost: {found.lost}. "
        f"{calls:,} calls, {per_second:.0f} a second: p50 {p50:.1f}, p99 {p99:.1f}, worst "
        f"{worst:.0f} ms; turned away for now: {found.refused}. The gateway's process, which the "
        f"clients are in too: {found.cores:.2f} cores, {found.memory:.0f} MiB.",
        "",
        "| a job's wait for its artifact, s | tasks | median | 99th percentile | worst |",
        "|---|---|---|---|---|",
    ]
    for name, outcomes in rows(found):
        cells = "| ".join(f"{one:.1f} " for one in _cuts([o.wait for o in outcomes] or [0.0]))
        lines.append(f"| {name} | {len(outcomes):,} | {cells}|")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.day")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--tasks", type=int, default=WEEK_TASKS // 7)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, help="a table for people")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = 60 * given.minutes
        tasks = day(given.tasks, given.seed, 86400 / seconds)
        found = asyncio.run(run(tasks, Path(folder), given.workers, seconds))
    text = page(found, given.workers)
    sys.stdout.write(text)
    if given.out:
        record.write_table(given.out, text, "python -m bench.day")
    return 1 if found.lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
