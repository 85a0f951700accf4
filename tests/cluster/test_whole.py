"""From `helm install` and `kubectl apply` to `kubectl get stitchedjobs` and Prometheus."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import own_images, thread
from tests.cluster.cluster import Cluster
from tests.cluster.setting_up import set_up
from tests.cluster.thread import Thread
from tests.cluster.whole import Whole, prometheus

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]
TOLERANCE = 1e-5
"""Of losses, relative: First light's."""


@pytest.fixture(scope="module")
def whole(node_cluster: Cluster) -> Whole:
    return set_up(node_cluster, print, own_images.built)


@pytest.fixture(scope="module")
def found(whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thread]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is missing: apt-get install prometheus")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    with prometheus(program, whole, folder) as url:
        yield thread.follow(whole, url, print)


def test_an_annotated_job_runs_faster_and_its_savings_are_scraped(found: Thread) -> None:
    status = found.status
    assert status["phase"] == "Optimized", (status, found.events)
    assert status["speedup"]["ratio"] > 1.0
    assert status["replicas"]["summary"] == "1/1" and status["replicas"]["swapped"] == 1
    assert found.totals["stitch_cpu_core_seconds_saved_total"] > 0
    assert found.totals["stitch_cpu_core_seconds_spent_total"] > 0
    assert [reason for reason, _ in found.events].count("Swapped") == 1
    assert "Optimized" in found.table


def test_its_losses_are_those_of_the_untouched_job(found: Thread) -> None:
    assert len(found.untouched) == thread.PLAIN_STEPS // 20 + 1
    assert found.apart <= TOLERANCE


def test_two_joined_replicas_swap_together(whole: Whole, found: Thread) -> None:
    made, sums = thread.follow_replicas(whole, print)
    assert len(sums) == 2 and len(set(sums)) == 1
    assert made["status"]["replicas"]["summary"] == "2/2", made["status"]
    assert made["status"]["replicas"]["swapped"] == 2
