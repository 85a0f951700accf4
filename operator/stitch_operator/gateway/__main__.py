"""`python -m stitch_operator.gateway`: one gateway, until SIGTERM or SIGINT.

In a cluster clients authenticate by TokenReview; with --token-file by one shared token.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from kubernetes import client, config
from kubernetes.config import ConfigException
from sqlalchemy.exc import SQLAlchemyError

from stitch_operator import connections
from stitch_operator.certificates import Certificates
from stitch_operator.gateway import tls
from stitch_operator.gateway.app import BODY_SECONDS, DRAIN_SECONDS, application
from stitch_operator.gateway.blocking import LOG
from stitch_operator.gateway.database import LedgerHeld, LedgerVersion, shown, words
from stitch_operator.gateway.digests import Digests
from stitch_operator.gateway.identity import Authenticator, Cached, Identity, SharedToken
from stitch_operator.gateway.ledger import Ledger, Quota
from stitch_operator.gateway.limits import Rate
from stitch_operator.gateway.metrics import Durable, Metrics
from stitch_operator.gateway.queue import CeleryQueue
from stitch_operator.gateway.service import CLUSTER, NAMESPACE, RATES, Parts, Rates, Service, Shares
from stitch_operator.gateway.tokenreview import TokenReview
from stitch_operator.metrics import MAX_NAMESPACES
from stitch_operator.metrics_server import serve_metrics
from stitchcore import __version__
from stitchcore.options import broker_url, ledger_url
from stitchcore.service import startup
from stitchcore.service.queues import queue_parts
from stitchcore.service.startup import needed

LOCAL = "local"
SHUTDOWN_SECONDS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal. Returns 2 where it cannot start, and says why."""
    given = _arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return startup.guarded("gateway", lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    certificate = f"--certificate {given.certificate} or --certificate-key {given.certificate_key}"
    with needed(certificate, "PEM files of a certificate and its key, readable for this user"):
        tls.context(given.certificate, given.certificate_key)
    authenticator = Cached(
        _authenticator(given.token_file, given.devices, given.kubeconfig),
        keep=lambda found: found.kept_seconds,
    )
    store = startup.store(given.store)
    broker = startup.broker(given.broker or broker_url(os.environ))
    listening = startup.listening(given.host, given.port, "--port")
    ledger = _ledger(given)
    queue = CeleryQueue(broker)
    metrics = Metrics(
        lambda: Durable(ledger.totals(), ledger.spent(), ledger.counts()),
        *(__version__, queue.workers),
    )
    certificates = Certificates(given.certificate, given.certificate_key, metrics.certificate)
    certificates.look()
    service = Service(
        Parts(
            store=store,
            queue=queue,
            ledger=ledger,
            digests=Digests(given.digest_processes),
            authenticator=authenticator,
            metrics=metrics,
            public_keys=tuple(given.public_key),
            rates=Rates(Rate(given.calls, 2 * given.calls), RATES.bytes, RATES.compiles),
            store_seconds=given.store_seconds,
            cache_scope=given.cache_scope,
            reader=given.reader,
            shares=Shares(given.running, given.core_seconds_a_day, dict(given.weight)),
            on_demand=frozenset(given.on_demand),
        )
    )
    free = f"--metrics-host {given.metrics_host} --metrics-port {given.metrics_port}"
    with needed(free, startup.FREE, OverflowError):
        where = (given.metrics_host, given.metrics_port)
        documents = {"/queues": lambda: nested(service.demand)}
        serve_metrics(*where, metrics.registry, documents)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(service, listening, certificates))
    return 0


def _ledger(given: argparse.Namespace) -> Ledger:
    where = given.ledger or ledger_url(os.environ)
    with needed("--ledger or STITCH_LEDGER", "a file, or postgresql://user:password@host/name"):
        if not where:
            raise ValueError("none is given")
        what = f"--ledger {shown(where)}"
    held = "end the other gateway; or give a file that is a ledger, or is not there yet; or a "
    held += "database that can be reached and written"
    quota = Quota(given.namespace_bytes, given.namespace_rows)
    with needed(what, held, LedgerHeld, LedgerVersion):
        try:
            return Ledger(where, given.max_namespaces, quota)
        except SQLAlchemyError as error:
            raise ValueError(words(error)) from error


async def _serve(service: Service, listening: socket.socket, certificates: Certificates) -> None:
    """Serves until a signal, with the certificate that the files hold at each handshake."""
    body_seconds = BODY_SECONDS + DRAIN_SECONDS + 5.0  # who is late is told so first
    settings = connections.settings(
        application(service), lambda: certificates.context, body_seconds, SHUTDOWN_SECONDS
    )
    watching = asyncio.create_task(certificates.watch())
    LOG.info("gateway on https://%s:%d", *listening.getsockname()[:2])
    try:
        await uvicorn.Server(settings).serve([listening])
    finally:
        watching.cancel()


