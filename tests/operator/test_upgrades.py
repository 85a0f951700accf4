"""Parts are upgraded one by one, and taken back, under load by clients of both releases.

Clients of the release before (releases.py) and ours (stitchcore/inject, the very modules that jobs
run) live whole lives over and over: hand a graph in, take the artifact and hold its signature, ask
whether they may swap, report what they saved. Gateways of both share one ledger meanwhile, workers
and signers one store, which a server of either release serves. Webhooks and reconcilers:
tests/cluster/test_upgrades.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
from tests.operator.releases import REVISIONS, Balancer, git, release_before
from tests.operator.releases import before as before
from tests.waiting import RUN_SECONDS, wait_for
from tests.worker.requests import TF, python_path, tiny_graph

SIGNERS = ("signer", "signer-2")
"""Of one release at a time (`Recreate`): in the later one a manifest may have more in it."""
PARTS: tuple[tuple[str, ...], ...] = (
    *((one,) for one in kills.GATEWAYS),
    ("worker",),
    SIGNERS,
    ("store",),
)
GRAPH_LIVES = 3
"""After so many lives of a client its graph is a new one, for which worker and signer are asked."""
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
answer = source.answer(digest)
if answer["status"] != "ready": sys.exit(f"{answer} {said}")
key = answer["key"]
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
        graph = tiny_graph(700 + self.lives // GRAPH_LIVES, 64)
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
            capture_output=True, text=True, timeout=RUN_SECONDS,
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

    wait_for(lived, "lives of both clients")


def replaced(service: kills.Service, names: tuple[str, ...], paths: str) -> None:
    """As a Deployment does: ended in order, then others, which have to be ready."""
    for part in map(service.parts.__getitem__, names):
        assert part.process is not None
        os.killpg(part.process.pid, signal.SIGTERM)
        part.process.wait(RUN_SECONDS)
        part.paths = paths
    for name in names:
        service.parts[name].start()
        _wait_until_ready(service, name)


def _wait_until_ready(service: kills.Service, name: str) -> None:
    at = {**{name: f"job - {name}" for name in kills.GATEWAYS}, "store": "worker - store"}.get(name)
    if at is not None:
        url = f"https://localhost:{service.relays[at].port}"
        wait_for(lambda: kills._ready(service, url), f"{name} is ready")


def test_the_release_before_moves_with_tags_and_the_ledger(tmp_path: Path) -> None:
    def commit(name: str) -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        git("add", ".", root=tmp_path)
        me = ("-c", "user.name=t", "-c", "user.email=t@localhost")
        git(*me, "commit", "-q", "-m", name, root=tmp_path)
        return git("rev-parse", "HEAD", root=tmp_path).decode().strip()

    def found() -> str:
        return git("rev-parse", release_before(tmp_path), root=tmp_path).decode().strip()

    git("init", "-q", root=tmp_path)
    commit("README")
    with pytest.raises(pytest.fail.Exception, match="git fetch --unshallow"):
        release_before(tmp_path)
    first = commit("a")
    commit(f"{REVISIONS}/ledger_1_1.py")
    later = commit("b")
    assert found() == first
    commit(f"{REVISIONS}/ledger_1_2.py")
    assert found() == later
    git("tag", "v0.2.0", root=tmp_path)
    assert found() == later, "what is tagged now is not before itself"
    tagged = git("rev-parse", "HEAD", root=tmp_path).decode().strip()
    commit("c")
    assert found() == tagged


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_parts_are_upgraded_and_taken_back_one_by_one(tmp_path: Path, before: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting the store's volume needs root: run as root")
    folder = tmp_path / "s"
    folder.mkdir()
    with kills.serving(folder, {}, before) as service, clients(service, before) as both:
        more_lives(both)
        for paths in (python_path(), before):
            for names in PARTS:
                replaced(service, names, paths)
                more_lives(both)
        for one in both:
            one.end.set()
        for one in both:
            one.join(300)
            assert not one.failed, one.failed
            assert service.totals(one.name_) == one.lives * kills.SECOND // 2
