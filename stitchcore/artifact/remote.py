"""The store behind HTTPS (`stitch://host:port`) as an fsspec file system.

The server is `stitch_operator/store`: files are put and seen whole, a folder is what files are
below it. Nothing is cached, and an error says what the server said.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
from fsspec import AbstractFileSystem

SECONDS = 60.0
CONNECT_SECONDS = 10.0
RETRIES = 2
"""Of connections that could not be made."""
MISSING, FULL = 404, 507
TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class RemoteFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """`host` is host:port of the server, `ca` the file of the authority that is trusted, and
    `token_file` the file of the token, read at each call: projected tokens are replaced."""

    protocol = "stitch"

    def __init__(self, host: str, ca: str, token_file: str, **named: Any) -> None:
        super().__init__(**named)
        logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each call
        self._host, self._ca, self._token = host, Path(ca), Path(token_file)
        self._trusted = self._ca.read_bytes()
        self._client = self._connected(self._trusted)

    def _connected(self, trusted: bytes) -> httpx.Client:
        context = ssl.create_default_context(cadata=trusted.decode())
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return httpx.Client(
            base_url=f"https://{self._host}/v1/",
            transport=httpx.HTTPTransport(verify=context, retries=RETRIES),
            timeout=httpx.Timeout(SECONDS, connect=CONNECT_SECONDS),
            trust_env=False,
        )

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return (urlsplit(path).path if "://" in path else path).rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"host": urlsplit(path).netloc}

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_named: Any
    ) -> bytes:
        return self._call("GET", "files", path, most=end)[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_named: Any) -> None:
        if mode != "overwrite":
            raise NotImplementedError(f"mode {mode!r}: the store replaces files")
        self._call("PUT", "files", path, value)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """A folder goes with all in it, so `recursive` changes nothing."""
        self._call("DELETE", "files", path)

    def info(self, path: str, **_named: Any) -> dict[str, Any]:
        entry: dict[str, Any] = json.loads(self._call("GET", "entries", path))
        return entry

    def exists(self, path: str, **_named: Any) -> bool:
        """Unlike fsspec's own, raises where the server does not say."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_named: Any) -> list[Any]:
        entries: list[dict[str, Any]] = json.loads(self._call("GET", "folders", path))
        return entries if detail else [entry["name"] for entry in entries]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **_named: Any,
    ) -> Any:
        if maxdepth is not None or withdirs:
            raise NotImplementedError("the store lists all files below a folder, and no folders")
        entries = {entry["name"]: entry for entry in json.loads(self._call("GET", "trees", path))}
        return entries if detail else list(entries)

    def _call(
        self,
        method: str,
        kind: str,
        path: str,
        data: bytes | None = None,
        most: int | None = None,
    ) -> bytes:
        """The answer's body; of one that is longer than `most` no more than a piece more is
        received."""
        token = self._token.read_text(encoding="ascii").strip()
        if not TOKEN.fullmatch(token):  # httpx would quote it, into logs
            raise ValueError(f"{self._token} holds no token")
        place, headers = f"{kind}/{quote(path.strip('/'))}", {"authorization": f"Bearer {token}"}
        try:
            answer, body = self._request(method, place, data, headers, most)
        except httpx.NetworkError as error:
            raise ConnectionError(f"{self._host}: {error}") from error
        if answer.status_code == MISSING:
            raise FileNotFoundError(path)
        if answer.is_error:
            said = body.decode(errors="replace").strip()[:300]
            if answer.status_code == FULL:
                raise OSError(errno.ENOSPC, f"{self._host} has no room for {path}")
            raise OSError(f"{method} {path}: {answer.status_code} {said}")
        return body

    def _request(
        self,
        method: str,
        place: str,
        data: bytes | None,
        headers: dict[str, str],
        most: int | None,
    ) -> tuple[httpx.Response, bytes]:
        def once() -> tuple[httpx.Response, bytes]:
            asked = self._present().stream(method, place, content=data, headers=headers)
            with asked as answer:
                return answer, _received(answer, most)

        try:
            return once()
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            # the server closed a connection that was idle, or ended; every call may be made twice
            return once()

    def _present(self) -> httpx.Client:
        """A client that trusts what the file names now: a new authority is added to it before the
        server shows its certificate. A file that is being replaced leaves it as it is."""
        with contextlib.suppress(OSError, ValueError):
            now = self._ca.read_bytes()
            if now != self._trusted:
                self._client, self._trusted = self._connected(now), now
        return self._client


def _received(answer: httpx.Response, most: int | None) -> bytes:
    body = bytearray()
    for piece in answer.iter_bytes():
        body += piece
        if most is not None and len(body) > most:
            break
    return bytes(body)
