"""How the HTTPS servers of the service treat connections: uvicorn's, with an end to waiting.

uvicorn waits for ever for a request that does not come, for a body that stops and for a reader that
does not read. Here each of them has its time, and an address has so many connections and no more.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS, ANSWER_SECONDS = 10.0, 600.0
HEADER_BYTES = 64 * 2**10
MOST_OF_ADDRESS = 1024
PART_BYTES = 64 * 2**10


def settings(
    application: ASGIApp,
    context: Callable[[], ssl.SSLContext],
    body_seconds: float,
    shutdown_seconds: int,
    **more: Any,
) -> uvicorn.Config:
    """A server of `application`, with the certificate that `context` has at its start. A request's
    head may take HEADER_SECONDS, its body `body_seconds`, answer and reading of it ANSWER_SECONDS;
    then the connection is closed. An answer is sent in parts: what is handed over whole counts as
    sent before any of it is read, and a slow reader's next head is waited for. An idle connection
    is kept as long as a head may take: clients that keep theirs for five seconds (httpx's own
    time, and uvicorn's) would else write into one that is being closed."""
    connections: Counter[str] = Counter()

    def protocol(*arguments: Any, **named: Any) -> asyncio.Protocol:
        return _Bounded(connections, body_seconds, *arguments, **named)

    made = uvicorn.Config(
        in_parts(application),
        http="h11",
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(HEADER_SECONDS),
        timeout_graceful_shutdown=shutdown_seconds,
        h11_max_incomplete_event_size=HEADER_BYTES,
        ssl_context_factory=lambda _config, _default: context(),
        **more,
    )
    made.load()
    made.http_protocol_class = protocol  # type: ignore[assignment]  # called, and nothing else
    return made


def in_parts(application: ASGIApp) -> ASGIApp:
    """`application`, no more of whose answers in memory than is read."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_parts(message: Message) -> None:
            body = message.get("body", b"")
            last = max(len(body) - 1, 0) // PART_BYTES * PART_BYTES
            for begin in range(0, last, PART_BYTES):
                part = body[begin : begin + PART_BYTES]
                await send({"type": message["type"], "body": part, "more_body": True})
            await send({**message, "body": body[last:]} if last else message)

        await application(scope, receive, send_parts)

    return served


class _Bounded(H11Protocol):
    """A connection whose requests come in time, and whose answers are read in time."""

    def __init__(
        self, connections: Counter[str], body_seconds: float, *arguments: Any, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._connections = connections
        self._seconds = {h11.IDLE: HEADER_SECONDS, h11.SEND_BODY: body_seconds}
        self._address = ""
        self._state: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else "?"
        self._connections[self._address] += 1
        if self._connections[self._address] > MOST_OF_ADDRESS:
            transport.abort()
        else:
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connections[self._address] -= 1
        if not self._connections[self._address]:
            del self._connections[self._address]
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Begin to count anew where the request has come further, not with each byte of it."""
        state = self.conn.their_state
        if state is self._state:
            return
        self._state = state
        if self._timer is not None:
            self._timer.cancel()
        seconds = self._seconds.get(state, ANSWER_SECONDS)
        self._timer = self.loop.call_later(seconds, self.transport.abort)
