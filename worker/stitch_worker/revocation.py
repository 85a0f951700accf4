"""The list of artifacts that no job may load any more: `revoked.json`, which rides on the gateway's
answers. An artifact on it is neither built nor signed again by the same code."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refused

REVOKED = "revoked.json"


def revoked(store: Store) -> tuple[str, ...]:
    """Keys of artifacts that no job may load any more."""
    if not store.exists(REVOKED):
        return ()
    try:
        return tuple(str(one) for one in json.loads(store.read(REVOKED))["artifacts"])
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(REVOKED, Reason.STORE_UNREADABLE, repr(error)) from error


def revoke(store: Store, keys: Sequence[str]) -> None:
    """Add to the revocation list, then remove the artifacts."""
    listed = sorted({*revoked(store), *keys})
    store.write(json.dumps({"artifacts": listed}).encode(), REVOKED)
    for key in keys:
        store.delete("artifacts", key)
