"""What the gateway says when it does not do what was asked: a closed list, each with its remedy.

A problem is JSON {"reason", "what", "mend"} (docs/contracts.md section 7). Refusals of graphs are
answers, not problems: their reasons are `stitchcore.errors.Reason`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Kind:
    """HTTP status and what a caller can do; `retry_after` in seconds, 0 where a retry is vain."""

    status: int
    mend: str
    retry_after: int = 0


class Problem(Enum):
    """Closed list. The name in lower case is the reason that callers and metrics see."""

    BAD_REQUEST = Kind(400, "compare the request with /v1/openapi.json")
    UNAUTHORIZED = Kind(401, "send a current token: Authorization: Bearer TOKEN")
    FORBIDDEN = Kind(403, "the token is valid, but not of a pod of this cluster that may ask this")
    NOT_FOUND = Kind(404, "post the graph again: POST /v1/graphs")
    METHOD_NOT_ALLOWED = Kind(405, "see /v1/openapi.json")
    TIMEOUT = Kind(408, "send the whole body within a minute", 5)
    REVOKED = Kind(410, "remove the artifact; a later compile makes another one")
    TOO_LARGE = Kind(413, "the limits are in docs/contracts.md section 7")
    UNSUPPORTED_MEDIA_TYPE = Kind(415, "application/json or application/x-protobuf, plain or gzip")
    IMPLAUSIBLE = Kind(422, "totals of this session since it began, in nanoseconds")
    RATE_LIMITED = Kind(429, "ask later; the limits are per namespace", 5)
    QUOTA = Kind(429, "ask later: what is old goes by itself; the operator may allow more", 300)
    INTERNAL = Kind(500, "this is a bug of the gateway: its log says more")
    UNAVAILABLE = Kind(503, "ask later; the operator sees why in the gateway's log", 10)

    @property
    def reason(self) -> str:
        return self.name.lower()


class Rejected(Exception):
    """Ends a request with a problem; `what` says what is wrong with this one."""

    def __init__(self, problem: Problem, what: str, retry_after: float | None = None) -> None:
        super().__init__(f"{problem.reason}: {what}")
        self.problem = problem
        self.what = what
        self.retry_after = problem.value.retry_after if retry_after is None else retry_after

    def document(self) -> dict[str, str]:
        """The answer's body."""
        return {"reason": self.problem.reason, "what": self.what, "mend": self.problem.value.mend}
