"""The webhook under load: a real API server, its real controllers, thousands of Jobs, fake nodes.

    python -m bench.admission [--jobs 10000] [--at-a-time 20]

Annotated Jobs are created, so many calls at a time; the job controller makes their pods, kwok plays
the nodes that run them. One replica of the webhook, a process with an account of its own, stamps
the Jobs and injects the pods. Judged are all pods (injected, missed, or never made), the API
server's own count of calls it went on without, how long a review took (until it was read, then the
handler, and the whole call as the API server timed it), and the webhook's memory.
Written to bench/results/admission.md.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import ssl
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from kubernetes import client

from bench import record
from tests.cluster import cluster as clusters
from tests.cluster import releasing, workloads
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import namespace_in
from tests.cluster.objects import fake_node
from tests.cluster.parts import Level
from tests.cluster.releasing import Replica

INJECTED = "stitchcore.io/injected"
NODES, PODS = 10, 5000
SAMPLES = 20
HOOK = 'hook="pods"'
PAGE = 500
LOOK_SECONDS = 1.0
STILL_SECONDS = 180.0
CALLS = "apiserver_admission_webhook_admission_duration_seconds_bucket"


@dataclass(frozen=True)
class Figures:
    """What a run found. Milliseconds, as (median, 99th percentile), are upper ends of the buckets
    of histograms: `reading` and `handler` are the webhook's own, `called` the API server's."""

    cores: int
    jobs: int
    at_a_time: int
    seconds: float
    injected: int
    missed: int
    absent: int
    """Pods that no controller had made when nothing had changed for STILL_SECONDS."""
    refused: int
    fail_open: float
    reading: tuple[float, float]
    handler: tuple[float, float]
    called: tuple[float, float]
    memory: tuple[tuple[int, float], ...]
    """MiB of the webhook after so many Jobs."""

    @property
    def growth(self) -> float:
        """From the first half's end to the whole's."""
        half = min(self.memory, key=lambda one: abs(one[0] - self.jobs / 2))[1]
        return self.memory[-1][1] / half - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, and print. Returns 1 where a pod was missed or never made."""
    parser = argparse.ArgumentParser(prog="python -m bench.admission")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--at-a-time", type=int, default=20)
    given = parser.parse_args(arguments)
    if reason := clusters.unable(Level.API):
        parser.error(reason)
    name = f"bench-{os.getpid()}"
    cluster = clusters.up(Level.API, name, owner=os.getpid())
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            releasing.webhook(cluster, Path(folder)) as webhook,
        ):
            found = measure(cluster, webhook.replicas[0], given.jobs, given.at_a_time)
    finally:
        clusters.down(name)
    write(found)
    print(table(found))
    return int(found.missed > 0 or found.absent > 0 or found.fail_open > 0)


def measure(cluster: Cluster, replica: Replica, jobs: int, at_a_time: int) -> Figures:
    """Create the Jobs, wait until each has had its pod, and count."""
    with cluster.api() as api:
        core = client.CoreV1Api(api)
        for number in range(NODES):
            core.create_node(fake_node(f"fake-{number}", pods=PODS))
        before = releasing.fail_open(cluster)
        with namespace_in(core) as namespace:
            load = Load(cluster, namespace, replica, jobs)
            began = time.monotonic()
            asyncio.run(load.run(at_a_time))
            await_pods(core, namespace, jobs - load.refused)
            seconds = time.monotonic() - began
            load.sample(jobs)
            made, injected = pods(core, namespace)
        return Figures(
            cores=os.cpu_count() or 1,
            jobs=jobs,
            at_a_time=at_a_time,
            seconds=seconds,
            injected=injected,
            missed=made - injected,
            absent=jobs - load.refused - made,
            refused=load.refused,
            fail_open=releasing.fail_open(cluster) - before,
            reading=quantiles(replica.buckets("stitch_webhook_reading_seconds", HOOK)),
            handler=quantiles(replica.buckets("stitch_webhook_duration_seconds", HOOK)),
            called=quantiles(calls(cluster)),
            memory=tuple(load.memory),
        )


