"""A gateway for tests: real HTTPS on a port of this machine, answers written by the test.

`answer` gets each request and returns a Reply; what a Reply says beside a body is how a gateway can
misbehave: never answer, cut the answer off, send a byte now and then.
"""

from __future__ import annotations

import datetime
import gzip
import io
import ipaddress
import json
import ssl
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

TOKEN = "a-token"


@dataclass(frozen=True)
class Asked:
    """A request; `document` is its JSON body, {} without one."""

    method: str
    path: str
    headers: Mapping[str, str]
    document: dict[str, Any]
    time: float


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: float = 0.0  # seconds before anything is sent
    cut: int | None = None  # close after so many bytes of the body, of a longer promised one
    drip: float = 0.0  # seconds between single bytes of the body
    raw: bytes | None = None  # sent instead of an HTTP answer


def reply(status: int, document: Mapping[str, Any], **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps(document).encode(), named)


Answer = Callable[[Asked], Reply]


@dataclass
class Server:
    url: str
    ca: Path
    token_file: Path
    asked: list[Asked]

    def settings(self, **extra: str) -> dict[str, str]:
        return {
            "STITCH_GATEWAY": self.url,
            "STITCH_CA": str(self.ca),
            "STITCH_TOKEN_FILE": str(self.token_file),
            **extra,
        }

    def paths(self) -> list[str]:
        return [f"{one.method} {one.path}" for one in self.asked]


def certificate(folder: Path, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """A self-signed certificate for an address, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stitch test gateway")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address(host))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    public, private = folder / "ca.pem", folder / "key.pem"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return public, private


def tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _handler(answer: Answer, asked: list[Asked], closing: threading.Event) -> type:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            document = json.loads(body) if body else {}
            one = Asked(self.command, self.path, headers, document, time.monotonic())
            asked.append(one)
            if headers.get("authorization") != f"Bearer {TOKEN}":
                self._send(reply(401, {"reason": "unauthorized"}))
            else:
                self._send(answer(one))

        do_GET = do_POST = _serve

        def _send(self, made: Reply) -> None:
            self.close_connection = True
            closing.wait(made.hang)
            if made.raw is not None:
                self.wfile.write(made.raw)
                return
            self.send_response(made.status)
            for name, value in made.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(made.body)))
            self.end_headers()
            if made.drip:
                for byte in made.body:
                    self.wfile.write(bytes([byte]))
                    if closing.wait(made.drip):
                        return
            else:
                self.wfile.write(made.body[: made.cut])

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing is written: tests look at `asked`."""

    return Handler


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what these tests are about."""


@contextmanager
def serve(folder: Path, answer: Answer, tls: ssl.TLSVersion | None = None) -> Iterator[Server]:
    """A gateway with certificate and token file in `folder`; `tls` is the newest it speaks."""
    public, private = certificate(folder)
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    asked: list[Asked] = []
    closing = threading.Event()
    server = _Quiet(("127.0.0.1", 0), _handler(answer, asked, closing))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if tls is not None:
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = tls
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.load_cert_chain(public, private)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        url = f"https://127.0.0.1:{server.server_address[1]}"
        yield Server(url, public, token, asked)
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
