"""Breakers: what must not be injected for now, as lines of the ConfigMap that the webhook obeys.

Opened by what pods show, closed by what pods show or by time; the lines themselves remember what
pods that are gone have shown. Nothing is ever done to a pod. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stitch_operator.reconciler.pods import Pod
from stitch_operator.reports import Workload
from stitch_operator.webhook.cluster import IMAGES, WORKLOADS

IMAGE_SECONDS = 600.0
"""After the last sign of it an image is tried again: by the next pod of each workload."""
WORKLOAD_SECONDS = 3600.0
EARLY_SECONDS = 1800.0
"""A pod that ran for longer has come to its first step, whether or not anybody has heard."""
SETTLED_SECONDS = 45.0
"""What a pod reported at its end has arrived at the gateway, and been read from it, by then."""
MOST, MOST_OF_NAMESPACE = 1000, 100
SEEN = "seen"
"""The third key of the ConfigMap: kind, namespace, name, and when it was last seen."""
RENEWED_SECONDS = 120.0
Line = tuple[str, str, str]
"""A kind (IMAGES, WORKLOADS), a namespace and a name."""
Lines = Mapping[Line, float]
"""Open breakers, and when each was last seen to be needed."""


@dataclass(frozen=True)
class Refusal:
    """The API server refused a pod because of something of ours."""

    namespace: str
    time: float


@dataclass(frozen=True)
class Seen:
    """What decides: all pods that may say something, rows by pod, when the gateway was read, and
    the runtime's image of this release."""

    pods: Iterable[Pod]
    refusals: Iterable[Refusal]
    rows: Mapping[str, Workload]
    read: float | None
    image: str


def step(before: Lines, seen: Seen, now: float) -> dict[Line, float]:
    """The open breakers afterwards."""
    pods = list(seen.pods)
    found = {**_images(before, pods, seen, now), **_workloads(before, pods, seen, now)}
    return _bounded(found)


def _images(before: Lines, pods: list[Pod], seen: Seen, now: float) -> dict[Line, float]:
    said: dict[Line, float] = {}
    delivered: dict[Line, float] = {}
    for pod in pods:
        line = (IMAGES, pod.namespace, seen.image)
        if not pod.injected or pod.image != seen.image:
            continue
        if pod.stuck and not pod.leaving:
            when = now if pod.active else pod.gave_up or pod.created
            said[line] = max(said.get(line, 0.0), when)
        elif pod.delivered:
            delivered[line] = max(delivered.get(line, 0.0), pod.started or pod.created)
    for refusal in seen.refusals:
        line = (IMAGES, refusal.namespace, seen.image)
        said[line] = max(said.get(line, 0.0), refusal.time)
    made = {}
    for line in before.keys() | said.keys():
        last = max(before.get(line, 0.0), said.get(line, 0.0))
        old = line[0] != IMAGES or line[2] != seen.image or now - last > IMAGE_SECONDS
        came = line not in said and delivered.get(line, 0.0) > last
        if not old and not came:
            made[line] = last
    return made


def _workloads(before: Lines, pods: list[Pod], seen: Seen, now: float) -> dict[Line, float]:
    """A workload is left alone after an injected pod of it failed early, until one that was left
    alone fails as well: then it was not us."""
    guilty: dict[Line, float] = {}
    innocent: dict[Line, float] = {}
    for pod in pods:
        line = (WORKLOADS, pod.namespace, pod.workload)
        if pod.failure is None or pod.leaving or not _one_word(line[2]):
            continue
        when = pod.failure.finished
        if not pod.injected:
            innocent[line] = max(innocent.get(line, 0.0), when)
        elif failed_early(pod, seen.rows.get(pod.uid), seen.read):
            guilty[line] = max(guilty.get(line, 0.0), when)
    made = {}
    for line in before.keys() | guilty.keys():
        last = max(before.get(line, 0.0), guilty.get(line, 0.0))
        old = line[0] != WORKLOADS or now - last > WORKLOAD_SECONDS
        if not old and innocent.get(line, 0.0) <= last:
            made[line] = last
    return made


def failed_early(pod: Pod, row: Workload | None, read: float | None) -> bool:
    """Whether an injected pod failed before its first timed step. Nobody is blamed before the
    gateway has had time to hear of one."""
    failure = pod.failure
    if failure is None or read is None or read < failure.finished + SETTLED_SECONDS:
        return False
    early = failure.finished - failure.started < EARLY_SECONDS
    return early and (row is None or not row.stepped)


def _one_word(text: str) -> bool:
    """A line has two words; an annotation may hold anything."""
    return len(text.split()) == 1 and len(text) <= 253


def _bounded(found: Mapping[Line, float]) -> dict[Line, float]:
    """The newest of each kind and namespace: a ConfigMap is small, and no tenant fills it alone."""
    made: dict[Line, float] = {}
    of_namespace: dict[tuple[str, str], int] = {}
    of_kind: dict[str, int] = {}
    for line, last in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        kind, namespace, _ = line
        if of_namespace.get((kind, namespace), 0) >= MOST_OF_NAMESPACE:
            continue
        if of_kind.get(kind, 0) >= MOST:
            continue
        of_namespace[kind, namespace] = of_namespace.get((kind, namespace), 0) + 1
        of_kind[kind] = of_kind.get(kind, 0) + 1
        made[line] = last
    return made


def data(lines: Lines) -> dict[str, str]:
    """The ConfigMap's data."""
    ordered = sorted(lines)
    made = {
        kind: "".join(f"{where} {name}\n" for one, where, name in ordered if one == kind)
        for kind in (IMAGES, WORKLOADS)
    }
    made[SEEN] = "".join(f"{' '.join(line)} {int(lines[line])}\n" for line in ordered)
    return made


def parse(held: Mapping[str, str]) -> dict[Line, float]:
    """From a ConfigMap's data; what is no line of ours is left out."""
    made: dict[Line, float] = {}
    for text in str(held.get(SEEN, "")).splitlines():
        words = text.split()
        if len(words) == 4 and words[0] in (IMAGES, WORKLOADS) and words[3].isdecimal():
            made[words[0], words[1], words[2]] = float(words[3])
    return made


def differs(before: Lines, after: Lines) -> bool:
    """Whether the ConfigMap is to be written: not for each second that a breaker stays open."""
    if before.keys() != after.keys():
        return True
    return any(after[line] - before[line] > RENEWED_SECONDS for line in after)
