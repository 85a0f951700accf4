"""A release: which images and wheels it is, each with its bill of materials, signed as one.

The signature (Ed25519, RFC 8032) is over `release.json`, which names images by digest and bills by
hash. `values.yaml` pins the chart to these digests, so that a node pulls these bytes or none: what
a registry, or whoever writes to it, can still do is deny. It does without a service that keeps
signatures beside images; where one is wanted, cosign signs the same digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from images import archive as archives
from images import sbom
from stitchcore.artifact import sign

RELEASE, SIGNATURE, VALUES = "release.json", "release.json.sig", "values.yaml"


class NotSigned(Exception):
    """What does not hold of a release, in words."""


def write(folder: Path, files: Sequence[Path], key: Path, redis: str = "") -> str:
    """A release of OCI archives and wheels; the public key that it is verified with. `redis` is the
    digest of the broker's image, which is somebody else's."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [_entry(folder, path) for path in files]
    release = json.dumps({"version": 1, "files": entries}, indent=1, sort_keys=True).encode()
    signing = sign.load_or_create_key(key)
    (folder / RELEASE).write_bytes(release)
    (folder / SIGNATURE).write_bytes(sign.sign(signing, release))
    (folder / VALUES).write_text(yaml.safe_dump(values(entries, redis), sort_keys=False))
    return sign.public_hex(signing)


def _entry(folder: Path, path: Path) -> dict[str, str]:
    wheel = path.suffix == ".whl"
    bill = sbom.text(sbom.of_wheel(path) if wheel else sbom.of_image(path)).encode()
    (folder / f"{path.stem}.cdx.json").write_bytes(bill)
    digest = _sha256(path.read_bytes()) if wheel else archives.digest(path)
    return {
        "file": path.name,
        "digest": digest,
        "image": "" if wheel else sbom.image_of(path),
        "sbom": f"{path.stem}.cdx.json",
        "sbom_sha256": _sha256(bill),
    }


def values(entries: Sequence[dict[str, str]], redis: str) -> dict[str, Any]:
    """What pins the chart. Images with CUDA are of entries that have a target of their own: their
    digests are in the release, and go into those."""
    digests = {entry["image"]: entry["digest"] for entry in entries if entry["image"]}
    images: dict[str, Any] = {"pinned": True}
    for name in ("operator", "runtime"):
        if name in digests:
            images[name] = {"digest": digests[name]}
    if redis:
        images["redis"] = {"digest": redis}
    workers = {}
    for name, digest in sorted(digests.items()):
        minor = name.removeprefix("worker-tf")
        if minor != name and not minor.endswith("-cuda12"):
            entry = {"tensorflow": minor, "image": {"digest": digest}}
            workers[f"cpu-tf{minor.replace('.', '')}"] = entry
    return {"images": images, **({"workers": workers} if workers else {})}


def verify(folder: Path, public_key: str, files: Sequence[Path] = ()) -> list[dict[str, str]]:
    """The entries of a release that this key signed, whose bills are whole, and of which the files
    are. Raises NotSigned."""
    release, signature = (_read(folder / name) for name in (RELEASE, SIGNATURE))
    if not sign.verify(public_key, signature, release):
        raise NotSigned(f"{RELEASE} is not signed by {public_key[:16]}")
    entries: list[dict[str, str]] = json.loads(release)["files"]
    for entry in entries:
        if _sha256(_read(folder / Path(entry["sbom"]).name)) != entry["sbom_sha256"]:
            raise NotSigned(f"{entry['sbom']} is not the one of the release")
    digests = {entry["digest"] for entry in entries}
    for path in files:
        wheel = path.suffix == ".whl"
        if (_sha256(_read(path)) if wheel else archives.digest(path)) not in digests:
            raise NotSigned(f"{path.name} is not of the release")
    pinned = yaml.safe_load(_read(folder / VALUES))
    redis = pinned.get("images", {}).get("redis", {}).get("digest", "")
    if pinned != values(entries, redis):
        raise NotSigned(f"{VALUES} pins other digests than the release has")
    return entries


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotSigned(f"{path.name} cannot be read: {error.strerror}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
