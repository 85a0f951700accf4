"""The service under load: real processes (`stitch serve`), real graphs, HTTPS, open-loop clients.

    python -m bench.service [--submissions 1000] [--graphs 20] [--rates 25,50,100] [--seconds 30]

First, jobs hand in graphs all at once, most of them the same under other names, and ask until each
has its artifact: how many compiles that took, how long jobs waited. Then artifacts are asked for at
fixed rates, each on a new connection as a job's client does it, while further graphs keep the
workers busy. A request's time runs from the moment it was due, whether or not the ones before it
had been answered. Last, the load grows: at each step more jobs are under way at the same time, with
graphs that no step before had. Written to bench/results/service.{md,png}.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench import record
from stitch_operator.gateway import tls
from stitch_operator.gateway.wire import MESSAGES
from stitchcore.artifact.store import open_store

PATIENCE_SECONDS = 3600.0
JOBS_AT_A_TIME = 32
AT_A_TIME = (1, 4, 16, 48)
STEP_JOBS, STEP_GRAPHS = 48, 8
SEEN = ("hit", "join", "miss")
SAMPLE = re.compile(r"^([a-z_]+)(?:\{([^}]*)\})? ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Load:
    """Artifact requests at one rate. Milliseconds from when each was due."""

    rate: float
    requests: int
    failed: int
    p50: float
    p99: float
    worst: float
    workers_busy: float


@dataclass(frozen=True)
class Step:
    """Jobs that were handed in so many `at_a_time`. Means in seconds; `seen` is what became of
    their calls in the caches, as the gateway counts it."""

    at_a_time: int
    jobs: int
    graphs: int
    compiles: int
    seconds: float
    queue_wait: float
    compile: float
    seen: Mapping[str, float]


@dataclass(frozen=True)
class Figures:
    """What a run found. Seconds, unless the name says otherwise."""

    submissions: int
    graphs: int
    cores: int
    compiles: int
    artifacts: int
    seconds: float
    wait_p50: float
    wait_p99: float
    spent: Mapping[str, float]
    cache: Mapping[str, float]
    done: Sequence[float] = field(repr=False)
    loads: Sequence[Load]
    steps: Sequence[Step]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[dict[str, Any]]:
    """A `stitch serve` of its own; what it says of itself."""
    command = [sys.executable, "-m", "stitchcore.cli", "serve", "--folder", str(folder)]
    ports = ["--port", "0", "--metrics-port", "0", "--json"]
    process = subprocess.Popen([*command, *ports], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def graph(number: int) -> Any:
    """A distinct small step: elementwise work, a reduction, an update's arithmetic."""
    import tensorflow as tf

    made = tf.Graph()
    with made.as_default():
        rows, columns = 256, 128 + 8 * number
        x = tf.compat.v1.placeholder(tf.float32, [rows, columns], name="x")
        w = tf.compat.v1.placeholder(tf.float32, [rows, columns], name="w")
        mean = tf.reduce_mean(x, axis=-1, keepdims=True)
        scaled = (x - mean) * tf.math.rsqrt(tf.reduce_mean(tf.square(x - mean), -1, True) + 1e-5)
        moved = tf.nn.relu(scaled * w + 0.5) - 0.25 * w
        tf.identity(moved * moved, name="result")
    return made.as_graph_def(add_shapes=True)


def renamed(graph_def: Any, prefix: str) -> bytes:
    """The same graph under other names."""
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    for node in copy.node:
        node.name = f"{prefix}/{node.name}"
        for place, name in enumerate(node.input):
            control = "^" if name.startswith("^") else ""
            node.input[place] = f"{control}{prefix}/{name.removeprefix('^')}"
    return bytes(copy.SerializeToString())


def body(data: bytes, prefix: str, target: str, tf: str) -> bytes:
    """A submission in protobuf."""
    preserve = [f"{prefix}/result"]
    message = MESSAGES["SubmitGraph"](
        target=target, tf=tf, abi=1, threads=2, preserve=preserve, graph=data
    )
    return bytes(message.SerializeToString())


