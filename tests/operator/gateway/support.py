"""Graphs, artifacts and gateways for the tests of the gateway. Everything but the queue is real."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import event
from starlette.testclient import TestClient

from stitch_operator.gateway.app import application
from stitch_operator.gateway.digests import Canonical, Digests, canonical
from stitch_operator.gateway.identity import Authenticator, Cached, Identity
from stitch_operator.gateway.ledger import Ledger, Quota
from stitch_operator.gateway.metrics import Durable, Metrics
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.service import (
    BODY_BYTES,
    RATES,
    Parts,
    Rates,
    Service,
    Shares,
    tenant_of,
)
from stitch_operator.gateway.wire import MESSAGES
from stitchcore.artifact.keys import request_key
from stitchcore.artifact.store import Store, open_store
from stitchcore.service.queues import queue_name
from tests.waiting import wait_for

TARGET, TF = "cpu-x86-64-v3", "2.21.0"
QUEUE = "stitch.cpu-x86-64-v3.tf2.21"
TOKENS = {f"{name}-token-0123456789": name for name in ("alice", "bob", "carol")}
KEY = "ab" * 32


class MemoryQueue:
    """Remembers what was submitted."""

    def __init__(self, *served: str) -> None:
        self.submitted: list[tuple[str, str]] = []
        self.names = frozenset(served)
        self.free = 1000

    def submit(self, request_key: str, target: str, tf_minor: str) -> None:
        self.submitted.append((request_key, queue_name(target, tf_minor)))

    def served(self) -> frozenset[str]:
        return self.names

    def places(self, name: str) -> int:
        return self.free

    def depth(self, name: str) -> int:
        return sum(queue == name for _, queue in self.submitted)

    def close(self) -> None:
        pass


def graph(size: int = 4, salt: int = 0) -> bytes:
    """A chain of additions; `salt` makes it another graph."""
    made = MESSAGES["GraphDef"]()
    made.node.add(name="in", op="Placeholder").attr["dtype"].type = 1
    for number in range(size):
        node = made.node.add(name=f"n{number}", op="AddV2")
        node.input.extend(["in" if number == 0 else f"n{number - 1}", "in"])
        node.attr["salt"].i = salt
    return bytes(made.SerializeToString())


def submission(data: bytes, **more: Any) -> dict[str, Any]:
    """Body of POST /v1/graphs."""
    text = base64.b64encode(data).decode()
    return {"target": TARGET, "tf": TF, "abi": 1, "graph": text, "session": "s1", **more}


def key_of(data: bytes, namespace: str = "alice") -> tuple[str, str]:
    """(canonical digest, request key) of a graph as `submission` hands it in."""
    found, tenant = canonical(data, []), tenant_of(namespace)
    assert isinstance(found, Canonical)
    return found.digest, request_key(found.digest, TARGET, "2.21", 1, (), tenant=tenant)


def unsynced(ledger: Ledger) -> Ledger:
    """In a file that does not wait for the disk: what is tried here does not lose power."""
    engine = ledger._database.engine

    @event.listens_for(engine, "connect")
    def _opened(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    engine.dispose()
    return ledger


@dataclass(frozen=True)
class Tokens:
    """An authenticator of a few namespaces."""

    started: float | None = None
    devices: float = 2.0

    def identify(self, token: str) -> Identity:
        if token not in TOKENS:
            raise Rejected(Problem.UNAUTHORIZED, "unknown token")
        name = TOKENS[token]
        return Identity(name, "train", f"pod-{name}", self.devices, "cpu", self.started)


@dataclass
class Running:
    """A gateway in this process: its client (as alice), store, queue and ledger."""

    client: TestClient
    store: Store
    queue: MemoryQueue
    service: Service
    folder: Path

    def as_(self, name: str) -> dict[str, str]:
        token = next(token for token, who in TOKENS.items() if who == name)
        return {"Authorization": f"Bearer {token}"}

    def submit(self, data: bytes, name: str = "alice", **more: Any) -> Any:
        return self.client.post("/v1/graphs", json=submission(data, **more), headers=self.as_(name))

    def get(self, path: str, name: str = "alice", **headers: str) -> Any:
        return self.client.get(path, headers={**self.as_(name), **headers})

    def post(self, path: str, body: Mapping[str, Any], name: str = "alice") -> Any:
        return self.client.post(path, json=body, headers=self.as_(name))

    def written(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call of the ledger, in the thread that writes it."""
        return self.service.ledger._pool.submit(function, *arguments).result(120)

    def forget(self) -> None:
        """Nothing read from the store is believed any longer."""
        self.service._memory.answers.clear()
        self.service._memory.known.clear()


