"""The job's view of the store, a folder: hand in requests, follow answers, fetch artifacts.

Everything is written under a temporary name and renamed. Nothing read is trusted: an artifact is
checked against the public keys, its own hashes and the request before anyone looks inside.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from . import reasons, target

FORMAT = 1
ABI = 1
KEY = re.compile(r"^[0-9a-f]{16,64}$")
FILE = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
MAX_BYTES = 512 * 2**20
Verify = Callable[[bytes, bytes, bytes], bool]  # (signature, message, public key)


@dataclass(frozen=True)
class Artifact:
    """A verified artifact: its manifest and the bytes of its libraries, in manifest order."""

    manifest: Mapping[str, Any]
    libraries: Tuple[bytes, ...]

    @property
    def key(self) -> str:
        return str(self.manifest["key"])


def _read(path: str, limit: int = MAX_BYTES) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise reasons.Refused(reasons.STORE_UNREADABLE, f"{path}: {error.strerror}") from error
    if len(data) > limit:
        raise reasons.Refused(reasons.BAD_ARTIFACT, f"{path} is too large")
    return data


def submit(store: str, digest: str, graph: bytes, meta: Mapping[str, Any]) -> None:
    """Publishes `requests/<digest>/`; a request that is there already is left alone."""
    folder = os.path.join(store, "requests")
    final = os.path.join(folder, digest)
    if os.path.isdir(final):
        return
    temporary = os.path.join(folder, f".{digest}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        os.makedirs(temporary)
        with open(os.path.join(temporary, "graph.pb"), "wb") as file:
            file.write(graph)
        with open(os.path.join(temporary, "meta.json"), "w", encoding="utf-8") as text:
            json.dump(meta, text, sort_keys=True)
        os.rename(temporary, final)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not os.path.isdir(final):  # else another process was first
            detail = f"{folder}: {error.strerror}"
            raise reasons.Refused(reasons.STORE_UNREADABLE, detail) from error


def answer(store: str, digest: str) -> Optional[Dict[str, Any]]:
    """What the worker says of a request; None while it says nothing."""
    path = os.path.join(store, "answers", f"{digest}.json")
    if not os.path.exists(path):
        return None
    try:
        found = json.loads(_read(path, 2**20))
    except ValueError as error:
        raise reasons.Refused(reasons.STORE_UNREADABLE, f"{path} is not JSON") from error
    if not isinstance(found, dict):
        raise reasons.Refused(reasons.STORE_UNREADABLE, f"{path} is not an answer")
    return found


def _check_manifest(
    manifest: Any, key: str, digest: str, tf_minor: str, job_target: str
) -> Mapping[str, Any]:
    if not isinstance(manifest, dict):
        raise reasons.Refused(reasons.BAD_ARTIFACT, "manifest is not an object")
    for field, expected in (("format", FORMAT), ("abi", ABI), ("key", key), ("digest", digest)):
        if manifest.get(field) != expected:
            raise reasons.Refused(reasons.BAD_ARTIFACT, f"manifest is of another {field}")
    if ".".join(str(manifest.get("tf")).split(".")[:2]) != tf_minor:
        raise reasons.Refused(reasons.BAD_ARTIFACT, "manifest is of another TensorFlow version")
    if not target.runs_on(str(manifest.get("target")), job_target):
        detail = f"built for {manifest.get('target')}, this machine is {job_target}"
        raise reasons.Refused(reasons.WRONG_TARGET, detail)
    for field, kind in (("libraries", list), ("kernels", list), ("patch", dict)):
        if not isinstance(manifest.get(field), kind):
            raise reasons.Refused(reasons.BAD_ARTIFACT, f"manifest has no {field}")
    return manifest


def fetch(
    store: str,
    key: str,
    digest: str,
    tf_minor: str,
    job_target: str,
    public_keys: Sequence[bytes],
    verify: Verify,
) -> Artifact:
    """Reads and verifies `artifacts/<key>/`. Raises Refused with what is wrong."""
    if not KEY.match(key):
        raise reasons.Refused(reasons.BAD_ARTIFACT, "key")
    folder = os.path.join(store, "artifacts", key)
    data = _read(os.path.join(folder, "manifest.json"))
    signature = _read(os.path.join(folder, "manifest.sig"), 64 * 2)
    if not public_keys:
        raise reasons.Refused(reasons.BAD_SIGNATURE, "no public key is configured")
    if len(signature) != 64 or not any(verify(signature, data, public) for public in public_keys):
        raise reasons.Refused(reasons.BAD_SIGNATURE, f"artifact {key[:12]}")
    try:
        manifest = _check_manifest(json.loads(data), key, digest, tf_minor, job_target)
        libraries = []
        for entry in manifest["libraries"]:
            if not FILE.match(entry["file"]):
                raise reasons.Refused(reasons.BAD_ARTIFACT, "library name")
            library = _read(os.path.join(folder, entry["file"]))
            if hashlib.sha256(library).hexdigest() != entry["sha256"]:
                raise reasons.Refused(reasons.BAD_ARTIFACT, f"{entry['file']} is damaged")
            libraries.append(library)
    except (ValueError, KeyError, TypeError) as error:
        raise reasons.Refused(reasons.BAD_ARTIFACT, f"manifest: {error!r}") from error
    return Artifact(manifest, tuple(libraries))


class Events:
    """Appends JSON lines to `sessions/<session>/events.jsonl`. A failure to write is not ours."""

    def __init__(self, store: str, session: str) -> None:
        self._path = os.path.join(store, "sessions", session, "events.jsonl")

    def write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"time": time.time(), "type": kind, **fields}) + "\n"
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(handle, line.encode())  # one write: lines of two processes do not mix
            finally:
                os.close(handle)
        except OSError:
            return  # reporting must never stop a job
