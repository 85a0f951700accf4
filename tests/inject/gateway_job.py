"""A client of a gateway as the hook uses it, and artifacts for it: for tests without TensorFlow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stitchcore.artifact import sign
from stitchcore.inject import client, gateway, settings
from stitchcore.inject.contract import MANIFEST_FORMAT
from tests.inject import https_gateway as gateways
from tests.inject.https_gateway import Asked, Reply, Server
from tests.waiting import wait_for

DIGEST, KEY = "d" * 64, "a" * 64
META = {"tf": "2.21.0", "target": "cpu-x86-64-v4", "abi": 1, "preserve": [], "threads": 2}


def verify(signature: bytes, message: bytes, public: bytes) -> bool:
    return sign.verify(public.hex(), signature, message)


def manifest(library: bytes = b"code", **changes: Any) -> dict[str, Any]:
    return {
        "format": MANIFEST_FORMAT, "key": KEY, "digest": DIGEST, "tf": "2.21", "abi": 1,
        "target": "cpu-x86-64-v3", "compiler": "none", "patch": {}, "kernels": [],
        "libraries": [{"file": "kernels_00.so", "sha256": hashlib.sha256(library).hexdigest()}],
        **changes,
    }  # fmt: skip


def files(key: Any, document: Mapping[str, Any], library: bytes = b"code") -> dict[str, bytes]:
    text = json.dumps(document).encode()
    return {
        "manifest.json": text,
        "manifest.sig": sign.sign(key, text),
        "kernels_00.so": library,
    }


class Job:
    """What the hook does with a client, and what it was told."""

    def __init__(self, server: Server, store: Path, keys: tuple[str, ...], **extra: str) -> None:
        environment = server.settings(STITCH_PUBLIC_KEYS=",".join(keys), STITCH_STORE=str(store))
        self.config = settings.read({**environment, **extra})
        expected = client.Expected("2.21", "cpu-x86-64-v4", self.config.public_keys, verify)
        self.complaints: list[tuple[str, str, str]] = []
        self.source = gateway.source(self.config, expected, self._complain)
        self.source.start()

    def _complain(self, about: str, reason: str, detail: str) -> None:
        self.complaints.append((about, reason, detail))

    def until(self, status: str) -> dict[str, Any]:
        def there() -> bool:
            answer = self.source.answer(DIGEST)
            return answer is not None and answer["status"] == status

        wait_for(there, lambda: (self.source.answer(DIGEST), self.complaints))
        return self.source.answer(DIGEST) or {}


def ready(tar: bytes) -> gateways.Answer:
    """A gateway that has the artifact: pending once, then ready."""

    def answer(asked: Asked) -> Reply:
        if asked.path == "/v1/graphs":
            waiting = {"key": "b" * 64, "status": "pending", "stage": "plan", "retry_after": 0.2}
            return gateways.reply(202, waiting)
        if asked.headers.get("if-none-match") == '"tag"':
            return Reply(304, b"")
        return Reply(200, tar, {"ETag": '"tag"', "Content-Type": "application/x-tar"})

    return answer
