"""A release's webhook as a cluster would run it, without a kubelet: two processes with accounts of
their own behind one address, and files that follow a Secret as its volumes would."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from kubernetes import client
from urllib3.exceptions import HTTPError

from stitch_operator.reconciler import trust
from stitch_operator.webhook import objects
from stitch_operator.webhook.release import Release
from tests import lean
from tests.cluster import accounts
from tests.cluster.cluster import Cluster
from tests.operator.webhook import support
from tests.ports import free_ports
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
FILES = ("tls.crt", "tls.key")
FAIL_OPEN = "apiserver_admission_webhook_fail_open_count{"


@dataclass
class Volume:
    """A folder whose files follow a Secret, some seconds behind, one file after the other."""

    api: client.ApiClient
    namespace: str
    secret: str
    folder: Path
    behind: float
    stop: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        core = client.CoreV1Api(self.api)
        while not self.stop.wait(0.1):
            with suppress(client.ApiException, HTTPError):  # outlives an API server
                data = core.read_namespaced_secret(self.secret, self.namespace).data or {}
                self._write({name: base64.b64decode(value) for name, value in data.items()})

    def _write(self, data: dict[str, bytes]) -> None:
        changed = [n for n in FILES if n in data and _content(self.folder / n) != data[n]]
        if changed:
            self.stop.wait(self.behind)
        for name in changed:
            (self.folder / f".{name}").write_bytes(data[name])
            (self.folder / f".{name}").replace(self.folder / name)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@contextmanager
def volume(
    api: client.ApiClient, namespace: str, secret: str, folder: Path, behind: float = 1.0
) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    made = Volume(api, namespace, secret, folder, behind)
    thread = threading.Thread(target=made.follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        made.stop.set()
        thread.join(120)


@dataclass(frozen=True)
class Replica:
    """One process of the webhook."""

    process: subprocess.Popen[bytes]
    port: int
    metrics: int

    def ready(self) -> bool:
        assert self.process.poll() is None, "the webhook ended"
        trust_anybody = ssl.create_default_context()
        trust_anybody.check_hostname, trust_anybody.verify_mode = False, ssl.CERT_NONE
        url = f"https://127.0.0.1:{self.port}/readyz"
        with suppress(OSError):  # also 503
            urllib.request.urlopen(url, timeout=2.0, context=trust_anybody).close()
            return True
        return False

    def count(self, name: str) -> float:
        """A metric's sum over its labels."""
        return sum(value for _, value in self._samples(name))

    def buckets(self, name: str, label: str) -> list[tuple[float, float]]:
        """Of a histogram, the upper end of each bucket and how many are in it or before."""
        found = [(key, n) for key, n in self._samples(f"{name}_bucket") if label in key]
        return [(float(key.partition('le="')[2].partition('"')[0]), n) for key, n in found]

    def _samples(self, name: str) -> list[tuple[str, float]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        split = (line.rpartition(" ") for line in lines if line.startswith(name))
        return [(key, float(value)) for key, _, value in split]


@contextmanager
def replica(folder: Path, release: Release, kubeconfig: Path, files: Path) -> Iterator[Replica]:
    """A process of the webhook with this account and the certificate in `files`."""
    folder.mkdir(exist_ok=True)
    (folder / "release.json").write_bytes(msgspec.json.encode(release))
    port, metrics = free_ports(2)
    command = [
        *(sys.executable, "-m", "stitch_operator.webhook"),
        *("--release", str(folder / "release.json"), "--kubeconfig", str(kubeconfig)),
        *("--certificate", str(files / "tls.crt"), "--certificate-key", str(files / "tls.key")),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--metrics-host", "127.0.0.1", "--metrics-port", str(metrics)),
    ]
    environment = {"PYTHONPATH": os.pathsep.join(lean.SOURCES), "PATH": os.environ["PATH"]}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        yield Replica(process, port, metrics)
    finally:
        process.kill()
        process.wait()


@contextmanager
def service(ports: list[int]) -> Iterator[int]:
    """One address for several: connections in turn, as kube-proxy does. Its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        for number in count():
            try:
                here, _ = listening.accept()
            except OSError:
                return
            first = number % max(len(ports), 1)
            for port in ports[first:] + ports[:first]:  # one that is down has no endpoint
                with suppress(OSError):
                    there = socket.create_connection(("127.0.0.1", port))
                    for one in (here, there):  # as packets that are not taken in would go
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for one, two in ((here, there), (there, here)):
                        threading.Thread(target=_pump, args=(one, two), daemon=True).start()
                    break
            else:
                here.close()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        listening.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            sink.sendall(data)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def configured(api: client.ApiClient, release: Release, url: str) -> Iterator[None]:
    """The release's ConfigMap, and as of the chart its webhook configuration, without caBundle."""
    core, admission = client.CoreV1Api(api), client.AdmissionregistrationV1Api(api)
    text = msgspec.json.encode(release).decode()
    held = {"metadata": {"name": f"{release.name}-release"}, "data": {"release.json": text}}
    core.create_namespaced_config_map(release.namespace, held)
    hooks = objects.configuration(release, url)
    admission.create_mutating_webhook_configuration(hooks)
    try:
        yield
    finally:
        admission.delete_mutating_webhook_configuration(hooks["metadata"]["name"])


@contextmanager
def account(
    api: client.ApiClient, release: Release, component: str, roles: list[Any], folder: Path
) -> Iterator[Path]:
    """A kubeconfig of the component's service account."""
    name = f"{release.name}-{component}"
    made = accounts.account(api, release.namespace, name, roles, folder)
    try:
        yield made
    finally:
        accounts.unbind(api, roles)


def fail_open(cluster: Cluster) -> float:
    """How often the API server went on without a webhook."""
    text = cluster.kubectl("get", "--raw", "/metrics")
    lines = [line for line in text.splitlines() if line.startswith(FAIL_OPEN)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@dataclass
class Webhook:
    """A release's webhook: its processes, and the one address that they are asked by."""

    api: client.ApiClient
    release: Release
    account: Path
    folder: Path
    stack: ExitStack
    ports: list[int]
    replicas: list[Replica] = field(default_factory=list)

    def start(self) -> Replica:
        """Another replica, as soon as it is ready."""
        number = len(self.replicas)
        files = self.folder / f"files-{number}"
        self.stack.enter_context(
            volume(self.api, self.release.namespace, self.release.webhook_tls, files, 0.0)
        )
        folder = self.folder / f"replica-{number}"
        made = self.stack.enter_context(replica(folder, self.release, self.account, files))
        wait_for(made.ready, "the webhook is ready")
        self.replicas.append(made)
        self.ports.append(made.port)
        return made

    def end(self, one: Replica) -> None:
        """As a crash would."""
        one.process.kill()
        one.process.wait()
        self.ports.remove(one.port)

    def keep_trust(self) -> None:
        """A step of the reconciler."""
        trust.step(self.api, self.release, time.time())


@contextmanager
def webhook(cluster: Cluster, folder: Path, name: str = "stitch") -> Iterator[Webhook]:
    """A release in a namespace of its own, with one replica that is asked."""
    ports: list[int] = []
    with ExitStack() as stack:
        on = stack.enter_context
        api = on(cluster.api())
        url = f"https://127.0.0.1:{on(service(ports))}"
        certificates = {"webhookNames": ["127.0.0.1"]}
        release = support.release(name=name, namespace=name, certificates=certificates)
        core = client.CoreV1Api(api)
        core.create_namespace({"metadata": {"name": name}})
        stack.callback(core.delete_namespace, name)
        on(configured(api, release, url))
        of_it = on(account(api, release, "webhook", objects.roles(release), folder))
        made = Webhook(api, release, of_it, folder, stack, ports)
        made.keep_trust()
        made.start()
        yield made
