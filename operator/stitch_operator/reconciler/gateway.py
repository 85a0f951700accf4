"""The gateway's word on all workloads: asked again and again, only for what has changed.

A gateway that is away leaves what was known; nothing is concluded from its silence.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from stitch_operator.gateway import tls
from stitch_operator.reports import Workload, Workloads

LOG = logging.getLogger("stitch.reconciler")
PAUSE_SECONDS = 5.0
LONGEST_SECONDS = 60.0
CALL_SECONDS = 20.0


@dataclass(frozen=True)
class Access:
    """Where the gateway is, and files that are read for each round: they are rotated."""

    url: str
    authority: Path
    token_file: Path


class Poll:
    """One thread that asks. `rows` is told what has changed, and when (by the gateway's clock) all
    that there was had been told; `failed` counts a round that failed."""

    def __init__(
        self,
        access: Access,
        rows: Callable[[list[Workload], float | None], None],
        failed: Callable[[], None],
    ) -> None:
        self._access = access
        self._rows = rows
        self._failed = failed
        self._since = ""
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self.run, name="gateway", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Until `stop`. Failures are waited out, longer each time in a row."""
        pause = PAUSE_SECONDS
        while not self._stop.is_set():
            try:
                self.round()
                pause = PAUSE_SECONDS
            except (httpx.HTTPError, OSError, ValueError) as error:
                self._failed()
                LOG.warning("gateway: %s: %s", type(error).__name__, str(error)[:200])
                pause = min(2 * pause, LONGEST_SECONDS)
            self._stop.wait(pause)

    def round(self) -> None:
        """Everything that has changed since the last round."""
        token = self._access.token_file.read_text(encoding="ascii").strip()
        with httpx.Client(
            base_url=self._access.url,
            verify=tls.trusting(self._access.authority),
            headers={"Authorization": f"Bearer {token}"},
            timeout=CALL_SECONDS,
            trust_env=False,
        ) as client:
            more = True
            while more and not self._stop.is_set():
                answer = client.get("/v1/workloads", params={"since": self._since})
                answer.raise_for_status()
                found = msgspec.json.decode(answer.content, type=Workloads)
                more = found.more
                self._rows(found.workloads, None if more else found.time)
                self._since = found.next
