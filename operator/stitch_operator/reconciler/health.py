"""Metrics and liveness on one port: /metrics, and /healthz while the loop goes round."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

Start = Callable[..., Any]


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a probe every few seconds is no news."""


def serve(host: str, port: int, registry: CollectorRegistry, alive: Callable[[], bool]) -> int:
    """Serves in a thread of its own; the port. Raises OSError where it is taken."""
    metrics = make_wsgi_app(registry)

    def application(environment: dict[str, Any], start: Start) -> Iterable[bytes]:
        if environment.get("PATH_INFO") != "/healthz":
            answer: Iterable[bytes] = metrics(environment, start)
            return answer
        well = alive()
        start("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if well else b"the loop stands still\n"]

    server: WSGIServer = make_server(host, port, application, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_port)
