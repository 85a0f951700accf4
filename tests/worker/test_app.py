"""Celery's settings say what the contract promises, on both brokers; what fails comes again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("celery", reason="needs Celery: pip install 'stitchcore[worker]'")

from stitch_worker import app as apps
from stitch_worker.app import AGAIN_SECONDS, broker_for, configuration, make_app, run
from stitch_worker.children import Local
from stitch_worker.lease import FolderLeases
from stitch_worker.service import Service
from stitchcore.artifact.store import open_store
from stitchcore.errors import Reason, Refused
from stitchcore.sandbox import isolate
from stitchcore.service.queues import TASK
from tests.worker.conftest import Redis

QUEUE = "stitch.cpu-x86-64-v4.tf2.21"


@pytest.fixture
def service(tmp_path: Path) -> Service:
    store, leases = open_store(str(tmp_path)), FolderLeases(tmp_path / "leases")
    limits = isolate.Limits(60, 2**30, 60)
    return Service(store, leases, "cpu-x86-64-v4", "2.21", Local(limits, tmp_path))


@pytest.mark.parametrize("url", ["redis://localhost/0", "amqp://localhost//"])
def test_messages_outlive_their_workers(url: str, service: Service) -> None:
    broker = broker_for(url, 600)
    settings = configuration(broker, QUEUE)
    assert settings["task_acks_late"] and settings["task_reject_on_worker_lost"]
    assert settings["worker_prefetch_multiplier"] == 1
    assert settings["accept_content"] == ["json"], "no pickle"
    assert 600 < settings["task_soft_time_limit"] < settings["task_time_limit"]
    (queue,) = settings["task_queues"]
    assert queue.name == settings["task_default_queue"] == QUEUE
    quorum = {"x-queue-type": "quorum"} if url.startswith("amqp") else None
    assert queue.queue_arguments == quorum
    made = make_app(service, broker)
    assert TASK in made.tasks
    assert made.conf.task_acks_late


def test_redis_hands_a_message_out_again_only_after_its_task_must_have_ended() -> None:
    settings = configuration(broker_for("redis://localhost/0", 600), QUEUE)
    visibility = settings["broker_transport_options"]["visibility_timeout"]
    assert visibility == settings["visibility_timeout"]
    assert visibility >= 2 * settings["task_time_limit"]
    rabbit = configuration(broker_for("amqp://localhost//", 600), QUEUE)
    assert rabbit["broker_transport_options"] == {"confirm_publish": True}


@pytest.mark.timeout(200)
def test_a_reply_that_never_comes_is_a_lost_connection(
    service: Service, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by the consumer's own channel, as after a reply that something else has taken."""
    monkeypatch.setattr(apps, "ANSWER_SECONDS", 0.5)
    made = make_app(service, broker_for(redis.url, 600))
    with made.connection() as connection, connection.channel() as channel:
        channel.client.connection = channel.client.connection_pool.get_connection()
        with pytest.raises(channel.connection_errors):
            channel._brpop_read()


class Again(Exception):
    """Stands for Celery's Retry."""


def attempt(service: Service, monkeypatch: pytest.MonkeyPatch, result: object) -> float | str:
    """The outcome, or the seconds until the message comes again."""

    def process(_: Service, key: str) -> str:
        del key
        if isinstance(result, BaseException):
            raise result
        return str(result)

    monkeypatch.setattr(apps, "process", process)
    waits: list[float] = []

    def again(seconds: float) -> Exception:
        waits.append(seconds)
        return Again()

    try:
        return run(service, "k" * 64, again, SimpleNamespace(retries=9))
    except Again:
        return waits[0]


def test_what_may_mend_itself_comes_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Refused("store", Reason.STORE_UNREADABLE, "no space left")
    assert attempt(service, monkeypatch, full) == apps.LONGEST_WAIT_SECONDS
    assert attempt(service, monkeypatch, OSError("Redis")) == apps.LONGEST_WAIT_SECONDS
    assert attempt(service, monkeypatch, "again") == AGAIN_SECONDS
    assert attempt(service, monkeypatch, "ready") == "ready"
    assert attempt(service, monkeypatch, "held") == "held"
    nonsense = Refused("x", Reason.DIGEST_MISMATCH)
    assert attempt(service, monkeypatch, nonsense) == "refused"
