"""Where compiles wait: a protocol, Celery behind it, and one in memory for tests of the gateway.

A task carries the request's key and nothing else. The gateway knows the task by its name only
(stitchcore.service.queues), so that it runs without a worker's packages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from celery import Celery
from kombu import Queue as KombuQueue
from kombu.exceptions import OperationalError

from stitch_operator.gateway.problems import Problem, Rejected
from stitchcore.service.queues import SENTINEL, TASK, for_celery, queue_arguments, queue_name

REFRESH_SECONDS, FIRST_SECONDS = 5.0, 0.5
"""How often the broker is asked whom it serves, also while nobody is known."""
INSPECT_SECONDS = 1.0
REMEMBERED_SECONDS = 120.0
"""How long a worker that does not answer is taken to be busy or restarting, not gone."""
BROKER_SECONDS = 5.0


LOG = logging.getLogger("stitch.gateway")


@dataclass(frozen=True)
class Workers:
    """Workers that answered at the last look, by target, and what
    those of a queue take at a time; seconds of workers since this
    process began to look, each worker counted: with a task, and without one."""

    live: Mapping[str, int] = field(default_factory=dict)
    busy: float = 0.0
    idle: float = 0.0
    queues: Mapping[str, int] = field(default_factory=dict)


def later(
    before: Workers,
    queues: Mapping[str, Any],
    active: Mapping[str, Any],
    seconds: float,
    stats: Mapping[str, Any] | None = None,
) -> Workers:
    """After a look `seconds` after the one before: who consumes what, and who has tasks. What
    passed between two looks is counted as the later one found it."""
    live: dict[str, int] = {}
    by_queue: dict[str, int] = {}
    for worker, consumed in queues.items():
        pool = (stats or {}).get(worker, {}).get("pool", {})
        places = int(pool.get("max-concurrency") or 1)
        for one in consumed:
            by_queue[str(one["name"])] = by_queue.get(str(one["name"]), 0) + places
            target = str(one["name"]).removeprefix("stitch.").rpartition(".tf2.")[0]
            live[target] = live.get(target, 0) + 1
    busy = sum(1 for worker in queues if active.get(worker))
    idle = len(queues) - busy
    return Workers(live, before.busy + busy * seconds, before.idle + idle * seconds, by_queue)


class Queue(Protocol):
    """Calls may block; they raise Rejected(UNAVAILABLE) when the broker cannot be reached."""

    def submit(self, request_key: str, target: str, tf_minor: str) -> None: ...

    def served(self) -> frozenset[str]:
        """Names of queues that have a live worker. Never blocks."""
        ...

    def places(self, name: str) -> int:
        """Tasks that the queue's workers take at a time; never less than one, since a
        worker may be there that has not answered yet. Never blocks."""
        ...

    def depth(self, name: str) -> int:
        """Tasks that wait in a queue."""
        ...

    def close(self) -> None: ...


class CeleryQueue:
    """Sends tasks by name; a thread asks the workers which queues they consume."""

    def __init__(self, broker: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._clock = clock
        self._app = _app(broker)
        self._seen: dict[str, float] = {}
        self._away = False
        self._workers = Workers()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="workers", daemon=True)
        self._thread.start()

    def submit(self, request_key: str, target: str, tf_minor: str) -> None:
        queue = self._declared(queue_name(target, tf_minor))
        try:
            with self._app.connection_for_write() as connection:
                self._app.send_task(
                    TASK, (request_key,), queue=queue, connection=connection, ignore_result=True
                )
        except (OperationalError, OSError) as error:
            raise _unavailable(error) from error

    def served(self) -> frozenset[str]:
        oldest = self._clock() - REMEMBERED_SECONDS
        return frozenset(name for name, time_ in list(self._seen.items()) if time_ >= oldest)

    def places(self, name: str) -> int:
        return max(1, self._workers.queues.get(name, 0))

    def workers(self) -> Workers:
        """What the last look found. Never blocks."""
        return self._workers

    def depth(self, name: str) -> int:
        try:
            with self._app.connection_for_read() as connection:
                channel = connection.default_channel
                return int(self._declared(name)(channel).queue_declare().message_count)
        except (OperationalError, OSError, *self._app.connection().channel_errors) as error:
            raise _unavailable(error) from error

    def close(self) -> None:
        self._end.set()
        self._app.close()

    def _declared(self, name: str) -> KombuQueue:
        return KombuQueue(
            name, routing_key=name, durable=True, queue_arguments=queue_arguments(self._broker)
        )

    def _follow(self) -> None:
        looked = self._clock()
        while not self._end.is_set():
            try:
                inspect = self._app.control.inspect(timeout=INSPECT_SECONDS)
                answers = inspect.active_queues() or {}
                active = (inspect.active() or {}) if answers else {}
                stats = (inspect.stats() or {}) if answers else {}
                away = ""
            except Exception as error:  # whatever the client library raises: a broker that is away
                answers, active, stats, away = {}, {}, {}, str(error)
            if bool(away) != self._away:
                self._away = bool(away)
                said = f"{away}; graphs wait until it is there" if away else "it answers"
                LOG.warning("the broker %s: %s", self._app.connection().as_uri(), said)
            now = self._clock()
            self._workers = later(self._workers, answers, active, now - looked, stats)
            looked = now
            for queues in answers.values():
                for one in queues:
                    self._seen[str(one["name"])] = now
            self._end.wait(REFRESH_SECONDS if self._seen else FIRST_SECONDS)


def _app(broker: str) -> Celery:
    url, options = for_celery(broker)
    app = Celery("stitch", broker=url, set_as_current=False)
    limits = {"socket_connect_timeout": BROKER_SECONDS, "socket_timeout": BROKER_SECONDS}
    redis = broker.startswith(("redis://", "rediss://", SENTINEL))
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_create_missing_queues=True,
        task_publish_retry=False,
        broker_connection_timeout=BROKER_SECONDS,
        broker_transport_options={**limits, **options} if redis else {"confirm_publish": True},
    )
    return app


def _unavailable(error: Exception) -> Rejected:
    return Rejected(Problem.UNAVAILABLE, f"the broker cannot be reached: {type(error).__name__}")
