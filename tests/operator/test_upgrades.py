"""Gateways are upgraded one by one, and taken back, under load by clients of both releases.

The release before is a commit of this repository, made into a folder by `git archive`. Its clients
and ours (stitchcore/inject, the very modules that jobs run) live whole lives over and over: hand a
graph in, take the artifact and hold its signature, ask whether they may swap, report what they
saved. Gateways of both share one ledger meanwhile.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from bench import kills
from stitchcore.artifact import sign
from stitchcore.device.host import host
from stitchcore.inject import digest
from tests.operator.gateway.support import submission
from tests.worker.conftest import wait_for
from tests.worker.requests import TF, python_path, tiny_graph

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "74ecbce"
"""The release before: moved on with each release. Its ledger is of revision 1.0."""
GRAPHS = 2
LIVES = 3
"""Of each client in each state of the gateways, at least."""
CLIENT = """
import json, sys, time
from pathlib import Path
from stitchcore.artifact import sign
from stitchcore.inject import client, gateway, settings
given, said = json.load(sys.stdin), []
assert gateway.__file__.startswith(given["from"]), gateway.__file__
config = settings.read(given["environment"])
verify = lambda signature, message, public: sign.verify(public.hex(), signature, message)
expected = client.Expected(given["tf"], given["meta"]["target"], config.public_keys, verify)
source = gateway.source(config, expected, lambda *words: said.append(words))
source.start()
digest, graph = given["digest"], bytes.fromhex(given["graph"])
source.submit(digest, graph, given["meta"])
def until(what):
    while not (found := what()):
        if time.monotonic() > end: sys.exit(f"not in time: {source.answer(digest)} {said}")
        time.sleep(0.02)
    return found
end = time.monotonic() + 240
ready = lambda: (source.answer(digest) or {}).get("status") in ("ready", "refused")
until(ready)
key = source.answer(digest)["key"]
artifact = source.fetch(key, digest, given["meta"]["target"])
assert artifact.libraries
until(lambda: source.begun(digest, key))
about = {"digest": digest, "key": key}
source.observe("swap_ok", about)
second = 10**9
source.observe("savings_total", {
    **about, "steps": 100, "baseline_ns": 21 * second // 2, "stitched_ns": 10 * second,
    "lost_ns": 0, "interval": [1, second], "pairs": 9, "devices": 1.0})
until(lambda: not source._outbox.waiting)
source.finish()
print(json.dumps(said))
"""


@pytest.fixture
def before(tmp_path: Path) -> str:
    """The sources of the release before, as a PYTHONPATH."""
    archive = ["git", "-C", str(ROOT), "archive", BEFORE, "stitchcore", "operator", "worker"]
    made = subprocess.run(archive, capture_output=True)
    if made.returncode:
        pytest.fail(f"no release {BEFORE} here (git fetch --unshallow): {made.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as files:
        files.extractall(tmp_path / "before", filter="data")
    return ":".join(str(tmp_path / "before" / part) for part in (".", "worker", "operator"))


class Balancer(kills.Relay):
    """As a Service of the cluster: what listens gets the connection."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        super().__init__(ports[0])

    def _joined(self, one: socket.socket) -> None:
        self._ports.append(self._ports.pop(0))
        for port in self._ports:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    self._target = port
                    break
        super()._joined(one)


@dataclass
class Client(threading.Thread):
    """Lives of clients of the sources at `paths`, one after the other, until `end`."""

    service: kills.Service
    name_: str
    paths: str
    url: str
    public: str
    end: threading.Event = field(default_factory=threading.Event)
    lives: int = 0
    failed: list[str] = field(default_factory=list)

    __hash__ = threading.Thread.__hash__

    def __post_init__(self) -> None:
        super().__init__(name=self.name_, daemon=True)

    def run(self) -> None:
        while not self.end.is_set() and not self.failed:
            self._live()
            self.lives += 1

    def _live(self) -> None:
        graph = tiny_graph(700 + self.lives % GRAPHS, 64)
        folder = self.service.folder / f"{self.name_}-{self.lives}"
        folder.mkdir()
        pod = self.service.api.add(self.name_, "train", {"cpu": "2"}, ago=3600)
        (folder / "token").write_text(pod.token)
        meta = submission(b"", target=host().target, tf=f"{TF}.0", preserve=["result"])
        del meta["graph"]
        given: dict[str, Any] = {
            "environment": {
                "STITCH_GATEWAY": self.url, "STITCH_CA": str(self.service.folder / "ca.pem"),
                "STITCH_TOKEN_FILE": str(folder / "token"), "STITCH_PUBLIC_KEYS": self.public,
                "STITCH_STORE": str(folder),
            },
            "tf": TF, "from": self.paths.partition(":")[0],
            "meta": {**meta, "threads": 2},
            "digest": digest.number(graph, ["result"]).digest,
            "graph": graph.SerializeToString(deterministic=True).hex(),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", CLIENT],
            input=json.dumps(given), env={**os.environ, "PYTHONPATH": self.paths}, cwd=folder,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if done.returncode or json.loads(done.stdout):
            self.failed.append(f"{done.returncode}: {done.stdout} {done.stderr[-1000:]}")


@contextmanager
def clients(service: kills.Service, before: str) -> Iterator[list[Client]]:
    ports = [service.relays[f"job - {name}"]._target for name in kills.GATEWAYS]
    url = f"https://localhost:{Balancer(ports).port}"
    public = sign.public_hex(sign.load_or_create_key(service.folder / "key"))
    both = [
        Client(service, name, paths, url, public)
        for name, paths in (("before", before), ("now", python_path()))
    ]
    for one in both:
        one.start()
    yield both
    for one in both:
        one.end.set()
    for one in both:
        one.join(300)


def more_lives(of: list[Client]) -> None:
    wanted = [one.lives + LIVES for one in of]

    def lived() -> bool:
        assert not any(one.failed for one in of), [one.failed for one in of]
        return all(one.lives >= least for one, least in zip(of, wanted, strict=True))

    wait_for(lived, 400, "lives of both clients")


def replaced(service: kills.Service, name: str, paths: str) -> None:
    """As a Deployment does: ended in order, then another one, which has to be ready."""
    part = service.parts[name]
    assert part.process is not None
    os.killpg(part.process.pid, signal.SIGTERM)
    part.process.wait(60)
    part.paths = paths
    part.start()
    url = f"https://localhost:{service.relays[f'job - {name}'].port}"
    wait_for(lambda: kills._ready(service, url), 120, f"{name} is ready")


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_gateways_are_upgraded_and_taken_back_one_by_one(tmp_path: Path, before: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting the store's volume needs root: run as root")
    folder = tmp_path / "s"
    folder.mkdir()
    with kills.serving(folder, {}, before) as service, clients(service, before) as both:
        more_lives(both)
        for paths in (python_path(), before):
            for name in kills.GATEWAYS:
                replaced(service, name, paths)
                more_lives(both)
        for one in both:
            one.end.set()
        for one in both:
            one.join(300)
            assert not one.failed, one.failed
            assert service.totals(one.name_) == one.lives * kills.SECOND // 2
