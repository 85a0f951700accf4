"""How often a graph was tried, and what it did to who tried it: poison is told from bad luck.

A graph whose compile child dies twice is quarantined: refused with what killed it. A worker that
is lost (its machine went away) says nothing about the graph; only after LOST such starts without an
end the graph is suspected all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from stitch_worker.answers import account_of
from stitchcore.artifact.keys import code_version
from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refusal

DEATHS = 2
LOST = 10


class Attempts(msgspec.Struct, frozen=True):
    """`started` compilations, of which `ended` came to an end of whatever kind; `deaths` are the
    causes of those that the child did not survive. Counted for one version of the code.

    `spent` is the processor seconds of all of them, whatever their code, by what for: it only
    grows, so that a final answer that repeats it adds nothing, and one after a later compilation
    what is new. `account` names the sum: the token under which it began, 0 before that.
    """

    started: int = 0
    ended: int = 0
    deaths: tuple[str, ...] = ()
    code: str = ""
    spent: dict[str, float] = {}
    account: int = 0

    @property
    def lost(self) -> int:
        """Starts of which nothing more was heard."""
        return self.started - self.ended


def read(store: Store, key: str) -> Attempts:
    """What is known of a request; of what other code went through only what it spent."""
    fresh = Attempts(code=code_version())
    if not store.exists("attempts", f"{key}.json"):
        return fresh
    try:
        found = msgspec.json.decode(store.read("attempts", f"{key}.json"), type=Attempts)
    except msgspec.DecodeError:
        return fresh  # written half by a full disk, on a store without renames
    if found.code == fresh.code:
        return found
    return structs.replace(fresh, spent=found.spent, account=found.account)


def going_on(known: Attempts, answer: Mapping[str, Any] | None, token: int) -> Attempts:
    """With what the request's last `answer` says was spent: that of a worker that was lost is
    written nowhere else. A sum that nobody has begun begins under `token`."""
    account, told = account_of(answer)
    named = known.account or account or token
    sums = [known.spent] * (known.account == named) + [told] * (account == named)
    purposes = sorted({purpose for one in sums for purpose in one})
    spent = {purpose: max(one.get(purpose, 0.0) for one in sums) for purpose in purposes}
    return structs.replace(known, spent=spent, account=named)


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
