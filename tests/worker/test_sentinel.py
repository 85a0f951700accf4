"""A broker without a single point: real Redis servers under real Sentinels, the gateway's own
queue, a real worker. The master is killed; what comes after it finds its successor by itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from stitch_operator.gateway.problems import Rejected
from stitch_operator.gateway.queue import CeleryQueue
from stitch_worker.lease import RedisLeases
from stitchcore.device.host import host
from stitchcore.service.queues import Sentinels, check_broker, for_celery, queue_name, sentinels
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker.conftest import Cluster
from tests.worker.requests import TF, submit, tiny_graph
from tests.worker.test_service import ready, starts

QUEUE = queue_name(host().target, TF)
PASSWORD = "a-b@c"
SENTINEL = """
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor jobs 127.0.0.1 {master} 2
sentinel auth-pass jobs {password}
sentinel down-after-milliseconds jobs 1000
sentinel failover-timeout jobs 5000
"""


@dataclass
class Group:
    """Two Redis servers with a password, the first one the master, and three Sentinels."""

    folder: Path
    servers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    watchers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        each = [f"sentinel://:a-b%40c@127.0.0.1:{port}" for port in self.watchers]
        return f"{';'.join(each)}/0?master=jobs"

    def start(self) -> None:
        first, second = free_port(), free_port()
        self.serve(first)
        self.serve(second, "--replicaof", "127.0.0.1", str(first))
        for number in range(3):
            port = free_port()
            file = self.folder / f"sentinel-{number}.conf"
            about = {"port": port, "master": first, "password": PASSWORD, "folder": self.folder}
            file.write_text(SENTINEL.format(**about))
            self.watchers[port] = self._run(str(file), "--sentinel")
        wait_for(self._settled, "each Sentinel knows the replica and the other two")

    def serve(self, port: int, *more: str) -> None:
        self.servers[port] = self._run(
            *("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)),
            *("--requirepass", PASSWORD, "--masterauth", PASSWORD, *more),
        )

    def master(self) -> int:
        for port in self.watchers:
            with redis.Redis(port=port, socket_timeout=2) as one:
                return int(one.sentinel_get_master_addr_by_name("jobs")[1])
        raise AssertionError

    def kill_master(self) -> int:
        """Returns when another one has its place."""
        port = self.master()
        self.servers[port].kill()
        self.servers[port].wait()
        wait_for(lambda: self.master() != port, "a successor")
        return port

    def end(self) -> None:
        for one in (*self.servers.values(), *self.watchers.values()):
            one.kill()
            one.wait()

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "redis.log").open("ab") as log:
            return subprocess.Popen(["redis-server", *arguments], stdout=log, stderr=log)

    def _settled(self) -> bool:
        for port in self.watchers:
            try:
                with redis.Redis(port=port, socket_timeout=2) as one:
                    said = one.sentinel_master("jobs")
            except redis.RedisError:
                return False
            if (said["num-slaves"], said["num-other-sentinels"]) != (1, 2):
                return False
        return True


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is missing: apt-get install redis-server")
    folder = tmp_path / "group"
    folder.mkdir()
    made = Group(folder)
    made.start()
    yield made
    made.end()


def test_a_url_names_sentinels_and_their_master() -> None:
    url = "sentinel://u:p%40s@one:1;sentinel://two/3?master=jobs&sentinel_password=own"
    assert sentinels(url) == Sentinels(
        (("one", 1), ("two", 26379)), "jobs", 3, "u", "p@s", {"password": "own"}
    )
    plain, options = for_celery(url)
    assert plain == "sentinel://u:p%40s@one:1;sentinel://two/3"
    assert options == {"master_name": "jobs", "sentinel_kwargs": {"password": "own"}}
    assert "p@s" not in repr(sentinels(url)) and "own" not in repr(sentinels(url))
    for wrong in ("sentinel://one;redis://two", "sentinel://", "sentinel://one?name=jobs"):
        with pytest.raises(ValueError, match="sentinel"):
            check_broker(wrong)


@pytest.mark.slow
def test_leases_outlive_the_master(group: Group) -> None:
    """Tokens go on growing, though what was not replicated is lost."""
    leases = RedisLeases(group.url, 60)
    first = leases.acquire("k")
    assert first is not None and leases.acquire("k") is None
    group.kill_master()
    wait_for(lambda: _renewed(leases, first), "it is renewed with the new master")
    leases.release(first)
    second = leases.acquire("k")
    assert second is not None and second.token > first.token


def _renewed(leases: RedisLeases, lease: object) -> bool:
    try:
        return leases.renew(lease)  # type: ignore[arg-type]
    except OSError:
        return False


@pytest.mark.slow
def test_tasks_reach_a_worker_after_the_master_is_killed(group: Group, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install stitchcore[tensorflow]")
    made = Cluster(tmp_path, group, host().target)  # type: ignore[arg-type]  # by its url
    queue = CeleryQueue(group.url)
    try:
        made.signer()
        made.worker()
        wait_for(lambda: QUEUE in queue.served(), "the gateway sees the worker")
        keys = [submit(made.store, tiny_graph(rows)) for rows in (1024, 2048)]
        queue.submit(keys[0], host().target, TF)
        ready(made, keys[0])
        group.kill_master()
        wait_for(lambda: _submitted(queue, keys[1]), "the queue takes tasks again")
        ready(made, keys[1])
        assert [starts(made, key) for key in keys] == [1, 1]
        assert queue.depth(QUEUE) == 0
    finally:
        queue.close()
        for process in made.processes:
            if process.poll() is None:
                made.kill(process)
        print(made.logs())


def _submitted(queue: CeleryQueue, key: str) -> bool:
    """As the gateway does: what cannot be sent is asked for again."""
    try:
        queue.submit(key, host().target, TF)
    except Rejected:
        return False
    return True
