"""Each part of the service lost on purpose, at five points of a job's life: the table of
docs/service.md.

    python -m bench.kills [--only WORDS]

Two gateways on one PostgreSQL, one Redis, a worker, two signers, the server of a volume, which is
their store, and a stand-in API server, all of them processes or servers of their own; what they say
to each other goes through relays that can be cut. For each loss and each point a job in a pod of
its own does what the hook does over HTTPS: hands its graph in, waits, takes the artifact, holds its
signature, posts what it has saved. Up to the third point its graph is one that no job had before;
from then on it is that of the job before, in the same namespace, and nothing is compiled. What is
lost comes back seconds later, as the kubelet would have it; where it is away for ten minutes, five
jobs with graphs of their own, each at another of the points, meet one loss together. A job is
harmed that is told anything but an answer or to ask again; a task is lost whose artifact does not
come; a figure is wrong where the ledger's sum of the namespace has not grown by what the job posted
last. That a training process itself goes on bit-identical is shown elsewhere
(tests/inject/test_gateway_jobs.py, bench/faults.py). Writes bench/results/kills.md; exits with 1
where a count is not zero.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.progress import track

from bench import record
from stitch_operator.gateway import tls
from stitch_operator.names import STORE_AUDIENCE
from stitchcore.artifact import sign
from stitchcore.artifact.store import Store, open_store
from stitchcore.device.host import host
from tests.operator.gateway import pods
from tests.operator.gateway.support import submission
from tests.ports import free_port
from tests.postgres import Postgres, server
from tests.waiting import wait_for
from tests.worker.conftest import Redis
from tests.worker.requests import TF, python_path, tiny_graph

TABLE = record.RESULTS / "kills.md"
RAW = record.raw(TABLE).with_suffix(".json")
POINTS = ("before it asks", "its graph waits", "its kernels are compiled", "they are made",
          "its savings are posted")  # fmt: skip
BACK_SECONDS, AWAY_SECONDS, PATIENCE_SECONDS = 1.0, 5.0, 300.0
LONG_SECONDS = 600.0
"""Longer than anything is kept that is known of a token, or of a task."""
SECOND = 10**9
REPORTS = 4
GATEWAYS = ("gateway", "gateway-2")
ACCOUNTS = ("gateway", "worker", "signer")
ASK_AGAIN = (404, 429, 503)
SKEWED = """
import runpy, sys, time
real, ahead = time.time, float(sys.argv[1])
time.time = lambda: real() + ahead
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""A process whose clock is wrong by so many seconds."""


class Relay:
    """Between two parts, on a port of its own. Cut, it takes what it is given and passes nothing
    on, as a network that loses all packets."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds: float) -> None:
        self._whole.clear()
        threading.Timer(seconds, self._whole.set).start()

    def _accept(self) -> None:
        while True:
            one, _ = self._listening.accept()
            threading.Thread(target=self._joined, args=(one,), daemon=True).start()

    def _joined(self, one: socket.socket) -> None:
        self._whole.wait()
        try:
            other = socket.create_connection(("127.0.0.1", self._target), 5)
            other.settimeout(None)
        except OSError:
            one.close()
            return
        for pair in ((one, other), (other, one)):
            threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass
class Part:
    """A process that is started again when it was killed, of the sources at `paths`; with what is
    in its `environment` beside the others'."""

    name: str
    command: list[str]
    folder: Path
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    paths: str = field(default_factory=python_path)

    def start(self) -> None:
        paths = f"{self.paths}:{os.environ.get('PYTHONPATH', '')}"
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.command],
                env={**os.environ, "PYTHONPATH": paths, **self.environment}, cwd=self.folder,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Service:
    """All of it. `parts` by name; relays by the pair that they are between."""

    folder: Path
    api: pods.Pods
    database: Postgres
    ledger: str
    redis: Redis
    relays: dict[str, Relay] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    gateways: list[str] = field(default_factory=list)

    @property
    def volume(self) -> Path:
        return self.folder / "volume"

    @property
    def store(self) -> Store:
        return open_store(str(self.volume / "store"))

    def client(self, url: str, token: str) -> httpx.Client:
        return httpx.Client(
            base_url=url,
            verify=tls.trusting(self.folder / "ca.pem"),
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=4.0,
        )

    def totals(self, namespace: str) -> int:
        with self.database.asked(self.ledger) as connection:
            found = connection.execute(
                "SELECT coalesce(sum(saved - lost), 0) FROM totals WHERE namespace = %s",
                (namespace,),
            ).fetchone()
        return int(found[0]) if found else 0

    def fill(self, seconds: float) -> None:
        """The volume has no byte left."""
        filler = self.volume / "filler"
        with filler.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(2**16))
                file.flush()
        threading.Timer(seconds, filler.unlink).start()


