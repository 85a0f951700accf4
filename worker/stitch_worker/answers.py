"""Where a request stands, as its worker tells it: pending with a heartbeat, ready, or refused.

Answers carry the fencing token of their writer's lease: a holder whose lease was taken over finds
a larger token there and writes nothing any more. Between that look and the write there is a
moment; what can slip through it is an old progress line, which the next heartbeat replaces, never
an artifact (those are named by content and published by the signer).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stitchcore.artifact.keys import code_version
from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refusal, Refused

HEARTBEAT_SECONDS = 2.0
"""A pending answer's `time` is renewed this often while the child lives; 15 s are promised
(docs/contracts.md section 7)."""


class Answers:
    """Writes answers of one request on behalf of one lease token. `open` names what this machine
    does not keep from compile children (isolate.open_to_children), `account` the sum that `spent`
    is of (attempts.Attempts)."""

    def __init__(
        self, store: Store, key: str, token: int, open: Sequence[str] = (), account: int = 0
    ) -> None:
        self._store, self._key, self.token, self._open = store, key, token, list(open)
        self.account = account
        self._last: tuple[str, float] = ("", 0.0)

    def pending(self, stage: str, done: int = 0, total: int = 0, **fields: Any) -> None:
        """Progress; lines of one stage are thinned to one per heartbeat. Raises Refused."""
        now = time.monotonic()
        if self._last[0] == stage and now - self._last[1] < HEARTBEAT_SECONDS:
            return
        self._write({"status": "pending", "stage": stage, "done": done, "total": total, **fields})
        self._last = (stage, now)

    def refused(
        self,
        refusal: Refusal,
        spent: Mapping[str, float],
        units: Mapping[str, int] | None = None,
    ) -> None:
        """The final no. Raises Refused where the store does not take it or the lease is lost."""
        detail = ": ".join(filter(None, (refusal.subject, refusal.detail)))
        answer = {"status": "refused", "reason": refusal.reason.value, "detail": detail}
        self._write({**answer, "spent": dict(spent), "units": dict(units or {})})

    def ready(
        self,
        key: str,
        ratio: float,
        spent: Mapping[str, float],
        units: Mapping[str, int] | None = None,
    ) -> None:
        """The artifact `key` is published, and speeds a step up by `ratio` at most. Raises Refused
        as above."""
        cost = {"spent": dict(spent), "units": dict(units or {})}
        self._write({"status": "ready", "key": key, "ratio": round(ratio, 4), **cost})

    def still(self, answer: Mapping[str, Any]) -> None:
        """A final `answer` holds: its `time` is now, so that whoever asked again since sees that it
        was answered. Its token stays, and so what it cost is known to be the same. Raises Refused
        where the store does not take it."""
        self._store.answer(self._key, {**answer, "time": time.time()})

    def _write(self, answer: Mapping[str, Any]) -> None:
        current = self._store.read_answer(self._key) or {}
        if token_of(current) > self.token:
            raise Refused(self._key, Reason.LEASE_LOST, f"a later worker answers: {current}")
        said = {**answer, "open": self._open} if self._open else answer
        written = {"time": time.time(), "token": self.token, "account": self.account}
        self._store.answer(self._key, {**said, **written})


def token_of(answer: Mapping[str, Any] | None) -> int:
    """The fencing token of an answer; 0 where there is none."""
    token = (answer or {}).get("token", 0)
    return token if isinstance(token, int) else 0


def account_of(answer: Mapping[str, Any] | None) -> tuple[int, dict[str, float]]:
    """The account of an answer, 0 where there is none, and what it says was spent."""
    found = answer or {}
    account, said = found.get("account"), found.get("spent")
    spent = said.items() if isinstance(said, dict) else ()
    seconds = {str(what): float(s) for what, s in spent if isinstance(s, int | float)}
    return account if isinstance(account, int) else 0, seconds


def is_final(answer: Mapping[str, Any] | None) -> bool:
    """Whether nothing is left to do: refused by this very code (other code may know better). A
    ready answer is not final by itself: its artifact may have been collected."""
    found = answer or {}
    return found.get("status") == "refused" and found.get("code") == code_version()
