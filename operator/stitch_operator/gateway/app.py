"""HTTP: routes, authentication, limits, problems as JSON. What the calls do is in service.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from stitch_operator.gateway import body, pages, reports
from stitch_operator.gateway.body import GRAPHS, REPORTS, Limits
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.openapi import document
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.records import Event, Record, Savings, SubmitGraph, decode
from stitch_operator.gateway.service import Service
from stitch_operator.gateway.standing import Standing
from stitch_operator.gateway.trust import Trust

LOG = logging.getLogger("stitch.gateway")
BODY_SECONDS, DRAIN_SECONDS = 60.0, 5.0
DRAINED_BYTES = 16 * 2**20
"""Of a refused body: read on so far, so that the client reads the answer and not a reset."""
BY_STATUS = {404: Problem.NOT_FOUND, 405: Problem.METHOD_NOT_ALLOWED}
KEY_LENGTH = 64
CLOCK_SECONDS = 10.0
"""By which a gateway's clock may differ from that of a ledger which others write too."""
RUNNING = "stitch-running"
"""Header: keys of the artifacts that a job runs; it is told which of them are revoked."""
Handler = Callable[[Service, Request, Identity], Awaitable[Response]]


def application(service: Service) -> Starlette:
    """The ASGI application; the service lives as long as it does."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    def route(path: str, method: str, name: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answered(service, request, name, handler)

        return Route(path, endpoint, methods=[method], name=name)

    async def ready(request: Request) -> Response:
        return await _ready(service, request)

    def failed(_request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        problem = BY_STATUS.get(status, Problem.INTERNAL)
        response = _problem(Rejected(problem, "there is no such path or method"))
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    return Starlette(
        routes=[
            route("/v1/graphs", "POST", "submit", _submit),
            route("/v1/graphs/{key}", "GET", "standing", _standing),
            route("/v1/artifacts/{key}", "GET", "artifact", _artifact),
            route("/v1/artifacts/{key}/report.html", "GET", "page", _artifact_page),
            route("/v1/jobs/{job}/report.html", "GET", "page", _job_page),
            route("/v1/jobs/events", "POST", "event", _event),
            route("/v1/savings", "POST", "savings", _savings),
            route("/v1/workloads", "GET", "workloads", _workloads),
            Route("/v1/openapi.json", _openapi, methods=["GET"]),
            Route("/healthz", _healthy, methods=["GET"]),
            Route("/readyz", ready, methods=["GET"]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: failed},
    )


async def _answered(service: Service, request: Request, name: str, handler: Handler) -> Response:
    """A call's answer, or its problem, counted and timed."""
    start = time.perf_counter()
    try:
        address = request.client.host if request.client else ""
        identity = await service.identify(_token(request), address)
        wait = service.calls.take(identity.namespace, 1, time.monotonic())
        if wait:
            raise Rejected(Problem.RATE_LIMITED, "too many calls", wait)
        if handler is not _workloads:  # the reconciler is no job
            service.sightings.saw(identity, time.time())
        response = await handler(service, request, identity)
    except Rejected as rejected:
        response = await _rejected(service, request, rejected)
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception:
        LOG.exception("%s", name)
        what = "the gateway failed at this request"
        response = await _rejected(service, request, Rejected(Problem.INTERNAL, what))
    status = f"{response.status_code // 100}xx"
    service.metrics.requests.labels(name, status).observe(time.perf_counter() - start)
    return response