@contextmanager
def gateway(
    folder: Path,
    authenticator: Authenticator[Identity] | None = None,
    rates: Rates = RATES,
    store: Store | None = None,
    store_seconds: float = 10.0,
    served: tuple[str, ...] = (QUEUE,),
    trusting: bool = True,
    body_bytes: int = BODY_BYTES,
    quota: Quota | None = None,
    places: int = 1000,
    shares: Shares | None = None,
    on_demand: tuple[str, ...] = (),
) -> Iterator[Running]:
    """A gateway on `folder`; started again on the same folder it goes on where it was."""
    opened = store or open_store(str(folder / "store"))
    queue = MemoryQueue(*served)
    queue.free = places
    ledger = Ledger(folder / "ledger.sqlite", quota=quota)
    metrics = Metrics(lambda: Durable(ledger.totals(), ledger.spent(), ledger.counts()), "test")
    inner = authenticator or Tokens(started=time.time() - 3600)
    service = Service(
        Parts(
            *(opened, queue, ledger, Digests(), Cached(inner), metrics),
            rates=rates,
            store_seconds=store_seconds,
            body_bytes=body_bytes,
            shares=shares or Shares(),
            on_demand=frozenset(on_demand),
        )
    )
    with TestClient(application(service)) as client:
        wait_for(lambda: service.trust is not None or not trusting, "it knows its keys")
        yield Running(client, opened, queue, service, folder)


@contextmanager
def withheld(running: Running, data: bytes, name: str = "alice") -> Iterator[None]:
    """A gzipped submission that the gateway has read all of but the end, which comes afterwards."""
    portal = running.client.portal
    assert portal is not None
    kept_back, read = portal.call(anyio.Event), threading.Event()
    ends = [{"body": data[-4:], "more_body": False}, {"body": data[:-4], "more_body": True}]
    scope = {
        **{"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/graphs"},
        **{"query_string": b"", "root_path": "", "scheme": "https", "state": {}},
        "headers": [
            (b"authorization", running.as_(name)["Authorization"].encode()),
            (b"content-encoding", b"gzip"),
        ],
    }

    async def receive() -> dict[str, Any]:
        if len(ends) == 1:
            read.set()
            await kept_back.wait()
        return {"type": "http.request", **ends.pop()}

    async def send(message: Any) -> None:
        pass

    call = portal.start_task_soon(running.client.app, scope, receive, send)
    try:
        assert read.wait(120)
        yield
    finally:
        portal.call(kept_back.set)
        call.result(120)


def publish(
    store: Store, request: str, key: str = KEY, report: bytes = b"{}", **answer: Any
) -> bytes:
    """What worker and signer leave behind: an artifact and a ready answer. Its library's bytes."""
    library = b"\x7fELF" + key.encode() * 50
    entry = {"file": "kernels_00.so", "sha256": hashlib.sha256(library).hexdigest()}
    expect = {"seconds_before": 2.0, "seconds_after": 1.0, "kernels_before": 57,
              "kernels_after": 5, "bytes_saved": 19 << 20, "bytes_saveable": 20 << 20}  # fmt: skip
    about = {"key": key, "libraries": [entry], "expect": expect, "refusals": {"library_call": 5}}
    manifest = json.dumps(about).encode()
    files = {"kernels_00.so": library, "manifest.json": manifest, "manifest.sig": b"s" * 64}
    store.publish({**files, "report.json": report}, "manifest.sig", "artifacts", key)
    store.answer(request, {"status": "ready", "key": key, "time": time.time(), **answer})
    return library
