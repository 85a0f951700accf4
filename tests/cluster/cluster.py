"""A cluster that is up: how it is brought up, used, hurt and taken down.

The state folder is made first and everything is recorded in it before it is done, so `down` needs
nothing but the folder, and an `up` that was killed at any moment leaves nothing that stays.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from kubernetes import client
from urllib3.exceptions import HTTPError

from tests.cluster import controllers, enclosure, node, parts, pki, places, plane, processes
from tests.cluster.enclosure import SECOND, Site
from tests.cluster.parts import Level
from tests.cluster.plane import Network
from tests.cluster.processes import Daemon, NotUp
from tests.ports import free_ports

SECONDS = 600.0
"""How long the control plane may take; it is a few seconds on an idle machine."""
SERVING = 2
"""The first programs of a control plane: etcd and the API server."""
RECORD = "cluster.json"


class Record(msgspec.Struct, frozen=True):
    """What was decided before anything was started."""

    level: Level
    network: Network
    owner: int
    """The process that it ends with; 0 where it stays until it is taken down."""
    processes: str = ""
    """The pid namespace that owner and programs are of: their numbers mean nothing in another."""


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
        return plane.client_of(self.kubeconfig)

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
        _start(Site(self.state), self.record, daemon)
        _await_plane(self.state)

    def add_node(self) -> str:
        """Joins a second node to a cluster of the node level; its name."""
        site, network = Site(self.state, SECOND), self.record.network
        site.folder.mkdir(mode=0o700)
        node.write(site, network, pki.read_authority(self.state / "pki"))
        enclosure.enclose(site, network)
        node.join(site, network, lambda daemon: _start(site, self.record, daemon))
        return site.name

    def import_image(self, archive: Path, name: str = enclosure.FIRST) -> None:
        """Gives a node an image (`imagePullPolicy: Never`): an OCI or Docker archive."""
        node.import_image(Site(self.state, name), archive)

    def remove_image(self, image: str, name: str = enclosure.FIRST) -> None:
        """Pods that a node starts from now on cannot use it."""
        node.remove_image(Site(self.state, name), image)

    def healthy(self) -> bool:
        """Whether all its programs live."""
        if not self.state.is_dir():
            return False
        return all(processes.alive(self.state, d.name) for d in _daemons(self.state, self.record))


def up(level: Level, name: str, owner: int = 0) -> Cluster:
    """Brings up the cluster of this name; one that is up already stays as it is."""
    if reason := unable(level):
        raise NotUp(reason)
    with _alone():
        state = places.states(in_memory=level is not Level.NODE) / name
        cluster = Cluster(state)
        if cluster.healthy() and cluster.record.level is level:
            return cluster
        for old in places.known_states():
            if old.name == name:
                _remove(old)
        _up(places.states(in_memory=level is not Level.NODE) / name, level, owner)
        return cluster


def down(name: str) -> bool:
    """Ends the cluster of this name, or what is left of it; says whether there was anything."""
    with _alone():
        found = [state for state in places.known_states() if state.name == name]
        for state in found:
            _remove(state)
    return bool(found)


def sweep() -> None:
    """Takes down clusters whose owner has died, as far as that can be seen from here."""
    for state in places.known_states():
        record = Cluster(state).record
        here = record.processes == processes.namespace()
        if here and record.owner and not Path(f"/proc/{record.owner}").is_dir():
            down(state.name)


def unable(level: Level) -> str | None:
    """Why no cluster of this level can be brought up here, with the command that mends it."""
    if absent := parts.missing(level):
        names = ", ".join(part.name for part in absent)
        target = "cluster-build" if level is Level.API else f"cluster-build LEVEL={level.value}"
        return f"not built: {names}. Mend: `make {target}` (minutes, once per version)"
    return node.unable() if level is Level.NODE else None


def _up(state: Path, level: Level, owner: int) -> None:
    network = enclosure.network() if level is Level.NODE else _local()
    record = Record(level, network, owner, processes.namespace())
    _make_state(state, record)
    site = Site(state)

    def start(daemon: Daemon) -> None:
        _start(site, record, daemon)

    try:
        authority = plane.write(state, network)
        if level is Level.NODE:
            node.write(site, network, authority)
            enclosure.enclose(site, network)
        daemons = plane.daemons(state, network)
        for daemon in daemons[:SERVING]:
            start(daemon)
        _await_server(state)  # those below end after ten seconds without it
        for daemon in daemons[SERVING:]:
            start(daemon)
        _await_plane(state)
        if level is Level.NODE:
            node.join(site, network, start)
        else:
            start(plane.kwok(state, network))
            _await_fake_nodes(state, network)
        if level is Level.CONTROLLERS:
            _join_controllers(Cluster(state), start)
    except BaseException:
        _remove(state)
        raise


def _join_controllers(cluster: Cluster, start: Callable[[Daemon], None]) -> None:
    controllers.write(cluster.state)
    text = "---\n".join(json.dumps(one) + "\n" for one in controllers.objects(cluster.state))
    cluster.kubectl("create", "-f", "-", stdin=text)
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    for daemon in controllers.daemons(cluster.state):
        start(daemon)
    with cluster.api() as api:
        controllers.await_ready(cluster.state, api)


def _make_state(state: Path, record: Record) -> None:
    """There is no state folder without a record: it is renamed into place."""
    draft = state.with_name(places.DRAFT)
    shutil.rmtree(draft, ignore_errors=True)
    for folder in ("", "pid", "log"):
        (draft / folder).mkdir(mode=0o700)
    (draft / RECORD).write_bytes(msgspec.json.encode(record))
    draft.rename(state)


def _start(site: Site, record: Record, daemon: Daemon) -> None:
    if record.level is Level.NODE:
        daemon = replace(daemon, within=enclosure.entering(site))
    processes.start(site.state, daemon)


def _local() -> Network:
    port, etcd, peer, fake = free_ports(4)
    return Network(port=port, etcd_port=etcd, peer_port=peer, fake_nodes_port=fake)


def _daemons(state: Path, record: Record) -> list[Daemon]:
    """All programs of the cluster."""
    network = record.network
    if record.level is Level.NODE:
        return [*plane.daemons(state, network), *node.daemons(Site(state), network)]
    made = [*plane.daemons(state, network), *_fake_nodes(state, network)]
    return [*made, *controllers.daemons(state)] if record.level is Level.CONTROLLERS else made


def _fake_nodes(state: Path, network: Network) -> tuple[Daemon, ...]:
    return (plane.kwok(state, network),)


def _await_server(state: Path) -> None:
    """Up when the API server says so, with etcd behind it."""
    network = Cluster(state).record.network
    trusted = ssl.create_default_context(cafile=str(state / "pki" / "ca.crt"))
    no_proxy = urllib.request.ProxyHandler({})
    direct = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=trusted))

    def ready() -> bool:
        try:
            direct.open(f"{network.server}/readyz", timeout=5).close()
        except OSError:
            return False
        return True

    names = [daemon.name for daemon in plane.daemons(state, network)[:SERVING]]
    processes.await_ready(state, names, ready, SECONDS, "the API server")


def _await_plane(state: Path) -> None:
    """Up when the API server is ready and a controller has done its first work."""
    _await_server(state)
    with plane.client_of(state / "admin.conf") as api:
        core = client.CoreV1Api(api)

        def ready() -> bool:
            try:
                core.read_namespaced_service_account("default", "default", _request_timeout=5)
            except (client.ApiException, HTTPError, OSError):
                return False
            return True

        names = [daemon.name for daemon in plane.daemons(state, Cluster(state).record.network)]
        processes.await_ready(state, names, ready, SECONDS, "the control plane")


def _await_fake_nodes(state: Path, network: Network) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ready() -> bool:
        try:
            direct.open(f"http://127.0.0.1:{network.fake_nodes_port}/healthz", timeout=5).close()
        except OSError:
            return False
        return True

    processes.await_ready(state, ["kwok"], ready, SECONDS, "the fake nodes")


def _remove(state: Path) -> None:
    record = Cluster(state).record
    level = record.level
    if record.processes != processes.namespace():
        raise NotUp(f"{state.name} is of another pid namespace ({record.processes}): end it there")
    processes.end(lambda: processes.owned(state))
    if level is Level.NODE:
        enclosure.remove_traces(state)
    shutil.rmtree(state)
    with suppress(OSError):
        state.parent.rmdir()  # the last one takes the folder of this user's clusters along


@contextmanager
def _alone() -> Iterator[None]:
    """One `up` or `down` at a time: they choose ports and addresses that nobody has."""
    folder = places.programs()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "clusters").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