async def _rejected(service: Service, request: Request, rejected: Rejected) -> Response:
    if rejected.problem is not Problem.NOT_FOUND:
        service.metrics.rejected(rejected.problem)
    drained = 0
    with contextlib.suppress(RuntimeError, ClientDisconnect, TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for chunk in request.stream():
                drained += len(chunk)
                if drained > DRAINED_BYTES:
                    break
    return _problem(rejected, _trust(service, request))


def _problem(rejected: Rejected, trust: Trust | None = None) -> Response:
    response = _json(rejected.document(), rejected.problem.value.status, trust)
    if rejected.retry_after:
        response.headers["Retry-After"] = str(max(1, round(rejected.retry_after)))
    if rejected.problem is Problem.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _json(content: dict[str, Any], status: int, trust: Trust | None) -> Response:
    """JSON with the public keys and revocations that ride on every answer."""
    if trust is not None:
        riding = trust.document()
        content = {**content, "trust": riding, "revoked": riding["revoked"]}
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _trust(service: Service, request: Request) -> Trust | None:
    found = service.trust
    return found.told_to(request.headers.get(RUNNING)) if found is not None else None


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip() or not token.isascii():
        raise Rejected(Problem.UNAUTHORIZED, "no bearer token")
    return token.strip()


def _key(request: Request) -> str:
    key = str(request.path_params["key"])
    if len(key) != KEY_LENGTH or set(key) - set("0123456789abcdef"):
        raise Rejected(Problem.BAD_REQUEST, "a key has 64 hexadecimal digits")
    return key


async def _decoded(
    request: Request, kind: type[Record], limits: Limits, charge: Callable[[int], None]
) -> Record:
    """The body's record. Each piece is charged before it is kept."""
    encoding = request.headers.get("content-encoding", "").lower()
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limits.sent:
        raise Rejected(Problem.TOO_LARGE, f"more than {limits.sent} bytes")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await body.read(request.stream(), encoding, limits, charge)
    except TimeoutError:
        raise Rejected(Problem.TIMEOUT, f"the body took over {BODY_SECONDS:g} s") from None
    return decode(data, request.headers.get("content-type", ""), kind)


async def _submit(service: Service, request: Request, identity: Identity) -> Response:
    """Bytes are counted as they arrive, of bodies too that never end; a namespace in debt waits."""
    name = identity.namespace

    def pay(size: int, begun: bool = True) -> None:
        wait = service.bytes.take(name, size, time.monotonic(), begun)
        if wait:
            raise Rejected(Problem.RATE_LIMITED, "too many bytes of graphs", wait)

    with service.bodies.holding(name) as hold:

        def charge(size: int) -> None:
            hold(size)
            pay(size)

        pay(0, begun=False)
        asked = await _decoded(request, SubmitGraph, GRAPHS, charge)
        return _stands(await service.submit(identity, asked), service, request)


async def _standing(service: Service, request: Request, identity: Identity) -> Response:
    return _stands(await service.standing(identity, _key(request)), service, request)


async def _artifact(service: Service, request: Request, identity: Identity) -> Response:
    found = await service.artifact(identity, _key(request))
    if isinstance(found, Standing):
        return _stands(found, service, request)
    key, archive = found
    keys = service.trust.public_keys if service.trust is not None else ()
    headers = {
        "ETag": f'"{archive.tag}"',
        "Stitch-Key": key,
        "Stitch-Public-Keys": ",".join(keys),
        "Cache-Control": "private",
    }
    if f'"{archive.tag}"' in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(archive.data, headers=headers, media_type="application/x-tar")


async def _artifact_page(service: Service, request: Request, identity: Identity) -> Response:
    found = await pages.artifact(service, identity, _key(request))
    if isinstance(found, Standing):
        return _stands(found, service, request)
    return HTMLResponse(found, headers=pages.HEADERS)


async def _job_page(service: Service, request: Request, identity: Identity) -> Response:
    found = await pages.job(service, identity, str(request.path_params["job"]))
    return HTMLResponse(found, headers=pages.HEADERS)


async def _event(service: Service, request: Request, identity: Identity) -> Response:
    with service.bodies.holding(identity.namespace) as hold:
        said = await _decoded(request, Event, REPORTS, hold)
        return _json(await reports.event(service, identity, said), 200, _trust(service, request))


async def _savings(service: Service, request: Request, identity: Identity) -> Response:
    with service.bodies.holding(identity.namespace) as hold:
        said = await _decoded(request, Savings, REPORTS, hold)
        return _json(await reports.save(service, identity, said), 200, _trust(service, request))


async def _workloads(service: Service, request: Request, identity: Identity) -> Response:
    """For the reconciler of the release and nobody else: it is of all namespaces."""
    if f"{identity.namespace}/{identity.account}" != service.parts.reader:
        raise Rejected(Problem.FORBIDDEN, "workloads are told to the release's reconciler")
    since = request.query_params.get("since", "")
    found = await service.workloads(since, time.time())
    return _json(msgspec.to_builtins(found), 200, _trust(service, request))


def _stands(standing: Standing, service: Service, request: Request) -> Response:
    told = _trust(service, request)
    response = _json(standing.document(), standing.http_status, told)
    if standing.retry_after:
        response.headers["Retry-After"] = str(max(1, round(standing.retry_after)))
    return response


async def _openapi(_request: Request) -> Response:
    return _json(document(), 200, None)


async def _healthy(_request: Request) -> Response:
    return _json({"status": "ok"}, 200, None)


async def _ready(service: Service, request: Request) -> Response:
    """Ready: the ledger can be read, its clock is this one's, and the store has said which
    artifacts are revoked. Of gateways whose clocks differ one would take the other's word for
    old."""
    try:
        ahead = await service.ledger(service.parts.ledger.clock_differs)
    except Rejected as rejected:
        return _problem(rejected)
    if abs(ahead) > CLOCK_SECONDS:
        what = f"this clock is {ahead:.0f} s ahead of the ledger's"
        return _problem(Rejected(Problem.UNAVAILABLE, what))
    if service.trust is None:
        return _problem(Rejected(Problem.UNAVAILABLE, "the store has not been read yet"))
    return _json({"status": "ready"}, 200, _trust(service, request))
