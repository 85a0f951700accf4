"""Compiled kernels that outlive their graph: a store of translation units, keyed by their text.

A unit's key is the digest of its C source, the headers, the compiler and its flags, computed by
the worker; its library was made from that very source by a process that saw nothing else
(workshop.py). So what a graph leaves here is the same whoever's graph it was, and whoever took over
the process that parsed it. Each unit is one file `kernels/<scope>/<key>`, put there by a rename,
which begins with an HMAC-SHA256 by a secret that workers share and compile children do not see:
bytes that others put there are refused.

Under the scope of a namespace a unit serves that namespace alone: under `cluster` the time that an
answer takes tells a tenant that another one trains the same layer.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stitchcore.artifact.check import check_library
from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refused

FOLDER = "kernels"
CLUSTER = "cluster"
SCOPE = re.compile(r"[0-9a-f]{64}|cluster")
MAXIMUM_SOURCE = 8 * 2**20
MAXIMUM_LIBRARY = 32 * 2**20
MAXIMUM_REMARKS = 4 * 2**20
MAXIMUM_BYTES = 128 * 2**20
"""Of all sources of one graph."""
MAXIMUM_UNITS = 4096
_SECRET_BYTES = 32
_TAG_BYTES = 32
_LENGTH = struct.Struct(">I")


class Unit(msgspec.Struct, frozen=True):
    """A translation unit's library, the compiler that made it, and what it remarked."""

    key: str
    compiler: str
    remarks: str
    library: bytes


@dataclass(frozen=True)
class Units:
    """The units of one scope in `store`, for processors of `target`."""

    store: Store
    secret: bytes
    scope: str
    target: str

    def find(self, key: str) -> Unit | None:
        """The unit of this key, None where there is none. Raises Refused: BAD_ARTIFACT for one that
        no worker of this secret wrote, STORE_UNREADABLE."""
        if not self.store.exists(FOLDER, self.scope, key):
            return None
        data = self.store.read(FOLDER, self.scope, key)
        tag, body = data[:_TAG_BYTES], data[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(key, body)):
            raise _bad(key, "no worker wrote it")
        try:
            unit = msgspec.msgpack.decode(body, type=Unit)
        except msgspec.DecodeError as error:
            raise _bad(key, str(error)) from error
        check(unit, key, self.target)
        return unit

    def put(self, unit: Unit) -> None:
        """Put a unit where `find` finds it. Raises Refused: BAD_ARTIFACT, STORE_UNREADABLE."""
        check(unit, unit.key, self.target)
        body = msgspec.msgpack.encode(unit)
        self.store.write(self._tag(unit.key, body) + body, FOLDER, self.scope, unit.key)

    def _tag(self, key: str, body: bytes) -> bytes:
        named = f"unit:{self.scope}:{key}:".encode()
        return hmac.digest(self.secret, named + body, "sha256")


def check(unit: Unit, key: str, target: str) -> None:
    """Raises Refused(BAD_ARTIFACT, WRONG_TARGET) for what is no unit of this key and target."""
    if unit.key != key:
        raise _bad(key, f"it is the unit {unit.key[:16]}")
    if len(unit.library) > MAXIMUM_LIBRARY or len(unit.remarks) > MAXIMUM_REMARKS:
        raise _bad(key, "it is larger than units are")
    check_library(key, "kernels.so", unit.library, target)


def scope_of(meta: Mapping[str, object]) -> str | None:
    """The scope that the gateway wrote into a request; None: its kernels are not cached."""
    scope = meta.get("scope")
    return scope if isinstance(scope, str) and SCOPE.fullmatch(scope) else None


def load_or_create_secret(path: Path) -> bytes:
    """The secret in a file of this user's alone, made when it is not there. Raises OSError, or
    ValueError for a file that holds none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(_SECRET_BYTES) + "\n")
            with contextlib.suppress(FileExistsError):  # another worker was first
                os.link(temporary, path)
        finally:
            temporary.unlink()
    secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"{path} does not hold {2 * _SECRET_BYTES} hexadecimal digits")
    return secret


def _bad(key: str, detail: str) -> Refused:
    return Refused(f"unit {key[:16]}", Reason.BAD_ARTIFACT, detail)


# ---- between the compile child and its parent --------------------------------------------------
def send(channel: socket.socket, data: bytes) -> None:
    """One frame: its length in four bytes, then itself."""
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket, limit: int) -> bytes | None:
    """The next frame, None at the end. Raises ValueError for one larger than `limit`."""
    head = _exactly(channel, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > limit:
        raise ValueError(f"a frame of {length} bytes, at most {limit}")
    return _exactly(channel, length)


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = channel.recv(min(count - len(data), 2**20))
        if not part:
            return None
        data += part
    return bytes(data)
