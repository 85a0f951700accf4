"""A registry of a cluster's own, within its enclosure: what nodes pull, they pull from there.

It is CNCF Distribution, over TLS by the cluster's authority, under a name that no name server knows:
containerd is told where it is, as an administrator would, by a hosts.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from images import builder
from images.builder import Built
from tests.cluster import enclosure, node, parts, pki, processes
from tests.cluster.cluster import Cluster
from tests.cluster.enclosure import Site
from tests.cluster.processes import Daemon

NAME, PORT = "registry.internal:5000", 5000
DAEMON = "registry"


@dataclass(frozen=True)
class Registry:
    """The registry of a cluster's nodes. `address` is where it is, for this machine too."""

    state: Path
    address: str

    @property
    def certificates(self) -> Path:
        """Folder with the authority's certificate alone."""
        return self.state / DAEMON / "trusted"

    def push(self, built: Built, name: str) -> None:
        """Puts an image there that nodes know as NAME/`name`. Raises BuildError."""
        builder.push(built, f"{self.address}/{name}", self.certificates)

    def served(self) -> list[str]:
        """What the nodes have got of it: its log's lines."""
        lines = processes.log_file(self.state, DAEMON).read_text().splitlines()
        return [
            line for line in lines if '"GET ' in line and '" 200 ' in line and "containerd" in line
        ]


def start(cluster: Cluster) -> Registry:
    """Starts it, and tells the first node of it. Raises NotUp."""
    site, network = Site(cluster.state), cluster.record.network
    folder = cluster.state / DAEMON
    made = Registry(cluster.state, f"{network.address}:{PORT}")
    made.certificates.mkdir(parents=True)
    authority = pki.read_authority(cluster.state / "pki")
    (made.certificates / "ca.crt").write_bytes(authority.pem)
    pki.leaf(authority, DAEMON, hosts=[network.address]).write(folder, "tls")
    (folder / "config.yaml").write_text(yaml.safe_dump(_settings(folder, made.address)))
    hosts = cluster.state / node.REGISTRIES / NAME / "hosts.toml"
    hosts.parent.mkdir()
    hosts.write_text(f'server = "https://{made.address}"\nca = "{made.certificates}/ca.crt"\n')
    serve = (str(parts.program(DAEMON)), "serve", str(folder / "config.yaml"))
    quiet = ("env", "OTEL_TRACES_EXPORTER=none", *serve)
    processes.start(cluster.state, Daemon(DAEMON, quiet, enclosure.entering(site)))
    processes.await_ready(
        cluster.state, [DAEMON], lambda: _answers(made), node.SECONDS, "the registry"
    )
    return made


def _settings(folder: Path, address: str) -> dict[str, object]:
    tls = {"certificate": str(folder / "tls.crt"), "key": str(folder / "tls.key")}
    return {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address, "tls": tls},
    }


def _answers(made: Registry) -> bool:
    trusted = str(made.certificates / "ca.crt")
    try:
        return httpx.get(f"https://{made.address}/v2/", verify=trusted, trust_env=False).is_success
    except httpx.TransportError:
        return False
