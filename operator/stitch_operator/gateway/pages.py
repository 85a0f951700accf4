"""Report pages of artifacts and jobs, for the namespace that they are of.

A page is drawn here, from report.json: an artifact's own report.html was written by a process that
ran on a stranger's graph, and what it wrote is never sent to a browser.
"""

from __future__ import annotations

import re

import msgspec

from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.service import Service
from stitch_operator.gateway.standing import Standing
from stitchcore.artifact.manifest import MAXIMUM_PARSED_BYTES
from stitchcore.artifact.ratio import REPORT
from stitchcore.artifact.store import Store
from stitchcore.errors import Reason, Refused
from stitchcore.report import render
from stitchcore.report import schema as reports
from stitchcore.report.job import Job
from stitchcore.report.schema import Report

JOB = re.compile(r"[A-Za-z0-9._:-]{1,128}")
HEADERS = {
    "Content-Security-Policy": render.policy() + render.HEADERS_ONLY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
}
"""Of every page: whatever a report says, nothing runs but the page's own script."""


async def artifact(service: Service, identity: Identity, key: str) -> str | Standing:
    """The page of an artifact that the namespace handed in the graph of; where it stands while it
    is not ready. Raises Rejected: NOT_FOUND, REVOKED, UNAVAILABLE."""
    if service.trust is None:
        raise Rejected(Problem.UNAVAILABLE, "the revocation list has not been read yet")
    standing = await service.standing(identity, key)
    if standing.status != "ready":
        return standing
    if standing.key in service.trust.revoked:
        raise Rejected(Problem.REVOKED, f"artifact {standing.key[:12]} is revoked")
    return await service.pages.of(
        identity.namespace, _artifact, service.parts.store, standing.key, None
    )


async def job(service: Service, identity: Identity, name: str) -> str:
    """The page of a job: what it measured, with the report of the graph that ran the most stitched
    steps. Raises Rejected: BAD_REQUEST, NOT_FOUND, UNAVAILABLE."""
    if not JOB.fullmatch(name):
        raise Rejected(Problem.BAD_REQUEST, "no name of a workload, uid of a pod, or session")
    found = await service.ledger.of(
        identity.namespace, service.parts.ledger.job, identity.namespace, name, identity.devices
    )
    if found is None:
        what = f"namespace {identity.namespace!r} has no job {name!r} that was heard"
        raise Rejected(Problem.NOT_FOUND, what)
    key = next((graph.key for graph in found.graphs if graph.key), "")
    return await service.pages.of(identity.namespace, _artifact, service.parts.store, key, found)


def _artifact(store: Store, key: str, of: Job | None) -> str:
    """Raises Refused: STORE_UNREADABLE, BAD_ARTIFACT."""
    known = bool(key) and store.exists("artifacts", key, REPORT)
    if of is None and not known:
        raise Refused(key, Reason.BAD_ARTIFACT, "it has no report")
    report = _read(store, key) if known else Report("no artifact", "no device")
    try:
        return render.html(report, of)
    except (ValueError, OverflowError, RecursionError) as error:
        raise Refused(key, Reason.BAD_ARTIFACT, f"its report: {error!r}") from error


def _read(store: Store, key: str) -> Report:
    data = store.read("artifacts", key, REPORT)
    if len(data) > MAXIMUM_PARSED_BYTES:
        raise Refused(key, Reason.BAD_ARTIFACT, "its report is larger than reports are")
    try:
        return reports.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(key, Reason.BAD_ARTIFACT, f"its report: {error}") from error
