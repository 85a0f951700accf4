"""An artifact as one tar: manifest, signature and libraries, the same bytes for all who ask.

Reports stay behind: they are for people, and hold names of regions. What is served is bounded, and
kept in memory for a minute, since a job's replicas all ask at once.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import FILE_NAME, MANIFEST, MAXIMUM_ARTIFACT_BYTES, SIGNATURE

MOST_FILES = 256
KEPT_BYTES = 256 * 2**20
KEPT_SECONDS = 60.0
"""A signature may be renewed under the same key."""


@dataclass(frozen=True)
class Archive:
    """A tar and its entity tag, which is a function of the signature."""

    data: bytes
    tag: str


def pack(store: Store, key: str) -> Archive:
    """The artifact `key`. Raises Refused: STORE_UNREADABLE, BAD_ARTIFACT."""
    signature = store.read("artifacts", key, SIGNATURE)
    manifest = store.read("artifacts", key, MANIFEST)
    try:
        names = [str(one["file"]) for one in json.loads(manifest)["libraries"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(key, Reason.BAD_ARTIFACT, f"manifest: {error!r}") from error
    if len(names) > MOST_FILES or not all(FILE_NAME.fullmatch(name) for name in names):
        raise Refused(key, Reason.BAD_ARTIFACT, "names of libraries")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, MANIFEST, manifest)
        _add(tar, SIGNATURE, signature)
        for name in names:
            _add(tar, name, store.read("artifacts", key, name))
            if out.tell() > MAXIMUM_ARTIFACT_BYTES:
                raise Refused(key, Reason.BAD_ARTIFACT, f"more than {MAXIMUM_ARTIFACT_BYTES} bytes")
    return Archive(out.getvalue(), hashlib.sha256(key.encode() + signature).hexdigest()[:32])


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o444
    tar.addfile(member, io.BytesIO(data))


class Archives:
    """The archives asked for last, within KEPT_BYTES. Used from one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, Archive]] = OrderedDict()

    def get(self, key: str) -> Archive | None:
        until, archive = self._kept.get(key, (0.0, None))
        if archive is None or self._clock() >= until:
            self._kept.pop(key, None)
            return None
        self._kept.move_to_end(key)
        return archive

    def keep(self, key: str, archive: Archive) -> None:
        self._kept[key] = (self._clock() + KEPT_SECONDS, archive)
        while sum(len(one.data) for _, one in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def drop(self, key: str) -> None:
        """Forget a revoked one."""
        self._kept.pop(key, None)
