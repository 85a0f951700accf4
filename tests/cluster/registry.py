"""A registry of a cluster's own, within its enclosure: what nodes pull, they pull from there.

It is CNCF Distribution, over TLS by the cluster's authority. Its name is known to no name server:
containerd is told where it is, as an administrator would, by a hosts.toml. Images are put there as
`skopeo copy` does it, an archive's blobs byte by byte: buildah makes the same anew, which takes a
minute longer.
"""

from __future__ import annotations

import functools
import ssl
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import yaml

from images.builder import Built
from tests.cluster import enclosure, node, parts, pki, processes
from tests.cluster.cluster import Cluster
from tests.cluster.enclosure import Site
from tests.cluster.processes import Daemon

NAME, PORT = "registry.internal:5000", 5000
DAEMON = "registry"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
SECONDS = 600.0
CHUNK = 1 << 20


@dataclass(frozen=True)
class Registry:
    """The registry of a cluster's nodes. `address` is where it is, for this machine too."""

    state: Path
    address: str

    @property
    def authority(self) -> Path:
        """Whom to trust for it."""
        return self.state / "pki" / "ca.crt"

    def client(self) -> httpx.Client:
        """To call it as anybody may."""
        trust = ssl.create_default_context(cafile=str(self.authority))
        url = f"https://{self.address}/v2/"
        return httpx.Client(base_url=url, verify=trust, trust_env=False, timeout=SECONDS)

    def push(self, built: Built, repository: str, tag: str) -> None:
        """Puts an image there that nodes know as NAME/`repository`:`tag`, and by its own digest.
        Raises httpx.HTTPStatusError where the registry does not take it."""
        with self.client() as api, tarfile.open(built.archive) as content:
            blobs = {
                member.name.rpartition("/")[2]: member
                for member in content
                if member.isfile() and member.name.startswith("blobs/sha256/")
            }
            manifest = _stream(content, blobs.pop(built.digest.removeprefix("sha256:"))).read()
            for digest, member in blobs.items():
                _upload(api, f"{repository}/blobs", digest, content, member)
            api.put(
                f"{repository}/manifests/{tag}",
                content=manifest,
                headers={"Content-Type": MANIFEST},
            ).raise_for_status()

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
    folder.mkdir()
    signer = pki.read_authority(cluster.state / "pki")
    pki.leaf(signer, DAEMON, hosts=[network.address]).write(folder, "tls")
    (folder / "config.yaml").write_text(yaml.safe_dump(_settings(folder, made.address)))
    hosts = cluster.state / node.REGISTRIES / NAME / "hosts.toml"
    hosts.parent.mkdir()
    hosts.write_text(f'server = "https://{made.address}"\nca = "{made.authority}"\n')
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
    try:
        with made.client() as api:
            return api.get("").is_success
    except httpx.TransportError:
        return False


def _upload(
    api: httpx.Client, place: str, digest: str, content: tarfile.TarFile, member: tarfile.TarInfo
) -> None:
    begun = api.post(f"{place}/uploads/").raise_for_status()
    where = httpx.URL(begun.headers["Location"]).copy_merge_params({"digest": f"sha256:{digest}"})
    chunks = iter(functools.partial(_stream(content, member).read, CHUNK), b"")
    size = {"Content-Length": str(member.size), "Content-Type": "application/octet-stream"}
    api.put(where, content=chunks, headers=size).raise_for_status()


def _stream(content: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = content.extractfile(member)
    assert stream is not None, member.name
    return stream
