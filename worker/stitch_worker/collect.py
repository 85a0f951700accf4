"""Garbage collection of the store, by age and size.

    python -m stitch_worker.collect --store URL [--days 30] [--bytes N] [--dry-run]

Removed first are leftovers: unfinished uploads and temporary names of writers that died (older than
LEFTOVER_SECONDS), and what waits for a worker or the signer for longer than UNANSWERED_SECONDS:
requests without a final answer, artifacts without a signature; and what workers had cost that ended
ENDED_SECONDS ago, which the gateway has counted. Then artifacts, kernels and answered requests that
were made, or last asked for (`requests/<key>/used`, by the gateway), more than `--days` ago. Then,
until the store is below `--bytes`, the oldest of the tenant that has most in it, so that nobody's
burst removes another's; what was asked for within IN_USE_SECONDS stays. An artifact goes before its
answer: whoever reads a ready answer without an artifact asks again, and it is built again. A
request goes with its answer and attempts, never while it is worked on. `public_keys.json` and
`revoked.json` stay.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stitch_worker import idle, units, unsigned
from stitchcore.artifact.store import Store, written
from stitchcore.errors import Refused
from stitchcore.service import startup
from stitchcore.service.startup import needed

log = logging.getLogger("stitch.collect")
LEFTOVER_SECONDS = 3600.0
UNANSWERED_SECONDS = 86400.0
"""Longer than tasks stand in line. Who waits longer is told to hand the graph in again."""
ENDED_SECONDS = 7 * 86400.0
"""Long enough for a gateway that was down when the worker ended to read what it had cost."""
IN_USE_SECONDS = 86400.0
"""The gateway notes once in half that time that a request is asked for."""
DAYS = 30.0
FINAL = ("ready", "refused")


@dataclass(frozen=True)
class Entry:
    """Something that can be removed: `parts` in the store, `made` or last used (seconds since
    1970), bytes, whose it is."""

    parts: tuple[str, ...]
    made: float
    size: int
    tenant: str = ""


def collect(
    store: Store, now: float, days: float = DAYS, limit: int | None = None, dry: bool = False
) -> tuple[Entry, ...]:
    """Remove what may go; what it was. Raises Refused(STORE_UNREADABLE)."""
    requests = list(_requests(store))
    gone = [*_leftovers(store, now), *_abandoned([one[:2] for one in requests], now)]
    in_order = sorted(requests, key=lambda one: one[0].made)
    made_for = {artifact: entry for entry, _, artifact in in_order if artifact}
    answered = (entry for entry, status, _ in requests if status in FINAL)
    remaining = sorted([*_entries(store, made_for), *answered], key=lambda entry: entry.made)
    old = [entry for entry in remaining if now - entry.made > days * 86400]
    kept = [entry for entry in remaining if entry not in old]
    gone += [*old, *(_beyond(kept, limit, now) if limit is not None else ())]
    for entry in gone:
        log.info("%s: %d bytes", "/".join(entry.parts), entry.size)
        if not dry:
            _remove(store, entry)
    return tuple(gone)


def _beyond(entries: Sequence[Entry], limit: int, now: float) -> list[Entry]:
    """What goes so that the rest fits: of entries in order of age, the first of the tenant that has
    most at that moment."""
    total = sum(entry.size for entry in entries)
    sizes = Counter[str]()
    idle: dict[str, list[Entry]] = {}
    for entry in entries:
        sizes[entry.tenant] += entry.size
        if now - entry.made > IN_USE_SECONDS:
            idle.setdefault(entry.tenant, []).append(entry)
    gone: list[Entry] = []
    while total > limit and any(idle.values()):
        tenant = max((one for one in idle if idle[one]), key=lambda one: (sizes[one], one))
        entry = idle[tenant].pop(0)
        gone.append(entry)
        total -= entry.size
        sizes[tenant] -= entry.size
    if total > limit:
        log.warning("%d bytes more than %d: all of it is in use", total - limit, limit)
    return gone


def _remove(store: Store, entry: Entry) -> None:
    kind, name = entry.parts[0], entry.parts[-1]
    if kind == "requests":
        for folder in ("answers", "attempts"):
            store.delete(folder, f"{name}.json")
    store.delete(*entry.parts)


def _entries(store: Store, made_for: Mapping[str, Entry]) -> Iterator[Entry]:
    """Artifacts, used when a request was last that they were made for, and kernels."""
    for key in store.list("artifacts"):
        entry, request = _entry(store, "artifacts", key), made_for.get(key)
        if request is not None:
            used = max(entry.made, request.made)
            entry = replace(entry, made=used, tenant=request.tenant)
        yield entry
    for scope in store.list(units.FOLDER):
        for key in store.list(units.FOLDER, scope):
            yield replace(_entry(store, units.FOLDER, scope, key), tenant=scope)


def _requests(store: Store) -> Iterator[tuple[Entry, str, str]]:
    """Each with the status of its answer, "" without one, and the artifact that it names; made when
    it was last heard of or asked for."""
    for key in store.list("requests"):
        answer = store.read_answer(key) or {}
        entry = _entry(store, "requests", key)
        heard = max(entry.made, _said(answer))
        made = replace(entry, made=heard, tenant=_tenant(store, key))
        yield made, str(answer.get("status", "")), str(answer.get("key", ""))


def _said(answer: Mapping[str, Any]) -> float:
    """When an answer says that it was given; 0 where it says nothing that can be."""
    time = answer.get("time")
    return float(time) if isinstance(time, int | float) and math.isfinite(time) else 0.0


def _tenant(store: Store, key: str) -> str:
    try:
        return str(json.loads(store.read("requests", key, "meta.json")).get("tenant", ""))
    except (Refused, ValueError, AttributeError):
        return ""


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
    times = [written(info) for info in files.values()]
    return Entry(parts, max(times, default=0.0), sum(sizes))


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
