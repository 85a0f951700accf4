"""Real workers, a real Redis: every graph is finished, once, whoever dies on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stitchcore.artifact import package
from stitchcore.artifact.sign import load_or_create_key, public_hex
from tests.waiting import RUN_SECONDS, wait_for
from tests.worker.conftest import Cluster
from tests.worker.requests import submit, tiny_graph

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")
pytest.importorskip("celery", reason="needs Celery: pip install 'stitchcore[worker]'")

LONG = 120


def starts(cluster: Cluster, key: str) -> int:
    """Compilations that were started for a request."""
    return int(json.loads(cluster.store.read("attempts", f"{key}.json"))["started"])


def ready(cluster: Cluster, key: str) -> str:
    """The artifact's key, checked as a job would check it."""
    wait_for(lambda: cluster.status(key) in ("ready", "refused"), "an answer")
    answer = cluster.store.read_answer(key) or {}
    assert answer["status"] == "ready", answer
    public = public_hex(load_or_create_key(cluster.folder / "key"))
    manifest, libraries = package.load(cluster.store, answer["key"], public)
    assert libraries and manifest.issued > 0
    # The signer answers first: a job need not wait for its tidying up.
    wait_for(lambda: answer["key"] not in cluster.store.list("unsigned"), "tidied up")
    return str(answer["key"])


@pytest.mark.slow
def test_equal_submissions_are_one_compilation(cluster: Cluster) -> None:
    key = submit(cluster.store, tiny_graph())
    for _ in range(20):
        cluster.enqueue(key)
    for _ in range(2):
        cluster.worker()
    cluster.signer()
    ready(cluster, key)
    assert starts(cluster, key) == 1
    spent = (cluster.store.read_answer(key) or {})["spent"]
    assert spent["compile"] > 0


@pytest.mark.slow
def test_a_killed_worker_is_replaced(cluster: Cluster) -> None:
    """Whatever the stage: test_stages.py."""
    key = submit(cluster.store, tiny_graph())
    dying = cluster.dying_worker("lower")
    cluster.enqueue(key)
    wait_for(lambda: dying.poll() is not None, "death")
    assert dying.wait() == -9
    cluster.signer()
    cluster.worker()
    cluster.enqueue(key)  # as the gateway does when the answer's time stands still
    ready(cluster, key)
    assert starts(cluster, key) == 2


@pytest.mark.slow
def test_redis_that_loses_all_data_loses_no_graph(cluster: Cluster) -> None:
    keys = [submit(cluster.store, tiny_graph(rows)) for rows in (1024, 2048)]
    cluster.worker()
    cluster.signer()
    for key in keys:
        cluster.enqueue(key)
    wait_for(lambda: any(cluster.stage(key) != "None" for key in keys), "a stage")
    cluster.redis.kill()
    cluster.redis.start()
    for key in keys:
        cluster.enqueue(key)
    for key in keys:
        ready(cluster, key)
    assert not cluster.store.list("unsigned")


@pytest.mark.slow
def test_a_heartbeat_of_the_process_before_says_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Else a worker that waits for its broker is killed for the age of another one's file."""
    beat = tmp_path / "beat"
    beat.touch()
    cluster.redis.kill()
    worker = cluster.worker("--heartbeat", str(beat))
    wait_for(lambda: not beat.exists(), "the old file is gone")
    cluster.redis.start()
    wait_for(beat.exists, "a heartbeat")
    assert worker.poll() is None


@pytest.mark.slow
def test_a_stopped_worker_leaves_nothing_behind(cluster: Cluster, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    worker = cluster.worker("--heartbeat", str(beat))
    wait_for(beat.exists, "a heartbeat")
    worker.terminate()
    assert worker.wait(timeout=RUN_SECONDS) == 0
