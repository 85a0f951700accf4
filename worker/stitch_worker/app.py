"""The Celery application: one queue, one task, and what keeps both alive.

Settings follow Celery's documented semantics: a message is acknowledged after its task (late), put
back when its process is lost, and fetched one at a time. On Redis an unacknowledged message comes
back after the visibility timeout, which must be longer than any task, or tasks run twice at once
(harmless here, but waste); on RabbitMQ queues are quorum queues.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps, signals
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Queue

from stitch_worker.idle import Meter
from stitch_worker.service import Service, process
from stitchcore.errors import Reason, Refused
from stitchcore.service.queues import TASK, for_celery, queue_arguments, queue_name

log = logging.getLogger("stitch.worker")
AGAIN_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Broker:
    """How to reach the broker. Seconds: `hard` and `soft` limits of a task (beyond those of the
    compile child, which end it first), `visibility` of a message on Redis, `grace` that a running
    task is given at shutdown."""

    url: str
    soft: float
    hard: float
    visibility: float
    grace: float = 30.0
    concurrency: int = 1
    heartbeat: Path | None = None


def broker_for(url: str, child_seconds: float, **others: Any) -> Broker:
    """Limits that fit a compile child of `child_seconds`: it is ended first, by its parent."""
    soft = child_seconds + 60.0
    settings = {"soft": soft, "hard": soft + 30.0, "visibility": 2 * (soft + 30.0)}
    return Broker(url, **{**settings, **{k: v for k, v in others.items() if v is not None}})


def make_app(service: Service, broker: Broker) -> Celery:
    """The application of a worker that serves `service` and its one queue; each process of its
    pool with connections of its own."""
    url, _ = for_celery(broker.url)
    app = Celery("stitch_worker", broker=url, set_as_current=False)
    app.conf.update(configuration(broker, queue_name(service.target, service.tf)))
    app.steps["consumer"].add(_heartbeat(broker.heartbeat))

    once = {"name": TASK, "bind": True, "max_retries": None, "shared": False}

    @app.task(**once)  # type: ignore[untyped-decorator]
    def compile_request(self: Any, key: str) -> str:
        return run(service, key, lambda seconds: self.retry(countdown=seconds), self.request)

    def begin(**_: Any) -> None:
        nonlocal service
        service = replace(service, store=service.store.reopened())
        _die_with_parent()

    signals.worker_process_init.connect(begin, weak=False)
    return app


def consume(app: Celery, name: str, meter: Meter) -> None:
    """Consume as `name` until a signal; `meter` writes from when it is ready to the very end."""
    signals.worker_ready.connect(lambda **_: meter.begin(), weak=False)
    try:
        app.worker_main(["worker", "--loglevel=WARNING", "-n", name, "--without-gossip"])
    finally:
        meter.stop()


def waiting(concurrency: int) -> float:
    """The share of this process's worker that has no task."""
    from celery.worker import state

    return 1.0 - min(len(state.active_requests), concurrency) / concurrency


ANSWER_SECONDS = 15.0
"""A blocking call of Redis takes a second: one that takes longer is a connection that is lost. Seen
where Redis had refused the first two connections and took the third."""


def configuration(broker: Broker, queue: str) -> dict[str, Any]:
    """Celery's settings."""
    redis = not broker.url.startswith(("amqp://", "amqps://"))
    arguments = queue_arguments(broker.url)
    transport = (
        {
            "visibility_timeout": broker.visibility,
            "socket_keepalive": True,
            # a reply that never comes would hold the event loop, and all checks with it, for ever
            "socket_timeout": ANSWER_SECONDS,
            "health_check_interval": 10,
            **for_celery(broker.url)[1],
        }
        if redis
        else {"confirm_publish": True}
    )
    return {
        "task_queues": [Queue(queue, routing_key=queue, queue_arguments=arguments or None)],
        "task_default_queue": queue,
        "task_create_missing_queues": False,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_ignore_result": True,
        "task_soft_time_limit": broker.soft,
        "task_time_limit": broker.hard,
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": redis,  # acks_late lets Redis's prefetch count drift
        "worker_concurrency": broker.concurrency,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_soft_shutdown_timeout": broker.grace,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": transport,
        "visibility_timeout": broker.visibility,
    }


def run(service: Service, key: str, again: Callable[[float], Exception], request: Any) -> str:
    """Process one message. `again(seconds)` makes the exception that puts it back for later: where
    store or leases do not answer, and once more after the first death of a compile child."""
    try:
        outcome = process(service, str(key))
    except SoftTimeLimitExceeded:
        log.error("%.16s: beyond the soft time limit", key)
        return "late"  # its child is ended; the answer's age says that nobody is at it
    except (OSError, Refused) as error:
        if isinstance(error, Refused):
            if error.refusal.reason is not Reason.STORE_UNREADABLE:
                log.warning("refused: %s", error)
                return "refused"
        seconds = min(LONGEST_WAIT_SECONDS, 2.0 ** min(int(request.retries or 0), 6))
        log.warning("%.16s: %s; again in %g s", key, error, seconds)
        raise again(seconds) from error
    log.info("%.16s: %s", key, outcome)
    if outcome == "again":
        raise again(AGAIN_SECONDS)
    return outcome


def _die_with_parent() -> None:
    """A pool process does not outlive its worker: its task is then another worker's."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _heartbeat(path: Path | None) -> type[bootsteps.StartStopStep]:
    """A step that touches `path` every few seconds while the worker consumes: a probe's evidence.

    It stops where the consumer's connection is gone for good or a queue is not read although it
    has messages and no task runs (Celery 5 has been seen connected to Redis and consuming nothing);
    then the process ends itself and is started again by what supervises it.
    """

    class Heartbeat(bootsteps.StartStopStep):  # type: ignore[misc]
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)
            self._watch: Watch | None = None

        def start(self, parent: Any) -> None:
            self._watch = Watch(parent, path)
            self._watch.start()

        def stop(self, parent: Any) -> None:
            if self._watch is not None:
                self._watch.end.set()

        terminate = stop

    return Heartbeat


class Watch(threading.Thread):
    """Touches the heartbeat file, and ends a worker that has stopped consuming."""

    EVERY, STALLED = 5.0, 60.0

    def __init__(self, consumer: Any, path: Path | None) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.end = threading.Event()
        self._consumer, self._path = consumer, path
        self._quiet_since = time.monotonic()
        self._seen = -1

    def run(self) -> None:
        while True:
            if self._stalled():
                log.error("the queue has messages and none is consumed: this worker ends itself")
                os._exit(70)
            if self._path is not None:
                self._path.touch()
            if self.end.wait(self.EVERY):
                return

    def _stalled(self) -> bool:
        from celery.worker import state

        total = sum(state.total_count.values())
        busy = bool(state.active_requests) or bool(state.reserved_requests)
        now = time.monotonic()
        if busy or total != self._seen or not self._waiting():
            self._quiet_since, self._seen = now, total
        return now - self._quiet_since > self.STALLED

    def _waiting(self) -> bool:
        """Whether the queue has messages; False where the broker cannot be asked."""
        queue = self._consumer.app.conf.task_queues[0]
        try:
            with self._consumer.app.connection_for_read() as connection:
                found = queue(connection.default_channel).queue_declare(passive=True)
        except (*self._consumer.connection_errors, *self._consumer.channel_errors, OSError):
            return False
        return bool(found.message_count)
