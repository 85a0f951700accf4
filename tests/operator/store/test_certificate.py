"""The store's authority and certificate change, and a client that runs all the while follows."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from stitch_operator.certificates import Certificates
from stitch_operator.gateway import tls
from stitch_operator.gateway.identity import Cached
from stitch_operator.store import __main__ as store
from stitch_operator.store.app import Metrics, Server, application
from stitch_operator.store.files import Files
from stitchcore.artifact.store import open_store
from stitchcore.service import startup
from tests.operator.store.serving import Named
from tests.waiting import wait_for


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The program's own server, on files as a Secret's volume has them; its URL."""
    (folder / "store").mkdir()
    files = Files(folder / "store")
    metrics = Metrics(files.free)
    found = Certificates(folder / "gateway.pem", folder / "gateway.key", metrics.certificate)
    found.look()
    listening = startup.listening("127.0.0.1", 0, "--port")
    loop = asyncio.new_event_loop()
    app = application(Server(files, Cached(Named()), metrics))
    task = loop.create_task(store.serve(app, listening, found))

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"stitch://localhost:{listening.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(120)
        loop.close()


@pytest.mark.slow
def test_a_client_gets_on_with_what_replaces_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stitch_operator.certificates.LOOK_SECONDS", 0.2)
    tls.make(tmp_path, ["localhost"])
    (tmp_path / "new").mkdir()
    tls.make(tmp_path / "new", ["localhost"])
    trusted, token = tmp_path / "trusted.pem", tmp_path / "token"
    old = (tmp_path / "ca.pem").read_text()
    trusted.write_text(old)
    token.write_text("worker\n")
    access = {"ca": str(trusted), "token_file": str(token)}
    with serving(tmp_path) as url:
        running = open_store(url, access)
        running.write(b"1", "unsigned", "a", "x")
        trusted.write_text("-----BEGIN CERTIFICATE-----\nhalf of a file")
        running.write(b"2", "unsigned", "a", "x")  # as it was
        trusted.write_text(old + (tmp_path / "new" / "ca.pem").read_text())
        running.write(b"3", "unsigned", "a", "x")
        for name in ("gateway.pem", "gateway.key"):
            (tmp_path / name).write_bytes((tmp_path / "new" / name).read_bytes())

        new = ssl.create_default_context(cafile=str(tmp_path / "new" / "ca.pem"))

        def shown() -> bool:
            with suppress(httpx.TransportError):
                where = url.replace("stitch:", "https:")
                return httpx.get(f"{where}/healthz", verify=new, trust_env=False).is_success
            return False

        wait_for(shown, "the new certificate is shown")
        time.sleep(6)  # a connection is kept for 5 s: the next call begins with a handshake
        running.write(b"4", "unsigned", "a", "x")
        assert running.read("unsigned", "a", "x") == b"4"
