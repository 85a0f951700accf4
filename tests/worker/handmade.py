"""Artifacts without a compiler: headers of shared objects, manifests, requests."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec

from stitch_worker import unsigned
from stitchcore.artifact import package
from stitchcore.artifact.keys import artifact_key, code_version, settings_text
from stitchcore.artifact.manifest import KernelEntry, Manifest, Patch
from stitchcore.artifact.package import Unsigned
from stitchcore.artifact.store import Store
from stitchcore.options import PLANNER, signature

REQUEST = "ab" * 32
META: dict[str, Any] = {
    "digest": "cd" * 32,
    "tf": "2.21.0",
    "target": "cpu-x86-64-v3",
    "preserve": ["n1"],
}
X86, ARM = 62, 183


def library(machine: int = X86, kind: int = 3, content: bytes = b"kernels") -> bytes:
    """The 64-byte header of an ELF shared object (little endian), and something after it."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", kind, machine)
    return head + bytes(64 - len(head)) + content


def key_for(**changes: Any) -> str:
    """The key of a handmade artifact, of whose parts some are changed."""
    parts = {"digest": META["digest"], "target": META["target"], "tf": "2.21", **changes}
    settings = settings_text(signature(PLANNER, 0.0), META["preserve"])
    return artifact_key(parts["digest"], "", parts["target"], parts["tf"], 1, "gcc 12", settings)


def artifact(libraries: tuple[bytes, ...] = (library(),), **changes: Any) -> Unsigned:
    """An unsigned artifact for META; `changes` are manifest fields."""
    fields: dict[str, Any] = {
        "key": key_for(),
        "digest": META["digest"],
        "target": META["target"],
        "tf": "2.21",
        "compiler": "gcc 12",
        "libraries": package.library_entries(libraries),
        "kernels": (KernelEntry("k", 0, "k_1", "kernel"),),
        "patch": Patch(),
        **changes,
    }
    return package.unsigned(Manifest(**fields), libraries, {"report.json": b"{}"})


def submitted(store: Store, meta: dict[str, Any] | None = None) -> None:
    files = {"graph.pb": b"", "meta.json": json.dumps(meta or META).encode()}
    store.publish(files, "meta.json", "requests", REQUEST)


def uploaded(store: Store, made: Unsigned, under: str = "", token: int = 7) -> None:
    """As a worker hands it over, or, `under` another key, as a liar does."""
    origin = unsigned.Origin(
        REQUEST,
        code_version(),
        token,
        {"compile": 2.0, "measure": 1.0},
        open=("network",),
        account=5,
    )
    files = {**made.files, unsigned.MARKER: msgspec.json.encode(origin)}
    store.publish(files, unsigned.MARKER, unsigned.FOLDER, under or made.key)
