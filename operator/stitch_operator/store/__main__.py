"""`python -m stitch_operator.store`: serves a folder to the release's programs, until a signal."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from kubernetes import client, config
from kubernetes.config import ConfigException
from starlette.applications import Starlette

from stitch_operator import connections
from stitch_operator.certificates import Certificates
from stitch_operator.gateway import tls
from stitch_operator.gateway.identity import Cached
from stitch_operator.metrics_server import serve_metrics
from stitch_operator.store.access import ROLES
from stitch_operator.store.accounts import Accounts
from stitch_operator.store.app import FILE_BYTES, LOG, Metrics, Server, application
from stitch_operator.store.files import Files
from stitchcore.service import startup
from stitchcore.service.startup import needed

SHUTDOWN_SECONDS = 20
BODY_SECONDS = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal. Returns 2 where it cannot start, and says why."""
    given = _arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    return startup.guarded("store", lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    certificate = f"--certificate {given.certificate} or --certificate-key {given.certificate_key}"
    with needed(certificate, "PEM files of a certificate and its key, readable for this user"):
        tls.context(given.certificate, given.certificate_key)
    with needed(f"--folder {given.folder}", "a folder that this user may write"):
        files = Files(given.folder)
    with needed("the API server", "run it in a pod, or give --kubeconfig", ConfigException):
        if given.kubeconfig is None:
            config.load_incluster_config()
        else:
            config.load_kube_config(str(given.kubeconfig))
    accounts = Cached(Accounts(client.ApiClient(), dict(given.account)))
    metrics = Metrics(files.free)
    certificates = Certificates(given.certificate, given.certificate_key, metrics.certificate)
    certificates.look()
    listening = startup.listening(given.host, given.port, "--port")
    free = f"--metrics-host {given.metrics_host} --metrics-port {given.metrics_port}"
    with needed(free, startup.FREE, OverflowError):
        serve_metrics(given.metrics_host, given.metrics_port, metrics.registry)
    app = application(Server(files, accounts, metrics, given.file_bytes))
    with asyncio.Runner() as runner:
        runner.run(serve(app, listening, certificates))
    return 0


async def serve(app: Starlette, listening: socket.socket, certificates: Certificates) -> None:
    """Serves until a signal, with the certificate that the files hold at each handshake."""
    LOG.info("store on https://%s:%d", *listening.getsockname()[:2])
    settings = connections.settings(
        app, lambda: certificates.context, BODY_SECONDS, SHUTDOWN_SECONDS, lifespan="off"
    )
    watching = asyncio.create_task(certificates.watch())
    try:
        await uvicorn.Server(settings).serve([listening])
    finally:
        watching.cancel()


def _account(text: str) -> tuple[str, str]:
    name, _, role = text.partition("=")
    if role not in ROLES or name.count("/") != 1:
        raise argparse.ArgumentTypeError(f"NAMESPACE/NAME=ROLE, ROLE one of {', '.join(ROLES)}")
    return name, role


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stitch_operator.store")
    parser.add_argument("--folder", type=Path, required=True, help="the volume; must exist")
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--certificate-key", type=Path, required=True)
    parser.add_argument("--account", type=_account, action="append", required=True,
                        help="NAMESPACE/NAME=ROLE: what a service account may do")  # fmt: skip
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's own account")
    parser.add_argument("--file-bytes", type=int, default=FILE_BYTES, help="of one file, at most")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8444)
    parser.add_argument("--metrics-host", default="0.0.0.0")
    parser.add_argument("--metrics-port", type=int, default=9090)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    startup.leave(main())
