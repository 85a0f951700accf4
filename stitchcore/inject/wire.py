"""One HTTPS request with a deadline: how the job side talks to a gateway.

TLS 1.2 or newer, trust in the configured CA only, no proxies, no redirects. Every byte that is
sent or received counts against one deadline, so a peer that drips bytes is no slower than a dead
one; every answer has a size limit. Nothing here retries: gateway.py decides what a failure means.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from . import reasons

CONNECT_SECONDS = 5.0
CHUNK = 1 << 16
BAD_TOKEN = re.compile(r"[^\x21-\x7e]")
TOKEN_BYTES = 1 << 16


@dataclass(frozen=True)
class Endpoint:
    """Where the gateway is, and what its requests are made with. `ca` is a file of certificates;
    `token_file` is read anew for each request, because the cluster rotates tokens. `server_name` is
    the certificate's where the host is an address that it does not name; "" for the host."""

    host: str
    port: int
    ca: str
    token_file: str
    server_name: str = ""


@dataclass(frozen=True)
class Response:
    """A whole answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def parse_url(url: str, ca: str, token_file: str, server_name: str = "") -> Endpoint:
    """`https://host[:port]` without path, user or query. Raises Refused(HOOK_ERROR)."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or 443
    except ValueError as error:
        raise reasons.Refused(reasons.HOOK_ERROR, f"STITCH_GATEWAY: {error}") from error
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme != "https" or not parts.hostname or parts.username or not plain:
        raise reasons.Refused(reasons.HOOK_ERROR, "STITCH_GATEWAY is not https://host:port")
    return Endpoint(parts.hostname, port, ca, token_file, server_name)


class _Reader(io.RawIOBase):
    """What `http.client` reads an answer from: each read ends at the deadline."""

    def __init__(self, connection: "_Deadline") -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connection.receive(buffer)


class _Deadline:
    """As much of a socket as `http.client` uses, with one deadline for everything."""

    def __init__(self, connection: ssl.SSLSocket, deadline: float) -> None:
        self._socket = connection
        self._deadline = deadline

    def _remaining(self) -> float:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise socket.timeout("deadline")
        return seconds

    def receive(self, buffer: Any) -> int:
        self._socket.settimeout(self._remaining())
        return self._socket.recv_into(buffer)

    def sendall(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            self._socket.settimeout(self._remaining())
            view = view[self._socket.send(view[:CHUNK]) :]

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        self._socket.close()


def context(ca: str) -> ssl.SSLContext:
    """Trusts `ca` and nothing else. Raises Refused(GATEWAY_UNTRUSTED) when it cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise reasons.Refused(reasons.GATEWAY_UNTRUSTED, f"STITCH_CA {ca}: {error}") from error
    return context


def _token(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(TOKEN_BYTES).strip()
    except (OSError, ValueError) as error:
        detail = f"STITCH_TOKEN_FILE {path}: {error}"
        raise reasons.Refused(reasons.GATEWAY_DENIED, detail) from error
    if not token or BAD_TOKEN.search(token):
        raise reasons.Refused(reasons.GATEWAY_DENIED, f"STITCH_TOKEN_FILE {path} holds no token")
    return token


def _connect(endpoint: Endpoint, deadline: float) -> _Deadline:
    seconds = min(CONNECT_SECONDS, deadline - time.monotonic())
    if seconds <= 0:
        raise socket.timeout("deadline")
    trusted = context(endpoint.ca)
    plain = socket.create_connection((endpoint.host, endpoint.port), timeout=seconds)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = endpoint.server_name or endpoint.host
        return _Deadline(trusted.wrap_socket(plain, server_hostname=name), deadline)
    except BaseException:
        plain.close()
        raise


def _read(answer: http.client.HTTPResponse, limit: int) -> bytes:
    parts, size = [], 0
    while True:
        part = answer.read(CHUNK)
        if not part:
            break
        size += len(part)
        if size > limit:
            raise reasons.Refused(reasons.GATEWAY_ERROR, f"an answer of more than {limit} bytes")
        parts.append(part)
    promised = answer.getheader("Content-Length")
    if promised is not None and promised != str(size):  # read(n) does not say so itself
        raise http.client.IncompleteRead(b"")
    return b"".join(parts)


def request(
    endpoint: Endpoint,
    method: str,
    path: str,
    body: Optional[bytes],
    headers: Mapping[str, str],
    seconds: float,
    limit: int,
) -> Response:
    """Sends one request and reads the whole answer, of at most `limit` bytes, within `seconds`.

    Raises Refused: GATEWAY_UNREACHABLE (no connection, or no whole answer in time),
    GATEWAY_UNTRUSTED (its certificate, or the configured CA), GATEWAY_DENIED (no token to send),
    GATEWAY_ERROR (not HTTP, too long, a redirect).
    """
    sent = {**headers, "Authorization": f"Bearer {_token(endpoint.token_file)}"}
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port)
    try:
        connection.sock = _connect(endpoint, time.monotonic() + seconds)
        connection.request(method, path, body=body, headers=sent)
        answer = connection.getresponse()
        if 300 <= answer.status < 400 and answer.status != 304:
            raise reasons.Refused(reasons.GATEWAY_ERROR, f"redirects ({answer.status})")
        received = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, received, _read(answer, limit))
    except ssl.SSLCertVerificationError as error:
        raise reasons.Refused(reasons.GATEWAY_UNTRUSTED, error.verify_message) from error
    except (OSError, http.client.IncompleteRead) as error:
        # Timeouts, refused or broken connections, names that do not resolve, TLS alerts.
        detail = f"{type(error).__name__}: {error}"
        raise reasons.Refused(reasons.GATEWAY_UNREACHABLE, detail) from error
    except http.client.HTTPException as error:
        detail = f"not HTTP: {type(error).__name__}"
        raise reasons.Refused(reasons.GATEWAY_ERROR, detail) from error
    finally:
        connection.close()
