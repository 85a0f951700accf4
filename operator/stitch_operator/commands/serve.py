"""`stitch serve`: gateway, workers, signer and Redis on one machine, until Ctrl-C.

For trying the service, for a workstation, and for tests: the same processes a cluster runs, with
one shared token and a certificate made on the spot. What a client sets is printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import httpx
from rich.live import Live
from rich.table import Table

import stitch_operator
import stitchcore
from stitch_operator.commands.processes import Command, GaveUp, Processes
from stitch_operator.gateway import tls
from stitchcore import options
from stitchcore.artifact.sign import load_or_create_key, public_hex
from stitchcore.artifact.store import Store, open_store
from stitchcore.cli.common import Output, console, fail, table

READY_SECONDS = 60.0
LOOK_SECONDS = 1.0
SHOWN = 8
RENEW_DAYS = 30
PORT = click.IntRange(0, 65535)
NICE = 10
"""Workers give way to the gateway, and to the jobs of this machine."""
EVERYWHERE = ("127.0.0.1", "::1", "0.0.0.0", "::")
PASSED_ON = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Served:
    """A service's addresses and files; `environment` is what a client sets."""

    folder: Path
    host: str
    port: int
    metrics_port: int
    public_key: str
    broker: str

    @property
    def url(self) -> str:
        """As clients of this machine reach it: a name of the certificate."""
        return f"https://{'localhost' if self.host in EVERYWHERE else self.host}:{self.port}"

    @property
    def metrics(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "STITCH_GATEWAY": self.url,
            "STITCH_TOKEN_FILE": str(self.folder / "token"),
            "STITCH_CA": str(self.folder / "ca.pem"),
            "STITCH_PUBLIC_KEYS": self.public_key,
        }


@dataclass(frozen=True)
class Crew:
    """`each` workers for every Python; each keeps `cores` from the jobs of this machine."""

    pythons: tuple[Path, ...]
    each: int
    cores: float


@click.command(help=__doc__)
@click.option("--folder", type=click.Path(path_type=Path), help="store, ledger, token, keys, logs")
@click.option("--host", default="127.0.0.1", show_default=True, help="address of the gateway")
@click.option("--port", type=PORT, default=8443, show_default=True, help="0: any that is free")
@click.option("--metrics-port", type=PORT, default=9464, show_default=True,
              help="0: any that is free")  # fmt: skip
@click.option("--broker", help="redis:// or amqp:// URL; default: a Redis of its own")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(0), help="per Python")
@click.option("--worker-cores", default=0.0, show_default=True, type=click.FloatRange(min=0),
              help="that jobs leave to each worker, busy or not: counted as spent")  # fmt: skip
@click.option("--python", "pythons", multiple=True, type=click.Path(path_type=Path),
              help="a worker's Python, one per TensorFlow version; default: this one")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="one JSON line once it is ready")
def command(
    folder: Path | None,
    host: str,
    port: int,
    metrics_port: int,
    broker: str | None,
    workers: int,
    worker_cores: float,
    pythons: tuple[Path, ...],
    as_json: bool,
) -> None:
    output = Output(as_json)
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    where = (folder or options.of_this_process().store.parent / "serve").absolute()
    for python in pythons:
        if shutil.which(python) is None:
            fail(output, f"--python {python}", "no such program", "a virtual environment's Python")
    try:
        processes = Processes(where / "logs")
    except OSError as error:
        fail(output, f"--folder {where}", str(error.strerror), "a folder that this user may write")
    try:
        served = _prepared(where, host, port or _free_port(), metrics_port or _free_port(), broker)
        used = tuple(pythons) or (Path(sys.executable),)
        for one in _commands(served, broker is None, Crew(used, workers, worker_cores), output):
            processes.start(one)
        if _ready(served, processes, end):
            _serve(served, processes, end, output)
    except GaveUp as gave_up:
        fail(output, "stitch serve", str(gave_up), "read that log", code=1)
    finally:
        processes.stop()