class Load:
    """Jobs, handed in by as many tasks as are to be under way."""

    def __init__(self, cluster: Cluster, namespace: str, replica: Replica, jobs: int) -> None:
        self._config = yaml.safe_load(cluster.kubeconfig.read_text())
        self._path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._left = iter(range(jobs))
        self._every = max(jobs // SAMPLES, 1)
        self._replica = replica
        self._done = 0
        self.refused = 0
        self.memory: list[tuple[int, float]] = []

    async def run(self, at_a_time: int) -> None:
        server = self._config["clusters"][0]["cluster"]["server"]
        limits = httpx.Limits(max_connections=at_a_time)
        async with httpx.AsyncClient(
            base_url=server, verify=trusting(self._config), timeout=60.0, limits=limits
        ) as asking:
            await asyncio.gather(*(self._create(asking) for _ in range(at_a_time)))

    async def _create(self, asking: httpx.AsyncClient) -> None:
        for number in self._left:
            answered = await asking.post(self._path, json=job(number))
            self.refused += answered.status_code != 201
            self._done += 1
            if self._done % self._every == 0:
                self.sample(self._done)

    def sample(self, done: int) -> None:
        """The webhook's resident memory now."""
        status = Path(f"/proc/{self._replica.process.pid}/status").read_text()
        (line,) = [one for one in status.splitlines() if one.startswith("VmRSS:")]
        self.memory.append((done, int(line.split()[1]) / 1024))


def job(number: int) -> dict[str, Any]:
    """One pod of one container, as a user annotates it. Its pod ends at once."""
    made = workloads.KINDS["Job"].make(f"train-{number}", ours=True)
    made["spec"] |= {"parallelism": 1, "completions": 1}
    template = made["spec"]["template"]
    template["metadata"]["annotations"] = {}
    for container in template["spec"]["containers"]:
        container.pop("resources")
    template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "main"
    return made


def trusting(config: dict[str, Any]) -> ssl.SSLContext:
    """A context with the administrator's certificate."""
    user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
    decoded = {
        name: base64.b64decode(value)
        for name, value in {**user, **cluster}.items()
        if name.endswith("-data")
    }
    made = ssl.create_default_context(cadata=decoded["certificate-authority-data"].decode())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "client.pem"
        file.write_bytes(decoded["client-certificate-data"] + decoded["client-key-data"])
        made.load_cert_chain(file)
    return made


def pods(core: client.CoreV1Api, namespace: str) -> tuple[int, int]:
    """All that are there, and those of them that are injected."""
    metadata = list(_metadata(core, namespace))
    return len(metadata), sum(INJECTED in (one.get("annotations") or {}) for one in metadata)


def await_pods(core: client.CoreV1Api, namespace: str, wanted: int) -> None:
    """Until there are so many, or there have been no more for STILL_SECONDS."""
    found, changed = 0, time.monotonic()
    while found < wanted and time.monotonic() - changed < STILL_SECONDS:
        time.sleep(LOOK_SECONDS)
        now = made_of(core, namespace)
        if now != found:
            found, changed = now, time.monotonic()


def made_of(core: client.CoreV1Api, namespace: str) -> int:
    """How many pods there are, without reading them: the API server is what is measured, too."""
    answer = core.list_namespaced_pod(namespace, limit=1, _preload_content=False)
    page = json.loads(answer.data)
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)


def _metadata(core: client.CoreV1Api, namespace: str) -> Iterator[dict[str, Any]]:
    token = ""
    while True:
        more = {"_continue": token} if token else {}
        answer = core.list_namespaced_pod(namespace, limit=PAGE, _preload_content=False, **more)
        page = json.loads(answer.data)
        yield from (one["metadata"] for one in page["items"])
        token = page["metadata"].get("continue") or ""
        if not token:
            return


def calls(cluster: Cluster) -> list[tuple[float, float]]:
    """Of the API server's calls for pods, the upper end of each bucket and how many are in it or
    before."""
    found: dict[float, float] = {}
    for line in cluster.kubectl("get", "--raw", "/metrics").splitlines():
        if line.startswith(f"{CALLS}{{") and 'name="pods.' in line:
            end = float(line.partition('le="')[2].partition('"')[0])
            found[end] = found.get(end, 0.0) + float(line.rpartition(" ")[2])
    return sorted(found.items())


def quantiles(buckets: list[tuple[float, float]]) -> tuple[float, float]:
    """The upper ends of the buckets that hold the median and the 99th percentile, milliseconds."""
    total = buckets[-1][1]
    half, most = (
        next(end for end, count in buckets if count >= share * total) for share in (0.5, 0.99)
    )
    return half * 1000, most * 1000


def table(found: Figures) -> str:
    memory = dict(found.memory)
    half = min(memory, key=lambda jobs: abs(jobs - found.jobs / 2))
    last = found.memory[-1][1]
    return "\n".join(
        [
            f"{found.jobs} Jobs, {found.at_a_time} calls at a time, one replica, "
            f"{found.cores} cores for everything: {found.seconds:.0f} s.",
            "",
            "| | |",
            "|---|---|",
            f"| pods injected | {found.injected} |",
            f"| pods missed, pods never made | {found.missed}, {found.absent} |",
            f"| Jobs refused by the API server | {found.refused} |",
            f"| calls that the API server went on without | {found.fail_open:.0f} |",
            f"| the handler, from a whole review to its answer | {_at_most(found.handler)} |",
            f"| before it: until a review was read | {_at_most(found.reading)} |",
            f"| the whole call, as the API server timed it | {_at_most(found.called)} |",
            f"| memory after {half} Jobs, after {found.jobs} | {memory[half]:.1f}, {last:.1f} MiB "
            f"({found.growth:+.1%}) |",
            "",
        ]
    )


def _at_most(quantiles: tuple[float, float]) -> str:
    return "median at most {:g} ms, 99th percentile at most {:g} ms".format(*quantiles)


def write(found: Figures) -> None:
    path = record.RESULTS / "admission.md"
    record.write_figures(record.raw(path.with_suffix(".json")), asdict(found))
    record.write_table(path, table(found), "python -m bench.admission")


if __name__ == "__main__":
    raise SystemExit(main())
