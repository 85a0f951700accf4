"""What a worker costs while it waits: a part of what the service spends, so of the headline.

While no task runs, a second costs what is reserved for the worker alone (its pod's cores and GPUs),
or what its own process uses where that is more: nothing is reserved on a machine that it shares
(`stitch serve`). Compilations are counted apart, by their requests (attempts.py).

The sum belongs to one life of a worker, which has a name of its own. It is written whole to
`workers/<life>.json` every POST_SECONDS and once more at the end: kill -9 loses at most what passed
since, a repeated or late reading adds nothing, and the next life begins another sum.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from stitchcore.artifact.store import Store
from stitchcore.errors import Refused

log = logging.getLogger("stitch.worker")
FOLDER = "workers"
POST_SECONDS = 15.0
LOOK_SECONDS = 1.0
"""How closely the moments are seen at which tasks begin and end."""


@dataclass(frozen=True)
class Reserved:
    """What nobody else can use while the worker lives: processor cores, GPUs (parts of one for a
    slice)."""

    cores: float = 0.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Idle:
    """Seconds of cores and of GPUs so far; `at` (monotonic) and `used` (the process's own processor
    seconds) are of the last look."""

    at: float
    used: float
    cores: float = 0.0
    gpus: float = 0.0

    def after(self, at: float, used: float, waiting: float, reserved: Reserved) -> Idle:
        """After a look at which a share `waiting` (0 to 1) of the worker has no task."""
        passed, more = max(0.0, at - self.at), max(0.0, used - self.used)
        return replace(
            self,
            at=at,
            used=used,
            cores=self.cores + max(waiting * passed * reserved.cores, more),
            gpus=self.gpus + waiting * passed * reserved.gpus,
        )


@dataclass
class Meter(threading.Thread):
    """Looks and posts until `stop`, which posts once more. `waiting` is asked at every look."""

    store: Store
    target: str
    reserved: Reserved
    waiting: Callable[[], float]
    post_seconds: float = POST_SECONDS
    life: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        super().__init__(name="idle", daemon=True)
        self.idle = Idle(time.monotonic(), 0.0)
        self._end = threading.Event()
        self._failed = False

    __hash__ = threading.Thread.__hash__

    def begin(self) -> None:
        """Start, if it has not: a worker is ready again after each loss of its broker."""
        if self.ident is None:
            self.start()

    def run(self) -> None:
        due = 0.0
        while not self._end.wait(LOOK_SECONDS):
            self._look()
            if self.idle.at >= due:
                self._post()
                due = self.idle.at + self.post_seconds
        self._look()
        self._post()

    def stop(self) -> None:
        """The last word; a store that hangs is waited for no longer than an interval."""
        self._end.set()
        if self.is_alive():
            self.join(self.post_seconds)

    def _look(self) -> None:
        now, used = time.monotonic(), time.process_time()
        self.idle = self.idle.after(now, used, self.waiting(), self.reserved)

    def _post(self) -> None:
        seconds = {"cpu": round(self.idle.cores, 3), "gpu": round(self.idle.gpus, 3)}
        document = {"time": time.time(), "target": self.target, "idle": seconds}
        try:
            self.store.write(json.dumps(document).encode(), FOLDER, f"{self.life}.json")
            self._failed = False
        except Refused as error:  # the next one carries all of it
            if not self._failed:
                log.warning("idle seconds cannot be written: %s", error)
            self._failed = True
