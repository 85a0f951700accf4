"""What jobs report: events and savings, from a decoded body to the ledger and the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stitch_operator.gateway.groups import Acknowledgement, Group
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.ledger import COUNTED, OLD, WAIT, Happened, Known, Left
from stitch_operator.gateway.metrics import known_reason
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.records import Event, Savings
from stitch_operator.gateway.savings import Report
from stitch_operator.gateway.service import Service
from stitch_operator.metrics import OTHER
from stitchcore.inject import reasons

MOST = 2**62
WAIT_SECONDS = 5.0
JOB_REASONS = frozenset(
    value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)
)
"""What the job's side may give as a reason."""


async def event(service: Service, identity: Identity, said: Event) -> dict[str, Any]:
    """Note an event. Raises Rejected: NOT_FOUND for an artifact of another namespace."""
    if said.type == "timed":
        await service.ledger.of(
            identity.namespace, service.parts.ledger.timed, identity, said.session, time.time()
        )
        return {"status": "noted"}
    if said.type == "refused":
        return await _left(service, identity, said)
    known = await _artifact(service, identity, said.key, said.graph)
    if said.type == "acknowledged":
        return await _acknowledge(service, identity, said)
    if said.type == "may-swap":
        about = (identity, said.session, said.graph, said.key, time.time(), service.since)
        verdict = await service.ledger.of(identity.namespace, service.parts.ledger.may_swap, *about)
        return {"status": verdict, **({"retry_after": WAIT_SECONDS} if verdict == WAIT else {})}
    reason = known_reason(said.reason)
    happened = Happened(
        *(said.session, said.seq, said.type, said.graph, said.key, said.exit_code, reason)
    )
    new = await service.ledger.of(
        identity.namespace, service.parts.ledger.happened, identity, happened, time.time()
    )
    answer: dict[str, Any] = {"status": "noted" if new else OLD, "request": known.request}
    if said.group:
        answer["group"] = await _latest(service, identity, said.group)
    return answer


async def _left(service: Service, identity: Identity, said: Event) -> dict[str, Any]:
    """A refusal inside the job. What its own code never says is "other"; alarms about the
    workers' results are of their answers alone."""
    reason = said.reason if said.reason in JOB_REASONS else OTHER
    left = Left(said.session, said.seq, said.graph, reason, said.final)
    new = await service.ledger.of(
        identity.namespace, service.parts.ledger.left, identity, left, time.time()
    )
    if new and left.final and left.graph:
        service.sightings.left(identity, left.graph, reason, time.time())
    return {"status": "noted" if new else OLD}


async def save(service: Service, identity: Identity, said: Savings) -> dict[str, Any]:
    """Count a report of savings. Raises Rejected: NOT_FOUND, IMPLAUSIBLE."""
    known = await _artifact(service, identity, said.key, said.graph)
    report = Report(
        *(said.seq, said.steps, said.baseline_ns, said.stitched_ns, said.lost_ns),
        *(said.devices, said.measured),
        bounds=_bounds(said),
    )
    session, ratio, now = said.session, known.ratio or 1.0, time.time()
    outcome = await service.ledger.of(
        identity.namespace,
        service.parts.ledger.save,
        identity,
        session,
        said.graph,
        report,
        ratio,
        now,
    )
    if outcome not in (COUNTED, OLD):
        raise Rejected(Problem.IMPLAUSIBLE, outcome)
    return {"status": outcome}


def _bounds(said: Savings) -> tuple[int, int] | None:
    """The interval in whole nanoseconds."""
    if not said.measured:
        return None
    low, high = (max(-MOST, min(int(end or 0), MOST)) for end in said.interval or ())
    return low, high


async def _artifact(service: Service, identity: Identity, key: str, digest: str) -> Known:
    known = await service.known(identity.namespace, key)
    if known.digest != digest:
        raise Rejected(Problem.NOT_FOUND, f"{key[:12]} is not of graph {digest[:12]}")
    return known


async def _acknowledge(service: Service, identity: Identity, said: Event) -> dict[str, Any]:
    if not said.group:
        raise Rejected(Problem.BAD_REQUEST, "acknowledged: `group` is missing")
    about = (said.session, said.key, said.size, said.rank)
    word = Acknowledgement(*about, said.step, said.confirm, said.margin)
    ledger, now = service.parts.ledger, time.time()
    group = await service.ledger.of(
        identity.namespace, ledger.acknowledge, identity, said.group, said.round, word, now
    )
    latest = await service.ledger.of(identity.namespace, ledger.latest_round, identity, said.group)
    answer: dict[str, Any] = {
        "status": "noted",
        "group": {**_document(group), "round": said.round, "latest_round": latest},
    }
    if group.step:
        answer["swap_at"] = group.step
    return answer


async def _latest(service: Service, identity: Identity, name: str) -> Mapping[str, Any]:
    latest = await service.ledger.of(
        identity.namespace, service.parts.ledger.latest_round, identity, name
    )
    return {"latest_round": latest}


def _document(group: Group) -> dict[str, Any]:
    document = {"state": group.state, "members": len(group.members), "size": group.size}
    return document | ({"reason": group.reason} if group.reason else {})
