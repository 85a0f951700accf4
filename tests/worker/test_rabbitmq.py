"""The durable broker: a real RabbitMQ with its quorum queues, a real worker, the gateway's own
queue. A task outlives its worker without anybody asking again, and poison is not redelivered."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")
pytest.importorskip("celery", reason="needs Celery: pip install 'stitchcore[worker]'")

from stitch_operator.gateway.queue import CeleryQueue
from stitchcore.device.host import host
from stitchcore.service.queues import queue_name
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker.conftest import Cluster
from tests.worker.requests import TF, submit, tiny_graph
from tests.worker.test_service import LONG, ready, starts

pytestmark = pytest.mark.slow
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
QUEUE = queue_name(host().target, TF)


@dataclass
class Rabbit:
    """A RabbitMQ of the test's own: node, ports, cookie and files in `folder`."""

    folder: Path
    port: int
    distribution: int
    mapper: int

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"stitch{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self.distribution),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "ERL_EPMD_PORT": str(self.mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def start(self) -> subprocess.Popen[bytes]:
        log = (self.folder / "rabbit.out").open("wb")
        process = subprocess.Popen(
            [str(PROGRAMS / "rabbitmq-server")],
            env=self.environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        wait_for(self._answers, "RabbitMQ answers")
        return process

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def queues(self) -> dict[str, tuple[str, int]]:
        """Type and messages (waiting or unacknowledged) by name."""
        command = [str(PROGRAMS / "rabbitmqctl"), "-q", "list_queues", "name", "type", "messages"]
        done = subprocess.run(
            [*command, "--no-table-headers"],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=LONG,
        )
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        return {name: (kind, int(messages)) for name, kind, messages in rows}


@pytest.fixture
def rabbit(tmp_path: Path) -> Iterator[Rabbit]:
    if not (PROGRAMS / "rabbitmq-server").exists():
        pytest.skip("RabbitMQ is missing: apt-get install --no-install-recommends rabbitmq-server")
    folder = tmp_path / "rabbit"
    folder.mkdir()
    made = Rabbit(folder, free_port(), free_port(), free_port())
    process = made.start()
    yield made
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    mapper = {**made.environment(), "ERL_EPMD_RELAXED_COMMAND_CHECK": "1"}
    subprocess.run(["epmd", "-kill"], env=mapper, capture_output=True, timeout=LONG)


@pytest.fixture
def cluster(tmp_path: Path, rabbit: Rabbit) -> Iterator[Cluster]:
    made = Cluster(tmp_path, rabbit, host().target)  # type: ignore[arg-type]  # a broker by its url
    yield made
    for process in made.processes:
        if process.poll() is None:
            made.kill(process)
    print(made.logs())


def test_a_task_outlives_its_worker_and_poison_does_not_come_back(
    cluster: Cluster, rabbit: Rabbit
) -> None:
    queue = CeleryQueue(rabbit.url)
    key = submit(cluster.store, tiny_graph())
    queue.submit(key, host().target, TF)
    dying = cluster.dying_worker("lower")
    wait_for(lambda: dying.poll() is not None, "death")
    assert dying.wait() == -signal.SIGKILL
    # Not acknowledged: it comes again. A quorum queue tells its length every few seconds.
    wait_for(lambda: rabbit.queues()[QUEUE] == ("quorum", 1), "the task is back in the queue")
    cluster.signer()
    worker = cluster.worker()
    wait_for(lambda: QUEUE in queue.served(), "the gateway sees the worker")
    ready(cluster, key)
    assert starts(cluster, key) == 2
    wait_for(lambda: rabbit.queues()[QUEUE] == ("quorum", 0), "it is acknowledged")
    cluster.kill(worker)

    poison = submit(cluster.store, tiny_graph(1024))
    queue.submit(poison, host().target, TF)
    cluster.worker("--memory", str(2**26))
    wait_for(lambda: cluster.status(poison) == "refused", "an answer")
    assert (cluster.store.read_answer(poison) or {})["reason"] == "quarantined"
    wait_for(lambda: queue.depth(QUEUE) == 0, "the queue is empty")
    wait_for(lambda: rabbit.queues()[QUEUE] == ("quorum", 0), "it is acknowledged")
    queue.close()
