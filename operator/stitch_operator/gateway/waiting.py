"""What workers say they have cost while they waited, from the store into the ledger.

A worker writes `workers/<life>.json` every 15 s: its sum so far, of this one start of it. The
ledger keeps the largest of each, so reading again adds nothing, whoever was restarted. What is not
such a record is skipped: the store is written by workers, and they are believed only within bounds.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from stitchcore.artifact.store import Store
from stitchcore.errors import Refused

LOG = logging.getLogger("stitch.gateway")
FOLDER = "workers"
LOOK_SECONDS = 15.0
SILENT_SECONDS = 600.0
"""A life that has not written for so long has ended: its record is read no more."""
MOST_LIVES = 10_000
"""Records that one look reads."""
RECORD_BYTES = 2**16
NAME = re.compile(r"([0-9a-f]{32})\.json")
DEVICES = ("cpu", "gpu")
HIGHEST = 1e9
Lives = dict[str, dict[str, float]]
"""Seconds by life and device."""


class Reader:
    """Remembers whose last word was heard."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended: set[str] = set()

    def look(self, now: float) -> Lives:
        """All lives that may have changed. Raises Refused where the store does not list them."""
        names = self._store.list(FOLDER)
        self._ended.intersection_update(names)
        lives: Lives = {}
        for name in [one for one in names if one not in self._ended][:MOST_LIVES]:
            found = NAME.fullmatch(name)
            said = self._record(name) if found else {}
            if found and said is not None:
                lives[found[1]] = seconds(said)
            if said is not None and not _fresh(said, now):
                self._ended.add(name)
        return lives

    def _record(self, name: str) -> Mapping[str, Any] | None:
        """What a file says, nothing where it is no record; None where it cannot be read now."""
        try:
            data = self._store.read(FOLDER, name, most=RECORD_BYTES)
        except Refused as error:
            LOG.warning("%s/%s: %s", FOLDER, name, error)
            return None
        try:
            said = json.loads(data) if len(data) <= RECORD_BYTES else {}
        except (ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}


def seconds(said: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by device, of a worker's record; what cannot be is left out."""
    idle = said.get("idle")
    found = idle if isinstance(idle, dict) else {}
    return {
        device: float(found[device])
        for device in DEVICES
        if isinstance(found.get(device), int | float) and 0 <= found[device] < HIGHEST
    }


def _fresh(said: Mapping[str, Any], now: float) -> bool:
    time = said.get("time")
    return isinstance(time, int | float) and math.isfinite(time) and now - time < SILENT_SECONDS
