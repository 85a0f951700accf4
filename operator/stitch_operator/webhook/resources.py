"""What a pod requests in all, and what an init container may ask without changing that.

The scheduler, quotas and Kueue count a pod's effective requests: the sum of its containers and
native sidecars, or a larger init container with the sidecars started before it. Ours is the first
init container, so it stands alone, and asks for nothing that the pod as a whole does not: totals
and class of service stay what they were, whatever the pod looked like.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from stitch_operator import quantity
from stitch_operator.webhook.reasons import Reason, Skip

Amounts = dict[str, Fraction]
LEAST = {"cpu": Fraction(1, 100), "memory": Fraction(16 * 2**20)}
"""Limits under which a container does not start: runc's own memory, the least CPU quota."""
REQUESTS, LIMITS = "requests", "limits"
EPHEMERAL = "ephemeral-storage"
SHARE = 4
LEAST_CACHE = 64 * 2**20


class Range(msgspec.Struct, frozen=True):
    """A LimitRange's line for containers: bounds by resource. Its maxLimitRequestRatio holds of
    ours where it holds of the pod: a limit below the pod's stands beside a request that is the
    pod's, or equals it."""

    least: dict[str, Fraction] = {}
    most: dict[str, Fraction] = {}


def ranges(limit_range: Mapping[str, Any]) -> list[Range]:
    """The lines of a LimitRange that concern containers."""
    lines = (limit_range.get("spec") or {}).get("limits") or []
    return [
        Range(_amounts(line.get("min")), _amounts(line.get("max")))
        for line in lines
        if line.get("type") == "Container"
    ]


def effective(pod: Mapping[str, Any], kind: str) -> Amounts:
    """What the pod requests, or is limited to, in all, as the scheduler counts; no overhead."""
    spec = pod.get("spec") or {}
    running = _total(_of(container, kind) for container in spec.get("containers") or [])
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in spec.get("initContainers") or []:
        own = _of(container, kind)
        alone = _total([sidecars, own])
        if container.get("restartPolicy") == "Always":
            sidecars = alone
        starting = _larger(starting, alone)
    total = _larger(_total([running, sidecars]), starting)
    of_pod = spec.get("resources") or {}
    implied = _amounts(of_pod.get(LIMITS)) if kind == REQUESTS else {}
    return {**implied, **total, **_amounts(of_pod.get(kind))}


def of_init_container(
    pod: Mapping[str, Any], wanted: Amounts, limit_ranges: Sequence[Range]
) -> dict[str, dict[str, str]]:
    """`resources` of our init container; empty parts are left out. Raises Skip."""
    requests, limits = effective(pod, REQUESTS), effective(pod, LIMITS)
    made: dict[str, dict[str, str]] = {REQUESTS: {}, LIMITS: {}}
    for name, amount in wanted.items():
        request, limit = _pair(name, amount, requests.get(name), limits.get(name), limit_ranges)
        if request is not None:
            made[REQUESTS][name] = _text(name, request)
        if limit is not None:
            made[LIMITS][name] = _text(name, limit)
    return {kind: amounts for kind, amounts in made.items() if amounts}


def _pair(
    name: str,
    wanted: Fraction,
    most_requested: Fraction | None,
    most_limited: Fraction | None,
    limit_ranges: Sequence[Range],
) -> tuple[Fraction | None, Fraction | None]:
    """Our request and limit of one resource: each there only where the pod has it."""
    least = max((one.least[name] for one in limit_ranges if name in one.least), default=Fraction())
    most = min((one.most[name] for one in limit_ranges if name in one.most), default=wanted)
    asked = max(min(wanted, most), least)
    limit = None if most_limited is None else _round(name, min(asked, most_limited))
    above = asked if limit is None else limit
    request = None if most_requested is None else _round(name, min(above, most_requested))
    for amount in (request, limit):
        if amount is not None and amount < least:
            raise Skip(Reason.LIMIT_RANGE, f"{name}: at least {_text(name, least)}")
    if limit and limit < LEAST.get(name, 0):
        raise Skip(Reason.RESOURCES_TOO_SMALL, f"{name}: {_text(name, limit)}")
    return request, limit


def volume_sizes(pod: Mapping[str, Any], runtime: str, cache: str) -> tuple[str, str]:
    """Bounds of our volumes, which count against a pod's limit of ephemeral-storage: of one that
    has such a limit they take a quarter at most. Raises Skip."""
    limit = effective(pod, LIMITS).get(EPHEMERAL)
    if not limit:
        return runtime, cache
    left = math.floor(limit / SHARE - quantity.parse(runtime)) // 2**20 * 2**20
    if left < LEAST_CACHE:
        raise Skip(Reason.EPHEMERAL_STORAGE, f"limit: {quantity.whole(limit)}")
    return runtime, quantity.whole(min(Fraction(left), quantity.parse(cache)))


def _text(name: str, amount: Fraction) -> str:
    return quantity.cores(amount) if name == "cpu" else quantity.whole(amount)


def _round(name: str, amount: Fraction) -> Fraction:
    """Down to what the API server keeps exactly: thousandths of cores, whole bytes."""
    parts = 1000 if name == "cpu" else 1
    return Fraction(math.floor(amount * parts), parts)


def _of(container: Mapping[str, Any], kind: str) -> Amounts:
    """A limit without a request is a request too, as the API server fills it in."""
    resources = container.get("resources") or {}
    limits = _amounts(resources.get(LIMITS))
    return limits if kind == LIMITS else {**limits, **_amounts(resources.get(REQUESTS))}


def _amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    return {name: quantity.parse(value) for name, value in (quantities or {}).items()}


def _total(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, Fraction()) + amount
    return total


def _larger(one: Amounts, other: Amounts) -> Amounts:
    names = {**one, **other}
    return {name: max(one.get(name, Fraction()), other.get(name, Fraction())) for name in names}
