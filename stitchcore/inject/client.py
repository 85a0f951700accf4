"""Where a job hands in requests and gets artifacts from: a `Source`, and the one that is a folder.

A folder's files are written under a temporary name and renamed. Nothing read is trusted: an
artifact is checked against the public keys, its own hashes and the request before anyone looks
inside, whatever source it came from (`verified`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Mapping, Optional, Protocol, Set, Tuple

from . import reasons, swap_group, target
from .contract import (
    FILE_NAME,
    KERNEL_ABI,
    MANIFEST,
    MANIFEST_FORMAT,
    MAXIMUM_ARTIFACT_BYTES,
    SIGNATURE,
)

KEY = re.compile(r"^[0-9a-f]{16,64}$")
EVENTS_BYTES = 8 * 2**20
SIGNATURE_BYTES = 64
Verify = Callable[[bytes, bytes, bytes], bool]  # (signature, message, public key)
Read = Callable[[str, int], bytes]  # (file name, most bytes) -> contents; raises Refused


@dataclass(frozen=True)
class Artifact:
    """A verified artifact: its manifest and the bytes of its libraries, in manifest order."""

    manifest: Mapping[str, Any]
    libraries: Tuple[bytes, ...]

    @property
    def key(self) -> str:
        return str(self.manifest["key"])


@dataclass(frozen=True)
class Expected:
    """What an artifact must fit before it is looked into: "2.21", the target (this machine's CPU,
    or where `on` says so a graph's GPU), and who may have signed it (32 bytes each)."""

    tf_minor: str
    target: str
    public_keys: Tuple[bytes, ...]
    verify: Verify

    def on(self, target: str) -> Expected:
        """The same of a graph whose request named another target."""
        return replace(self, target=target)


class Source(Protocol):
    """Where requests go and artifacts come from. No call waits for a network."""

    def submit(self, digest: str, graph: bytes, meta: Mapping[str, Any]) -> None:
        """Hands a request in, once."""

    def answer(self, digest: str) -> Optional[Dict[str, Any]]:
        """Where the request stands (docs/contracts.md section 5); None while nothing is known."""

    def fetch(self, key: str, digest: str, target: str) -> Artifact:
        """The verified artifact that a ready answer named, for `target`. Raises Refused with what
        is wrong."""

    def revoked(self, key: str) -> bool:
        """True when an artifact must not run any more."""

    def begun(self, digest: str, key: str) -> bool:
        """Whether the swap to an artifact may begin: it is on record wherever the job's next
        process may run. Asks for it where it is not yet; call again later. Raises Refused where
        an earlier process of the workload died of it."""

    def observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Takes in an event of the job, to pass it on."""

    def say(self, fields: Mapping[str, Any], every: float) -> None:
        """Has a swap group told `fields` (swap_group_messages.py), again every so many seconds."""

    def heard(self, name: str) -> Optional[swap_group.Heard]:
        """The last answer of that group's round."""

    def quiet(self, name: str) -> None:
        """Tells that group nothing any more."""

    def start(self) -> None:
        """Called once, when the hook is in place."""

    def finish(self) -> None:
        """Called at an orderly exit; may take a few seconds at most."""


def _read(path: str, limit: int = MAXIMUM_ARTIFACT_BYTES) -> bytes:
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
        document = json.loads(_read(path, 2**20))
    except ValueError as error:
        raise reasons.Refused(reasons.STORE_UNREADABLE, f"{path} is not JSON") from error
    if not isinstance(document, dict):
        raise reasons.Refused(reasons.STORE_UNREADABLE, f"{path} is not an answer")
    return document


def _check_manifest(manifest: Any, digest: str, expected: Expected) -> Mapping[str, Any]:
    if not isinstance(manifest, dict):
        raise reasons.Refused(reasons.BAD_ARTIFACT, "manifest is not an object")
    for field, value in (("format", MANIFEST_FORMAT), ("abi", KERNEL_ABI), ("digest", digest)):
        if manifest.get(field) != value:
            raise reasons.Refused(reasons.BAD_ARTIFACT, f"manifest is of another {field}")
    if not KEY.match(str(manifest.get("key"))):
        raise reasons.Refused(reasons.BAD_ARTIFACT, "key")
    if ".".join(str(manifest.get("tf")).split(".")[:2]) != expected.tf_minor:
        raise reasons.Refused(reasons.BAD_ARTIFACT, "manifest is of another TensorFlow version")
    if not target.runs_on(str(manifest.get("target")), expected.target):
        detail = f"built for {manifest.get('target')}, this job runs on {expected.target}"
        raise reasons.Refused(reasons.WRONG_TARGET, detail)
    for field, kind in (("libraries", list), ("kernels", list), ("patch", dict)):
        if not isinstance(manifest.get(field), kind):
            raise reasons.Refused(reasons.BAD_ARTIFACT, f"manifest has no {field}")
    return manifest


def verified(read: Read, digest: str, expected: Expected) -> Artifact:
    """The artifact whose files `read` gives, each read once: what was checked is what is loaded.

    Raises Refused: BAD_SIGNATURE, WRONG_TARGET, BAD_ARTIFACT (anything else), or what `read` does.
    """
    data = read(MANIFEST, MAXIMUM_ARTIFACT_BYTES)
    signature = read(SIGNATURE, SIGNATURE_BYTES)
    if not expected.public_keys:
        raise reasons.Refused(reasons.BAD_SIGNATURE, "no public key is configured")
    if not any(expected.verify(signature, data, public) for public in expected.public_keys):
        raise reasons.Refused(reasons.BAD_SIGNATURE, f"artifact of {digest[:12]}")
    try:
        manifest = _check_manifest(json.loads(data), digest, expected)
        libraries = []
        for entry in manifest["libraries"]:
            if not FILE_NAME.fullmatch(entry["file"]):
                raise reasons.Refused(reasons.BAD_ARTIFACT, "library name")
            library = read(entry["file"], MAXIMUM_ARTIFACT_BYTES)
            if hashlib.sha256(library).hexdigest() != entry["sha256"]:
                raise reasons.Refused(reasons.BAD_ARTIFACT, f"{entry['file']} is damaged")
            libraries.append(library)
    except (ValueError, KeyError, TypeError) as error:
        raise reasons.Refused(reasons.BAD_ARTIFACT, f"manifest: {error!r}") from error
    return Artifact(manifest, tuple(libraries))


class Folder:
    """The source that `stitch run` serves: a store on this machine."""

    def __init__(self, store: str, expected: Expected) -> None:
        self._store = store
        self._expected = expected
        self._submitted: Set[str] = set()

    def submit(self, digest: str, graph: bytes, meta: Mapping[str, Any]) -> None:
        submit(self._store, digest, graph, meta)
        self._submitted.add(digest)

    def answer(self, digest: str) -> Optional[Dict[str, Any]]:
        """Raises Refused where none will come: what was asked for is not there any more."""
        request = os.path.join(self._store, "requests", digest)
        gone = digest in self._submitted and not os.path.isdir(request)
        found = answer(self._store, digest)
        if gone and (found or {}).get("status") not in ("ready", "refused"):
            raise reasons.Refused(reasons.STORE_UNREADABLE, f"{request} is gone")
        return found

    def fetch(self, key: str, digest: str, target: str) -> Artifact:
        if not KEY.match(key):
            raise reasons.Refused(reasons.BAD_ARTIFACT, "key")
        folder = os.path.join(self._store, "artifacts", key)
        artifact = verified(reader(folder), digest, self._expected.on(target))
        if artifact.key != key:
            raise reasons.Refused(reasons.BAD_ARTIFACT, "manifest is of another key")
        return artifact

    def revoked(self, key: str) -> bool:
        return False  # nobody revokes what a user made on this machine

    def begun(self, digest: str, key: str) -> bool:
        return True  # the breaker lies in this folder

    def observe(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Nothing: events.jsonl is what `stitch run` follows."""

    def say(self, fields: Mapping[str, Any], every: float) -> None:
        """Nothing: replicas agree through a gateway."""

    def heard(self, name: str) -> Optional[swap_group.Heard]:
        return None

    def quiet(self, name: str) -> None:
        """Nothing."""

    def start(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


def reader(folder: str) -> Read:
    """Reads files of `folder`."""
    return lambda name, limit: _read(os.path.join(folder, name), limit)


class Events:
    """Appends JSON lines to `sessions/<session>/events.jsonl`. A failure to write is not ours.

    A file of EVENTS_BYTES takes only the last event, `end`: a job may run for months.
    `also` is told of each event: (type, fields). It must neither wait nor raise. An event is of
    this `process`, where it does not name another: those of one session share the file.
    """

    def __init__(
        self,
        store: str,
        session: str,
        also: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._path = os.path.join(store, "sessions", session, "events.jsonl")
        self._also = also

    def write(self, kind: str, **fields: Any) -> None:
        self._also(kind, fields)
        told = {"time": time.time(), "type": kind, "process": os.getpid(), **fields}
        line = json.dumps(told) + "\n"
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if kind == "end" or os.fstat(handle).st_size < EVENTS_BYTES:
                    os.write(handle, line.encode())  # one write: lines of two processes do not mix
            finally:
                os.close(handle)
        except OSError:
            return  # reporting must never stop a job
