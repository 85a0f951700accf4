"""Real processes for the tests: Redis, and a gateway with TLS of its own."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from stitch_operator.gateway import tls
from tests import lean
from tests.ports import free_port
from tests.waiting import RUN_SECONDS, wait_for

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "t" * 32


@contextlib.contextmanager
def started(
    command: Sequence[str], log: Path, more: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process, with `more` in its environment, that is killed at the end."""
    with log.open("ab") as output:
        environment = {
            "PYTHONPATH": ":".join(lean.SOURCES),
            "PATH": "/usr/bin:/bin",
            "HOME": str(log.parent),
            **(more or {}),
        }
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def redis(port: int, folder: Path) -> Iterator[str]:
    """A Redis that keeps nothing; its URL."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is missing: apt-get install redis-server")
    command = [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    with started(command, folder / "redis.log"):
        wait_for(lambda: _open(port), "redis")
        yield f"redis://127.0.0.1:{port}/0"


def _open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class Gateway:
    """A gateway's process; `client` trusts its certificate and holds its token."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    url: str
    metrics: str


@contextlib.contextmanager
def gateway(
    folder: Path,
    broker: str,
    *arguments: str,
    token: bool = True,
    ledger: str = "",
    more: Mapping[str, str] | None = None,
) -> Iterator[Gateway]:
    """A gateway on `folder`, which holds its store and certificate, and its ledger unless that is
    elsewhere. Without `token` it asks the API server of `arguments` who its clients are."""
    if not (folder / "ca.pem").exists():
        tls.make(folder, ["localhost", "127.0.0.1"])
        (folder / "token").write_text(TOKEN)
        (folder / "store").mkdir(exist_ok=True)
    port, metrics = free_port(), free_port()
    command = [
        *(sys.executable, "-m", "stitch_operator.gateway"),
        *("--store", str(folder / "store"), "--broker", broker),
        *("--ledger", ledger or str(folder / "ledger.sqlite")),
        *("--certificate", str(folder / "gateway.pem")),
        *("--certificate-key", str(folder / "gateway.key")),
        *(("--token-file", str(folder / "token"), "--devices", "4") if token else ()),
        *("--port", str(port), "--metrics-port", str(metrics)),
        *arguments,
    ]
    url = f"https://localhost:{port}"
    with (
        started(command, folder / "gateway.log", more) as process,
        httpx.Client(
            base_url=url,
            verify=tls.trusting(folder / "ca.pem"),
            headers={"Authorization": f"Bearer {TOKEN}"},
            trust_env=False,
            timeout=RUN_SECONDS,
        ) as client,
    ):
        wait_for(lambda: _ready(client, process), "gateway")
        yield Gateway(process, client, url, f"http://127.0.0.1:{metrics}/metrics")


def _ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the gateway ended"
    with contextlib.suppress(httpx.HTTPError):
        return client.get("/readyz").status_code == 200
    return False


def end(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> int:
    """Send a signal and wait; the exit code."""
    process.send_signal(number)
    return process.wait(RUN_SECONDS)
