"""What is in an image, read from its OCI archive: configuration and files, without a runtime."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

WHITEOUT = ".wh."
"""In front of a file's name a layer says that it is gone; WHOLE says so of all that is below."""
WHOLE = ".wh..wh..opq"


def digest(archive: Path) -> str:
    """Of the archive's one manifest: the name of exactly this image."""
    with _opened(archive) as content:
        return _digest(content)


def config(archive: Path) -> dict[str, Any]:
    """User, entry point, environment, history."""
    with _opened(archive) as content:
        return _json(content, _path(_manifest(content)["config"]["digest"]))


def compressed_bytes(archive: Path) -> list[int]:
    """Of each layer, lowest first: what a node pulls."""
    with _opened(archive) as content:
        return [int(layer["size"]) for layer in _manifest(content)["layers"]]


def files(archive: Path) -> dict[str, tarfile.TarInfo]:
    """What a container finds at each path, layers laid over one another."""
    found: dict[str, tarfile.TarInfo] = {}
    with _layers(archive) as layers:
        for layer in layers:
            for member in layer:
                _lay(found, member)
    return found


def contents(archive: Path, wanted: Callable[[str], bool] = lambda path: True) -> dict[str, bytes]:
    """What is in plain files of the image that a container finds, of paths that are wanted."""
    found: dict[str, bytes] = {}
    with _layers(archive) as layers:
        for layer in layers:
            for member in layer:
                path = _absolute(member.name)
                if wanted(path) and member.isfile() and (stream := layer.extractfile(member)):
                    found[path] = stream.read()
    there = files(archive)
    return {path: data for path, data in found.items() if path in there and there[path].isfile()}


def read(archive: Path, path: str) -> bytes:
    """A file of the image. Raises KeyError."""
    return contents(archive, lambda one: one == path)[path]


def _lay(found: dict[str, tarfile.TarInfo], member: tarfile.TarInfo) -> None:
    path = _absolute(member.name)
    parent, _, name = path.rpartition("/")
    if name == WHOLE:
        _remove(found, parent)
    elif name.startswith(WHITEOUT):
        gone = f"{parent}/{name.removeprefix(WHITEOUT)}"
        found.pop(gone, None)
        _remove(found, gone)
    else:
        found[path] = member


def _remove(found: dict[str, tarfile.TarInfo], folder: str) -> None:
    for path in [one for one in found if one.startswith(folder + "/")]:
        del found[path]


def _absolute(name: str) -> str:
    return "/" + name.removeprefix("./").strip("/")


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    with tarfile.open(archive) as content:
        yield content


@contextmanager
def _layers(archive: Path) -> Iterator[Iterator[tarfile.TarFile]]:
    def each(content: tarfile.TarFile) -> Iterator[tarfile.TarFile]:
        for layer in _manifest(content)["layers"]:
            with tarfile.open(fileobj=_stream(content, _path(layer["digest"]))) as opened:
                yield opened

    with _opened(archive) as content:
        yield each(content)


def _manifest(content: tarfile.TarFile) -> dict[str, Any]:
    return _json(content, _path(_digest(content)))


def _digest(content: tarfile.TarFile) -> str:
    return str(_json(content, "index.json")["manifests"][0]["digest"])


def _path(name: str) -> str:
    return f"blobs/{name.replace(':', '/')}"


def _json(content: tarfile.TarFile, path: str) -> dict[str, Any]:
    document: dict[str, Any] = json.load(_stream(content, path))
    return document


def _stream(content: tarfile.TarFile, path: str) -> IO[bytes]:
    stream = content.extractfile(path)
    if stream is None:
        raise KeyError(path)
    return stream