@contextlib.contextmanager
def serving(folder: Path, skew: Mapping[str, float], paths: str | None = None) -> Iterator[Service]:
    """The service, with clocks of parts wrong by so many seconds, and gateways, worker and signers
    of other sources."""
    with server() as database, pods.serving() as api, _volume(folder / "volume"):
        redis = Redis(folder, free_port())
        redis.start()
        name = database.fresh().rpartition("/")[2]
        made = Service(folder, api, database, name, redis)
        try:
            _start(made, skew, paths or python_path())
            right = len([name for name in GATEWAYS if name not in skew])
            wait_for(lambda: _reached(made) == right, "gateways whose clock is right serve")
            yield made
        finally:
            for part in made.parts.values():
                with contextlib.suppress(ProcessLookupError):
                    part.kill()
            redis.kill()


def _reached(made: Service) -> int:
    """As a Service does: jobs reach the gateways that say that they are ready."""
    started = [f"https://localhost:{made.relays[f'job - {name}'].port}" for name in GATEWAYS]
    made.gateways = [url for url in started if _ready(made, url)]
    return len(made.gateways)


def _ready(made: Service, url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError), made.client(url, "nobody") as asked:
        return asked.get("/readyz").status_code == 200
    return False


def _start(made: Service, skew: Mapping[str, float], paths: str) -> None:
    folder, relays = made.folder, made.relays
    tls.make(folder, ["localhost", "127.0.0.1"])
    (made.volume / "store").mkdir()
    relays["gateway - ledger"] = Relay(made.database.port)
    relays["gateway - broker"] = Relay(made.redis.port)
    relays["worker - broker"] = Relay(made.redis.port)
    relays["gateway - API server"] = Relay(int(made.api.url.rpartition(":")[2]))
    made.api.url = f"http://127.0.0.1:{relays['gateway - API server'].port}"
    kubeconfig = made.api.kubeconfig(folder)
    ledger = f"postgresql://postgres@127.0.0.1:{relays['gateway - ledger'].port}/{made.ledger}"
    _serve_store(made, kubeconfig, paths)
    for name in GATEWAYS:
        port = free_port()
        relays[f"job - {name}"] = Relay(port)
        broker = f"redis://127.0.0.1:{relays['gateway - broker'].port}/0"
        _add(made, skew, name, "stitch_operator.gateway", *_store(made, "gateway"),
             *("--broker", broker, "--ledger", ledger, "--kubeconfig", str(kubeconfig)),
             *_certificate(folder),
             *("--port", str(port), "--metrics-port", str(free_port())),
             paths=paths, account="gateway")  # fmt: skip
    broker = f"redis://127.0.0.1:{relays['worker - broker'].port}/0"
    _add(made, skew, "worker", "stitch_worker", *_store(made, "worker"), "--broker", broker,
         "--jobs", "2", "--lease-seconds", "4", paths=paths, account="worker")  # fmt: skip
    for name in ("signer", "signer-2"):
        _add(made, skew, name, "stitch_worker.signer", *_store(made, "signer"),
             "--key", str(folder / "key"), paths=paths, account="signer")  # fmt: skip


