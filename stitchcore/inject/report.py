"""What a job tells its gateway: events in order, and the latest savings of each graph.

A report is numbered when it is made, and keeps its number when it is sent again: the gateway counts
a number once. Savings are cumulative, so only the newest of a graph needs to arrive.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Deque, Dict, Mapping, Optional, Set, Tuple

EVENTS, SAVINGS = "/v1/jobs/events", "/v1/savings"
KEPT_EVENTS = 256  # a job has a handful; an endless retry must not grow
TYPES = {
    "swap_begin": "swap-begin",
    "swap_ok": "swap-ok",
    "rolled_back": "rolled-back",
    "crashed_before": "crashed-before",
    "timed": "timed",
    "disabled": "refused",
    "refused": "refused",
}
EVENT_FIELDS = ("key", "reason")  # no "detail": an error's text may quote the user's own
SAVINGS_FIELDS = (
    "key", "steps", "baseline_ns", "stitched_ns", "lost_ns", "interval", "pairs", "devices",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """One post: its path, and a JSON object with `session` and `seq`."""

    path: str
    document: Mapping[str, Any]


def event_type(kind: str, fields: Mapping[str, Any]) -> Optional[str]:
    """The gateway's name of an event of the job; None for those it is not told of."""
    if kind == "disabled" and fields.get("key"):  # that of an artifact that was running
        return "rolled-back"
    return TYPES.get(kind)


class Outbox:
    """Reports that wait. Any thread adds; one thread takes with `first` and `sent`."""

    def __init__(self, nonce: int) -> None:
        self.session = f"{nonce:016x}"
        self._number = 0
        self._events: Deque[Report] = deque(maxlen=KEPT_EVENTS)
        self._savings: Dict[str, Report] = {}
        self._left: Set[Tuple[str, str]] = set()  # graphs that were left, and why: as told
        self._lock = threading.Lock()

    def add(self, kind: str, fields: Mapping[str, Any]) -> bool:
        """Takes in an event; False when the gateway is not told of its kind."""
        name = event_type(kind, fields)
        if name is None and kind != "savings_total":
            return False
        graph = str(fields["digest"])
        new = fields.get("reason") is None or self._new(graph, str(fields["reason"]))
        if name == "refused" and not new:
            return False
        known = EVENT_FIELDS if name is not None else SAVINGS_FIELDS
        document = {field: fields[field] for field in known if fields.get(field) is not None}
        with self._lock:
            self._number += 1
            document.update(session=self.session, seq=self._number, graph=graph)
            if name == "refused" and kind == "disabled":
                document["final"] = True
            if name is not None:
                self._events.append(Report(EVENTS, {**document, "type": name}))
            else:
                self._savings[graph] = Report(SAVINGS, document)
        return True

    def _new(self, graph: str, reason: str) -> bool:
        """Whether nothing has told of this yet. A graph that is left for good is `rolled_back`
        or `disabled` first, and then `refused` for the same reason."""
        with self._lock:
            new = (graph, reason) not in self._left
            self._left.add((graph, reason))
            return new

    def numbered(self) -> Dict[str, Any]:
        """Session and number of a report that is sent by others."""
        with self._lock:
            self._number += 1
            return {"session": self.session, "seq": self._number}

    def close(self) -> None:
        """Drops what waits: the job ends."""
        with self._lock:
            self._events.clear()
            self._savings.clear()

    @property
    def waiting(self) -> bool:
        return bool(self._events or self._savings)

    def first(self) -> Optional[Report]:
        """What to send next: events in their order, then savings."""
        with self._lock:
            if self._events:
                return self._events[0]
            return next(iter(self._savings.values()), None)

    def sent(self, report: Report) -> None:
        """Takes `report` out, unless newer savings have replaced it meanwhile."""
        with self._lock:
            if self._events and self._events[0] is report:
                self._events.popleft()
            graph = str(report.document["graph"])
            if self._savings.get(graph) is report:
                del self._savings[graph]
