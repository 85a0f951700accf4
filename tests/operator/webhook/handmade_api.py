"""An API server that lists, watches and takes writes, over HTTP, and fails as it is told to."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]


@dataclass
class Collection:
    """What is under one path."""

    items: list[Object] = field(default_factory=list)
    events: queue.Queue[Object | None] = field(default_factory=queue.Queue)
    status: int = 200


@dataclass(frozen=True)
class Write:
    """A call that changes something, as it arrived."""

    method: str
    path: str
    kind: str
    body: Any


@dataclass
class Api:
    """Collections by path and selector, the queries asked, what was accepted as their answers, and
    the version that lists have; what was written, statuses of writes that fail, by method, and
    fields that answers have beside what was written, by path."""

    collections: dict[str, Collection] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    accepted: dict[str, set[str]] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    replies: dict[str, Object] = field(default_factory=dict)
    version: int = 7
    page: int = 500
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def at(self, path: str, selector: str = "") -> Collection:
        """What is under the path, or of it what a field selector selects."""
        return self.collections.setdefault(f"{path}?{selector}", Collection())


def named(name: str, namespace: str = "", version: str = "8", **fields: Any) -> Object:
    metadata: Object = {"name": name, "resourceVersion": version}
    if namespace:
        metadata["namespace"] = namespace
    metadata |= fields.pop("metadata", {})
    return {"metadata": metadata, **fields}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: Api

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.api.asked.append((parts.path, query))
        self.api.accepted.setdefault(parts.path, set()).add(self.headers["Accept"])
        held = self.api.at(parts.path, query.get("fieldSelector", ""))
        if held.status != 200:
            self._send(held.status, {"kind": "Status", "code": held.status})
        elif query.get("watch", "").lower() == "true":
            self._watch(held)
        else:
            begin = int(query.get("continue", 0))
            end = begin + self.api.page
            more = {"continue": str(end)} if end < len(held.items) else {}
            metadata = {"resourceVersion": str(self.api.version), **more}
            self._send(200, {"metadata": metadata, "items": held.items[begin:end]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = self.headers["Content-Type"]
        self.api.writes.append(Write(self.command, urlsplit(self.path).path, kind, body))
        status = self.api.refused.get(self.command, 200)
        if status != 200:
            self._send(status, {"kind": "Status", "code": status})
        else:
            kept = body if isinstance(body, dict) else {}
            self._send(200, {**kept, **self.api.replies.get(urlsplit(self.path).path, {})})

    do_PATCH = do_POST

    def _send(self, status: int, document: Object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, held: Collection) -> None:
        """Events until None; halves of lines, as a network would cut them."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while (event := held.events.get()) is not None:
            line = json.dumps(event).encode() + b"\n"
            for part in (line[:10], line[10:]):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve(port: int = 0, api: Api | None = None) -> Iterator[Api]:
    made = api or Api()
    handler = type("Handler", (_Handler,), {"api": made})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        for one in made.collections.values():
            one.events.put(None)
        server.shutdown()
        server.server_close()
