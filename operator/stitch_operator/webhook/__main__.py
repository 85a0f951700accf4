"""`python -m stitch_operator.webhook`: one replica of the webhook, until SIGTERM or SIGINT.

Replicas share nothing. One that starts before its certificate or the API server is there waits, and
is not ready until then.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn
import uvloop
from kubernetes import client, config
from kubernetes.config import ConfigException
from starlette.applications import Starlette

from stitch_operator import connections
from stitch_operator.certificates import Certificates
from stitch_operator.metrics_server import serve_metrics
from stitch_operator.webhook import release as releases
from stitch_operator.webhook.app import LOG, Parts, application
from stitch_operator.webhook.cluster import Cluster
from stitch_operator.webhook.metrics import Metrics
from stitchcore import __version__
from stitchcore.service import startup
from stitchcore.service.startup import needed

SHUTDOWN_SECONDS = 10
BODY_SECONDS = 30.0
"""Of a review: the API server itself waits 5 s for its answer."""
LOOP_BACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal. Returns 2 where it cannot start, and says why."""
    given = _arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    return startup.guarded("webhook", lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    with needed(f"--release {given.release}", "a file of JSON, as the chart writes it"):
        release = releases.read(given.release)
    metrics = Metrics(__version__)
    certificates = Certificates(given.certificate, given.certificate_key, metrics.certificate)
    certificates.look()
    with needed("the API server", "run it in a pod, or give --kubeconfig", ConfigException):
        if given.kubeconfig is None:
            config.load_incluster_config()
        else:
            config.load_kube_config(str(given.kubeconfig))
    cluster = Cluster(
        client.ApiClient(),
        release.name,
        release.namespace,
        lambda resource: metrics.watch_failures.labels(resource).inc(),
    )
    listening = startup.listening(given.host, given.port, "--port")
    free = f"--metrics-host {given.metrics_host} --metrics-port {given.metrics_port}"
    with needed(free, startup.FREE, OverflowError):
        serve_metrics(given.metrics_host, given.metrics_port, metrics.registry)
    host, port = listening.getsockname()[:2]
    check = functools.partial(certificates.check, LOOP_BACK.get(host, host), port)
    app = application(Parts(release, cluster, metrics, check))
    cluster.start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(app, certificates, listening))
    return 0


async def serve(app: Starlette, certificates: Certificates, listening: socket.socket) -> None:
    """Serves until a signal, with the certificate that the files hold at each handshake."""
    settings = connections.settings(
        app, lambda: certificates.context, BODY_SECONDS, SHUTDOWN_SECONDS, lifespan="off"
    )
    watching = asyncio.create_task(certificates.watch())
    LOG.info("webhook on https://%s:%d", *listening.getsockname()[:2])
    try:
        await uvicorn.Server(settings).serve([listening])
    finally:
        watching.cancel()


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stitch_operator.webhook")
    parser.add_argument("--release", type=Path, required=True, help="the release's settings, JSON")
    parser.add_argument("--certificate", type=Path, required=True, help="waited for")
    parser.add_argument("--certificate-key", type=Path, required=True)
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's own account")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=9443)
    parser.add_argument("--metrics-host", default="0.0.0.0")
    parser.add_argument("--metrics-port", type=int, default=9090)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    startup.leave(main())