def _serve_store(made: Service, kubeconfig: Path, paths: str) -> None:
    """The store's server, a way to it for each account, and their tokens."""
    port = free_port()
    for account in ACCOUNTS:
        made.relays[f"{account} - store"] = Relay(port)
        pod = made.api.add("stitch", account, {}, account=account, audience=STORE_AUDIENCE)
        (made.folder / f"{account}.token").write_text(pod.token)
    roles = [part for one in ACCOUNTS for part in ("--account", f"stitch/{one}={one}")]
    here, metrics = ("--host", "127.0.0.1"), ("--metrics-host", "127.0.0.1")
    _add(made, {}, "store", "stitch_operator.store", "--folder", str(made.volume / "store"), *roles,
         *_certificate(made.folder), "--kubeconfig", str(kubeconfig), *here, "--port", str(port),
         *metrics, "--metrics-port", str(free_port()), paths=paths)  # fmt: skip
    url = f"https://localhost:{port}"
    wait_for(lambda: _ready(made, url), "the store is ready")


def _store(made: Service, account: str) -> tuple[str, str]:
    return "--store", f"stitch://localhost:{made.relays[f'{account} - store'].port}"


def _certificate(folder: Path) -> tuple[str, ...]:
    files = ("--certificate", folder / "gateway.pem", "--certificate-key", folder / "gateway.key")
    return tuple(map(str, files))


def _add(
    made: Service,
    skew: Mapping[str, float],
    name: str,
    module: str,
    *more: str,
    paths: str | None = None,
    account: str = "",
) -> None:
    skewed = ["-c", SKEWED, str(skew[name])] if name in skew else ["-m"]
    command = [*skewed, module, *more]
    environment = {
        "STITCH_STORE_CA": str(made.folder / "ca.pem"),
        "STITCH_STORE_TOKEN_FILE": str(made.folder / f"{account}.token"),
    }
    own = environment if account else {}
    made.parts[name] = Part(name, command, made.folder, own, paths=paths or python_path())
    made.parts[name].start()


