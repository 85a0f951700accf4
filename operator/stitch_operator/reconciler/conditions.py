"""Conditions of a job, and the Events that say when one came to hold. Pure.

An Event is named after its job, its type and how often that has happened, and the count stands in
the status: a reconciler that was killed between the two posts the same name again, which the API
server refuses. So every transition is told once, and a job that goes to and fro goes quiet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from stitch_operator.reconciler.pods import Pod
from stitch_operator.reconciler.records import TYPES, Condition, Type
from stitch_operator.webhook.reasons import Reason
from stitchcore.report.reasons import PAGE, meaning, mend

MOST_EVENTS = 10
"""Of one type and job."""
TEXTS: dict[Type, str] = {
    "Compiling": "kernels are being compiled for it",
    "Swapped": "its steps run stitched kernels",
    "Optimized": "they are faster",
    "RolledBack": "its original steps run again",
    "Refused": "its graphs are left as they are",
    "NoContact": (
        "no word from it in 5 minutes: it imports no TensorFlow, or cannot reach the gateway"
    ),
}
MISSED_TEXT = (
    "the webhook was not asked when its pods were created (it was away, or the job was annotated "
    "later); they run as they are"
)
REMEDIES = {reason.word: reason.value for reason in Reason}


@dataclass(frozen=True)
class Held:
    """That a condition holds, and why."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Facts:
    """What conditions depend on: the job's phase and reason, the pods that count, where their
    graphs stand, the word for pods that were missed, and its figures in a line."""

    phase: str
    reason: str
    pods: Sequence[Pod]
    graphs: Sequence[tuple[str, str]]
    missed: str
    told: str = ""


def held(facts: Facts, gateway: bool) -> dict[Type, Held | None]:
    """Which conditions hold. Without the gateway those that depend on it are left out."""
    injected = [pod for pod in facts.pods if pod.injected]
    message = f"{len(injected)} of {len(facts.pods)} pods carry the runtime"
    made: dict[Type, Held | None] = {
        "Injected": Held("", message) if injected else None,
        "Skipped": _skipped(facts),
    }
    if not gateway:
        return made
    by_phase = {phase: [r for p, r in facts.graphs if p == phase] for phase, _ in facts.graphs}
    swapped = ("Optimized", "swapped") in facts.graphs
    made["Compiling"] = _said("Compiling", "") if by_phase.get("Compiling") else None
    made["Swapped"] = _said("Swapped", "") if swapped else None
    optimized = facts.phase == "Optimized"
    made["Optimized"] = Held("", facts.told or TEXTS["Optimized"]) if optimized else None
    gone_back = by_phase.get("RolledBack")
    made["RolledBack"] = _said("RolledBack", min(gone_back)) if gone_back else None
    for name in ("Refused", "NoContact"):
        kind: Type = "Refused" if name == "Refused" else "NoContact"
        made[kind] = _said(kind, facts.reason) if facts.phase == kind else None
    return made


def _said(kind: Type, reason: str) -> Held:
    """With what the reason means and what can be done, where it is one of the closed list."""
    text = f"{reason}: {TEXTS[kind]}" if reason else TEXTS[kind]
    if meaning(reason):
        text += f", because {meaning(reason)}; what to do: {mend(reason)} ({PAGE}#{reason})"
    return Held(reason, text)


def _skipped(facts: Facts) -> Held | None:
    """Pods that the webhook missed are told of before those it left alone."""
    if any(not pod.reviewed for pod in facts.pods):
        return Held(facts.missed, MISSED_TEXT)
    reasons = Counter(pod.skipped for pod in facts.pods if pod.skipped)
    if not reasons:
        return None
    reason = min(reasons, key=lambda word: (-reasons[word], word))
    remedy = REMEDIES.get(reason)
    about = f"{remedy.why}; to mend it: {remedy.mend}" if remedy else "left as it is"
    return Held(reason, f"{reason}: {about}")


def after(
    before: Sequence[Condition], found: Mapping[Type, Held | None], now: float
) -> list[Condition]:
    """The conditions afterwards; those that `found` does not name stay. One that never held is
    not there."""
    known = {one.type: one for one in before}
    made = []
    for kind in TYPES:
        present = known.get(kind)
        if kind not in found:
            made += [present] if present is not None else []
            continue
        following = _after(kind, present, found[kind], now)
        made += [following] if following is not None else []
    return made


def _after(
    kind: Type, present: Condition | None, found: Held | None, now: float
) -> Condition | None:
    if present is None and found is None:
        return None
    transitions = present.transitions if present is not None else 0
    held_before = present is not None and present.status == "True"
    if found is None:
        assert present is not None
        if not held_before:
            return present
        return Condition(
            type=kind, status="False", last_transition_time=_time(now), transitions=transitions
        )
    again = present is None or not held_before or present.reason != found.reason
    since = _time(now) if again or present is None else present.last_transition_time
    return Condition(
        type=kind,
        status="True",
        reason=found.reason,
        message=found.message,
        last_transition_time=since,
        transitions=transitions + again,
    )


def to_tell(before: Sequence[Condition], now_held: Sequence[Condition]) -> list[Condition]:
    """The conditions whose coming to hold is to be posted."""
    counts = {one.type: one.transitions for one in before}
    return [
        one
        for one in now_held
        if one.status == "True" and counts.get(one.type, 0) < one.transitions <= MOST_EVENTS
    ]


def _time(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
