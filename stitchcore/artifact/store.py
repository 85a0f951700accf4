"""The store: a folder or object store by fsspec URL, with atomic publication.

Layout in docs/contracts.md sections 4 and 5. Everything durable is immutable and content-addressed
but the answers, which are small and replaced whole; two writers of one key write equal bytes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from stitchcore.artifact.keys import code_version
from stitchcore.errors import Reason, Refused

REMOTE = "stitch"
ANSWER_BYTES = 2**20
"""Of an answer: whoever reads it may not be its writer's friend."""
DISK_FULL = "disk full"
"""What the detail of a refusal begins with where there is no room."""
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory", REMOTE})
"""Protocols that know no folders. To make one may make a bucket, in place of one misspelt."""
fsspec.register_implementation(
    REMOTE,
    "stitchcore.artifact.remote.RemoteFileSystem",
    clobber=True,
    errtxt="pip install httpx",
)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """What a file system says (full, timed out) as a refusal that names the file. Libraries below
    fsspec raise errors of their own, which are no OSError (botocore's: no credentials, no host)."""
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        detail = f"{DISK_FULL if full else type(error).__name__}: {error}"
        raise Refused(path, Reason.STORE_UNREADABLE, detail) from error


@dataclass(frozen=True)
class Store:
    """`root` inside `filesystem`. Open with `open_store`."""

    filesystem: AbstractFileSystem
    root: str

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of this machine, where renames are atomic."""
        return isinstance(self.filesystem, LocalFileSystem)

    def reopened(self) -> Store:
        """The same store for a process that was forked: it cannot use its parent's connections."""
        opened = self.filesystem
        return Store(type(opened)(*opened.storage_args, **opened.storage_options), self.root)

    def path(self, *parts: str) -> str:
        """Full path of `parts`; refuses to leave the root."""
        if any(part in ("", ".", "..") or "/" in part or "\\" in part for part in parts):
            raise ValueError(f"not a name in the store: {parts!r}")
        return "/".join((self.root, *parts))

    def read(self, *parts: str, most: int | None = None) -> bytes:
        """Bytes of a file: one more than `most` of them where it is larger than what a stranger may
        make the reader hold. Raises Refused(STORE_UNREADABLE), naming the file."""
        path = self.path(*parts)
        bounds = {} if most is None else {"start": 0, "end": most + 1}
        with _named(path):
            data: bytes = self.filesystem.cat_file(path, **bounds)
        return data

    def exists(self, *parts: str) -> bool:
        """Raises Refused(STORE_UNREADABLE) where the store does not say."""
        path = self.path(*parts)
        with _named(path):
            return bool(self.filesystem.exists(path))

    def write(self, data: bytes, *parts: str) -> None:
        """Write a whole file, so that no reader sees half of one: in a folder by a temporary name
        and a rename, elsewhere in one put. Raises Refused(STORE_UNREADABLE)."""
        path = self.path(*parts)
        parent, name = path.rsplit("/", 1)
        with _named(path):
            if not OBJECT_STORES.intersection(_protocols(self.filesystem)):
                self.filesystem.makedirs(parent, exist_ok=True)
            if not self.is_folder:
                self.filesystem.pipe_file(path, data)
                return
            temporary = f"{parent}/.{name}.{uuid.uuid4().hex}"
            try:
                Path(temporary).write_bytes(data)
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise

    def publish(self, files: Mapping[str, bytes], last: str, *folder: str) -> bool:
        """Publish a folder of files; whether it is ours: a folder that is complete stays.

        In a folder store it appears whole, by a rename. Elsewhere `last` is put after all others
        and says that the folder is complete; two writers at once must be kept apart by a lease.
        """
        if self.exists(*folder, last):
            return False
        if self.is_folder:
            return self._rename_in(files, last, folder)
        for name in [*(name for name in files if name != last), last]:
            self.write(files[name], *folder, name)
        return True

    def _rename_in(self, files: Mapping[str, bytes], last: str, folder: Sequence[str]) -> bool:
        path = Path(self.path(*folder))
        for name in files:
            self.path(*folder, name)  # a name, not a way out
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with _named(str(path)):
            try:
                temporary.mkdir(parents=True)
                for name, data in files.items():
                    (temporary / name).write_bytes(data)
                if path.exists() and not (path / last).exists():
                    shutil.rmtree(path)  # of a writer that ended half-way, before renames
                os.rename(temporary, path)
            except OSError as error:
                shutil.rmtree(temporary, ignore_errors=True)
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY) and (path / last).exists():
                    return False
                raise
        return True

    def delete(self, *parts: str) -> None:
        """Remove a file or a folder with all in it; nothing where there is none."""
        path = self.path(*parts)
        with _named(path), contextlib.suppress(FileNotFoundError):
            if self.is_folder and Path(path).is_dir():
                # out of sight first: no reader finds half a folder
                away = Path(path).with_name(f".{parts[-1]}.{uuid.uuid4().hex}")
                os.rename(path, away)
                shutil.rmtree(away)
            else:
                self.filesystem.rm(path, recursive=True)

    def list(self, *folder: str) -> tuple[str, ...]:
        """Names in a folder, sorted; empty when it does not exist."""
        path = self.path(*folder)
        with _named(path):
            if not self.filesystem.exists(path):
                return ()
            paths = self.filesystem.ls(path, detail=False)
        names = (str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in paths)
        return tuple(sorted(name for name in names if not name.startswith(".")))

    def hidden(self, *folder: str) -> tuple[str, ...]:
        """Temporary names in a folder, which `list` leaves out: of writers at work, or dead."""
        path = self.path(*folder)
        with _named(path):
            paths = self.filesystem.ls(path, detail=False) if self.filesystem.exists(path) else ()
        names = (str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in paths)
        return tuple(sorted(name for name in names if name.startswith(".")))

    def details(self, *parts: str) -> dict[str, Any]:
        """What the file system says of each file below a folder (or of one file), by path."""
        path = self.path(*parts)
        with _named(path):
            entries: dict[str, Any] = self.filesystem.find(path, detail=True)
        return entries

    def written(self, *parts: str) -> float:
        """When the newest file below a folder (or one file) was written, as the store says."""
        return max(map(written, self.details(*parts).values()), default=0.0)

    def answer(self, digest: str, answer: Mapping[str, Any]) -> None:
        """Publish where a request stands (pending, ready, refused), and by which code."""
        document = {**answer, "code": code_version()}
        self.write(json.dumps(document, sort_keys=True).encode(), "answers", f"{digest}.json")

    def read_answer(self, digest: str) -> dict[str, Any] | None:
        """The request's answer, None before the first one. What is no answer (torn, or written by a
        worker that was taken over) is none, and is written anew by who works on the request."""
        if not self.exists("answers", f"{digest}.json"):
            return None
        data = self.read("answers", f"{digest}.json", most=ANSWER_BYTES)
        try:
            decoded = json.loads(data) if len(data) <= ANSWER_BYTES else None
        except (ValueError, RecursionError):
            return None
        return decoded if isinstance(decoded, dict) else None


def written(info: Mapping[str, Any]) -> float:
    """When a file was written (seconds since 1970), of its `details`: fsspec's file systems name
    and type it differently."""
    for name in ("mtime", "LastModified", "created", "modified"):
        value = info.get(name)
        if value is not None:
            return float(value.timestamp() if hasattr(value, "timestamp") else value)
    return time.time()


def open_store(url: str, access: Mapping[str, str] | None = None) -> Store:
    """The store at a folder or fsspec URL (`file:///...`, `s3://...`, `stitch://host:port`).

    `access` is what a file system needs beside its URL: for `stitch`, `ca` and `token_file`.
    """
    # Others write too: what was listed once says nothing of now.
    filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **(access or {}))
    return Store(filesystem, str(root).rstrip("/"))


def _protocols(filesystem: AbstractFileSystem) -> tuple[str, ...]:
    named = filesystem.protocol
    return (named,) if isinstance(named, str) else tuple(named)