@contextlib.contextmanager
def _volume(folder: Path) -> Iterator[None]:
    """A small file system of its own: root mounts it."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# ---- losses ------------------------------------------------------------------------------------
Loss = Callable[[Service], None]


def killed(*names: str) -> Loss:
    def lose(service: Service) -> None:
        for name in names:
            service.parts[name].kill()
            threading.Timer(BACK_SECONDS, service.parts[name].start).start()

    return lose


def without_broker(service: Service) -> None:
    service.redis.kill()
    threading.Timer(BACK_SECONDS, service.redis.start).start()


def without_database(service: Service) -> None:
    service.database.kill()
    threading.Timer(BACK_SECONDS, service.database.start).start()


def cut(*pairs: str, seconds: float = AWAY_SECONDS) -> Loss:
    def lose(service: Service) -> None:
        for pair in pairs:
            service.relays[pair].cut(seconds)

    return lose


LOSSES: dict[str, Loss] = {
    "one gateway of two killed": killed("gateway"),
    "both gateways killed": killed("gateway", "gateway-2"),
    "the worker killed": killed("worker"),
    "one signer of two killed": killed("signer"),
    "both signers killed": killed("signer", "signer-2"),
    "the broker killed, with its data": without_broker,
    "the ledger's database killed": without_database,
    "the store's server killed": killed("store"),
    "no network between a job and both gateways": cut("job - gateway", "job - gateway-2"),
    "no network between gateways and ledger": cut("gateway - ledger"),
    "no network between gateways and broker": cut("gateway - broker"),
    "no network between worker and broker": cut("worker - broker"),
    "no network between gateways and store": cut("gateway - store"),
    "no network between worker and store": cut("worker - store"),
    "no network between signers and store": cut("signer - store"),
    "no API server": cut("gateway - API server"),
    "the volume full": lambda service: service.fill(AWAY_SECONDS),
}
LONG_LOSSES: dict[str, Loss] = {
    "no API server for ten minutes": cut("gateway - API server", seconds=LONG_SECONDS),
}
SKEWS: dict[str, dict[str, float]] = {
    "a gateway's clock an hour ahead": {"gateway": 3600.0},
    "a gateway's clock an hour behind": {"gateway": -3600.0},
    "the worker's clock an hour ahead": {"worker": 3600.0},
    "a signer's clock a day behind": {"signer": -86400.0},
}


# ---- a job -------------------------------------------------------------------------------------
@dataclass
class Outcome:
    """What became of a job. `told`: an answer that no job must get."""

    told: str = ""
    artifact: bool = False
    wrong: int = 0


class Told(Exception):
    """An answer that is neither one nor to ask again."""


@dataclass
class Job:
    """The calls of one job; of the gateways whichever answers, as behind a Service."""

    service: Service
    token: str
    deadline: float
    turn: int = 0

    def ask(self, method: str, path: str, wanted: tuple[int, ...], body: Any = None) -> Any:
        while time.monotonic() < self.deadline:
            url = self.service.gateways[self.turn % len(self.service.gateways)]
            try:
                with self.service.client(url, self.token) as asked:
                    answer = asked.request(method, path, json=body)
            except httpx.HTTPError:
                self.turn += 1
                time.sleep(0.1)
                continue
            if answer.status_code in wanted:
                return answer
            if answer.status_code not in ASK_AGAIN:
                raise Told(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
            if answer.status_code == 404:
                return answer
            time.sleep(0.3)
        raise TimeoutError(path)


def life(
    service: Service,
    number: int,
    point: str,
    lose: Callable[[], None],
    patience: float = PATIENCE_SECONDS,
) -> Outcome:
    """One job from its first word to its last, with the loss at `point`; its graph and namespace
    are those of `number`."""
    namespace, before = f"team-{number}", service.totals(f"team-{number}")
    train = f"train-{POINTS.index(point)}"
    token = service.api.add(namespace, train, {"cpu": "2"}, ago=3600).token
    job = Job(service, token, time.monotonic() + patience)
    outcome, posted = Outcome(), 0
    try:
        key = _wait_for_artifact(job, number, point, lose)
        if point == POINTS[3]:
            lose()
        _verified(service, job.ask("GET", f"/v1/artifacts/{key[1]}", (200,)).content)
        outcome.artifact = True
        about = {"session": "s", "graph": key[0], "key": key[1]}
        for seq, kind in enumerate(("timed", "swap-begin", "swap-ok"), 1):
            said = {**about, "seq": seq, "type": kind, **({"key": ""} if kind == "timed" else {})}
            job.ask("POST", "/v1/jobs/events", (200,), said)
        for seq in range(1, REPORTS + 1):
            if point == POINTS[4] and seq == 2:
                lose()
            posted = seq * SECOND // 2
            said = {**about, "seq": 10 + seq, "steps": 100 * seq, "stitched_ns": 10 * seq * SECOND,
                    "baseline_ns": 10 * seq * SECOND + posted, "interval": [1, 2 * posted],
                    "pairs": 9, "devices": 1.0}  # fmt: skip
            for _ in range(2):  # each twice, as a job whose answer was lost says it
                job.ask("POST", "/v1/savings", (200,), said)
    except (Told, TimeoutError) as error:
        outcome.told = "" if isinstance(error, TimeoutError) else str(error)
        print(f"{namespace}, {point}: {error!r}")
    wait_for(lambda: _answers(service, namespace), "the ledger's database")
    outcome.wrong = service.totals(namespace) - before - posted
    return outcome


def _answers(service: Service, namespace: str) -> bool:
    with contextlib.suppress(Exception):
        service.totals(namespace)
        return True
    return False


def _wait_for_artifact(
    job: Job, number: int, point: str, lose: Callable[[], None]
) -> tuple[str, str]:
    """The graph's digest, and the artifact's key."""
    if point == POINTS[0]:
        lose()
    data = tiny_graph(512 + number, 64).SerializeToString(deterministic=True)
    body = submission(data, target=host().target, tf=f"{TF}.0", preserve=["result"])
    passed = set(POINTS[:1])
    while time.monotonic() < job.deadline:
        answer = job.ask("POST", "/v1/graphs", (200, 202), body)
        said = answer.json() if answer.status_code != 404 else {}
        if said.get("status") == "ready":
            return _digest(job.service, said["request"]), str(said["key"])
        for reached, now in (
            (POINTS[1], answer.status_code == 202),
            (POINTS[2], _begun(job.service, said.get("request", ""))),
        ):
            if now and reached not in passed:
                passed.add(reached)
                if point == reached:
                    lose()
        if said.get("status") == "refused":
            raise Told(f"refused: {said}")
        time.sleep(0.2)
    raise TimeoutError("its artifact")


def _begun(service: Service, request: str) -> bool:
    return bool(request) and bool((service.store.read_answer(request) or {}).get("stage"))


def _digest(service: Service, request: str) -> str:
    return str(json.loads(service.store.read("requests", request, "meta.json"))["digest"])


def _verified(service: Service, data: bytes) -> None:
    """As the job holds it before it loads anything."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        manifest, signature = (
            archive.extractfile(name).read()  # type: ignore[union-attr]
            for name in ("manifest.json", "manifest.sig")
        )
    public = sign.public_hex(sign.load_or_create_key(service.folder / "key"))
    if not sign.verify(public, signature, manifest):
        raise Told("its signature does not hold")


