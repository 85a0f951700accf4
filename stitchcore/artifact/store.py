"""The store: a folder or object store by fsspec URL, with atomic publication.

Layout in docs/contracts.md sections 4 and 5. Everything durable is immutable and content-addressed
but the answers, which are small and replaced whole; two writers of one key write equal bytes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from stitchcore.artifact.keys import code_version
from stitchcore.errors import Reason, Refused


@dataclass(frozen=True)
class Store:
    """`root` inside `filesystem`. Open with `open_store`."""

    filesystem: AbstractFileSystem
    root: str

    def path(self, *parts: str) -> str:
        """Full path of `parts`; refuses to leave the root."""
        if any(part in ("", ".", "..") or "/" in part or "\\" in part for part in parts):
            raise ValueError(f"not a name in the store: {parts!r}")
        return "/".join((self.root, *parts))

    def read(self, *parts: str) -> bytes:
        """Bytes of a file. Raises Refused(STORE_UNREADABLE), naming the file."""
        path = self.path(*parts)
        try:
            data: bytes = self.filesystem.cat_file(path)
        except OSError as error:
            detail = f"{type(error).__name__}: {error}"
            raise Refused(path, Reason.STORE_UNREADABLE, detail) from error
        return data

    def exists(self, *parts: str) -> bool:
        return bool(self.filesystem.exists(self.path(*parts)))

    def write(self, data: bytes, *parts: str) -> None:
        """Write by a temporary name and a rename, so that no reader sees half a file."""
        path = self.path(*parts)
        parent, name = path.rsplit("/", 1)
        temporary = f"{parent}/.{name}.{uuid.uuid4().hex}"
        try:
            self.filesystem.makedirs(parent, exist_ok=True)
            self.filesystem.pipe_file(temporary, data)
            self.filesystem.mv(temporary, path)
        except OSError as error:
            detail = f"{type(error).__name__}: {error}"
            raise Refused(path, Reason.STORE_UNREADABLE, detail) from error

    def publish(self, files: Mapping[str, bytes], last: str, *folder: str) -> None:
        """Write a folder of files, `last` after all others: its presence says it is complete."""
        for name, data in files.items():
            if name != last:
                self.write(data, *folder, name)
        self.write(files[last], *folder, last)

    def list(self, *folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty when it does not exist."""
        path = self.path(*folder)
        if not self.filesystem.exists(path):
            return ()
        found = self.filesystem.ls(path, detail=False)
        names = (str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in found)
        return tuple(sorted(name for name in names if not name.startswith(".")))

    def answer(self, digest: str, answer: Mapping[str, Any]) -> None:
        """Publish where a request stands (pending, ready, refused), and by which code."""
        made = {**answer, "code": code_version()}
        self.write(json.dumps(made, sort_keys=True).encode(), "answers", f"{digest}.json")

    def read_answer(self, digest: str) -> dict[str, Any] | None:
        """The request's answer, None before the first one."""
        if not self.exists("answers", f"{digest}.json"):
            return None
        decoded: dict[str, Any] = json.loads(self.read("answers", f"{digest}.json"))
        return decoded


def open_store(url: str) -> Store:
    """The store at a folder or fsspec URL (`file:///...`, `s3://...`, `memory://...`)."""
    filesystem, root = fsspec.core.url_to_fs(url)
    return Store(filesystem, str(root).rstrip("/"))
