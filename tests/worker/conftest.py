"""Real parts: a redis-server of the test's own, workers and signers as processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stitchcore.artifact.store import Store, open_store
from stitchcore.sandbox import isolate
from stitchcore.service.queues import TASK, queue_arguments, queue_name
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker.requests import TF, python_path


@dataclass
class Redis:
    """A redis-server without persistence, on a port of its own."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_for(self._answers, "redis-server answers")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """As a machine that goes away: all data is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def own_mounts() -> None:
    """Children get mounts of their own here; else the test is skipped."""
    if why := isolate.mounts_shared():
        pytest.skip(f"no mount namespace ({why}): sysctl kernel.unprivileged_userns_clone=1")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is missing: apt-get install redis-server")
    server = Redis(tmp_path, free_port())
    server.start()
    yield server
    server.kill()


@dataclass
class Cluster:
    """A store (in `folder`, or at `url`), a broker, and whatever workers and signers a test
    starts."""

    folder: Path
    redis: Redis
    target: str
    url: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    app: Any = None

    @property
    def store(self) -> Store:
        return open_store(self.where)

    @property
    def where(self) -> str:
        return self.url or str(self.folder / "store")

    def worker(self, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        given = ["--broker", self.redis.url, "--lease-seconds", "4", "--jobs", "2"]
        return self._start("stitch_worker", *given, *options, **variables)

    def dying_worker(self, stage: str) -> subprocess.Popen[bytes]:
        given = [stage, "--broker", self.redis.url, "--lease-seconds", "4", "--jobs", "2"]
        return self._start("tests.worker.dying", *given)

    def compiler(self, *options: str) -> tuple[subprocess.Popen[bytes], str]:
        """As in a container of its own, which is told nothing; and the option of its workers."""
        path = self.folder / "c"
        log = (self.folder / f"compiler.{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "stitch_worker.compiler", "--socket", str(path), *options],
            env={"PYTHONPATH": python_path(), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.processes.append(process)
        return process, f"--compiler={path}"

    def signer(self) -> subprocess.Popen[bytes]:
        return self._start("stitch_worker.signer", "--key", str(self.folder / "key"))

    def _start(self, module: str, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{module}.{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", module, *options, "--store", self.where],
            env={**os.environ, "PYTHONPATH": python_path(), **variables},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """As a machine that goes away: the worker and its pool at once. The compile child is in a
        session of its own and must die with its parent."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def enqueue(self, key: str) -> None:
        """As the gateway does."""
        from celery import Celery
        from kombu import Queue

        if self.app is None:
            self.app = Celery("test", broker=self.redis.url, set_as_current=False)
        name = queue_name(self.target, TF)
        arguments = queue_arguments(self.redis.url) or None
        queue = Queue(name, routing_key=name, queue_arguments=arguments)
        self.app.send_task(TASK, args=[key], queue=queue, ignore_result=True)

    def status(self, key: str) -> str:
        return str((self.store.read_answer(key) or {}).get("status"))

    def stage(self, key: str) -> str:
        return str((self.store.read_answer(key) or {}).get("stage"))

    def logs(self) -> str:
        return "\n".join(p.read_text()[-3000:] for p in sorted(self.folder.glob("*.log")))


@pytest.fixture
def cluster(tmp_path: Path, redis: Redis) -> Iterator[Cluster]:
    from stitchcore.device.host import host

    made = Cluster(tmp_path, redis, host().target)
    yield made
    for process in made.processes:
        if process.poll() is None:
            made.kill(process)
    print(made.logs())
