"""How often a graph was tried, and what it did to who tried it: poison is told from bad luck.

A graph whose compile child dies twice is quarantined: refused with what killed it. A worker that
is lost (its machine went away) says nothing about the graph; only after LOST such starts without an
end the graph is suspected all the same.
"""

from __future__ import annotations

import json

import msgspec

from stitchcore.artifact.keys import code_version
from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refusal

DEATHS = 2
LOST = 10


class Attempts(msgspec.Struct, frozen=True):
    """`started` compilations, of which `ended` came to an end of whatever kind; `deaths` are the
    causes of those that the child did not survive. Counted for one version of the code."""

    started: int = 0
    ended: int = 0
    deaths: tuple[str, ...] = ()
    code: str = ""

    @property
    def lost(self) -> int:
        """Starts of which nothing more was heard."""
        return self.started - self.ended


def read(store: Store, key: str) -> Attempts:
    """What is known of a request; nothing of what other code went through."""
    fresh = Attempts(code=code_version())
    if not store.exists("attempts", f"{key}.json"):
        return fresh
    try:
        found = msgspec.json.decode(store.read("attempts", f"{key}.json"), type=Attempts)
    except msgspec.DecodeError:
        return fresh  # written half by a full disk, on a store without renames
    return found if found.code == fresh.code else fresh


def write(store: Store, key: str, attempts: Attempts) -> None:
    """Raises Refused(STORE_UNREADABLE)."""
    data = json.dumps(msgspec.to_builtins(attempts), sort_keys=True).encode()
    store.write(data, "attempts", f"{key}.json")


def verdict(attempts: Attempts) -> Refusal | None:
    """QUARANTINED when it is too often, with the causes."""
    if len(attempts.deaths) >= DEATHS:
        causes = "; ".join(attempts.deaths)
        return Refusal("compile child", Reason.QUARANTINED, f"died {DEATHS} times: {causes}")
    if attempts.lost >= LOST:
        return Refusal("worker", Reason.QUARANTINED, f"{LOST} workers were lost building it")
    return None
