"""Metrics and liveness on one port: /metrics, and /healthz while the loop goes round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app

from stitch_operator import metrics_server

Start = Callable[..., Any]


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

    return metrics_server.serve(host, port, application)
