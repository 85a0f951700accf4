"""What rides on every answer: the public keys that are valid now, and what is revoked."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stitchcore.artifact.store import Store

KEYS, REVOKED = "public_keys.json", "revoked.json"
HEX = re.compile(r"[0-9a-f]{64}")
MOST_KEYS = 2
MOST_TOLD = 3000
"""A job reads a mebibyte of an answer, in which each stands twice."""


@dataclass(frozen=True)
class Trust:
    """At most two public keys (64 hexadecimal digits each) and the revoked artifacts' keys."""

    public_keys: tuple[str, ...] = ()
    revoked: frozenset[str] = frozenset()

    def told_to(self, running: str | None) -> Trust:
        """What goes to a job that runs these artifacts (keys with commas between): those of them
        that are revoked, so that an answer stays small however many there are. To one that does not
        say (of the release before) the first MOST_TOLD of all."""
        if running is None:
            return replace(self, revoked=frozenset(sorted(self.revoked)[:MOST_TOLD]))
        named = (key.strip() for key in running.split(","))
        return replace(self, revoked=frozenset(key for key in named if key in self.revoked))

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
