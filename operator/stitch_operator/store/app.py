"""HTTP of the store: files by name, folders as lists; who may touch what is in access.py.

Answers that are no file are JSON or a line of text. Bodies are streamed to the volume, never held.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stitch_operator import metrics
from stitch_operator.gateway.identity import Cached
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.store.access import DELETE, READ, WRITE, allowed, parts_of
from stitch_operator.store.files import Files, Parts, Receiving

LOG = logging.getLogger("stitch.store")
VERBS = {"GET": READ, "PUT": WRITE, "DELETE": DELETE}
FILE_BYTES = 2 * 2**30
BODY_SECONDS = 300.0
CHUNK_BYTES = 2**18
FULL = 507
Handler = Callable[["Server", Request, Parts], Awaitable[Response]]


class Metrics:
    """What the store counts, on a registry of its own. Labels from closed lists."""

    def __init__(self, free: Callable[[], int]) -> None:
        self.registry = made = CollectorRegistry()
        self.requests = metrics.counter("stitch_store_requests_total", made)
        metrics.gauge("stitch_store_free_bytes", made).set_function(free)
        self.certificate = metrics.certificate(metrics.Part.STORE, made)


@dataclass(frozen=True)
class Server:
    """What the server is made of."""

    files: Files
    accounts: Cached[str]
    metrics: Metrics
    file_bytes: int = FILE_BYTES


def application(server: Server) -> Starlette:
    """The ASGI application."""

    def route(path: str, handlers: dict[str, Handler]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answered(server, request, handlers[request.method])

        made = Route(path, endpoint, methods=list(handlers))
        made.methods = set(handlers)  # HEAD, which Starlette adds, has no body to say why not
        return made

    async def healthy(_request: Request) -> Response:
        return _text(200, "ok")

    async def ready(_request: Request) -> Response:
        try:
            await asyncio.to_thread(_probe, server.files)
        except OSError as error:
            return _text(503, f"the volume takes no file: {error.strerror}")
        return _text(200, "ready")

    files: dict[str, Handler] = {"GET": _read, "PUT": _write, "DELETE": _delete}
    return Starlette(
        routes=[
            route("/v1/files/{path:path}", files),
            route("/v1/entries/{path:path}", {"GET": _entry}),
            route("/v1/folders/{path:path}", {"GET": _listed}),
            route("/v1/trees/{path:path}", {"GET": _below}),
            Route("/healthz", healthy, methods=["GET"]),
            Route("/readyz", ready, methods=["GET"]),
        ]
    )


def _probe(files: Files) -> None:
    with files.receiving((".probe-0",)) as body:
        body.file.write(b"x")
        body.file.flush()


async def _answered(server: Server, request: Request, handler: Handler) -> Response:
    role = "none"
    try:
        role = await _role(server, request)
        try:
            parts = parts_of(request.path_params["path"])
        except ValueError as error:
            raise Rejected(Problem.BAD_REQUEST, str(error)) from error
        verb = VERBS[request.method]
        if not allowed(role, verb, parts):
            raise Rejected(Problem.FORBIDDEN, f"a {role} may not {verb} {'/'.join(parts)}")
        answer = await handler(server, request, parts)
    except Rejected as rejected:
        LOG.warning("%s %s by %s: %s", request.method, request.url.path, role, rejected)
        answer = _text(rejected.problem.value.status, rejected.what)
    except ClientDisconnect:
        answer = Response(status_code=400)
    except OSError as error:
        LOG.exception("%s %s", request.method, request.url.path)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        answer = _text(FULL if full else 500, error.strerror or type(error).__name__)
    server.metrics.requests.labels(role, request.method, str(answer.status_code)).inc()
    return answer


async def _role(server: Server, request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Rejected(Problem.UNAUTHORIZED, "send a token: Authorization: Bearer TOKEN")
    known = server.accounts.remembered(token)
    if known is not None:
        return known
    address = request.client.host if request.client else ""
    return await asyncio.to_thread(server.accounts.identify, token, address)


async def _read(server: Server, _request: Request, parts: Parts) -> Response:
    file = await asyncio.to_thread(server.files.opened, parts)
    if file is None:
        raise Rejected(Problem.NOT_FOUND, f"{'/'.join(parts)} is not there")
    size = os.fstat(file.fileno()).st_size
    return StreamingResponse(
        _chunks(file),
        headers={"content-length": str(size)},
        media_type="application/octet-stream",
    )


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Of the file that was opened, though another one has taken its name meanwhile."""
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


async def _entry(server: Server, _request: Request, parts: Parts) -> Response:
    entry = await asyncio.to_thread(server.files.entry, parts)
    return _json(entry) if entry is not None else _text(404, f"{'/'.join(parts)} is not there")


async def _write(server: Server, request: Request, parts: Parts) -> Response:
    with server.files.receiving(parts) as body:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                await _receive(request, body, server.file_bytes)
        except TimeoutError:
            raise Rejected(Problem.TIMEOUT, f"the body takes over {BODY_SECONDS:g} s") from None
        await asyncio.to_thread(body.keep)
    return Response(status_code=204)


async def _receive(request: Request, body: Receiving, most: int) -> None:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise Rejected(Problem.TOO_LARGE, f"a file has at most {most} bytes")
        await asyncio.to_thread(body.file.write, chunk)


async def _delete(server: Server, _request: Request, parts: Parts) -> Response:
    found = await asyncio.to_thread(server.files.remove, parts)
    return Response(status_code=204 if found else 404)


async def _listed(server: Server, _request: Request, parts: Parts) -> Response:
    return _json(await asyncio.to_thread(server.files.listed, parts))


async def _below(server: Server, _request: Request, parts: Parts) -> Response:
    return _json(await asyncio.to_thread(server.files.below, parts))


def _json(found: object) -> Response:
    return Response(msgspec.json.encode(found), media_type="application/json")


def _text(status: int, text: str) -> Response:
    return Response(text + "\n", status_code=status, media_type="text/plain")