def _authenticator(
    token_file: Path | None, devices: float, kubeconfig: Path | None
) -> Authenticator[Identity]:
    if token_file is None:
        mend = "run it in a pod, or give --token-file or --kubeconfig"
        with needed("TokenReview", mend, ConfigException):
            if kubeconfig is None:
                config.load_incluster_config()
            else:
                config.load_kube_config(str(kubeconfig))
        return TokenReview(client.ApiClient())
    with needed(f"--token-file {token_file}", "a file that holds 16 characters or more"):
        token = token_file.read_text(encoding="ascii").strip()
        if len(token) < 16:
            raise ValueError(f"it has {len(token)} characters")
    return SharedToken(token, Identity(LOCAL, LOCAL, "", devices, "cpu"))


def _weight(text: str) -> tuple[str, float]:
    name, _, weight = text.partition("=")
    if not name or not 0.001 <= float(weight) <= 1000:
        raise argparse.ArgumentTypeError("NAMESPACE=N, N from 0.001 to 1000")
    return name, float(weight)


def _queue(text: str) -> str:
    queue_parts(text)
    return text


def nested(demand: Mapping[str, int]) -> dict[str, Any]:
    """Tasks of queues, a level for each part of a name: its dots are what KEDA's `valueLocation`
    walks along."""
    made: dict[str, Any] = {}
    for name, count in demand.items():
        *folders, last = name.split(".")
        level = made
        for folder in folders:
            level = level.setdefault(folder, {})
        level[last] = count
    return made


def _public_key(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError("a public key has 64 hexadecimal digits")
    return text


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stitch_operator.gateway")
    parser.add_argument("--store", required=True, help="folder or fsspec URL")
    parser.add_argument(
        "--broker", default="", help="redis://, sentinel:// or amqp:// URL (or STITCH_BROKER)"
    )
    parser.add_argument("--ledger", default="",
                        help="file (SQLite, one gateway), or postgresql:// URL "
                             "(or STITCH_LEDGER)")  # fmt: skip
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--certificate-key", type=Path, required=True)
    parser.add_argument("--token-file", type=Path, help="a shared token; default: TokenReview")
    parser.add_argument("--kubeconfig", type=Path, help="of the cluster that reviews tokens")
    parser.add_argument("--devices", type=float, default=float(os.cpu_count() or 1),
                        help="with --token-file: cores that all jobs have together")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--metrics-host", default="127.0.0.1")
    parser.add_argument("--metrics-port", type=int, default=9090)
    parser.add_argument("--public-key", type=_public_key, action="append", default=[])
    parser.add_argument("--calls", type=float, default=RATES.calls.per_second,
                        help="calls a second, per namespace")  # fmt: skip
    parser.add_argument("--store-seconds", type=float, default=10.0)
    parser.add_argument("--cache-scope", choices=[NAMESPACE, CLUSTER], default=NAMESPACE,
                        help="whose graphs may share compiled kernels; a hit under `cluster` "
                             "shows that another namespace trains that layer")  # fmt: skip
    parser.add_argument("--reader", default="", metavar="NAMESPACE/NAME",
                        help="service account that may read of all workloads")  # fmt: skip
    parser.add_argument(
        "--max-namespaces",
        type=int,
        default=MAX_NAMESPACES,
        help="that have totals of their own; those of others are summed up",
    )
    parser.add_argument("--namespace-bytes", type=int, default=Quota.graph_bytes,
                        help="of graphs that one namespace may have in the store")  # fmt: skip
    parser.add_argument("--namespace-rows", type=int, default=Quota.rows,
                        help="of the ledger that one namespace may have")  # fmt: skip
    parser.add_argument("--running", type=int, default=0,
                        help="compilations of one namespace at a time; 0: any number")  # fmt: skip
    parser.add_argument("--core-seconds-a-day", type=float, default=Shares.day,
                        help="of compilations, per namespace")  # fmt: skip
    parser.add_argument("--weight", type=_weight, action="append", default=[],
                        metavar="NAMESPACE=N",
                        help="what a namespace is given beside others (1)")  # fmt: skip
    parser.add_argument("--on-demand", type=_queue, action="append", default=[],
                        metavar="QUEUE",
                        help="whose workers are started when tasks wait")  # fmt: skip
    parser.add_argument("--digest-processes", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    startup.leave(main())
