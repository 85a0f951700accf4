"""What rides on every answer: the public keys that are valid now, and what is revoked."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stitchcore.artifact.store import Store

KEYS, REVOKED = "public_keys.json", "revoked.json"
HEX = re.compile(r"[0-9a-f]{64}")
MOST_KEYS = 2


@dataclass(frozen=True)
class Trust:
    """At most two public keys (64 hexadecimal digits each) and the revoked artifacts' keys."""

    public_keys: tuple[str, ...] = ()
    revoked: frozenset[str] = frozenset()

    def document(self) -> dict[str, list[str]]:
        return {"public_keys": list(self.public_keys), "revoked": sorted(self.revoked)}


def read(store: Store, given: Sequence[str] = ()) -> Trust:
    """The signer's keys and revocations in the store; `given` keys come first.

    Raises Refused(STORE_UNREADABLE), ValueError for files of another form: a revocation list that
    cannot be read must not be taken for an empty one.
    """
    keys = [*given, *_listed(store, KEYS, "public_keys")]
    revoked = _listed(store, REVOKED, "artifacts")
    return Trust(tuple(dict.fromkeys(keys))[:MOST_KEYS], frozenset(revoked))


def _listed(store: Store, name: str, field: str) -> list[str]:
    if not store.exists(name):
        return []
    document = json.loads(store.read(name))
    found = document.get(field) if isinstance(document, dict) else None
    if not isinstance(found, list) or not all(HEX.fullmatch(str(one)) for one in found):
        raise ValueError(f"{name} is not a list of keys under {field!r}")
    return [str(one) for one in found]
