"""The reconciler's one loop: changes come in, jobs that they concern are looked at, what differs is
written.

It keeps no state that counts: all of it is in the API server and the gateway, and is read again
after a restart. Looking at a job twice changes nothing.
"""

from __future__ import annotations

import heapq
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kubernetes.client.exceptions import ApiException
from msgspec.structs import replace
from urllib3.exceptions import HTTPError

from stitch_operator.reconciler import breakers, conditions
from stitch_operator.reconciler import status as statuses
from stitch_operator.reconciler.breakers import Line, Seen
from stitch_operator.reconciler.cluster import Existing, Watches
from stitch_operator.reconciler.family import Family, Top
from stitch_operator.reconciler.metrics import Metrics, Told
from stitch_operator.reconciler.pace import Pace
from stitch_operator.reconciler.pods import Namespace, Pod, Workload
from stitch_operator.reconciler.records import Condition, Status, name_of
from stitch_operator.reconciler.writer import Writer
from stitch_operator.reports import Workload as Row
from stitch_operator.webhook.cluster import IMAGES, WORKLOADS

LOG = logging.getLogger("stitch.reconciler")
EVENTS, FIGURES = (25.0, 250.0), (20.0, 100.0)
"""Events, and writes that bring nothing but new figures: a second, and at once."""
OBJECTS = 2
"""That an Event is posted on: the workload and its StitchedJob."""
BATCH = 500
WRITERS = 8
IDLE_SECONDS = 1.0
BREAKER_SECONDS = 1.0
FORGET_SECONDS = 600.0
ROW_SECONDS = 86400.0
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
Key = tuple[str, str]
FAILURES = (ApiException, HTTPError, OSError)


@dataclass(frozen=True)
class Task:
    """A job that is to be written: `tell` has the conditions that came to hold, `uid` is its
    StitchedJob's, as far as it is known."""

    top: Top
    exists: bool
    uid: str
    before: Status | None
    status: Status
    tell: list[Condition]

    @property
    def key(self) -> Key:
        return self.top.namespace, name_of(self.top.reference)


@dataclass
class Queue:
    """Uids of jobs that are to be looked at later, and how often each has failed."""

    heap: list[tuple[float, str]] = field(default_factory=list)
    tries: dict[str, int] = field(default_factory=dict)

    def at(self, when: float, uid: str) -> None:
        heapq.heappush(self.heap, (when, uid))

    def failed(self, uid: str, now: float) -> None:
        tries = self.tries[uid] = self.tries.get(uid, 0) + 1
        self.at(now + min(FIRST_RETRY * 2 ** min(tries - 1, 10), LONGEST_RETRY), uid)

    def due(self, now: float) -> set[str]:
        found = set()
        while self.heap and self.heap[0][0] <= now:
            found.add(heapq.heappop(self.heap)[1])
        return found