class Client:
    """Calls of jobs; a new connection each, as the job side does it."""

    def __init__(self, service: Mapping[str, Any]) -> None:
        token = Path(service["STITCH_TOKEN_FILE"]).read_text().strip()
        self._url = httpx.URL(service["STITCH_GATEWAY"])
        self._trust = tls.trusting(Path(service["STITCH_CA"]))
        self._headers = f"Host: {self._url.netloc.decode()}\r\nAuthorization: Bearer {token}\r\n"
        self.http = httpx.AsyncClient(
            base_url=self._url,
            verify=self._trust,
            headers={"Authorization": f"Bearer {token}"},
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=60.0,
            trust_env=False,
        )

    async def job(self, submission: bytes) -> tuple[float, str]:
        """Hand a graph in and ask until its artifact is there; seconds it took, and its key."""
        start = time.perf_counter()
        headers = {"Content-Type": "application/x-protobuf"}
        method, path, content = "POST", "/v1/graphs", submission
        while time.perf_counter() - start < PATIENCE_SECONDS:
            answer = await self.http.request(method, path, content=content, headers=headers)
            if answer.status_code == 200 and "Stitch-Key" in answer.headers:
                return time.perf_counter() - start, answer.headers["Stitch-Key"]
            if answer.status_code in (200, 202):
                method, path, content = "GET", f"/v1/artifacts/{answer.json()['key']}", b""
            elif answer.status_code not in (429, 503):
                raise RuntimeError(f"{answer.status_code} {answer.text[:300]}")
            if answer.status_code != 200:
                pause = float(answer.headers.get("Retry-After", 1))
                await asyncio.sleep(pause * (1 + 0.25 * random.random()))
        raise RuntimeError("no artifact")

    async def artifact(self, key: str) -> bool:
        """On a bare stream: of httpx's 9 ms a request (measured) all clients together would need
        the better part of the processors that gateway and workers run on."""
        request = f"GET /v1/artifacts/{key} HTTP/1.1\r\n{self._headers}Connection: close\r\n\r\n"
        try:
            host, port = self._url.host, self._url.port
            reader, writer = await asyncio.open_connection(host, port, ssl=self._trust)
            try:
                writer.write(request.encode())
                return (await reader.read()).startswith(b"HTTP/1.1 200 ")
            finally:
                writer.close()
        except (OSError, asyncio.IncompleteReadError):
            return False


async def hand_in(
    client: Client, bodies: Sequence[bytes], at_a_time: int = JOBS_AT_A_TIME
) -> tuple[list[float], list[float], set[str]]:
    """All jobs, some at a time: seconds each waited, when each was done, and their keys."""
    start = time.perf_counter()
    gate = asyncio.Semaphore(at_a_time)
    waits: list[float] = []
    done: list[float] = []
    keys: set[str] = set()

    async def one(submission: bytes) -> None:
        async with gate:
            wait, key = await client.job(submission)
        waits.append(wait)
        done.append(time.perf_counter() - start)
        keys.add(key)

    await asyncio.gather(*(one(submission) for submission in bodies))
    return waits, done, keys


