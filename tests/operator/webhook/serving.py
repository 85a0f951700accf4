"""The real application under the real server, over TLS, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import functools
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from stitch_operator.certificates import Certificates
from stitch_operator.gateway import tls
from stitch_operator.webhook import __main__ as webhook
from stitch_operator.webhook.app import Parts, application
from stitch_operator.webhook.metrics import Metrics
from stitch_operator.webhook.surroundings import Surroundings
from stitchcore.service import startup
from tests.operator.webhook import support
from tests.waiting import wait_for

NAMES = ["localhost", "127.0.0.1"]


@dataclass(frozen=True)
class Served:
    """A running webhook; `folder` holds ca.pem, gateway.pem and gateway.key."""

    folder: Path
    port: int
    metrics: Metrics
    certificates: Certificates

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        trust = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        return httpx.Client(base_url=self.url, verify=trust, timeout=100)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@contextmanager
def serve(
    folder: Path, surroundings: Surroundings | None = None, certified: bool = True, **changes: Any
) -> Iterator[Served]:
    """A webhook with a certificate in `folder`, unless it is not `certified` yet."""
    folder.mkdir(exist_ok=True)
    if certified:
        tls.make(folder, NAMES)
    metrics = Metrics("test")
    certificates = Certificates(folder / "gateway.pem", folder / "gateway.key", metrics.certificate)
    certificates.look()
    listening = startup.listening("127.0.0.1", 0, "--port")
    port = listening.getsockname()[1]
    check = functools.partial(certificates.check, "127.0.0.1", port)
    known = surroundings if surroundings is not None else support.Plain(trusted=support.TRUST)
    app = application(Parts(support.release(**changes), known, metrics, check))
    loop = asyncio.new_event_loop()
    task = loop.create_task(webhook.serve(app, certificates, listening))
    thread = threading.Thread(target=_run, args=(loop, task), daemon=True)
    thread.start()
    try:
        wait_for(lambda: _answers(port), "the webhook answers")
        yield Served(folder, port, metrics, certificates)
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(120)
        loop.close()


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(task)


def _answers(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"https://127.0.0.1:{port}/healthz", verify=False).is_success
    return False


def review(document: dict[str, Any], group: str = "", kind: str = "Pod", **request: Any) -> Any:
    """An AdmissionReview as the API server sends it."""
    asked = {
        "uid": "uid-1",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "resource": {"group": group, "version": "v1", "resource": "pods"},
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "somebody"},
        "object": document,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions"},
        **request,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
