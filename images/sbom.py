"""What is in an image or a wheel, as a software bill of materials (CycloneDX 1.6, JSON).

Read from the file itself, not from what was meant to be in it: Python's packages by their metadata,
Debian's by dpkg's list, and where there is neither each file. A function of the file's content, so
that whoever builds the same image has the same bill, to the byte.
"""

from __future__ import annotations

import email.parser
import hashlib
import json
import re
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from images import archive as archives
from images.catalogue import ROOT

Object = dict[str, Any]
METADATA = re.compile(r".*/[^/]+\.dist-info/METADATA\Z")
STATUS = "/var/lib/dpkg/status"
LOCKED = re.compile(r"^(\S+)==(\S+) \\\n    --hash=sha256:([0-9a-f]{64})$", re.MULTILINE)
NAMESPACE = uuid.UUID("6d1c9f5e-3c0a-5b8e-9f0e-5d2b8f6a7c31")
"""Of serial numbers, each made from its content's digest."""


def of_image(archive: Path) -> Object:
    """The bill of an OCI archive's image."""
    digest = archives.digest(archive)
    config = archives.config(archive)
    found = archives.contents(archive, lambda path: bool(METADATA.match(path)) or path == STATUS)
    status = found.pop(STATUS, b"")
    parts = [*_python(found.values()), *_debian(status.decode())]
    if not parts:
        parts = [_file(path, data) for path, data in archives.contents(archive).items()]
    name = image_of(archive)
    about = {
        "type": "container",
        "name": f"stitchcore/{name}",
        "version": digest,
        "purl": f"pkg:oci/{name}@{quote(digest)}?arch={config['architecture']}",
    }
    return _bill(about, parts, digest)


def image_of(path: Path) -> str:
    """ "operator", "runtime", "worker-tf2.21", "worker-tf2.21-cuda12", by an archive's
    name. Raises ValueError."""
    found = re.search(r"stitchcore_([a-z]+)_[^-]*(-tf2\.\d+(?:-cuda12)?)?-", path.name)
    if found is None:
        raise ValueError(f"{path.name} is the archive of no image of ours")
    return found[1] + (found[2] or "")


def of_wheel(path: Path) -> Object:
    """The bill of a wheel: its native files, and what it asks for."""
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    with zipfile.ZipFile(path) as opened:
        names = opened.namelist()
        [metadata] = [name for name in names if METADATA.match(f"/{name}")]
        said = _headers(opened.read(metadata))
        parts = [_file(f"/{name}", opened.read(name)) for name in names if name.endswith(".so")]
    for asked in said.get_all("Requires-Dist", []):
        name, _, condition = (part.strip() for part in asked.partition(";"))
        word = re.split(r"[^A-Za-z0-9._-]", name, maxsplit=1)[0]
        part = _package(word, "")
        part["scope"] = "optional" if "extra" in condition else "required"
        part["properties"] = [{"name": "stitchcore:requires", "value": asked}]
        parts.append({**part, "bom-ref": f"{part['bom-ref']}#{asked}"})
    about = {
        **_package(said["Name"], said["Version"]),
        "type": "library",
        "hashes": _hashes(digest),
    }
    return _bill(about, parts, digest)


def text(bill: Object) -> str:
    """As a file."""
    return json.dumps(bill, indent=1, sort_keys=True) + "\n"


def locked(root: Path = ROOT) -> dict[tuple[str, str], str]:
    """The SHA-256 of each wheel that images are made of, by (package, version)."""
    found: dict[tuple[str, str], str] = {}
    for path in sorted((root / "images").glob("*/*.txt")):
        for name, version, digest in LOCKED.findall(path.read_text()):
            found[plain(name), version] = digest
    return found


def _python(metadata: Iterable[bytes]) -> list[Object]:
    hashes = locked()
    parts = []
    for data in metadata:
        said = _headers(data)
        part = _package(said["Name"], said["Version"])
        wheel = hashes.get((plain(said["Name"]), said["Version"]))
        if wheel is not None:
            part["hashes"] = _hashes(wheel)
        parts.append(part)
    return parts


def _debian(status: str) -> list[Object]:
    parts = []
    for paragraph in status.split("\n\n"):
        said = _headers(paragraph.encode())
        if said["Package"] and said["Status"] == "install ok installed":
            name, version = said["Package"], said["Version"]
            purl = f"pkg:deb/debian/{name}@{quote(version)}?arch={said['Architecture']}"
            parts.append(_part("library", name, version, purl))
    return parts


def _package(name: str, version: str) -> Object:
    known = plain(name)
    purl = f"pkg:pypi/{known}@{quote(version)}" if version else f"pkg:pypi/{known}"
    return _part("library", known, version, purl)


def _part(kind: str, name: str, version: str, purl: str) -> Object:
    part: Object = {"type": kind, "name": name, "purl": purl, "bom-ref": purl}
    return {**part, "version": version} if version else part


def _file(path: str, data: bytes) -> Object:
    digest = hashlib.sha256(data).hexdigest()
    return {"type": "file", "name": path, "bom-ref": path, "hashes": _hashes(digest)}


def _hashes(sha256: str) -> list[Mapping[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _bill(about: Object, parts: Iterable[Object], digest: str) -> Object:
    """Sorted, and each part once: a virtual environment may have what its base has."""
    unique = {part["bom-ref"]: part for part in parts}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, digest)}",
        "version": 1,
        "metadata": {"component": about},
        "components": [unique[one] for one in sorted(unique)],
    }


def _headers(data: bytes) -> Any:
    return email.parser.BytesHeaderParser().parsebytes(data.lstrip())


def plain(name: str) -> str:
    """A package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
