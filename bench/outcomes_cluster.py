"""What bench/outcomes.py runs jobs against: the whole service with a gateway that knows each job's
pod, and a reconciler that keeps a StitchedJob of each.

Gateway, worker, signer and Redis are their own processes, with the commands of `stitch serve`. The
API server's calls are the tests' own (tests/operator/gateway/pods.py), and so is what the
reconciler's loop watches and writes (tests/operator/reconciler/test_loop.py): loop, poll, statuses
and what the gateway is asked are the product's.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from stitch_operator.commands import serve
from stitch_operator.commands.processes import Command, Processes
from stitch_operator.commands.serve import Crew, Served
from stitch_operator.reconciler.gateway import Access, Poll
from stitch_operator.reconciler.loop import Loop
from stitch_operator.reconciler.metrics import Metrics
from stitch_operator.reconciler.pods import Owner, Pod, Workload
from stitch_operator.reconciler.records import Status
from stitchcore.cli.common import Output
from tests.operator.gateway.pods import READER, Made, Pods
from tests.operator.reconciler.strategies import pod as pod_of
from tests.operator.reconciler.test_loop import Api

WORKER_CORES = 0.05
"""That the bench's one worker keeps to itself: what a release would have as a request."""


@contextlib.contextmanager
def serving(folder: Path, pods: Pods, port: int, metrics: int) -> Iterator[Served]:
    """The service on `folder`; started again, it goes on with the same ledger and store."""
    served = serve._prepared(folder, "127.0.0.1", port, metrics, None)
    crew = Crew((Path(sys.executable),), 1, WORKER_CORES)
    processes = Processes(folder / "logs")
    try:
        for one in serve._commands(served, True, crew, Output(True)):
            processes.start(_asking(one, folder, pods))
        if not serve._ready(served, processes, threading.Event()):
            raise RuntimeError(f"the gateway is not ready: {folder / 'logs'}")
        yield served
    finally:
        processes.stop()


def _asking(command: Command, folder: Path, pods: Pods) -> Command:
    """The gateway asks the API server who its clients are, instead of knowing one token."""
    if command.name != "gateway":
        return command
    given = list(command.arguments)
    place = given.index("--token-file")
    given[place : place + 2] = ["--kubeconfig", str(pods.kubeconfig(folder)), "--reader", READER]
    return replace(command, arguments=given)


@dataclass
class Statuses:
    """StitchedJobs of Jobs that are told of, by their names."""

    loop: Loop
    api: Api
    namespace: str

    def began(self, job: str, made: Made) -> Pod:
        """A Job and its pod, which runs."""
        about = ("batch/v1", "Job")
        uid = made.document["metadata"]["ownerReferences"][0]["uid"]
        workload = Workload(
            api_version=about[0], kind=about[1], namespace=self.namespace, name=job, uid=uid,
            asked=True,
        )  # fmt: skip
        now = time.time()
        seen = pod_of(
            namespace=self.namespace, name=f"{job}-0", uid=made.uid, created=now, started=now,
            owner=Owner(*about, job, uid), workload=job,
        )  # fmt: skip
        self.loop.put(None, workload)
        self.loop.put(None, seen)
        return seen

    def ended(self, seen: Pod, phase: str) -> None:
        """What the kubelet would say of the pod."""
        after = msgspec.structs.replace(seen, phase=phase, finished=time.time())
        self.loop.put(seen, after)

    def of(self, job: str) -> Status | None:
        """Its status as it was written last."""
        for one in self.api.jobs.values():
            if one.workload.name == job:
                status: Status | None = one.job.status
                return status
        return None


@contextlib.contextmanager
def reconciling(served: Served, pods: Pods, folder: Path, namespace: str) -> Iterator[Statuses]:
    """A reconciler's loop that reads the gateway at `served`, also when that was started again."""
    api, loop, stop = Api(), Loop("runtime:1"), threading.Event()
    loop.metrics = Metrics(loop.phases, "bench")
    loop.watches = loop.writer = api  # type: ignore[assignment]
    api.loop = loop
    token = folder / "reader.token"
    token.write_text(pods.reader().token)
    access = Access(served.url, served.folder / "ca.pem", token)
    poll = Poll(access, loop.rows, loop.metrics.gateway_failures.inc)
    thread = threading.Thread(target=loop.run, args=(stop,), daemon=True)
    thread.start()
    poll.start()
    try:
        yield Statuses(loop, api, namespace)
    finally:
        poll.stop()
        stop.set()
        thread.join(10)
