"""Swap groups, what is pure of them: who is in one, what is decided, and the words for it.

Replicas that meet in collectives run the same number of steps, so a count of passes is the one
clock they share. The gateway names a count N that none has reached and commits when all have said
that they will hold there (docs/contracts.md section 7). What happens at N is then written once, in
a register that the replicas share and that lives as long as they do (coordination_service.py): a
member that knows of the commit writes the swap, one that comes to N without knowing writes that
there is none, and the first to write decides for all. So nobody depends on the gateway at N, and no
two differ.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import reasons

TASKS = ("chief", "worker")  # in the order of ranks; what MultiWorkerMirroredStrategy joins
SWAP, BACK, DROP = "swap", "back", "drop"
GATHERING, NAMED, COMMITTED, ABORTED = "gathering", "named", "committed", "aborted"
SAY_SECONDS = 0.5  # between a member's words, while a round is open
CALLS_PER_SECOND = 100.0  # of all members of a group together: gateways limit their namespaces
PATIENT = 4.0  # so many times as long between words while members are long in coming
MARGIN_WORDS = 10.0  # between naming N and N, in time for words: each must hear of it, and answer
MOST_MARGIN = 10**6


@dataclass(frozen=True)
class Place:
    """This process among the replicas of its cluster. `task` is how TensorFlow's devices begin;
    `beside` counts the replicas on its machine, with itself; `why` says why it cannot be in a
    group, "" where it can."""

    cluster: str
    size: int
    rank: int
    task: str
    why: str = ""
    beside: int = 1


@dataclass(frozen=True)
class Decision:
    """What happens at the step after `agreed` passes: SWAP with blocks of `original` and `first`
    steps, the latter growing to `most`, of random length by `seed`; BACK to the original; DROP:
    nothing, for the reason `why`."""

    do: str
    agreed: int
    original: int = 0
    first: int = 0
    most: int = 0
    seed: int = 0
    why: str = ""


@dataclass(frozen=True)
class Heard:
    """The gateway's last answer to a group's `round`; `agreed` is N, 0 before it is named."""

    round: int
    state: str
    agreed: int = 0
    latest: int = 0
    why: str = ""


def place_of(text: str) -> Optional[Place]:
    """The place that TF_CONFIG gives; None without a cluster."""
    try:
        document = json.loads(text or "{}")
        cluster, task = document.get("cluster") or {}, document.get("task") or {}
        if not cluster:
            return None
        kind, index = str(task.get("type", "worker")), int(task.get("index", 0))
        strange = sorted(set(cluster) - set(TASKS)) + [kind] * (kind not in TASKS)
        sizes = [len(cluster.get(name, ())) for name in TASKS]
        size, rank = sum(sizes), index + (sizes[0] if kind == TASKS[1] else 0)
        name = hashlib.sha256(json.dumps(cluster, sort_keys=True).encode()).hexdigest()[:16]
        addresses = (address for task in TASKS for address in cluster.get(task, ()))
        hosts = [str(address).rpartition(":")[0] for address in addresses]
    except (ValueError, TypeError, AttributeError) as error:
        return Place("", 0, 0, "", f"TF_CONFIG cannot be read: {error}")
    why = f"TF_CONFIG names a {strange[0]}" if strange else ""
    if not why and not 0 <= rank < size:
        why = f"TF_CONFIG names task {index} of {size}"
    beside = hosts.count(hosts[rank]) if not why else 1
    return Place(name, size, rank, f"/job:{kind}/replica:0/task:{index}", why, beside)


def name_of(place: Place, run: str, digest: str) -> str:
    """A group's name: `run` is of this start of the cluster, for a graph may come back."""
    return f"{place.cluster}-{run}-{digest[:16]}"


def seed_of(name: str) -> int:
    """Never 0, which would mean equal blocks."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") + 1


def encode(decision: Decision) -> str:
    return json.dumps(asdict(decision))


def decode(text: str) -> Decision:
    """Raises Refused(SWAP_GROUP) for what is no decision."""
    try:
        decision = Decision(**json.loads(text))
        counts = (decision.agreed, decision.original, decision.first, decision.most, decision.seed)
        counted = all(type(count) is int and count >= 0 for count in counts)
        if decision.do not in (SWAP, BACK, DROP) or not counted:
            raise ValueError("no such decision")
    except (ValueError, TypeError) as error:
        raise reasons.Refused(reasons.SWAP_GROUP, f"decision of the replicas: {error}") from error
    return decision


def heard_of(round_: int, answer: Mapping[str, Any]) -> Heard:
    """What an answer to `acknowledged` says; of one that says nothing, that it still gathers."""
    group = answer.get("group")
    group = group if isinstance(group, dict) else {}
    numbers: Dict[str, int] = {}
    for name, value in (("at", answer.get("swap_at")), ("latest", group.get("latest_round"))):
        numbers[name] = value if type(value) is int and 0 <= value < 2**62 else 0
    state = str(group.get("state", GATHERING))
    why = str(group.get("reason") or "")[:200]
    return Heard(round_, state, numbers["at"], numbers["latest"], why)


def say_seconds(size: int) -> float:
    """Between a member's words, in a group of `size`."""
    return max(SAY_SECONDS, size / CALLS_PER_SECOND)


def margin_of(nanoseconds: Sequence[int], size: int) -> int:
    """Steps in the time of MARGIN_WORDS, by the intervals of some."""
    ordered: List[int] = sorted(nanoseconds)
    if not ordered:
        return 0
    median = max(1, ordered[len(ordered) // 2])
    return min(MOST_MARGIN, math.ceil(MARGIN_WORDS * say_seconds(size) * 1e9 / median))
