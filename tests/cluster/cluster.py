"""A cluster that is up: how it is brought up, used, hurt and taken down.

The state folder is made first and everything is recorded in it before it is done, so `down` needs
nothing but the folder, and an `up` that was killed at any moment leaves nothing that stays.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from kubernetes import client, config
from urllib3.exceptions import HTTPError

from tests.cluster import parts, places, plane, processes
from tests.cluster.parts import Level
from tests.cluster.plane import Network
from tests.cluster.processes import NotUp

SECONDS = 60.0
"""How long the control plane may take; a few seconds on an idle machine."""
RECORD = "cluster.json"


class Record(msgspec.Struct, frozen=True):
    """What was decided before anything was started."""

    level: Level
    network: Network
    owner: int
    """The process that it ends with; 0 where it stays until it is taken down."""


@dataclass(frozen=True)
class Cluster:
    """One cluster, by its state folder."""

    state: Path

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.conf"

    @property
    def record(self) -> Record:
        return msgspec.json.decode((self.state / RECORD).read_bytes(), type=Record)

    def api(self) -> client.ApiClient:
        """A client of its own, as the cluster's administrator."""
        return client_of(self.kubeconfig)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints; raises with its words where it fails."""
        done = subprocess.run(
            [str(parts.program("kubectl")), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise NotUp(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def stop(self, name: str) -> None:
        """Kills one program of the control plane."""
        processes.stop(self.state, name)

    def start(self, name: str) -> None:
        """Starts it again, as it was."""
        [daemon] = [d for d in _daemons(self.state, self.record) if d.name == name]
        processes.start(self.state, daemon)
        _await_plane(self.state)

    def healthy(self) -> bool:
        """Whether all its programs live."""
        if not (self.state / RECORD).is_file():
            return False
        return all(processes.alive(self.state, d.name) for d in _daemons(self.state, self.record))


def client_of(kubeconfig: Path) -> client.ApiClient:
    """A client that reads nothing but this kubeconfig."""
    settings = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=settings)
    return client.ApiClient(settings)


def up(level: Level, name: str, owner: int = 0) -> Cluster:
    """Brings up the cluster of this name; one that is up already stays as it is."""
    if reason := unable(level):
        raise NotUp(reason)
    state = places.states(in_memory=level is Level.API) / name
    cluster = Cluster(state)
    with _alone(name):
        if cluster.healthy() and cluster.record.level is level:
            return cluster
        for old in places.known_states():
            if old.name == name:
                _remove(old)
        _up(state, level, owner)
    return cluster


def down(name: str) -> bool:
    """Ends the cluster of this name, or what is left of it; says whether there was anything."""
    with _alone(name):
        found = [state for state in places.known_states() if state.name == name]
        for state in found:
            _remove(state)
    return bool(found)


def sweep() -> None:
    """Takes down clusters whose owner has died."""
    for state in places.known_states():
        try:
            owner = Cluster(state).record.owner
        except (OSError, msgspec.DecodeError):
            continue
        if owner and not Path(f"/proc/{owner}").is_dir():
            down(state.name)


def unable(level: Level) -> str | None:
    """Why no cluster of this level can be brought up here, with the command that mends it."""
    if absent := parts.missing(level):
        names = ", ".join(part.name for part in absent)
        target = "cluster-build" if level is Level.API else "cluster-build LEVEL=node"
        return f"not built: {names}. Mend: `make {target}` (minutes, once per version)"
    return None


def _up(state: Path, level: Level, owner: int) -> None:
    for folder in ("", "pid", "log"):
        (state / folder).mkdir(mode=0o700)
    record = Record(level=level, network=_local(), owner=owner)
    (state / RECORD).write_bytes(msgspec.json.encode(record))
    try:
        plane.write(state, record.network)
        for daemon in plane.daemons(state, record.network):
            processes.start(state, daemon)
        _await_plane(state)
        processes.start(state, plane.kwok(state, record.network))
    except BaseException:
        _remove(state)
        raise


def _local() -> Network:
    port, etcd, peer, fake = processes.free_ports(4)
    return Network(port=port, etcd_port=etcd, peer_port=peer, fake_nodes_port=fake)


def _daemons(state: Path, record: Record) -> list[processes.Daemon]:
    """All programs of the cluster."""
    return [*plane.daemons(state, record.network), plane.kwok(state, record.network)]


def _await_plane(state: Path) -> None:
    """Up when the API server is ready and a controller has done its first work."""
    with client_of(state / "admin.conf") as api:
        core = client.CoreV1Api(api)

        def ready() -> bool:
            try:
                core.read_namespaced_service_account("default", "default", _request_timeout=5)
                api.call_api("/readyz", "GET", auth_settings=["BearerToken"], _request_timeout=5)
            except (client.ApiException, HTTPError, OSError):
                return False
            return True

        names = [daemon.name for daemon in plane.daemons(state, Network())]
        processes.await_ready(state, names, ready, SECONDS, "the control plane")


def _remove(state: Path) -> None:
    processes.end(lambda: processes.owned(state))
    shutil.rmtree(state)


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """One `up` or `down` of a name at a time."""
    folder = places.programs() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
