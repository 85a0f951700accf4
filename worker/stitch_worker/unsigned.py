"""Artifacts on their way from a worker to the signer: `unsigned/<key>/` in the store.

`request.json`, written last, says for which request and under which token it was made, so that the
signer can answer; a folder without it is not finished. What a worker wrote is read within the
bounds of an artifact: the signer signs for all, and a worker that was taken over writes anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stitchcore.artifact.check import MAXIMUM_FILE_BYTES, MAXIMUM_FILES
from stitchcore.artifact.package import Unsigned
from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refused
from stitchcore.inject.contract import MAXIMUM_ARTIFACT_BYTES

FOLDER, MARKER = "unsigned", "request.json"
ORIGIN_BYTES = 2**20


class Origin(msgspec.Struct, frozen=True):
    """The request an artifact was made for, by which code (part of its key, and in a rolling update
    not the signer's own), the fencing token of its maker, what it cost (compiling.Spent) and the
    account that is of (attempts.Attempts), what was open to its child (answers.Answers)."""

    request: str
    code: str
    token: int
    spent: dict[str, float] = {}
    units: dict[str, int] = {}
    open: tuple[str, ...] = ()
    account: int = 0


def upload(store: Store, made: Unsigned, origin: Origin) -> bool:
    """Hand an artifact to the signer; False when one of this key is waiting already.

    Raises Refused(STORE_UNREADABLE).
    """
    files: Mapping[str, bytes] = {**made.files, MARKER: msgspec.json.encode(origin)}
    return store.publish(files, MARKER, FOLDER, made.key)


def origin(store: Store, key: str) -> Origin:
    """What an artifact was made for. Raises Refused: STORE_UNREADABLE, BAD_ARTIFACT."""
    data = store.read(FOLDER, key, MARKER, most=ORIGIN_BYTES)
    if len(data) > ORIGIN_BYTES:
        raise Refused(f"artifact {key[:16]}", Reason.BAD_ARTIFACT, f"{MARKER} is too large")
    return msgspec.json.decode(data, type=Origin)


def files(store: Store, key: str) -> dict[str, bytes]:
    """The artifact's files, no more of them than an artifact may have. Raises Refused:
    STORE_UNREADABLE, BAD_ARTIFACT."""
    found: dict[str, bytes] = {}
    remaining = MAXIMUM_ARTIFACT_BYTES
    for name in store.list(FOLDER, key):
        if name == MARKER:
            continue
        most = min(remaining, MAXIMUM_FILE_BYTES)
        found[name] = store.read(FOLDER, key, name, most=most)
        remaining -= len(found[name])
        if len(found[name]) > most or len(found) > MAXIMUM_FILES:
            raise Refused(
                f"artifact {key[:16]}", Reason.BAD_ARTIFACT, "it is larger than artifacts are"
            )
    return found


def remove(store: Store, key: str) -> None:
    """Forget what was handed in. It waits no longer from the first moment on, so that another
    signer does not take what it sees of it for all there was."""
    store.delete(FOLDER, key, MARKER)
    store.delete(FOLDER, key)


def waiting(store: Store, key: str) -> bool:
    """Whether a finished artifact of this key waits for the signer."""
    return store.exists(FOLDER, key, MARKER)