class Loop:
    """`put` and `rows` may be called from any thread, all else from the one that runs. `image` is
    the runtime's; `watches`, `writer` and `metrics` are set before it is run."""

    def __init__(self, image: str, clock: Callable[[], float] = time.time) -> None:
        self._image = image
        self._clock = clock
        self._changes: queue.SimpleQueue[Callable[[], Iterable[str]]] = queue.SimpleQueue()
        self._written: dict[Key, Status] = {}
        self._made: dict[Key, str] = {}  # uids of StitchedJobs that no watch has told of yet
        self._later = Queue()
        self._dirty: set[str] = set()
        self._events, self._figures = Pace(*EVENTS), Pace(*FIGURES)
        self._lines: dict[Line, float] | None = None
        self._breakers_due = self._forget_due = 0.0
        self._read: float | None = None
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")
        self.beat = time.monotonic()
        self.leads: Callable[[], bool] = lambda: True
        """Whether this one may write: another may have taken its place since it was last asked."""
        self.family = Family(lambda group, kind: self.watches.knows(group, kind))
        self.watches: Watches
        self.writer: Writer
        self.metrics: Metrics

    # What comes in

    def put(self, before: object, after: object) -> None:
        """A watched object has changed."""
        self._changes.put(lambda: self._changed(before, after))

    def rows(self, rows: list[Row], read: float | None) -> None:
        """The gateway has told of changes; `read` is when it had told all."""
        self._changes.put(lambda: self._told(rows, read))

    def _changed(self, before: object, after: object) -> Iterable[str]:
        """Takes it in; uids of what is to be looked at."""
        some = after if after is not None else before
        if isinstance(some, Pod):
            assert isinstance(before, Pod | None) and isinstance(after, Pod | None)
            seeds = [before.uid, *_owners(before)] if before is not None else []
            self.family.put_pod(before, after)
            return [*seeds, some.uid]
        if isinstance(some, Workload):
            assert isinstance(before, Workload | None) and isinstance(after, Workload | None)
            self.family.put_workload(before, after)
            return [some.uid, *_owners(some)]
        if isinstance(some, Existing):
            self._made.pop((some.namespace, some.name), None)
            if after is None or _status(after) == self._written.get((some.namespace, some.name)):
                self._written.pop((some.namespace, some.name), None)
            return [some.workload.uid]
        assert isinstance(some, Namespace)
        if isinstance(after, Namespace):
            self.family.namespaces[after.name] = after
        else:
            self.family.namespaces.pop(some.name, None)
        return [pod.uid for pod in self.family.pods.values() if pod.namespace == some.name]

    def _told(self, rows: list[Row], read: float | None) -> Iterable[str]:
        first = self._read is None and read is not None
        self._read = read or self._read
        if read is not None:
            self.metrics.gateway_read.set(read)
        for row in rows:
            self.family.put_row(row)
        if first:  # what was kept as it was, because nobody knew, can be judged now
            return list(self.family.pods)
        return [uid for row in rows for uid in (row.pod, row.controller) if uid]

    # The loop

    def run(self, stop: threading.Event) -> None:
        """Until `stop`; nothing is written before everything has been listed, nor while it is not
        known that this one leads."""
        while not stop.is_set():
            if self.leads() and self.watches.ready():
                self.turn(IDLE_SECONDS)
            else:
                self.beat = time.monotonic()
                stop.wait(0.05)

    def turn(self, seconds: float) -> None:
        """What has come in, at most BATCH jobs of it, and what is due."""
        self._drain(seconds if not self._dirty else 0.0)
        now = self._clock()
        self._dirty |= self._later.due(now)
        self.metrics.waiting.set(len(self._dirty) + len(self._later.heap))
        batch = [self._dirty.pop() for _ in range(min(BATCH, len(self._dirty)))]
        tasks: dict[str, Task] = {}
        for uid in batch:
            top = self.family.top(uid)
            if top is None:
                self._events.forget(uid)
                self._figures.forget(uid)
            elif top.reference.uid not in tasks:
                task = self._try_to_look(top, now)
                if task is not None:
                    tasks[top.reference.uid] = task
        self._write(list(tasks.values()))
        if now >= self._breakers_due:
            self._breakers_due = now + BREAKER_SECONDS
            self._guard(self._step_breakers, now)
        if now >= self._forget_due:
            self._forget_due = now + FORGET_SECONDS
            self.family.forget_rows(now - ROW_SECONDS)
        self.beat = time.monotonic()

    def _drain(self, seconds: float) -> None:
        try:
            self._dirty |= set(self._changes.get(timeout=seconds or None, block=seconds > 0)())
            while True:
                self._dirty |= set(self._changes.get_nowait()())
        except queue.Empty:
            return

    def _try_to_look(self, top: Top, now: float) -> Task | None:
        """A job that nobody can make sense of must not be the end of all others."""
        try:
            return self._look(top, now)
        except Exception:
            LOG.exception("%s/%s", top.namespace, top.reference.name)
            self._later.failed(top.reference.uid, now)
            return None

    def _look(self, top: Top, now: float) -> Task | None:
        """What is to be written of a job; None where all is as it should be."""
        key = (top.namespace, name_of(top.reference))
        existing = self.watches.jobs.get(*key)
        before = self._written.get(key)
        before = before or (_status(existing) if existing is not None else None)
        replicas = self.family.replicas(top)
        if existing is None and before is None and not replicas and not top.asked:
            return None
        known = statuses.Known(replicas, self.family.gone(top), self._read, before)
        made = statuses.status(known, now)
        for one in replicas:
            due = statuses.due(one)
            if due is not None and made.phase != "NoContact":
                self._later.at(max(due, now) + IDLE_SECONDS, top.reference.uid)
        if made == before:
            return None
        made, tell = self._at_its_turn(top.reference.uid, before, made, now)
        if made == before:
            return None
        uid = existing.uid if existing is not None else self._made.get(key, "")
        return Task(top, existing is not None or key in self._written, uid, before, made, tell)

    def _at_its_turn(
        self, uid: str, before: Status | None, made: Status, now: float
    ) -> tuple[Status, list[Condition]]:
        """What may be written by now, and told. A status does not wait for its Events: conditions
        come with them, later. New figures alone wait for their turn."""
        told = before.conditions if before is not None else []
        tell = conditions.to_tell(told, made.conditions)
        if tell and (wait := self._events.wait(uid, OBJECTS * len(tell), now)):
            self._later.at(now + wait, uid)
            made, tell = replace(made, conditions=told), []
        if before is None or made == before or _without_figures(before) != _without_figures(made):
            return made, tell
        if wait := self._figures.wait(uid, 1, now):
            self._later.at(now + wait, uid)
            return before, []
        return made, tell

    # What goes out

    def _write(self, tasks: list[Task]) -> None:
        for task, done in zip(tasks, self._pool.map(self._write_one, tasks), strict=True):
            uid = task.top.reference.uid
            if not done:
                self._later.failed(uid, self._clock())
                continue
            self._later.tries.pop(uid, None)
            self._written[task.key] = task.status
            missed = task.before.replicas.missed if task.before is not None else 0
            self.metrics.missed.inc(max(0, task.status.replicas.missed - missed))

    def _write_one(self, task: Task) -> bool:
        """Object, Events, status, in this order: a status says that its Events were posted."""
        namespace, name = task.key
        uid = task.uid
        self.beat = time.monotonic()
        if not self.leads():
            return False
        try:
            if not task.exists:
                uid = self._made[task.key] = self.writer.create(namespace, task.top.reference)
            if task.tell and not uid:
                return False  # another made it: the watch will tell
            for one in task.tell:
                if self.writer.tell(namespace, task.top.reference, uid, one):
                    self.metrics.events.labels(one.type).inc()
            if self.writer.write(namespace, name, task.status):
                return True
            self._written.pop(task.key, None)  # somebody has deleted it meanwhile
            return False
        except FAILURES as error:
            LOG.warning("%s/%s: %s", namespace, name, line_of(error))
            return False

    def _step_breakers(self, now: float) -> None:
        held = next(iter(self.watches.breakers.values()), {})
        before = held if self._lines is None else self._lines
        seen = Seen(
            self.family.pods.values(),
            self.watches.refused(),
            self.family.rows,
            self._read,
            self._image,
        )
        after = breakers.step(before, seen, now)
        if breakers.differs(held, after):
            self.writer.write_breakers(after)
        self._lines = after
        for kind in (IMAGES, WORKLOADS):
            self.metrics.breakers.labels(kind).set(sum(line[0] == kind for line in after))

    def _guard(self, function: Callable[[float], None], now: float) -> None:
        try:
            function(now)
        except FAILURES as error:
            LOG.warning("breakers: %s", line_of(error))

    def phases(self) -> Mapping[str, int]:
        """StitchedJobs by phase, as they are there."""
        found = (_status(one) for one in self.watches.jobs.values())
        return Counter(one.phase for one in found if one is not None)

    def told(self) -> list[Told]:
        """StitchedJobs with figures, as they are there, and whose they are."""
        teams = {one.name: one.team for one in self.watches.namespaces.values()}
        return [
            Told(one.namespace, teams.get(one.namespace, ""), one.workload.name, one.job.status)
            for one in self.watches.jobs.values()
            if one.job.status is not None
        ]


def _owners(one: Pod | Workload) -> list[str]:
    return [one.owner.uid] if one.owner is not None else []


def _status(existing: object) -> Status | None:
    return existing.job.status if isinstance(existing, Existing) else None


def _without_figures(status: Status) -> tuple[object, ...]:
    graphs = [(one.graph, one.phase, one.reason, one.artifact) for one in status.graphs]
    held = [replace(one, message="") for one in status.conditions]  # which may tell figures
    kept = (status.phase, status.reason, status.replicas, status.refusals, held)
    return (*kept, graphs, status.speedup is None)


def line_of(error: BaseException) -> str:
    """What an API server, or the way to it, has said."""
    said = getattr(error, "body", None) or error
    return f"{type(error).__name__}: {' '.join(str(said).split())[:300]}"
