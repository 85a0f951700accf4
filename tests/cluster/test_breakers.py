"""Reconciler and webhook together, before a real API server: what is ours never holds a job back
twice, and nothing is ever done to a pod."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from stitch_operator.webhook import objects
from stitch_operator.webhook.cluster import Cluster
from tests.cluster import reconciling
from tests.cluster.reconciling import IMAGE, OPTIMIZE, TRAINS, Gateway, Place, Running, job
from tests.cluster.test_reconciler import becomes, lines
from tests.cluster.test_reconciler import gateway as gateway
from tests.cluster.test_reconciler import place as place
from tests.cluster.test_reconciler import reconciler as reconciler
from tests.operator.webhook import serving
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
SCHEDULER = "kube-scheduler"
SKIPPED, INJECTED = "stitchcore.io/skipped", "stitchcore.io/injected"


@pytest.fixture(scope="module")
def webhook(api: client.ApiClient, place: Place) -> Iterator[Running]:
    """Of this release, served by this process; whom pods trust is written by the reconciler."""
    folder, release = place.folder, place.release
    known = Cluster(api, release.name, release.namespace, lambda resource: None)
    admission = client.AdmissionregistrationV1Api(api)
    changed = {"namespace": release.namespace, "image": IMAGE}
    with (
        serving.serve(folder, known, certified=False, **changed) as served,
        place.reconciler() as beside,
    ):
        authority = base64.b64encode((folder / "ca.pem").read_bytes()).decode()
        known.start()
        wait_for(known.ready, "policies are known")
        hooks = objects.configuration(release, served.url, authority)
        admission.create_mutating_webhook_configuration(hooks)
        wait_for(lambda: said(create(api, "default", "probe", dry=True)), "it is asked")
        yield beside
        admission.delete_mutating_webhook_configuration(hooks["metadata"]["name"])
        known.stop()


def create(api: client.ApiClient, namespace: str, name: str, dry: bool = False) -> Any:
    body = {"metadata": {"name": name, "annotations": {OPTIMIZE: "true"}}, "spec": TRAINS}
    more = {"dry_run": "All"} if dry else {}
    return client.CoreV1Api(api).create_namespaced_pod(namespace, body, **more)


def said(pod: Any) -> str:
    """What the webhook wrote on a pod: "injected", a reason, or nothing."""
    annotations = pod.metadata.annotations or {}
    return "injected" if INJECTED in annotations else annotations.get(SKIPPED, "")


def test_one_pod_meets_a_bad_image_and_later_ones_are_left_alone(
    api: client.ApiClient, place: Place, reconciler: Running, webhook: Running, namespace: str
) -> None:
    core = client.CoreV1Api(api)
    first = create(api, namespace, "first")
    assert said(first) == "injected"
    status = {"status": reconciling.unpullable()}
    core.patch_namespaced_pod_status("first", namespace, status)
    wait_for(lambda: f"{namespace} {IMAGE}" in lines(place, "images"), "the breaker is open")
    wait_for(lambda: said(create(api, namespace, "probe", dry=True)) == "breaker_open", "obeyed")
    played = job(place, namespace, "later", {"spec": TRAINS})
    assert [said(pod) for pod in played.pods] == ["breaker_open"]
    becomes(played, "Skipped", "breaker_open")
    assert played.events() == ["Skipped"]
    assert said(create(api, "default", "probe", dry=True)) == "injected"  # a matter of a namespace
    count = 'stitch_breakers_open{kind="images"}'  # by the one of the two that leads
    wait_for(lambda: any(one.metric(count) >= 1 for one in (reconciler, webhook)), "it is counted")
    running = {"status": reconciling.running(ago=-5)}
    core.patch_namespaced_pod_status("first", namespace, running)
    wait_for(lambda: f"{namespace} {IMAGE}" not in lines(place, "images"), "it closes")
    wait_for(lambda: said(create(api, namespace, "probe", dry=True)) == "injected", "again")


def test_a_policy_that_refuses_our_container_costs_one_try(
    api: client.ApiClient, place: Place, reconciler: Running, webhook: Running, namespace: str
) -> None:
    admission = client.AdmissionregistrationV1Api(api)
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["pods"]}  # fmt: skip
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [
            {
                "expression": "!has(object.spec.initContainers)",
                "messageExpression": "'not allowed: ' + object.spec.initContainers[0].name",
            }
        ],
    }
    name = f"refuse-{namespace}"
    bound = {"policyName": name, "validationActions": ["Deny"],
             "matchResources": {"namespaceSelector": here}}  # fmt: skip
    admission.create_validating_admission_policy({"metadata": {"name": name}, "spec": spec})
    admission.create_validating_admission_policy_binding(
        {"metadata": {"name": name}, "spec": bound}
    )
    try:
        wait_for(lambda: _refused(api, namespace), "the policy is in force")
        played = job(place, namespace, "train", {"spec": TRAINS})
        assert [said(pod) for pod in played.pods] == ["breaker_open"]
        becomes(played, "Skipped", "breaker_open")
    finally:
        admission.delete_validating_admission_policy_binding(name)
        admission.delete_validating_admission_policy(name)


def _refused(api: client.ApiClient, namespace: str) -> bool:
    try:
        create(api, namespace, "probe", dry=True)
    except client.ApiException as error:
        return "stitchcore-runtime" in str(error.body)
    return False


def test_a_stuck_pod_is_never_touched(
    api: client.ApiClient, place: Place, gateway: Gateway, reconciler: Running, webhook: Running,
    namespace: str,
) -> None:  # fmt: skip
    core = client.CoreV1Api(api)
    create(api, namespace, "first")
    core.patch_namespaced_pod_status("first", namespace, {"status": reconciling.unpullable()})
    before = written(api, core.read_namespaced_pod("first", namespace))
    wait_for(lambda: f"{namespace} {IMAGE}" in lines(place, "images"), "the breaker is open")
    after = core.read_namespaced_pod("first", namespace)
    assert written(api, after) == before


def written(api: client.ApiClient, pod: Any) -> dict[str, Any]:
    """A pod, with who wrote which part of it when, but for what the scheduler says of it."""
    told: dict[str, Any] = api.sanitize_for_serialization(pod)
    del told["metadata"]["resourceVersion"]
    fields = told["metadata"]["managedFields"]
    told["metadata"]["managedFields"] = [one for one in fields if one["manager"] != SCHEDULER]
    conditions = told["status"].get("conditions", [])
    told["status"]["conditions"] = [one for one in conditions if one["type"] != "PodScheduled"]
    return told