async def load(client: Client, keys: Sequence[str], rate: float, seconds: float) -> Load:
    """Open loop: one request every 1/rate seconds, whatever became of the others."""
    times: list[float] = []
    failed = 0

    async def one(due: float) -> None:
        nonlocal failed
        if await client.artifact(random.choice(keys)):
            times.append((time.perf_counter() - due) * 1e3)
        else:
            failed += 1

    tasks = []
    start, before = time.perf_counter(), _busy()
    for number in range(int(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    busy = (_busy() - before) / (time.perf_counter() - start)
    cuts = statistics.quantiles(times, n=100) if len(times) > 1 else [float("nan")] * 99
    worst = max(times, default=float("nan"))
    return Load(rate, len(tasks), failed, cuts[49], cuts[98], worst, busy)


def _busy() -> float:
    """Seconds that all processors have worked since the machine began."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    idle = int(fields[3]) + int(fields[4])
    return (sum(map(int, fields[:8])) - idle) / os.sysconf("SC_CLK_TCK")


async def measured(service: Mapping[str, Any], given: argparse.Namespace) -> Figures:
    """All parts, against a running service."""
    graphs = Graphs(itertools.count())
    client = Client(service)
    bodies, later = graphs.bodies(given.submissions, given.graphs), graphs.bodies(given.graphs)
    start = time.perf_counter()
    waits, done, keys = await hand_in(client, bodies)
    seconds = time.perf_counter() - start
    metrics = samples(httpx.get(service["metrics"], trust_env=False).text)
    compiles = _compiles(Path(service["folder"]))
    busy = asyncio.gather(*map(client.job, later))
    loads = [await load(client, sorted(keys), rate, given.seconds) for rate in given.rates]
    await busy
    steps = [await step(client, service, graphs, at_a_time) for at_a_time in AT_A_TIME]
    await client.http.aclose()
    cuts = statistics.quantiles(waits, n=100)
    return Figures(
        *(given.submissions, given.graphs, os.cpu_count() or 1, compiles, len(waits), seconds),
        *(cuts[49], cuts[98]),
        spent=_labelled(metrics, "stitch_cpu_core_seconds_spent_total"),
        cache=_labelled(metrics, "stitch_cache_requests_total"),
        done=sorted(done),
        loads=loads,
        steps=steps,
    )


@dataclass(frozen=True)
class Graphs:
    """Submissions of graphs that differ from all before."""

    numbers: Iterator[int]

    def bodies(self, jobs: int, distinct: int = 0) -> list[bytes]:
        """Of so many jobs, each with names of its own, in a random order."""
        from stitchcore.cli.common import host_target
        from stitchcore.cli.run import own_tensorflow

        place, tf = host_target(), own_tensorflow()
        first = next(self.numbers)
        made = [graph(first), *(graph(next(self.numbers)) for _ in range((distinct or jobs) - 1))]
        names = [(made[job % len(made)], f"job{first}_{job}") for job in range(jobs)]
        random.Random(1).shuffle(names)
        return [body(renamed(one, name), name, place, tf) for one, name in names]


async def step(client: Client, service: Mapping[str, Any], graphs: Graphs, at_a_time: int) -> Step:
    """STEP_JOBS jobs of STEP_GRAPHS new graphs."""
    folder = Path(service["folder"])
    bodies = graphs.bodies(STEP_JOBS, STEP_GRAPHS)
    page = samples(httpx.get(service["metrics"], trust_env=False).text)
    compiles, start = _compiles(folder), time.perf_counter()
    await hand_in(client, bodies, at_a_time)
    seconds = time.perf_counter() - start
    before = {(name, labels): value for name, labels, value in page}
    metrics = [
        (name, labels, value - before.get((name, labels), 0.0))
        for name, labels, value in samples(httpx.get(service["metrics"], trust_env=False).text)
    ]
    return Step(
        *(at_a_time, STEP_JOBS, STEP_GRAPHS, _compiles(folder) - compiles, seconds),
        queue_wait=_mean(metrics, "stitch_queue_wait_seconds"),
        compile=_mean(metrics, "stitch_compile_duration_seconds"),
        seen=_labelled(metrics, "stitch_cache_requests_total"),
    )


def _compiles(folder: Path) -> int:
    """Compile children that were started, as the workers wrote them down."""
    store = open_store(str(folder / "store"))
    found = [json.loads(store.read("attempts", name)) for name in store.list("attempts")]
    return sum(int(one["started"]) for one in found)


def samples(text: str) -> list[tuple[str, str, float]]:
    """(name, labels, value) of a Prometheus page."""
    return [(name, labels, float(value)) for name, labels, value in SAMPLE.findall(text)]


def _mean(metrics: Sequence[tuple[str, str, float]], name: str) -> float:
    total = sum(value for one, _, value in metrics if one == f"{name}_sum")
    count = sum(value for one, _, value in metrics if one == f"{name}_count")
    return total / count if count else float("nan")


def _labelled(metrics: Sequence[tuple[str, str, float]], name: str) -> dict[str, float]:
    return {labels.split('"')[1]: value for one, labels, value in metrics if one == name}


def _found(seen: Mapping[str, float]) -> float:
    """The share of submissions that needed no compilation of their own."""
    hits = seen.get("hit", 0.0) + seen.get("join", 0.0)
    return hits / max(1.0, hits + seen.get("miss", 0.0))


def text(found: Figures) -> str:
    """The figures as markdown."""
    spent = ", ".join(f"{name} {value:.1f} s" for name, value in sorted(found.spent.items()))
    counted = [f"{value:.0f} {name}" for name, value in sorted(found.cache.items()) if value]
    cache = ", ".join(one for one in counted if " kernel_" not in one)
    kernels = ", ".join(one.replace("kernel_", "") for one in counted if " kernel_" in one)
    lines = [
        f"{found.submissions} submissions of {found.graphs} distinct graphs, {found.cores} cores, "
        f"one worker: {found.compiles} compiles, {found.artifacts} artifacts in "
        f"{found.seconds:.0f} s ({found.artifacts / found.seconds:.1f} a second). Submissions: "
        f"{cache}. Kernels: {kernels or 'none compiled'}. Core seconds of the workers: {spent}.",
        "",
        "| seconds | |",
        "|---|---|",
        f"| a job's wait for its artifact, median | {found.wait_p50:.1f} |",
        f"| the same, 99th percentile | {found.wait_p99:.1f} |",
        "",
        "| artifact requests a second | p50 ms | p99 ms | worst ms | failed | cores busy |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.rate:g} | {one.p50:.1f} | {one.p99:.1f} | {one.worst:.1f} "
        f"| {one.failed} of {one.requests} | {one.workers_busy:.1f} |"
        for one in found.loads
    ]
    lines += [
        "",
        f"{STEP_JOBS} jobs of {STEP_GRAPHS} new graphs at each step:",
        "",
        "| jobs at a time | artifacts a second | in the queue, s | enqueued to answered, s "
        "| hits, joins, misses | compiles |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.at_a_time} | {one.jobs / one.seconds:.2f} | {one.queue_wait:.1f} "
        f"| {one.compile:.1f} | {', '.join(f'{one.seen.get(what, 0):.0f}' for what in SEEN)} "
        f"| {one.compiles} |"
        for one in found.steps
    ]
    return "\n".join(lines) + "\n"


def plot(found: Figures, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(14, 3.8), layout="constrained")
    left.step(found.done, range(1, len(found.done) + 1), where="post")
    left.set(xlabel="seconds", ylabel="jobs with their artifact")
    left.set_title(f"{found.submissions} jobs, {found.compiles} compiles")
    for name in ("p50", "p99"):
        rates = [one.rate for one in found.loads]
        middle.plot(rates, [getattr(one, name) for one in found.loads], marker="o", label=name)
    middle.axhline(100, color="grey", linewidth=0.8, linestyle="--")
    middle.set(xlabel="artifact requests a second", ylabel="ms", yscale="log")
    middle.set_title("open loop, workers busy")
    middle.legend()
    lines = {
        "jobs a minute": [60 * one.jobs / one.seconds for one in found.steps],
        "in the queue, s": [one.queue_wait for one in found.steps],
        "enqueued to answered, s": [one.compile for one in found.steps],
        "hits and joins, of 10 calls": [10 * _found(one.seen) for one in found.steps],
    }
    for name, values in lines.items():
        right.plot([one.at_a_time for one in found.steps], values, marker="o", label=name)
    right.set(xlabel="jobs at a time", xscale="log", yscale="log")
    right.set_title(f"{STEP_JOBS} jobs of {STEP_GRAPHS} graphs")
    right.legend()
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.service")
    parser.add_argument("--submissions", type=int, default=1000)
    parser.add_argument("--graphs", type=int, default=20)
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")],
                        default=[25.0, 50.0, 100.0, 150.0])  # fmt: skip
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="stitch-bench-") as folder,
        served(Path(folder)) as service,
    ):
        found = asyncio.run(measured(service, given))
    record.write_figures(record.raw(given.out / "service.json"), asdict(found))
    record.write_table(given.out / "service.md", text(found), "python -m bench.service")
    plot(found, given.out / "service.png")
    sys.stdout.write(text(found))
    return 0 if found.artifacts == given.submissions else 1


if __name__ == "__main__":
    raise SystemExit(main())
