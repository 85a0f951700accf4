"""Images without a registry and without a builder: an OCI archive is a tar file of a few blobs.

The testbed's own image holds one static program; it is every pod's sandbox and the container of
tests that need no other. The project's real images are built by buildah from their Dockerfiles.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAUSE = "registry.k8s.io/pause:3.10.1"
SOURCE = Path(__file__).parent / "images" / "pause.c"
NOBODY = "65535:65535"
OCI = "application/vnd.oci.image"


def pause(folder: Path) -> Path:
    """The archive of the testbed's own image, in `folder`."""
    program, archive = folder / "pause", folder / "pause.tar"
    subprocess.run(["cc", "-O2", "-static", "-o", program, SOURCE], check=True)
    archive.write_bytes(oci_archive(PAUSE, {"pause": program.read_bytes()}, ["/pause"]))
    return archive


def oci_archive(name: str, files: Mapping[str, bytes], entrypoint: Sequence[str]) -> bytes:
    """An image of one layer that holds these programs; it runs as nobody."""
    layer = _tar({path: (data, 0o755) for path, data in files.items()})
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "User": NOBODY},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": _described(config, "config.v1+json"),
            "layers": [_described(layer, "layer.v1.tar")],
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    entry = {**_described(manifest, "manifest.v1+json"), "annotations": names}
    blobs = {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (layer, config, manifest)}
    index = _json({"schemaVersion": 2, "manifests": [entry]})
    layout = _json({"imageLayoutVersion": "1.0.0"})
    content = {"oci-layout": layout, "index.json": index, **blobs}
    return _tar({path: (data, 0o644) for path, data in content.items()})


def _described(blob: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": f"{OCI}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """The same bytes for the same files: no times, no names of users."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, (data, mode) in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
