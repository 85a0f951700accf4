"""Artifacts on their way from a worker to the signer: `unsigned/<key>/` in the store.

`request.json`, written last, says for which request and under which token it was made, so that the
signer can answer; a folder without it is not finished.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stitchcore.artifact.package import Unsigned
from stitchcore.artifact.store import Store

FOLDER, MARKER = "unsigned", "request.json"


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


def remove(store: Store, key: str) -> None:
    """Forget what was handed in. It waits no longer from the first moment on, so that another
    signer does not take what it sees of it for all there was."""
    store.delete(FOLDER, key, MARKER)
    store.delete(FOLDER, key)


def waiting(store: Store, key: str) -> bool:
    """Whether a finished artifact of this key waits for the signer."""
    return store.exists(FOLDER, key, MARKER)
