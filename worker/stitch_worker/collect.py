"""Garbage collection of the store, by age and size.

    python -m stitch_worker.collect --store URL [--days 30] [--bytes N] [--dry-run]

Removed first are leftovers: unfinished uploads and temporary names of writers that died (older than
LEFTOVER_SECONDS), and what waits for a worker or the signer for longer than UNANSWERED_SECONDS:
requests without a final answer, artifacts without a signature; and what workers had cost that ended
ENDED_SECONDS ago, which the gateway has counted. Then artifacts, kernels and answered
requests made more than `--days` ago, whether used or not, then the oldest until the store is below
`--bytes`. An artifact goes before its answer: whoever reads a ready answer without an artifact asks
again, and it is built again. A request goes with its answer and attempts, never while it is worked
on. `public_keys.json` and `revoked.json` stay.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stitch_worker import idle, units, unsigned
from stitchcore.artifact.store import Store
from stitchcore.errors import Refused
from stitchcore.service import startup
from stitchcore.service.startup import needed

log = logging.getLogger("stitch.collect")
LEFTOVER_SECONDS = 3600.0
UNANSWERED_SECONDS = 86400.0
"""Longer than tasks stand in line. Who waits longer is told to hand the graph in again."""
ENDED_SECONDS = 7 * 86400.0
"""Long enough for a gateway that was down when the worker ended to read what it had cost."""
DAYS = 30.0
FINAL = ("ready", "refused")


@dataclass(frozen=True)
class Entry:
    """Something that can be removed: `parts` in the store, `made` (seconds since 1970), bytes."""

    parts: tuple[str, ...]
    made: float
    size: int


def collect(
    store: Store, now: float, days: float = DAYS, limit: int | None = None, dry: bool = False
) -> tuple[Entry, ...]:
    """Remove what may go; what it was. Raises Refused(STORE_UNREADABLE)."""
    requests = list(_requests(store))
    gone = [*_leftovers(store, now), *_abandoned(requests, now)]
    answered = (entry for entry, status in requests if status in FINAL)
    remaining = sorted([*_entries(store), *answered], key=lambda entry: entry.made)
    total = sum(entry.size for entry in remaining)
    for entry in remaining:
        old = now - entry.made > days * 86400
        if old or (limit is not None and total > limit):
            gone.append(entry)
            total -= entry.size
    for entry in gone:
        log.info("%s: %d bytes", "/".join(entry.parts), entry.size)
        if not dry:
            _remove(store, entry)
    return tuple(gone)


def _remove(store: Store, entry: Entry) -> None:
    kind, name = entry.parts[0], entry.parts[-1]
    if kind == "requests":
        for folder in ("answers", "attempts"):
            store.delete(folder, f"{name}.json")
    store.delete(*entry.parts)


def _entries(store: Store) -> Iterator[Entry]:
    """Artifacts and kernels."""
    for key in store.list("artifacts"):
        yield _entry(store, "artifacts", key)
    for scope in store.list(units.FOLDER):
        for key in store.list(units.FOLDER, scope):
            yield _entry(store, units.FOLDER, scope, key)


def _requests(store: Store) -> Iterator[tuple[Entry, str]]:
    """Each with the status of its answer, "" without one; made when it was last heard of."""
    for key in store.list("requests"):
        answer = store.read_answer(key) or {}
        entry = _entry(store, "requests", key)
        heard = max(entry.made, float(answer.get("time", 0.0)))
        yield Entry(entry.parts, heard, entry.size), str(answer.get("status", ""))


def _abandoned(requests: Sequence[tuple[Entry, str]], now: float) -> Iterator[Entry]:
    for entry, status in requests:
        if status not in FINAL and now - entry.made > UNANSWERED_SECONDS:
            yield entry


def _leftovers(store: Store, now: float) -> Iterator[Entry]:
    """Uploads without their last file or a signer, and hidden temporary names."""
    for key in store.list(unsigned.FOLDER):
        entry = _entry(store, unsigned.FOLDER, key)
        most = UNANSWERED_SECONDS if unsigned.waiting(store, key) else LEFTOVER_SECONDS
        if now - entry.made > most:
            yield entry
    for name in store.list(idle.FOLDER):
        entry = _entry(store, idle.FOLDER, name)
        if now - entry.made > ENDED_SECONDS:
            yield entry
    plain = [(name,) for name in (
        *("artifacts", "requests", "answers", "attempts"), unsigned.FOLDER, idle.FOLDER
    )]  # fmt: skip
    scopes = [(units.FOLDER, scope) for scope in store.list(units.FOLDER)]
    for folder in (*plain, *scopes):
        for name in store.hidden(*folder):
            entry = _entry(store, *folder, name)
            if now - entry.made > LEFTOVER_SECONDS:
                yield entry


def _entry(store: Store, *parts: str) -> Entry:
    """Size of all files below, and when the latest of them was written."""
    files: dict[str, Any] = store.details(*parts)
    sizes = [int(info.get("size") or 0) for info in files.values()]
    times = [_seconds(info) for info in files.values()]
    return Entry(parts, max(times, default=0.0), sum(sizes))


def _seconds(info: dict[str, Any]) -> float:
    """When a file was written: fsspec's file systems name and type it differently."""
    for name in ("mtime", "LastModified", "created", "modified"):
        value = info.get(name)
        if value is not None:
            return float(value.timestamp() if hasattr(value, "timestamp") else value)
    return time.time()


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect once: run it from cron or a CronJob."""
    parser = argparse.ArgumentParser(prog="python -m stitch_worker.collect")
    parser.add_argument("--store", required=True, help="folder or fsspec URL")
    parser.add_argument("--days", type=float, default=DAYS, help="keep what was made since")
    parser.add_argument("--bytes", type=int, default=None, help="most that artifacts may take")
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    def run() -> int:
        store = startup.store(parsed.store)
        with needed(f"--store {parsed.store}", "run it again when the store answers", Refused):
            gone = collect(store, time.time(), parsed.days, parsed.bytes, parsed.dry_run)
        log.info("%d entries, %d bytes", len(gone), sum(entry.size for entry in gone))
        return 0

    return startup.guarded("collect", run)


if __name__ == "__main__":
    raise SystemExit(main())
