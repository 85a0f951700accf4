"""Whoever can open a connection can hold nobody else up: not a server, not its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stitch_operator import connections, metrics_server
from stitch_operator.gateway import tls
from tests.waiting import wait_for

LARGE = 64 * 2**20
PATIENCE = 30.0


async def _echo(request: Request) -> Response:
    return Response(await request.body())


async def _large(_request: Request) -> Response:
    return Response(bytes(LARGE))


@pytest.fixture
def serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[int, uvicorn.server.ServerState]]:
    """The port and the state of a server that waits half a second for everything, and takes four of
    an address."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "MOST_OF_ADDRESS", 4)
    tls.make(tmp_path, ["localhost", "127.0.0.1"])
    app = Starlette(routes=[Route("/", _echo, methods=["POST"]), Route("/large", _large)])
    context = tls.context(tmp_path / "gateway.pem", tmp_path / "gateway.key")
    settings = connections.settings(app, lambda: context, 0.5, 1, lifespan="off")
    server = uvicorn.Server(settings)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    yield int(listening.getsockname()[1]), server.server_state
    server.should_exit = True
    thread.join()


@pytest.fixture
def port(serving: tuple[int, uvicorn.server.ServerState]) -> int:
    return serving[0]


@contextmanager
def connected(port: int, folder: Path, source: str = "127.0.0.1") -> Iterator[ssl.SSLSocket]:
    with socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0)) as plain:
        yield tls.trusting(folder / "ca.pem").wrap_socket(plain, server_hostname="localhost")


def ended(connection: ssl.SSLSocket, drip: bytes = b"") -> bool:
    """Whether the server ends the connection, to which `drip` is said all the time."""
    connection.settimeout(0.1)
    for _ in range(int(PATIENCE / 0.1)):
        try:
            if drip:
                connection.send(drip)
            if not connection.recv(4096):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"


@pytest.mark.parametrize(
    ("said", "drip"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\n", b"A: b\r\n"),
        (POST + b"\r\n", b""),
        (POST + b"\r\nall of it" + b"GET / HTTP/1.1\r\n", b"A: b\r\n"),
    ],
    ids=["silent", "head that drips", "body that stops", "second head that drips"],
)
def test_a_request_that_does_not_come_is_waited_for_so_long(
    port: int, tmp_path: Path, said: bytes, drip: bytes
) -> None:
    with connected(port, tmp_path) as connection:
        connection.sendall(said)
        assert ended(connection, drip)


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_not_kept(
    serving: tuple[int, uvicorn.server.ServerState], tmp_path: Path
) -> None:
    port, state = serving
    with connected(port, tmp_path) as connection:
        wait_for(lambda: bool(state.connections))
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: not state.connections, "it is not ended")
        read = 0
        with contextlib.suppress(OSError):
            while got := len(connection.recv(2**20)):
                read += got
        assert read < LARGE, "it ends before all was read"


def test_a_slow_reader_is_given_the_time_of_an_answer(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the next request's head, which begins when an answer is sent: an artifact over a
    slow line never arrived."""
    monkeypatch.setattr(connections, "ANSWER_SECONDS", PATIENCE)
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.1)
    with connected(port, tmp_path) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        read = bytearray()
        while len(read) < LARGE:
            if len(read) < 2**20:
                threading.Event().wait(0.05)
            got = connection.recv(2**16)
            assert got, f"ended after {len(read)} bytes"
            read += got


def test_an_idle_connection_outlives_what_a_client_keeps() -> None:
    """Closed by the server after as many seconds as the client keeps it, it takes a request with
    it: a job's graph was answered "Server disconnected without sending a response"."""
    kept = httpx.Limits().keepalive_expiry
    settings = connections.settings(Starlette(), ssl.create_default_context, 1.0, 1)
    assert kept is not None
    assert min(settings.timeout_keep_alive, connections.HEADER_SECONDS) > kept


def test_one_address_does_not_take_all_connections(port: int, tmp_path: Path) -> None:
    url = f"https://127.0.0.1:{port}/"
    trusting = tls.trusting(tmp_path / "ca.pem")
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    wrapped = [trusting.wrap_socket(one, server_hostname="localhost") for one in held]
    for one in wrapped:
        one.sendall(POST + b"\r\nall of it")  # they stay open for the keep-alive's time
        assert one.recv(100).startswith(b"HTTP/1.1 200")
    with connected(port, tmp_path), connected(port, tmp_path) as fifth:
        assert ended(fifth)
        elsewhere = httpx.HTTPTransport(verify=trusting, local_address="127.0.0.2")
        with httpx.Client(transport=elsewhere) as client:
            assert client.post(url, content=b"x").content == b"x"
    for one in wrapped:
        one.close()


@pytest.mark.slow
def test_silent_connections_do_not_keep_metrics_from_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reconciler's port served one connection at a time: one that said nothing held its probe
    up, and it was restarted."""
    monkeypatch.setattr(metrics_server, "SECONDS", 5.0)
    port = metrics_server.serve_metrics("127.0.0.1", 0, CollectorRegistry())
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(transport=elsewhere, trust_env=False) as client:
        assert client.get(f"http://127.0.0.1:{port}/metrics").status_code == 200
    assert sum(thread.name.startswith("Thread") for thread in threading.enumerate()) < 50
    silent[0].settimeout(PATIENCE)
    assert silent[0].recv(1) == b"", "it is ended"
    for one in silent:
        one.close()