def _prepared(folder: Path, host: str, port: int, metrics: int, broker: str | None) -> Served:
    """The folder's token, keys and certificate, made where they are not there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "store").mkdir(exist_ok=True)
    token = folder / "token"
    if not token.exists():
        with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    names = sorted({"localhost", "127.0.0.1", "::1", socket.gethostname(), host})
    names = [name for name in names if name not in ("0.0.0.0", "::")]
    marker = folder / "certificate.json"
    made = json.loads(marker.read_text()) if marker.exists() else {}
    if made.get("names") != names or made.get("until", 0) < time.time() + RENEW_DAYS * 86400:
        tls.make(folder, names)
        until = time.time() + tls.DAYS * 86400
        marker.write_text(json.dumps({"names": names, "until": until}))
    key = public_hex(load_or_create_key(folder / "signing.key"))
    if broker is None:
        broker = f"redis://:{secrets.token_hex(16)}@127.0.0.1:{_free_port()}/0"
    return Served(folder, host, port, metrics, key, broker)


def _commands(served: Served, own_redis: bool, crew: Crew, output: Output) -> list[Command]:
    """What is started, in this order."""
    folder, store = served.folder, str(served.folder / "store")
    environment = _environment(served)
    here = sys.executable
    made = []
    if own_redis:
        made.append(_redis(served, environment, output))
    signer = [here, "-m", "stitch_worker.signer", "--store", store]
    made.append(Command("signer", [*signer, "--key", str(folder / "signing.key")], environment))
    made.append(Command("gateway", _gateway(served), environment))
    for number, python in enumerate(one for one in crew.pythons for _ in range(crew.each)):
        logs = ["--logs", str(folder / "logs" / f"worker-{number}")]
        polite = ["nice", "-n", str(NICE)]
        kernels = ["--kernel-key", str(folder / "kernel-key" / "secret")]
        place = ["--store", store, "--hide", str(folder), f"--reserved-cores={crew.cores:g}"]
        arguments = [*polite, str(python), "-m", "stitch_worker", *place, *logs, *kernels]
        made.append(Command(f"worker-{number}", arguments, environment))
    return made


def _gateway(served: Served) -> list[str]:
    folder = served.folder
    return [
        *(sys.executable, "-m", "stitch_operator.gateway"),
        *("--store", str(folder / "store"), "--ledger", str(folder / "ledger.sqlite")),
        *("--certificate", str(folder / "gateway.pem")),
        *("--certificate-key", str(folder / "gateway.key")),
        *("--token-file", str(folder / "token"), "--public-key", served.public_key),
        *("--host", served.host, "--port", str(served.port)),
        *("--metrics-port", str(served.metrics_port)),
    ]


def _redis(served: Served, environment: Mapping[str, str], output: Output) -> Command:
    """A Redis that keeps nothing: what it loses is asked for again. Its password is not in the
    process list: the configuration goes through a pipe."""
    program = shutil.which("redis-server")
    if program is None:
        fail(output, "redis-server", "not found", "apt-get install redis-server, or pass --broker")
    password, _, place = served.broker.removeprefix("redis://:").partition("@")
    port = place.rpartition(":")[2].partition("/")[0]
    lines = (f"port {port}", "bind 127.0.0.1", f"requirepass {password}", 'save ""',
             "appendonly no", f"dir {served.folder}")  # fmt: skip
    return Command("redis", [program, "-"], environment, "\n".join(lines).encode())


def _environment(served: Served) -> dict[str, str]:
    """Of all children: little of ours, and the broker, whose URL holds a password."""
    sources = (stitchcore, stitch_operator)
    roots = [str(Path(str(one.__file__)).resolve().parents[1]) for one in sources]
    roots.append(str(Path(roots[0]) / "worker"))
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(roots),
        "PYTHONUNBUFFERED": "1",
        "STITCH_BROKER": served.broker,
    }


def _ready(served: Served, processes: Processes, end: threading.Event) -> bool:
    """Wait for the gateway; False when told to end before. Raises GaveUp."""
    context = tls.trusting(served.folder / "ca.pem")
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(verify=context, timeout=2.0, trust_env=False) as client:
        while not end.wait(0.2):
            processes.look()
            with contextlib.suppress(httpx.HTTPError):
                if client.get(f"{served.url}/readyz").status_code == 200:
                    return True
            if time.monotonic() > deadline:
                raise GaveUp(f"the gateway is not ready: {processes.tail('gateway')}")
    return False


def _serve(served: Served, processes: Processes, end: threading.Event, output: Output) -> None:
    """Look after the processes until told to end; show what happens on a terminal."""
    if output.as_json:
        document = {**served.environment, "folder": str(served.folder), "metrics": served.metrics}
        output.document({**document, "pids": processes.pids()})
    else:
        for name, value in served.environment.items():
            click.echo(f"export {name}={value}")
        click.echo(f"# metrics: {served.metrics}; logs: {served.folder / 'logs'}")
    store = open_store(str(served.folder / "store"))
    told = console(stderr=True)
    shown = Live(console=told, refresh_per_second=2) if told.is_terminal else None
    with shown or contextlib.nullcontext():
        while not end.wait(LOOK_SECONDS):
            for name in processes.look():
                told.print(f"stitch: {name} had ended and was started again")
            if shown is not None:
                shown.update(_status(store))


def _status(store: Store) -> Table:
    """The requests answered last, newest first."""
    answers = []
    for name in store.list("answers"):
        request = name.removesuffix(".json")
        with contextlib.suppress(Exception):  # it is being replaced or collected
            answer = store.read_answer(request) or {}
            answers.append((float(answer.get("time", 0)), request, answer))
    rows = [
        (request[:12], str(answer.get("status")), _where(answer))
        for _, request, answer in sorted(answers, reverse=True)[:SHOWN]
    ]
    return table(f"{len(answers)} graphs", ("graph", "status", ""), rows)


def _where(answer: Mapping[str, object]) -> str:
    if answer.get("status") == "pending":
        return f"{answer.get('stage')} {answer.get('done', 0)}/{answer.get('total', 0)}"
    return str(answer.get("key", answer.get("reason", "")))[:40]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
