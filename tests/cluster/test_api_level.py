"""The control plane is a real one: its controllers, tokens, admission and thousands of pods."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kubernetes import client

from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.tokenreview import TokenReview
from stitch_operator.names import AUDIENCE
from tests.cluster import places
from tests.cluster.cluster import Cluster
from tests.cluster.objects import (
    RESTRICTED,
    fake_node,
    job,
    pod,
    pod_spec,
)
from tests.cluster.processes import NotUp
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
Nodes = Callable[..., list[str]]


@pytest.fixture
def nodes(api: client.ApiClient) -> Iterator[Nodes]:
    """Makes fake nodes for a test; gone afterwards, as other tests' pods would land there."""
    if places.given_kubeconfig():
        pytest.skip("KUBECONFIG's cluster has no kwok to play kubelets: `unset KUBECONFIG`")
    core, made = client.CoreV1Api(api), []

    def make(count: int, **more: Any) -> list[str]:
        for _ in range(count):
            name = f"fake-{uuid.uuid4().hex[:8]}"
            core.create_node(fake_node(name, **more))
            made.append(name)
        wait_for(lambda: all(_ready(core.read_node(name)) for name in made), "nodes are ready")
        return made

    yield make
    for name in made:
        core.delete_node(name)


def _ready(thing: client.V1Node | client.V1Pod) -> bool:
    conditions = thing.status.conditions or ()
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


def pods_of(core: client.CoreV1Api, namespace: str, name: str) -> list[client.V1Pod]:
    selector = f"batch.kubernetes.io/job-name={name}"
    return list(core.list_namespaced_pod(namespace, label_selector=selector).items)


def token(api: client.ApiClient, namespace: str, bound: client.V1Pod | None, audience: str) -> str:
    spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 600}
    if bound is not None:
        named = {"apiVersion": "v1", "kind": "Pod", "name": bound.metadata.name}
        spec["boundObjectRef"] = {**named, "uid": bound.metadata.uid}
    made = client.CoreV1Api(api).create_namespaced_service_account_token(
        "default", namespace, {"spec": spec}
    )
    return str(made.status.token)


