"""The port of metrics and probes: plain HTTP that whoever can reach it cannot hold up.

A connection is served by a thread of its own and ended after SECONDS, whatever it did by then; an
address has few at a time. So neither one that says nothing, nor thousands of those, keep Prometheus
or a kubelet from being answered.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from socketserver import ThreadingMixIn
from types import MappingProxyType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

SECONDS = 10.0
MOST_OF_ADDRESS, MOST = 8, 256


def serve(host: str, port: int, application: Any) -> int:
    """Serves a WSGI application from now on; the port that it has. Raises OSError where the port
    is taken."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    server_class = type("Server", (_Server,), {"address_family": family})
    server: WSGIServer = make_server(host, port, application, server_class, _Quiet)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_address[1])


def serve_metrics(
    host: str,
    port: int,
    registry: CollectorRegistry,
    documents: Mapping[str, Callable[[], object]] = MappingProxyType({}),
) -> int:
    """Serves JSON at the paths of `documents`, and the metrics of a registry at any other."""
    metrics = make_wsgi_app(registry)

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        document = documents.get(environ["PATH_INFO"])
        if document is None:
            return metrics(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(document()).encode()]

    return serve(host, port, application)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._connections: Counter[str] = Counter()
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Without looking its own name up, as WSGIServer would."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        address = str(client_address[0])
        with self._lock:
            full = self._connections[address] >= MOST_OF_ADDRESS
            if full or self._connections.total() >= MOST:
                self.shutdown_request(request)
                return
            self._connections[address] += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        late = threading.Timer(SECONDS, _end, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            with self._lock:
                self._connections[str(client_address[0])] -= 1
                self._connections += Counter()  # keeps those above zero

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that ended early is nobody's error."""


def _end(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Probes and scrapes are not worth a line each."""
