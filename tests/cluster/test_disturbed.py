"""The installed product while things around it fail: pods are created all the same, and what was
missed is said on the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes import client

from images import catalogue
from stitch_operator.names import INJECTED
from tests.cluster import own_images
from tests.cluster.cluster import Cluster
from tests.cluster.enclosure import SECOND
from tests.cluster.objects import RESTRICTED
from tests.cluster.processes import NotUp
from tests.cluster.setting_up import set_up
from tests.cluster.whole import NAMESPACE, OPTIMIZE, RELEASE, TEAM, Whole
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]
FAIL_OPEN = "apiserver_admission_webhook_fail_open_count"
PAUSE_SECONDS = 0.1


@pytest.fixture(scope="module")
def whole(node_cluster: Cluster) -> Whole:
    return set_up(node_cluster, print, own_images.built)


def annotated(name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": own_images.TRAINER.name,
        "imagePullPolicy": "Never",
        "command": ["sleep", "3"],
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": {**RESTRICTED, "runAsUser": 65532},
    }
    metadata = {"name": name, "annotations": {OPTIMIZE: "true"}}
    spec = {"containers": [container], "restartPolicy": "Never"}
    return {"metadata": metadata, "spec": {**spec, "terminationGracePeriodSeconds": 0}}


def job(name: str) -> dict[str, Any]:
    pod = annotated(name)
    return {
        "metadata": {"name": name, "annotations": {OPTIMIZE: "true"}},
        "spec": {"backoffLimit": 2, "template": {"spec": pod["spec"]}},
    }


def failed_open(whole: Whole) -> float:
    """How often the API server has let an object through without asking us."""
    text = whole.cluster.kubectl("get", "--raw", "/metrics")
    lines = [line for line in text.splitlines() if line.startswith(f"{FAIL_OPEN}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@contextmanager
def stream(whole: Whole) -> Iterator[list[bool]]:
    """Annotated pods, one after the other, that the API server judges and does not keep; for each
    whether it would have been injected."""
    injected: list[bool] = []
    end = threading.Event()

    def create() -> None:
        with whole.cluster.api() as api:
            core = client.CoreV1Api(api)
            while not end.wait(PAUSE_SECONDS):
                name = f"stream-{len(injected)}"
                made = core.create_namespaced_pod(TEAM, annotated(name), dry_run="All")
                injected.append(INJECTED in (made.metadata.annotations or {}))

    thread = threading.Thread(target=create)
    thread.start()
    wait_for(lambda: len(injected) > 5, "the stream has begun")
    yield injected
    end.set()
    thread.join()


def webhooks(whole: Whole) -> list[Any]:
    """Its pods; one that is ending still answers."""
    with whole.cluster.api() as api:
        return list(
            client.CoreV1Api(api)
            .list_namespaced_pod(NAMESPACE, label_selector="app.kubernetes.io/component=webhook")
            .items
        )


def ready_webhooks(whole: Whole) -> list[Any]:
    return [
        pod
        for pod in webhooks(whole)
        if not pod.metadata.deletion_timestamp
        and any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())
    ]


def broken_images(core: client.CoreV1Api) -> str:
    """What the reconciler has told the webhook to leave alone."""
    found = core.list_namespaced_config_map(
        NAMESPACE, field_selector=f"metadata.name={RELEASE}-breakers"
    )
    return "".join((one.data or {}).get("images", "") for one in found.items)


def test_a_drained_node_costs_no_pod_its_injection(whole: Whole) -> None:
    assert whole.cluster.add_node() == SECOND
    for image in (catalogue.operator(), catalogue.runtime()):
        whole.cluster.import_image(own_images.built(image).archive, SECOND)
    place = ("--namespace", NAMESPACE)
    whole.cluster.kubectl("rollout", "restart", f"deployment/{RELEASE}-webhook", *place)
    whole.cluster.kubectl("rollout", "status", f"deployment/{RELEASE}-webhook", *place)
    wait_for(
        lambda: {pod.spec.node_name for pod in ready_webhooks(whole)} >= {SECOND},
        "a replica on the second node",
    )
    before = failed_open(whole)
    with stream(whole) as injected:
        whole.cluster.kubectl(
            "drain", SECOND, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"
        )
        wait_for(
            lambda: len(ready_webhooks(whole)) == 2, "both replicas are ready again", seconds=600
        )
        time.sleep(2)
    assert all(injected), f"{injected.count(False)} of {len(injected)} were missed"
    assert failed_open(whole) == before


def test_an_upgrade_costs_no_pod_its_injection(whole: Whole) -> None:
    before = failed_open(whole)
    with stream(whole) as injected:
        whole.install("--set", "runtime.size=300Mi")
        wait_for(
            lambda: len(ready_webhooks(whole)) == 2, "both replicas are ready again", seconds=600
        )
    assert all(injected), f"{injected.count(False)} of {len(injected)} were missed"
    assert failed_open(whole) == before


def test_what_was_missed_while_the_webhook_was_away_is_said(whole: Whole) -> None:
    scale = ("scale", f"deployment/{RELEASE}-webhook", "--namespace", NAMESPACE)
    whole.cluster.kubectl(*scale, "--replicas=0")
    wait_for(lambda: not webhooks(whole), "there is no webhook")
    try:
        with whole.cluster.api() as api:
            client.BatchV1Api(api).create_namespaced_job(TEAM, job("missed"))
        wait_for(lambda: whole.pods("missed"), "its pod is created all the same")
        wait_for(
            lambda: whole.stitched_job("missed").get("status", {}).get("reason") or False,
            "its StitchedJob says why",
        )
    finally:
        whole.cluster.kubectl(*scale, "--replicas=2")
    status = whole.stitched_job("missed")["status"]
    assert (status["phase"], status["reason"]) == ("Skipped", "missed_admission")
    wait_for(lambda: whole.ended("missed"), "it ends as it would have", seconds=600)
    wait_for(lambda: len(ready_webhooks(whole)) == 2, "the webhook is back", seconds=600)


@pytest.mark.parametrize(
    ("component", "said"),
    [("gateway", "FAIL the gateway at "), ("webhook", "FAIL the webhook was not asked")],
)
def test_helm_test_fails_without_a_part_that_jobs_need(
    whole: Whole, component: str, said: str
) -> None:
    test = ("test", RELEASE, f"--namespace={NAMESPACE}")
    place = (f"deployment/{RELEASE}-{component}", "--namespace", NAMESPACE)
    replicas = whole.cluster.kubectl("get", *place, "--output=jsonpath={.spec.replicas}")
    gone = f"--selector=app.kubernetes.io/component={component}"
    whole.cluster.kubectl("scale", *place, "--replicas=0")
    try:
        whole.cluster.kubectl("wait", "pods", gone, *place[1:], "--for=delete", "--timeout=60s")
        with pytest.raises(NotUp, match=f"{RELEASE}-test failed"):
            whole.helm(*test)
        log = whole.cluster.kubectl("logs", f"{RELEASE}-test", "--namespace", NAMESPACE)
        assert said in log
    finally:
        whole.cluster.kubectl("scale", *place, f"--replicas={replicas}")
        whole.cluster.kubectl("rollout", "status", *place, "--timeout=120s")
    assert "Phase:          Succeeded" in whole.helm(*test)


def test_a_reconciler_and_an_api_server_that_start_again_lose_nothing(whole: Whole) -> None:
    with whole.cluster.api() as api:
        core = client.CoreV1Api(api)
        core.delete_collection_namespaced_pod(
            NAMESPACE,
            label_selector="app.kubernetes.io/component=reconciler",
            grace_period_seconds=0,
        )
    whole.cluster.stop("kube-apiserver")
    whole.cluster.start("kube-apiserver")
    with whole.cluster.api() as api:
        client.BatchV1Api(api).create_namespaced_job(TEAM, job("after"))
    wait_for(lambda: whole.ended("after"), "it ends", seconds=600)
    (pod,) = whole.pods("after")
    assert INJECTED in pod.metadata.annotations
    wait_for(lambda: whole.stitched_job("after"), "it has its StitchedJob", seconds=600)


def test_a_release_whose_runtime_cannot_be_had_touches_no_pod(whole: Whole) -> None:
    """Its webhook is never ready, and pods go on being injected by the one before it."""
    before = failed_open(whole)
    with stream(whole) as injected, pytest.raises(NotUp, match="webhook"):
        whole.install("--set", "images.runtime.tag=absent", seconds=40)
    assert all(injected), f"{injected.count(False)} of {len(injected)} were missed"
    assert failed_open(whole) == before
    with whole.cluster.api() as api:
        client.BatchV1Api(api).create_namespaced_job(TEAM, job("lucky"))
    wait_for(
        lambda: whole.ended("lucky"), "a job of that time runs with the old runtime", seconds=600
    )
    whole.install()


def test_an_image_that_is_gone_touches_one_pod_of_a_workload(whole: Whole) -> None:
    """The first pod stands still; with the breaker open its successor is left alone and runs. With
    the image a pod that waited goes on, and the breaker closes."""
    runtime = catalogue.runtime()
    whole.cluster.remove_image(runtime.name)
    try:
        with whole.cluster.api() as api:
            client.BatchV1Api(api).create_namespaced_job(TEAM, job("unlucky"))
            (first,) = wait_for(lambda: whole.pods("unlucky"), "its first pod")
            assert INJECTED in first.metadata.annotations
            core = client.CoreV1Api(api)
            core.create_namespaced_pod(TEAM, annotated("waits"))
            wait_for(lambda: broken_images(core), "the breaker opens", seconds=600)
            core.delete_namespaced_pod(first.metadata.name, TEAM)
            batch = client.BatchV1Api(api)
            wait_for(
                lambda: batch.read_namespaced_job("unlucky", TEAM).status.succeeded,
                "its second pod runs",
                seconds=600,
            )
            (second,) = whole.pods("unlucky")
            assert second.metadata.annotations["stitchcore.io/skipped"] == "breaker_open"
    finally:
        whole.cluster.import_image(own_images.built(runtime).archive)
    with whole.cluster.api() as api:
        core = client.CoreV1Api(api)
        wait_for(lambda: not broken_images(core), "the breaker closes", seconds=600)
        assert core.read_namespaced_pod("waits", TEAM).metadata.annotations[INJECTED]
