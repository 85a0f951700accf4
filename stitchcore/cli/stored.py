"""What a store holds, by any name that a command prints: of an artifact, a graph or a session.

Every command takes the same names: an artifact's key, a graph's digest (the twelve digits in the
summary) or a session, each in full or its beginning; without one the last job is meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from stitchcore.cli.run_job import EventFile, Record

REPORT = "report.json"
NAME = re.compile(r"[0-9a-f]{6,64}|[0-9]{8}-[0-9-]+")
"""What may name an artifact, a graph or a session."""
DIGITS = 12
"""Of a name, where a command prints it."""
LISTED = 8
"""Names listed where one is unknown."""


def artifacts(store: Path, name: str = "") -> list[Path]:
    """Folders of artifacts with a report that `name` means; the newest is the last."""
    folders = [path for path in _within(store / "artifacts") if (path / REPORT).is_file()]
    folders.sort(key=lambda path: path.stat().st_mtime)
    keys = {*_of_graphs(store, name), *_of_sessions(store, name)} if name else set()
    return [path for path in folders if path.name.startswith(name) or path.name in keys]


def _within(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _of_graphs(store: Path, name: str) -> Iterator[str]:
    """Keys of the artifacts of graphs whose digest begins with `name`."""
    for path in _within(store / "answers"):
        if path.name.startswith(name):
            try:
                yield str(json.loads(path.read_bytes()).get("key", ""))
            except (OSError, ValueError, AttributeError):
                continue


def _of_sessions(store: Path, name: str) -> Iterator[str]:
    for folder in sessions(store, name):
        record = record_of(folder)
        yield from keys_of(record)
        for graph in record.graphs:
            if not graph.key:  # built after the job, say
                yield from _of_graphs(store, graph.digest)


def sessions(store: Path, name: str) -> list[Path]:
    """Folders of the sessions that `name` means, the newest last; it may be a session's folder."""
    if name and (Path(name) / "events.jsonl").is_file():
        return [Path(name)]
    found = _within(store / "sessions")
    return [path for path in found if path.name.startswith(name) and path.is_dir()]


def sessions_of_graph(store: Path, digest: str) -> list[Path]:
    """Of jobs that had a graph whose digest begins so, the newest last."""
    return [
        folder
        for folder in sessions(store, "")
        if any(graph.digest.startswith(digest) for graph in record_of(folder).graphs)
    ]


def record_of(session: Path) -> Record:
    """What a session's events tell."""
    record = Record()
    for event in EventFile(session / "events.jsonl").read():
        record.add(event)
    return record


def keys_of(record: Record) -> list[str]:
    """The artifacts that a session used, in its graphs' order."""
    return list(dict.fromkeys(graph.key for graph in record.graphs if graph.key))


def digest(store: Path, name: str) -> str:
    """The whole digest of the one graph of the store that `name` begins; else `name`."""
    known = {path.stem for path in _within(store / "answers")}
    known |= {path.name for path in _within(store / "artifacts")}
    meant = [one for one in known if name and one.startswith(name)]
    return meant[0] if len(meant) == 1 else name


def page_of(store: Path, artifact: Path, title: str, name: str = "") -> str | None:
    """The page that the newest session which ran an artifact wrote of its step (`title`), of those
    that `name` means where it means one; None where no session did."""
    file = f"report-{title.rpartition(' ')[2]}.html"
    for folder in reversed(sessions(store, name) or sessions(store, "")):
        try:
            text = (folder / file).read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        if artifact.name in keys_of(record_of(folder)):
            return text
    return None
