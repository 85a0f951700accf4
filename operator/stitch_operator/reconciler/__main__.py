"""`python -m stitch_operator.reconciler`: the reconciler of a release, until SIGTERM or SIGINT.

Of several one acts, and the others wait for its Lease (election.py). It may end at any moment, also
by SIGKILL, and goes on where it was, or another one does.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kubernetes import client, config
from kubernetes.config import ConfigException

from stitch_operator.reconciler import health, trust
from stitch_operator.reconciler.cluster import Watches
from stitch_operator.reconciler.election import RENEW_SECONDS, Election
from stitch_operator.reconciler.gateway import Access, Poll
from stitch_operator.reconciler.loop import FAILURES, LOG, Loop, line_of
from stitch_operator.reconciler.metrics import Metrics
from stitch_operator.reconciler.writer import Writer
from stitch_operator.webhook import release as releases
from stitch_operator.webhook.release import Release
from stitchcore import __version__
from stitchcore.service import startup
from stitchcore.service.startup import needed

STILL_SECONDS = 300.0
"""A loop that stands still for so long is to be started again."""
TRUST_RETRY_SECONDS = 5.0
SUCCEEDED = 75
"""The exit code of one that another has succeeded: it is started again, and waits."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal. Returns 2 where it cannot start, and says why."""
    given = _arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return startup.guarded("reconciler", lambda: _run(given))


def _run(given: argparse.Namespace) -> int:
    with needed(f"--release {given.release}", "a file of JSON, as the chart writes it"):
        release = releases.read(given.release)
    with needed("the API server", "run it in a pod, or give --kubeconfig", ConfigException):
        if given.kubeconfig is None:
            config.load_incluster_config()
        else:
            config.load_kube_config(str(given.kubeconfig))
    api = client.ApiClient()
    loop = connected(release, api)
    access = Access(given.gateway or release.gateway_url, given.ca, given.token_file)
    poll = Poll(access, loop.rows, loop.metrics.gateway_failures.inc)
    who = f"{socket.gethostname()}-{os.getpid()}"
    election = Election(api, release.namespace, f"{release.name}-reconciler", who)
    loop.leads = election.leads
    free = f"--metrics-host {given.metrics_host} --metrics-port {given.metrics_port}"
    with needed(free, startup.FREE, OverflowError):
        health.serve(
            *(given.metrics_host, given.metrics_port, loop.metrics.registry),
            lambda: not election.leads() or time.monotonic() - loop.beat < STILL_SECONDS,
        )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    LOG.info("reconciler of release %s/%s", release.namespace, release.name)
    elected = threading.Thread(target=stand, args=(election, stop), name="election", daemon=True)
    elected.start()
    while not election.leads():
        loop.beat = time.monotonic()
        if stop.wait(0.1):
            return 0
    threading.Thread(
        target=keep_trust, args=(api, release, stop, election.leads), name="trust", daemon=True
    ).start()
    loop.watches.start()
    poll.start()
    loop.run(stop)
    elected.join()
    return SUCCEEDED if election.lost.is_set() else 0


def stand(election: Election, stop: threading.Event) -> None:
    """Lead when nobody else does, until `stop`, or until another one leads: that stops this one."""
    while not stop.is_set():
        try:
            election.step()
        except FAILURES as error:
            LOG.warning("lease: %s", line_of(error))
        if election.lost.is_set():
            LOG.warning("another one leads")
            stop.set()
        stop.wait(RENEW_SECONDS)
    try:
        election.give_back()
    except FAILURES as error:
        LOG.warning("lease: %s", line_of(error))


def keep_trust(
    api: client.ApiClient, release: Release, stop: threading.Event, leads: Callable[[], bool]
) -> None:
    """Certificates and keys, until `stop`: apart from the loop, so that neither waits."""
    while not stop.is_set():
        try:
            wait = trust.step(api, release, time.time()) if leads() else TRUST_RETRY_SECONDS
        except FAILURES as error:
            LOG.warning("trust: %s", line_of(error))
            wait = TRUST_RETRY_SECONDS
        stop.wait(wait)


def connected(release: Release, api: client.ApiClient) -> Loop:
    """A loop with its watches, writer and metrics; nothing has been started."""
    loop = Loop(release.image)
    loop.metrics = Metrics(loop.phases, __version__, loop.told)
    loop.writer = Writer(
        api, release, lambda call, result: loop.metrics.writes.labels(call, result).inc()
    )
    loop.watches = Watches(
        api, release, loop.put, lambda kind: loop.metrics.watch_failures.labels(kind).inc()
    )
    return loop


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stitch_operator.reconciler")
    parser.add_argument("--release", type=Path, required=True, help="the release's settings, JSON")
    parser.add_argument("--gateway", default="", help="https://host:port; default: the release's")
    parser.add_argument("--ca", type=Path, required=True, help="PEM that the gateway is known by")
    parser.add_argument("--token-file", type=Path, required=True, help="a projected token's")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's own account")
    parser.add_argument("--metrics-host", default="0.0.0.0")
    parser.add_argument("--metrics-port", type=int, default=9090)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    startup.leave(main())