# ---- the table ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    loss: str
    jobs: int
    harmed: int
    lost: int
    wrong: int


def row(loss: str, outcomes: list[Outcome]) -> Row:
    return Row(
        loss,
        len(outcomes),
        sum(bool(one.told) for one in outcomes),
        sum(not one.artifact for one in outcomes),
        sum(one.wrong != 0 for one in outcomes),
    )


def table(rows: list[Row]) -> str:
    lines = ["| lost | jobs | harmed | tasks lost | figures wrong |", "|---|---|---|---|---|"]
    whole = Row("all", *(sum(getattr(one, name) for one in rows)
                         for name in ("jobs", "harmed", "lost", "wrong")))  # fmt: skip
    for one in (*rows, whole):
        lines.append(f"| {one.loss} | {one.jobs} | {one.harmed} | {one.lost} | {one.wrong} |")
    return "\n".join(lines) + "\n"


def together(service: Service, number: int, lose: Loss) -> list[Outcome]:
    """One loss, of five jobs that have each come to another point of their lives."""
    numbers = range(number + 1, number + 1 + len(POINTS))
    all_there = threading.Barrier(len(POINTS), lambda: lose(service), PATIENCE_SECONDS)
    patience = 2 * PATIENCE_SECONDS + LONG_SECONDS
    with ThreadPoolExecutor(len(POINTS)) as jobs:
        lived = [
            jobs.submit(life, service, one, point, lambda: all_there.wait(), patience)
            for one, point in zip(numbers, POINTS, strict=True)
        ]
        return [one.result() for one in lived]


def measured(only: str) -> Iterator[Row]:
    number = 0
    with tempfile.TemporaryDirectory(prefix="stitch-kills-") as name:
        with serving(_made(Path(name) / "kills"), {}) as service:
            for loss, lose in track(LOSSES.items(), description="losses"):
                if only not in loss:
                    continue
                outcomes = []
                for point in POINTS:
                    number += point in POINTS[:3]
                    began = time.monotonic()
                    outcomes.append(life(service, number, point, lambda one=lose: one(service)))
                    print(f"{loss}, {point}: {time.monotonic() - began:.0f} s", flush=True)
                    time.sleep(BACK_SECONDS)
                yield row(loss, outcomes)
            for loss, lose in LONG_LOSSES.items():
                if only in loss:
                    yield row(loss, together(service, number, lose))
                    number += len(POINTS)
        for index, (loss, skew) in enumerate(SKEWS.items()):
            if only not in loss:
                continue
            with serving(_made(Path(name) / f"skew-{index}"), skew) as service:
                number += 1
                yield row(loss, [life(service, number, POINTS[0], lambda: None)])


def written(one: Row) -> None:
    """The table with this row in its place; those of other runs stay until they are run again."""
    print(one, flush=True)
    kept = json.loads(RAW.read_text()) if RAW.exists() else {}
    kept[one.loss] = asdict(one)
    record.write_figures(RAW, kept)
    rows = [Row(**kept[loss]) for loss in (*LOSSES, *LONG_LOSSES, *SKEWS) if loss in kept]
    record.write_table(TABLE, table(rows), "python -m bench.kills")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="losses that have these words")
    given = parser.parse_args()
    rows = []
    for one in measured(given.only):
        rows.append(one)
        written(one)
    print(table(rows))
    return int(any(one.harmed or one.lost or one.wrong for one in rows))


if __name__ == "__main__":
    raise SystemExit(main())
