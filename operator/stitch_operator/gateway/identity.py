"""Who asks: the identity that everything a request may do and claim hangs on.

In a cluster it comes from the pod that a token was made for (tokenreview.py), never from what a
client says. With a shared token, on one machine, all clients are one namespace.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from stitch_operator.gateway.limits import Buckets, Rate
from stitch_operator.gateway.problems import Problem, Rejected

CACHE_SECONDS = 60.0
DENIED_SECONDS = 10.0
MOST_TOKENS = 10_000
DENIALS = Rate(1, 20)
"""Of one address: a pod whose token is refused asks again with pauses."""
GPUS = (
    *("a10", "a30", "a40", "a100", "b200", "gb200", "h100", "h200", "l4", "l40", "l40s", "t4"),
    *("rtx-6000", "v100"),
)
"""Products that metrics name; every other one is "other"."""


@dataclass(frozen=True)
class Identity:
    """An authenticated client.

    `owner` is the workload without its run's suffix, `pod` the pod's uid. `devices` GPUs, or
    processor cores where `gpu` is "cpu". `started` and `pod_started` (epoch seconds) are when its
    container and its pod began, None where only the session's first call tells. `last_exit_code` of
    a restarted container. `controller` is the uid of what made the pod, `account` its service
    account.
    """

    namespace: str
    owner: str
    pod: str
    devices: float
    gpu: str
    started: float | None = None
    last_exit_code: int | None = None
    pod_started: float | None = None
    controller: str = ""
    account: str = ""

    @property
    def runs(self) -> bool:
        """Whether a container of the pod runs, as far as the API server knows: one that waits for
        its node, or has ended, has had no devices since."""
        return not self.pod or self.started is not None

    @property
    def kept_seconds(self) -> float:
        """How long it holds: what the kubelet has not told of a pod that has just begun, for as
        long as denials."""
        return CACHE_SECONDS if self.runs else DENIED_SECONDS


Who = TypeVar("Who", covariant=True)


class Authenticator(Protocol[Who]):
    """Turns a bearer token into who has it. Raises Rejected(UNAUTHORIZED or FORBIDDEN), or
    UNAVAILABLE where nobody can tell."""

    def identify(self, token: str) -> Who: ...


@dataclass(frozen=True)
class SharedToken:
    """One token for all, for `stitch serve`. Compared in constant time."""

    token: str
    identity: Identity

    def identify(self, token: str) -> Identity:
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise Rejected(Problem.UNAUTHORIZED, "the token is not this gateway's")
        return self.identity


class Cached(Generic[Who]):
    """Remembers identities, and denials more briefly, by the token's hash: never the token.

    What is not known costs a question to the API server: an address may ask so many of those that
    are denied and no more, and denials push no identity out, so that whoever makes tokens up
    neither loads the API server nor slows others down.
    """

    def __init__(
        self,
        inner: Authenticator[Who],
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[Any], float] = lambda _: CACHE_SECONDS,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._seconds = keep
        self._known: OrderedDict[bytes, tuple[float, Who]] = OrderedDict()
        self._denied: OrderedDict[bytes, tuple[float, Rejected]] = OrderedDict()
        self._tries = Buckets(DENIALS)
        self._lock = threading.Lock()

    def remembered(self, token: str) -> Who | None:
        """The identity if it is known and fresh. Raises Rejected for a denial that is."""
        mark, now = _hash(token), self._clock()
        until, denied = self._denied.get(mark, (0.0, None))
        if denied is not None and now < until:
            raise denied
        until, found = self._known.get(mark, (0.0, None))
        return found if now < until else None

    def identify(self, token: str, address: str = "") -> Who:
        """Who it is, asked where it is not remembered. Raises Rejected; RATE_LIMITED where too many
        tokens that came from `address` were denied."""
        known = self.remembered(token)
        if known is not None:
            return known
        mark = _hash(token)
        with self._lock:
            wait = self._tries.take(address, 1, self._clock())
        if wait:
            raise Rejected(Problem.RATE_LIMITED, "too many tokens that nobody knows", wait)
        try:
            found = self._inner.identify(token)
        except Rejected as denied:
            if denied.problem is not Problem.UNAVAILABLE:
                _keep(self._denied, mark, (self._clock() + DENIED_SECONDS, denied))
            raise
        with self._lock:
            self._tries.take(address, -1, self._clock())
        _keep(self._known, mark, (self._clock() + self._seconds(found), found))
        return found


def _keep(memory: OrderedDict[bytes, tuple[float, Any]], mark: bytes, entry: Any) -> None:
    memory[mark] = entry
    if len(memory) > MOST_TOKENS:
        memory.popitem(last=False)


def product(label: str) -> str:
    """The GPU product of a node's label ("NVIDIA-H100-80GB-HBM3" -> "h100"), in GPUS or "other"."""
    words = label.lower().removeprefix("nvidia-").removeprefix("tesla-")
    fitting = [gpu for gpu in GPUS if words == gpu or words.startswith(f"{gpu}-")]
    return max(fitting, key=len, default="other")


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def run_times(identity: Identity, begun: float, now: float) -> tuple[int, int]:
    """Nanoseconds that a session's container and its pod have run, by what the API server says;
    since the session `begun` where nobody tells."""
    container = identity.started if identity.started is not None else begun
    pod = identity.pod_started if identity.pod_started is not None else container
    return int(max(0.0, now - container) * 1e9), int(max(0.0, now - pod) * 1e9)
