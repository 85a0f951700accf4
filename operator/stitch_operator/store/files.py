"""The folder behind the store's calls: files appear whole, folders disappear whole.

All of it blocks; the server calls it in threads. Several processes may serve one folder, on a
volume that several nodes mount: each has its temporary names in a folder of its own, and one that
has been left alone for LEFT_SECONDS is of a process that ended: the next one to start removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

Parts = tuple[str, ...]
RECEIVED = ".received"
"""Where bodies are until they are whole, on the same volume."""
LEFT_SECONDS = 3600.0


class Entry(msgspec.Struct, frozen=True):
    """A file or folder. `name` from the root with a slash in front, `modified` in epoch seconds."""

    name: str
    type: str
    size: int
    modified: float


@dataclass(frozen=True)
class Receiving:
    """A body that is being written; `keep` gives it its name."""

    file: BinaryIO
    temporary: Path
    target: Path

    def keep(self) -> None:
        """Raises OSError where the volume does not take it."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.temporary, self.target)


class Files:
    """What is below `root`, which must exist. Raises OSError where it cannot be written."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        _forget(self._root / RECEIVED, time.time() - LEFT_SECONDS)
        self._received = self._root / RECEIVED / uuid.uuid4().hex
        self._received.mkdir(parents=True)

    def path(self, parts: Parts) -> Path:
        return self._root.joinpath(*parts)

    def entry(self, parts: Parts) -> Entry | None:
        """None where there is nothing."""
        try:
            return self._entry(self.path(parts))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def opened(self, parts: Parts) -> BinaryIO | None:
        """A file as it is now, whatever takes its name later; None where there is none."""
        try:
            return self.path(parts).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def listed(self, parts: Parts) -> list[Entry]:
        """What is in a folder; empty where it is none."""
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(self.path(parts))):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found.append(self._entry(self.path((*parts, name))))
        return found

    def below(self, parts: Parts) -> list[Entry]:
        """All files below a folder, or the file itself."""
        own = self.entry(parts)
        if own is None or own.type == "file":
            return [own] if own else []
        return [
            entry
            for one in self.listed(parts)
            for entry in (
                [one] if one.type == "file" else self.below((*parts, Path(one.name).name))
            )
        ]

    def remove(self, parts: Parts) -> bool:
        """Whether there was anything. It is out of sight before any of it is gone."""
        self._received.mkdir(parents=True, exist_ok=True)
        away = self._received / uuid.uuid4().hex
        try:
            os.rename(self.path(parts), away)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if away.is_dir():
            shutil.rmtree(away)
        else:
            away.unlink()
        return True

    @contextlib.contextmanager
    def receiving(self, parts: Parts) -> Iterator[Receiving]:
        """A body for this name; what is not kept leaves nothing."""
        self._received.mkdir(parents=True, exist_ok=True)
        temporary = self._received / uuid.uuid4().hex
        try:
            with temporary.open("wb") as file:
                yield Receiving(file, temporary, self.path(parts))
        finally:
            temporary.unlink(missing_ok=True)

    def free(self) -> int:
        """Bytes that the volume has left."""
        return shutil.disk_usage(self._root).free

    def _entry(self, path: Path) -> Entry:
        found = path.stat()
        kind = "directory" if path.is_dir() else "file"
        name = "/" + str(path.relative_to(self._root))
        return Entry(name, kind, 0 if kind == "directory" else found.st_size, found.st_mtime)


def _forget(received: Path, before: float) -> None:
    """What nobody has touched since then."""
    with contextlib.suppress(FileNotFoundError):
        for one in received.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another one that starts was quicker
                if one.stat().st_mtime < before:
                    shutil.rmtree(one) if one.is_dir() else one.unlink()
