"""What answers of workers say, as far as a gateway may believe it: an answer lies in the store,
where a worker of another version, or one that was taken over, may have written it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from stitch_operator.gateway.counting import PURPOSES
from stitch_operator.gateway.records import KeyOrNone

KERNEL_RESULTS = ("hit", "miss", "refused", "failed")


class Answer(msgspec.Struct):
    """Of an answer what the gateway goes by, without what has a reader of its own below."""

    status: Literal["pending", "ready", "refused"]
    key: KeyOrNone = ""
    time: float = 0.0
    code: str = ""
    stage: str = ""
    done: int = 0
    total: int = 0
    reason: str = ""
    detail: str = ""
    open: list[str] = []


def understood(answer: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """An answer that is one; else it counts as not given, and the request is worked on anew."""
    try:
        known = msgspec.convert(answer, Answer)
    except msgspec.ValidationError:
        return None
    whole = math.isfinite(known.time) and (known.key or known.status != "ready")
    return answer if whole else None


def spent(answer: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by purpose; what is of no known purpose was spent on compiling."""
    said = answer.get("spent")
    total: dict[str, float] = {}
    for name, seconds in (said if isinstance(said, dict) else {}).items():
        if isinstance(seconds, int | float) and 0 <= seconds < 1e9:
            purpose = name if name in PURPOSES else PURPOSES[0]
            total[purpose] = total.get(purpose, 0.0) + float(seconds)
    return total


def account(answer: Mapping[str, Any]) -> int:
    """What names the sum that was spent; 0 where its worker does not say."""
    said = answer.get("account")
    return said if isinstance(said, int) and 0 <= said < 2**63 else 0


def kernels(answer: Mapping[str, Any]) -> dict[str, int]:
    """Kernels that were asked for, by what became of them; of a worker's word, what can be."""
    said = answer.get("units")
    found = said if isinstance(said, dict) else {}
    counts = {name: found.get(name) for name in KERNEL_RESULTS}
    return {n: c for n, c in counts.items() if isinstance(c, int) and 0 < c < 1e6}
