"""A gateway whose worker is handmade.py: graphs in, artifacts out, reports kept."""

from __future__ import annotations

import base64
import importlib
import json
import threading
from pathlib import Path
from typing import Any

from tests.inject import handmade
from tests.inject import https_gateway as gateways
from tests.inject.https_gateway import Asked, Reply

KEY_OF_REQUEST = "b" * 64


class HandmadeGateway:
    """Answers graphs by the worker of handmade.py, in `store`."""

    def __init__(self, store: Path, key_file: Path, behaviour: str) -> None:
        self._store, self._key_file, self._behaviour = store, key_file, behaviour
        self._lock = threading.Lock()
        importlib.import_module("tensorflow")  # takes longer than the jobs run
        self.digest = ""
        self.revoked: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.savings: list[dict[str, Any]] = []

    def __call__(self, asked: Asked) -> Reply:
        with self._lock:
            if asked.path == "/v1/graphs":
                return self._submitted(asked.document)
            if asked.path.startswith("/v1/artifacts/"):
                return self._artifact()
            kept = self.savings if asked.path == "/v1/savings" else self.events
            kept.append(asked.document)
            return gateways.reply(200, {"status": "noted", "revoked": self.revoked})

    def _submitted(self, document: dict[str, Any]) -> Reply:
        graph = base64.b64decode(document.pop("graph"))
        self.digest = digest_of(graph, document["preserve"])
        folder = self._store / "requests" / self.digest
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "graph.pb").write_bytes(graph)
        (folder / "meta.json").write_text(json.dumps(document))
        return gateways.reply(202, {"key": KEY_OF_REQUEST, "retry_after": 0.2})

    def _artifact(self) -> Reply:
        folder = self._store / "artifacts" / self.digest
        if not (folder / "manifest.sig").exists():
            handmade.answer(self._store, self._key_file, self._behaviour)
        names = ("manifest.json", "manifest.sig", "kernels_00.so")
        tar = gateways.tar({name: (folder / name).read_bytes() for name in names})
        return Reply(200, tar, {"ETag": '"1"'})


def digest_of(graph: bytes, preserve: list[str]) -> str:
    from tensorflow.core.framework import graph_pb2

    from stitchcore.inject import digest

    return digest.number(graph_pb2.GraphDef.FromString(graph), preserve).digest