def test_a_jobs_pods_are_made_by_the_real_controller(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    client.BatchV1Api(api).create_namespaced_job(namespace, job("train", pods=2))
    made = wait_for(
        lambda: len(found := pods_of(core, namespace, "train")) == 2 and found, "two pods"
    )
    [owner] = made[0].metadata.owner_references
    assert (owner.kind, owner.name, owner.controller) == ("Job", "train", True)
    client.BatchV1Api(api).delete_namespaced_job(
        "train", namespace, propagation_policy="Background"
    )
    wait_for(lambda: not pods_of(core, namespace, "train"), "garbage is collected")


def test_a_job_on_a_fake_node_completes(
    api: client.ApiClient, namespace: str, nodes: Nodes
) -> None:
    nodes(1)
    batch = client.BatchV1Api(api)
    batch.create_namespaced_job(namespace, job("train"))
    wait_for(lambda: batch.read_namespaced_job("train", namespace).status.succeeded, "its end")


def test_our_token_review_knows_the_pod_of_a_token(
    api: client.ApiClient, namespace: str, nodes: Nodes
) -> None:
    nodes(1, labels=H100, gpus=8)
    core = client.CoreV1Api(api)
    began = time.time()
    resources = {"limits": {"nvidia.com/gpu": "2", "cpu": "4"}}
    core.create_namespaced_pod(namespace, pod("train", pod_spec(resources)))
    running = wait_for(
        lambda: _ready(found := core.read_namespaced_pod("train", namespace)) and found, "ready"
    )
    identity = TokenReview(api).identify(token(api, namespace, running, AUDIENCE))
    assert (identity.namespace, identity.owner) == (namespace, "train")
    assert identity.pod == running.metadata.uid
    assert (identity.devices, identity.gpu) == (2.0, "h100")
    for moment in (identity.started, identity.pod_started):  # to a second
        assert moment is not None and began - 1 <= moment <= time.time() + 1
    assert identity.last_exit_code is None


def test_the_owner_of_a_jobs_pod_is_the_job(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    resources = {"limits": {"cpu": "1500m"}}
    client.BatchV1Api(api).create_namespaced_job(
        namespace, job("nightly-29371680", pod_spec(resources))
    )
    [made] = wait_for(lambda: pods_of(core, namespace, "nightly-29371680"), "a pod")
    identity = TokenReview(api).identify(token(api, namespace, made, AUDIENCE))
    assert (identity.owner, identity.devices, identity.gpu) == ("nightly", 1.5, "cpu")
    assert (identity.started, identity.pod_started) == (None, None)  # no node has taken it


@pytest.mark.parametrize(
    ("case", "problem", "words"),
    [
        ("other audience", Problem.UNAUTHORIZED, "does not accept the token"),
        ("no pod", Problem.FORBIDDEN, "not a pod's projected token"),
        ("no token", Problem.UNAUTHORIZED, "does not accept the token"),
        ("pod gone", Problem.UNAUTHORIZED, "does not accept the token"),
    ],
)
def test_our_token_review_refuses(
    api: client.ApiClient, namespace: str, case: str, problem: Problem, words: str
) -> None:
    core = client.CoreV1Api(api)
    made = core.create_namespaced_pod(namespace, pod("train"))
    audience = "other.example.test" if case == "other audience" else AUDIENCE
    text = token(api, namespace, None if case == "no pod" else made, audience)
    if case == "no token":
        text = text[:-8] + "AAAAAAAA"
    if case == "pod gone":
        core.delete_namespaced_pod("train", namespace, grace_period_seconds=0)
        wait_for(lambda: not core.list_namespaced_pod(namespace).items, "the pod is gone")

    def refused() -> Rejected | None:
        try:
            TokenReview(api).identify(text)
        except Rejected as rejected:
            return rejected
        return None

    # the API server remembers a good token for some seconds
    rejected = wait_for(refused, "it is refused")
    assert rejected.problem is problem
    assert words in rejected.what


def test_restricted_refuses_a_bad_pod_and_takes_a_good_one(
    api: client.ApiClient, namespace: str
) -> None:
    core = client.CoreV1Api(api)
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    core.patch_namespace(namespace, {"metadata": {"labels": label}})
    bad, good = pod_spec(), pod_spec()
    good["containers"][0]["securityContext"] = RESTRICTED
    with pytest.raises(client.ApiException, match="violates PodSecurity") as refused:
        core.create_namespaced_pod(namespace, pod("bad", bad))
    assert refused.value.status == 403
    assert core.create_namespaced_pod(namespace, pod("good", good)).metadata.name == "good"


def test_a_thousand_pods_are_ready_in_seconds(
    api: client.ApiClient, namespace: str, nodes: Nodes
) -> None:
    nodes(10)
    core = client.CoreV1Api(api)
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        made = [
            pool.submit(core.create_namespaced_pod, namespace, pod(f"train-{number}"))
            for number in range(1000)
        ]
        assert all(future.result() for future in made)
    created = time.monotonic() - began
    wait_for(lambda: _count_ready(core, namespace) == 1000, "all are ready", seconds=600)
    print(f"1,000 pods created in {created:.1f} s, ready {time.monotonic() - began:.1f} s")


def _count_ready(core: client.CoreV1Api, namespace: str) -> int:
    running = core.list_namespaced_pod(
        namespace, field_selector="status.phase=Running", resource_version="0"
    )
    time.sleep(0.3)
    return sum(_ready(found) for found in running.items)


def test_the_api_server_can_be_lost_and_comes_back(own_cluster: Cluster) -> None:
    own_cluster.kubectl("create", "configmap", "kept", "--from-literal=word=still")
    own_cluster.stop("kube-apiserver")
    assert not own_cluster.healthy()
    with pytest.raises(NotUp, match="refused"):
        own_cluster.kubectl("get", "configmap", "kept")
    own_cluster.start("kube-apiserver")
    assert own_cluster.healthy()
    kept = own_cluster.kubectl("get", "configmap", "kept", "--output=jsonpath={.data.word}")
    assert kept == "still"
