"""What an unsigned artifact must be before anybody signs it, without reading any graph.

Used by the worker on what its compile child left, and again by the signer, which trusts neither.
Sizes, names, hashes and the manifest's schema are checked, and that it is the artifact that was
asked for: of this key, digest, target, TensorFlow version and ABI.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stitchcore.artifact import manifest as manifests
from stitchcore.artifact.manifest import MAXIMUM_PARSED_BYTES, Manifest
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import FILE_NAME, MANIFEST, MAXIMUM_ARTIFACT_BYTES

MAXIMUM_FILES = 256
MAXIMUM_FILE_BYTES = 128 * 2**20
KEY = re.compile(r"[0-9a-f]{64}")
REPORTS = frozenset({"report.json", "report.html", "modules.json", "tuning.json"})
PARSED = (MANIFEST, "report.json")

_ELF, _ELF64_LITTLE, _SHARED_OBJECT = b"\x7fELF", b"\x02\x01", 3
MACHINES = {"cpu-x86-64": 62, "cpu-aarch64": 183}
"""ELF machine numbers (psABI) by the start of a target's name."""


def read_files(folder: Path) -> dict[str, bytes]:
    """All files of a folder that a stranger wrote. Raises Refused(BAD_ARTIFACT) for more or larger
    ones than an artifact has, for links, and for names that it has not."""
    files: dict[str, bytes] = {}
    remaining = MAXIMUM_ARTIFACT_BYTES
    for entry in sorted(folder.iterdir()):
        if len(files) >= MAXIMUM_FILES or not FILE_NAME.fullmatch(entry.name):
            raise _bad(folder.name, "it holds something that is not a file of an artifact")
        files[entry.name] = read_regular(entry, min(remaining, MAXIMUM_FILE_BYTES))
        remaining -= len(files[entry.name])
    return files


def read_regular(path: Path, limit: int) -> bytes:
    """A plain file of at most `limit` bytes: no link out of its folder, no pipe that never ends.
    Raises Refused(BAD_ARTIFACT)."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _bad(path.name, f"{error.strerror}") from error
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _bad(path.name, "not a plain file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise _bad(path.name, f"larger than {limit} bytes")
    return data


def check_files(key: str, files: Mapping[str, bytes], expected: Mapping[str, Any]) -> Manifest:
    """The manifest of an artifact's files, all checked. `expected` are manifest fields.

    Raises Refused: BAD_ARTIFACT, WRONG_TARGET (another processor), UNSUPPORTED_VERSION (another
    TensorFlow), DIGEST_MISMATCH (another graph or key).
    """
    if not KEY.fullmatch(key):
        raise _bad(key[:16], "not a key")
    if len(files) > MAXIMUM_FILES or sum(map(len, files.values())) > MAXIMUM_ARTIFACT_BYTES:
        raise _bad(key, "it is larger than artifacts are")
    for name in PARSED:
        if len(files.get(name, b"")) > MAXIMUM_PARSED_BYTES:
            raise _bad(key, f"{name} is larger than {MAXIMUM_PARSED_BYTES} bytes")
    try:
        manifest = manifests.decode(files.get(MANIFEST, b""))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad(key, f"manifest: {error}") from error
    _check_fields(manifest, {**expected, "key": key})
    named = [entry.file for entry in manifest.libraries]
    known = {MANIFEST, *REPORTS, *named}
    if len(set(named)) != len(named) or set(named) & {MANIFEST, *REPORTS} or set(files) - known:
        raise _bad(key, "its files are not those of its manifest")
    for entry in manifest.libraries:
        data = files.get(entry.file, b"")
        if not FILE_NAME.fullmatch(entry.file) or len(data) > MAXIMUM_FILE_BYTES:
            raise _bad(key, "a library's name or size")
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise _bad(key, f"{entry.file} is damaged")
        check_library(key, entry.file, data, manifest.target)
    for kernel in manifest.kernels:
        if not 0 <= kernel.library < len(manifest.libraries) or kernel.bytes_saved < 0:
            raise _bad(key, "a kernel names a library that is not there")
    return manifest


_MISMATCH = {
    "target": Reason.WRONG_TARGET,
    "tf": Reason.UNSUPPORTED_VERSION,
    "digest": Reason.DIGEST_MISMATCH,
    "key": Reason.DIGEST_MISMATCH,
}


def _check_fields(manifest: Manifest, expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        actual = getattr(manifest, name)
        if actual != value:
            reason = _MISMATCH.get(name, Reason.BAD_ARTIFACT)
            detail = f"its {name} is {str(actual)[:80]!r}, not {str(value)[:80]!r}"
            raise Refused(f"artifact {str(expected['key'])[:16]}", reason, detail)


def check_library(key: str, file: str, data: bytes, target: str) -> None:
    """A 64-bit shared object of the target's processor, by its ELF header. Raises Refused."""
    machine = next((n for start, n in MACHINES.items() if target.startswith(start)), None)
    if machine is None:
        return  # no shared object of a processor's: a GPU's binary
    if len(data) < 64 or data[:4] != _ELF or data[4:6] != _ELF64_LITTLE:
        raise _bad(key, f"{file} is no 64-bit shared object")
    kind, machine_number = struct.unpack_from("<HH", data, 16)
    if kind != _SHARED_OBJECT:
        raise _bad(key, f"{file} is no shared object")
    if machine_number != machine:
        detail = f"{file} is of machine {machine_number}, {target} is {machine}"
        raise Refused(f"artifact {key[:16]}", Reason.WRONG_TARGET, detail)


def _bad(key: str, detail: str) -> Refused:
    return Refused(f"artifact {key[:16]}", Reason.BAD_ARTIFACT, detail)
