"""Webhooks and reconcilers of two releases take each other's place under load, both ways.

As a Deployment does it: one replica after the other. Gateways, workers, signers and the store:
tests/operator/test_upgrades.py, which says what the release before is.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes import client

from stitch_operator.gateway import tls
from stitch_operator.webhook import objects
from tests import lean
from tests.cluster.reconciling import OPTIMIZE, TRAINS, Place, Played, Running, running
from tests.cluster.test_election import leads
from tests.cluster.test_reconciler import train
from tests.cluster.test_reconciler_faults import own_namespace as own_namespace
from tests.cluster.test_reconciler_faults import place as place
from tests.operator.gateway import processes
from tests.operator.releases import Balancer
from tests.operator.releases import before as before
from tests.operator.webhook import support
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]
NOW = ":".join(lean.SOURCES)
INJECTED = "stitchcore.io/injected"
PODS, JOBS = 40, 4
"""In each state of the replicas, at least."""


@dataclass
class Load(threading.Thread):
    """Asks for one thing after the other, until `end`; the first failure is kept, and ends it."""

    ask: Callable[[int], None]
    asked: int = 0
    failed: str = ""
    end: threading.Event = field(default_factory=threading.Event)

    __hash__ = threading.Thread.__hash__

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        while not self.end.is_set():
            try:
                self.ask(self.asked)
            except Exception as error:
                self.failed = repr(error)
                return
            self.asked += 1

    def more(self, count: int) -> None:
        """So many more are done."""
        wanted = self.asked + count

        def done() -> bool:
            assert not self.failed, self.failed
            return self.asked >= wanted

        wait_for(done, f"{count} more", seconds=600)


@contextlib.contextmanager
def under(load: Load) -> Iterator[Load]:
    load.start()
    try:
        yield load
    finally:
        load.end.set()
        load.join(60)
    assert not load.failed, load.failed


@dataclass
class Webhook:
    """One replica: a process, on ports of its own."""

    place: Place
    folder: Path
    port: int = field(default_factory=free_port)
    metrics: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def runs(self, paths: str) -> Iterator[None]:
        options = {
            "--release": self.folder / "release.json",
            "--certificate": self.folder / "gateway.pem",
            "--certificate-key": self.folder / "gateway.key",
            "--kubeconfig": self.place.folder / "admin.conf",
            "--host": "127.0.0.1", "--port": self.port,
            "--metrics-host": "127.0.0.1", "--metrics-port": self.metrics,
        }  # fmt: skip
        given = [str(word) for pair in options.items() for word in pair]
        command = [sys.executable, "-m", "stitch_operator.webhook", *given]
        log = self.folder / "webhook.log"
        with processes.started(command, log, {"PYTHONPATH": paths}) as self.process:
            wait_for(self.ready, "the webhook is ready")
            yield
            self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(30)  # uvicorn raises its signal again once all is answered
            assert code in (0, -signal.SIGTERM), log.read_text()[-2000:]

    def ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None
        with contextlib.suppress(httpx.HTTPError):
            at = f"https://127.0.0.1:{self.port}/readyz"
            return httpx.get(at, verify=False, trust_env=False).status_code == 200
        return False


@contextlib.contextmanager
def registered(place: Place, folder: Path, url: str) -> Iterator[None]:
    """The API server asks the webhook at `url`, which knows what it needs to know."""
    extensions = client.ApiextensionsV1Api(place.api)
    admission = client.AdmissionregistrationV1Api(place.api)
    definition = objects.policy_definition()
    extensions.create_custom_resource_definition(definition)
    data = {"ca.pem": support.TRUST.authorities, "public-keys": support.TRUST.public_keys[0]}
    trust = {"metadata": {"name": f"{place.release.name}-trust"}, "data": data}
    place.core.create_namespaced_config_map(place.release.namespace, trust)
    authority = base64.b64encode((folder / "ca.pem").read_bytes()).decode()
    hooks = objects.configuration(place.release, url, authority)
    admission.create_mutating_webhook_configuration(hooks)
    yield
    admission.delete_mutating_webhook_configuration(hooks["metadata"]["name"])
    extensions.delete_custom_resource_definition(definition["metadata"]["name"])


def test_webhooks_of_both_releases_miss_no_pod(
    place: Place, own_namespace: str, before: str, tmp_path: Path
) -> None:
    tls.make(tmp_path, ["localhost", "127.0.0.1"])
    (tmp_path / "release.json").write_text((place.folder / "release.json").read_text())
    replicas = [Webhook(place, tmp_path), Webhook(place, tmp_path)]
    url = f"https://127.0.0.1:{Balancer([one.port for one in replicas]).port}"
    pod: dict[str, Any] = {"metadata": {"name": "one", "annotations": {OPTIMIZE: "true"}}}
    pod["spec"] = {**TRAINS, "serviceAccountName": "default"}

    def injected() -> bool:
        made = place.core.create_namespaced_pod(own_namespace, pod, dry_run="All")
        return INJECTED in (made.metadata.annotations or {})

    def ask(number: int) -> None:
        assert injected(), f"pod {number} was missed"

    with (
        registered(place, tmp_path, url),
        contextlib.ExitStack() as first,
        contextlib.ExitStack() as second,
    ):
        lives = list(zip((first, second), replicas, strict=True))
        for life, one in lives:
            life.enter_context(one.runs(before))
        wait_for(injected, "the API server asks the webhook")
        with under(Load(ask)) as load:
            load.more(PODS)
            for paths in (NOW, before):
                for life, one in lives:
                    life.close()
                    load.more(PODS)  # the other one alone
                    life.enter_context(one.runs(paths))
                    load.more(PODS)


def test_reconcilers_of_both_releases_tell_each_job_once(
    place: Place, own_namespace: str, before: str
) -> None:
    jobs: list[Played] = []

    def observed(played: Played) -> bool:
        return played.phase()[0] == "Observing"

    def ask(number: int) -> None:
        played = train(place, own_namespace, f"train-{number}")
        played.set(played.pods[0], running())
        jobs.append(played)
        wait_for(lambda: observed(played), f"{played.name} is seen; it is {played.status()}")

    with place.gateway() as gateway, contextlib.ExitStack() as last:

        def another(paths: str) -> tuple[contextlib.ExitStack, Running]:
            stack = contextlib.ExitStack()
            return stack, stack.enter_context(place.reconciler(url=gateway.url, paths=paths))

        leader, _ = another(before)
        follower, followed = another(before)
        try:
            with under(Load(ask)) as load:
                load.more(JOBS)
                for paths in (NOW, NOW, before, before):
                    fresh, added = another(paths)
                    leader.close()  # in order: it gives its lease back
                    wait_for(functools.partial(leads, place, followed), "the next one leads")
                    load.more(JOBS)
                    leader, follower, followed = follower, fresh, added
        finally:
            last.push(leader)
            last.push(follower)
        for played in jobs:
            assert observed(played), (played.name, played.status())
            assert played.events() == ["Injected"], (played.name, played.events())
