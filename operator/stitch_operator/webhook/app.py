"""The webhook over HTTP: `/mutate/pods`, `/mutate/workloads`, `/healthz`, `/readyz`.

A review is always answered with `allowed: true`: whatever fails here, the pod is created, and what
failed is counted and logged. Nothing is written anywhere (`sideEffects: None`), so a dry run is a
review like any other but is not counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from stitch_operator.webhook import review, workloads
from stitch_operator.webhook.injection import Situation, decide
from stitch_operator.webhook.metrics import Metrics
from stitch_operator.webhook.reasons import Reason, Skip
from stitch_operator.webhook.release import Release
from stitch_operator.webhook.review import Asked
from stitch_operator.webhook.surroundings import Surroundings
from stitch_operator.webhook.trust import Trust

LOG = logging.getLogger("stitch.webhook")
BODY_BYTES = 8 * 2**20
"""Of a review: an object has 1.5 MiB at most where etcd keeps it, and may stand there twice."""
Check = Callable[[], Awaitable[str]]
"""What keeps the process from being ready, or ""."""


@dataclass(frozen=True)
class Parts:
    """What the application is made of."""

    release: Release
    surroundings: Surroundings
    metrics: Metrics
    check: Check


class TooLarge(ValueError):
    """A body of more than BODY_BYTES."""


def application(parts: Parts) -> Starlette:
    """The ASGI application."""

    def hook(name: str, answered: Callable[[Parts, Asked], bytes]) -> Route:
        async def endpoint(request: Request) -> Response:
            begun = time.perf_counter()
            try:
                body = await _body(request)
            except ClientDisconnect:
                return Response(status_code=400)
            except TooLarge as error:
                parts.metrics.malformed.inc()
                return _text(413, str(error))
            whole = time.perf_counter()
            response = _response(parts, body, answered)
            parts.metrics.reading.labels(name).observe(whole - begun)
            parts.metrics.duration.labels(name).observe(time.perf_counter() - whole)
            return response

        return Route(f"/mutate/{name}", endpoint, methods=["POST"], name=name)

    async def healthy(_request: Request) -> Response:
        return _text(200, "ok")

    async def ready(_request: Request) -> Response:
        if not parts.surroundings.ready():
            return _text(503, "policies have not been read yet")
        if parts.surroundings.trust() is None:
            return _text(503, "whom pods trust has not been read yet")
        missing = await parts.check()
        return _text(503, missing) if missing else _text(200, "ready")

    return Starlette(
        routes=[
            hook("pods", of_pod),
            hook("workloads", of_workload),
            Route("/healthz", healthy, methods=["GET"]),
            Route("/readyz", ready, methods=["GET"]),
        ]
    )


def _response(parts: Parts, body: bytes, answered: Callable[[Parts, Asked], bytes]) -> Response:
    try:
        asked = review.read(body)
    except ValueError as error:
        parts.metrics.malformed.inc()
        return _text(400, str(error))
    return Response(answered(parts, asked), media_type="application/json")


async def _body(request: Request) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES:
            raise TooLarge(f"a review has at most {BODY_BYTES} bytes")
    return bytes(data)


def of_pod(parts: Parts, asked: Asked) -> bytes:
    """The answer for a pod. Never raises."""
    counted = not asked.dry_run
    try:
        if asked.operation != "CREATE" or asked.kind.kind != "Pod":
            return review.answer(asked.uid)
        trust = parts.surroundings.trust()
        if trust is None or not parts.surroundings.ready():
            raise Skip(Reason.NOT_READY)
        situation = _situation(parts.surroundings, trust, asked)
        decision = decide(asked.object, situation, parts.release)
        reason = decision.reason.word if decision.reason else ""
        if counted:
            parts.metrics.injection(decision.result, reason)
        outcome = f"{decision.result} {reason}".strip()
        return review.answer(asked.uid, decision.operations, decision.text, outcome)
    except Skip as skip:
        if counted:
            parts.metrics.injection("skipped", skip.reason.word)
        return review.answer(asked.uid, (), skip.text, f"skipped {skip.reason.word}")
    except Exception:
        LOG.exception("a pod of namespace %r", asked.namespace)
        if counted:
            parts.metrics.injection("error", Reason.INTERNAL.word)
        return review.answer(asked.uid, (), Skip(Reason.INTERNAL).text, "error internal")


def of_workload(parts: Parts, asked: Asked) -> bytes:
    """The answer for a workload. Never raises."""
    counted = not asked.dry_run
    try:
        if asked.operation != "CREATE":
            return review.answer(asked.uid)
        inherited = _inherited(parts.surroundings, asked)
        made = workloads.stamp(asked.kind.group, asked.kind.kind, asked.object, inherited)
        if counted:
            parts.metrics.stamp("stamped" if made else "unchanged")
        return review.answer(asked.uid, made, "", "stamped" if made else "")
    except Exception:
        LOG.exception("a %s of namespace %r", asked.kind.kind, asked.namespace)
        if counted:
            parts.metrics.stamp("error")
        return review.answer(asked.uid, (), Skip(Reason.INTERNAL).text, "error internal")


def _situation(surroundings: Surroundings, trust: Trust, asked: Asked) -> Situation:
    name = asked.namespace
    return Situation(
        namespace=surroundings.namespace(name),
        trust=trust,
        policies=surroundings.policies(),
        limit_ranges=surroundings.limit_ranges(name),
        broken=surroundings.broken(name),
        failed=surroundings.failed(name),
    )


def _inherited(surroundings: Surroundings, asked: Asked) -> dict[str, str]:
    """What a Job takes over from its CronJob, which may have been annotated after it was made."""
    metadata = asked.object.get("metadata") or {}
    owners = [one for one in metadata.get("ownerReferences") or [] if one.get("controller")]
    if not owners or owners[0].get("kind") != "CronJob":
        return {}
    return dict(surroundings.cron_job(asked.namespace, str(owners[0]["name"])))


def _text(status: int, text: str) -> Response:
    return Response(text + "\n", status_code=status, media_type="text/plain")
