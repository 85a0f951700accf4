"""The performance library: the schedule chosen for a kernel on a device, kept in a folder.

FusionStitching 2018 (arXiv 1811.05213) keeps measured times of operations by their
schedule on disk and looks them up for each new graph; here an entry is a whole kernel's, by its
canonical text with its shapes and by the device's record: FOLDER/TARGET-DIGEST/KERNEL.json. An
entry is a schedule only, a point of schedule/space.py, so none can make a kernel wrong. What cannot
be used is ignored, with the reason. Files appear whole, so any number of processes may share a
folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stitchcore.artifact.keys import content_key
from stitchcore.device.records import Device
from stitchcore.fusion.canonical import pattern_key
from stitchcore.fusion.pattern import Pattern
from stitchcore.schedule import space
from stitchcore.schedule.space import DEFAULT, Schedule

VERSION = 1
MEASURED, ESTIMATED = "measured", "estimated"


@dataclass(frozen=True)
class Entry:
    """`seconds` of the kernel with this schedule, `default_seconds` with the device's own; how they
    were `decided` (MEASURED or ESTIMATED), and on which machine."""

    schedule: Schedule
    seconds: float
    default_seconds: float
    decided: str
    machine: str = ""


@dataclass(frozen=True)
class Library:
    """Entries of one device by `pattern_key`; why files that lie there are none, a line each."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def schedule_of(self, pattern: Pattern) -> Schedule:
        """The one chosen for a kernel; the default where it is not known."""
        entry = self.entries.get(pattern_key(pattern)) if self.entries else None
        return DEFAULT if entry is None else entry.schedule

    def __str__(self) -> str:
        text = f"{len(self.entries)} kernels known"
        if self.ignored:
            text += f", {len(self.ignored)} entries ignored, among them {self.ignored[0]}"
        return text

    def with_entries(self, entries: Mapping[str, Entry]) -> Library:
        return Library({**self.entries, **entries}, self.ignored)


NOTHING_KNOWN = Library()


def folder_of(folder: Path, device: Device) -> Path:
    """Where the entries of `device` lie: a record that differs in any figure has its own."""
    digest = content_key("device", (json.dumps(asdict(device), sort_keys=True),))
    return folder / f"{device.target}-{digest[:16]}"


def read(folder: Path, device: Device) -> Library:
    """The entries of `device`. A folder that is not there is an empty library; what is none is
    ignored and told, as STITCH_LIBRARY is read where a job must not end by it."""
    if folder.exists() and not folder.is_dir():
        return Library({}, (f"{folder}: no folder",))
    own = folder_of(folder, device)
    known = frozenset(space.points(device))
    entries: dict[str, Entry] = {}
    ignored: list[str] = []
    for path in sorted(own.glob("*.json")):
        try:
            entries[path.stem] = _entry(json.loads(path.read_bytes()), path.stem, known)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            ignored.append(f"{path.relative_to(folder)}: {what}")
    return Library(entries, tuple(ignored))


def write(folder: Path, device: Device, entries: Mapping[str, Entry]) -> None:
    """Keep `entries`, by `pattern_key`, in place of those that were. Raises OSError."""
    own = folder_of(folder, device)
    own.mkdir(parents=True, exist_ok=True)
    for key, entry in entries.items():
        record = {"version": VERSION, "kernel": key, **asdict(entry)}
        record["schedule"] = entry.schedule.chosen
        with tempfile.NamedTemporaryFile("w", dir=own, delete=False) as file:
            json.dump(record, file, sort_keys=True)
        Path(file.name).replace(own / f"{key}.json")


def _entry(record: Mapping[str, Any], key: str, known: frozenset[Schedule]) -> Entry:
    if record["version"] != VERSION:
        raise ValueError(f"version {record['version']!r}, {VERSION} is read")
    if record["kernel"] != key:
        raise ValueError("another kernel's")
    schedule = space.read(record["schedule"])
    if schedule not in known:
        raise ValueError(f"{schedule} is not in this device's space")
    if record["decided"] not in (MEASURED, ESTIMATED):
        raise ValueError(f"decided: {record['decided']!r}")
    seconds = float(record["seconds"]), float(record["default_seconds"])
    return Entry(schedule, *seconds, record["decided"], str(record["machine"]))
