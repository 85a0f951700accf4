"""Whatever befalls the webhook, pods are created; and it goes on where it was."""

from __future__ import annotations

import base64
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kubernetes import client

from stitch_operator.reconciler import issuing
from stitch_operator.webhook import objects
from tests.cluster import releasing
from tests.cluster.cluster import Cluster
from tests.cluster.releasing import Webhook
from tests.operator.webhook import support
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
INJECTED, SKIPPED = "stitchcore.io/injected", "stitchcore.io/skipped"
POD = support.case("one_container").given


@pytest.fixture(scope="module")
def webhook(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    folder = tmp_path_factory.mktemp("faults")
    with releasing.webhook(own_cluster, folder, "faults") as made:
        yield made


@pytest.fixture(autouse=True)
def asked(webhook: Webhook, namespace: str) -> None:
    """Each test begins with a webhook that is asked."""
    wait_for(lambda: INJECTED in create(webhook, namespace), "pods are injected")


def create(webhook: Webhook, namespace: str, **spec: Any) -> dict[str, str]:
    """A pod that stays; its annotations."""
    metadata = {**POD["metadata"], "name": f"pod-{uuid.uuid4().hex[:10]}"}
    metadata.pop("ownerReferences", None)
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    body["spec"] = {**POD["spec"], **spec}
    made = client.CoreV1Api(webhook.api).create_namespaced_pod(namespace, body)
    return dict(made.metadata.annotations or {})


def test_down(own_cluster: Cluster, webhook: Webhook, namespace: str) -> None:
    before = releasing.fail_open(own_cluster)
    webhook.end(webhook.replicas[-1])
    words = create(webhook, namespace)
    assert INJECTED not in words and SKIPPED not in words
    assert releasing.fail_open(own_cluster) > before, "the API server says that it went on without"
    webhook.start()
    assert INJECTED in create(webhook, namespace)


def test_slow(own_cluster: Cluster, webhook: Webhook, namespace: str) -> None:
    """One that does not answer costs a pod the hook's timeout, and that once."""
    process, before = webhook.replicas[-1].process, releasing.fail_open(own_cluster)
    process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert INJECTED not in create(webhook, namespace)
        taken = time.monotonic() - began
    finally:
        process.send_signal(signal.SIGCONT)
    assert taken > objects.TIMEOUT_SECONDS - 1 and _timeouts(webhook) == {objects.TIMEOUT_SECONDS}
    assert releasing.fail_open(own_cluster) == before + 1
    wait_for(lambda: INJECTED in create(webhook, namespace), "and then goes on")


def _timeouts(webhook: Webhook) -> set[int]:
    """What the API server has been told, of all hooks."""
    hooks = client.AdmissionregistrationV1Api(webhook.api)
    name = f"{webhook.release.name}-webhook"
    return {one.timeout_seconds for one in
            hooks.read_mutating_webhook_configuration(name).webhooks}  # fmt: skip


def test_an_ended_certificate(webhook: Webhook, namespace: str) -> None:
    """Nobody looked for three months. The reconciler's next step mends it."""
    core, release = client.CoreV1Api(webhook.api), webhook.release

    def secret(name: str) -> dict[str, bytes]:
        held = core.read_namespaced_secret(name, release.namespace).data
        return {name: base64.b64decode(value) for name, value in held.items()}

    by = issuing.pair(*(secret(release.authority_secret)[name] for name in ("ca.crt", "ca.key")))
    assert by is not None
    ended = issuing.server(["127.0.0.1"], by, time.time() - 7200, 3600)
    pem = {"tls.crt": ended.pem, "tls.key": ended.key_pem}
    data = {name: base64.b64encode(value).decode() for name, value in pem.items()}
    core.patch_namespaced_secret(release.webhook_tls, release.namespace, {"data": data})
    wait_for(lambda: not webhook.replicas[-1].ready(), "it is not ready with it")
    _drop_connections(webhook)
    assert INJECTED not in create(webhook, namespace)
    webhook.keep_trust()
    wait_for(lambda: INJECTED in create(webhook, namespace), "it has another one")


def _drop_connections(webhook: Webhook) -> None:
    """The API server keeps connections, and looks at certificates when it makes new ones."""
    hooks = client.AdmissionregistrationV1Api(webhook.api)
    name = f"{webhook.release.name}-webhook"
    held = hooks.read_mutating_webhook_configuration(name)
    other = issuing.authority("nobody", time.time(), 3600)
    for hook in held.webhooks:
        pem = base64.b64decode(hook.client_config.ca_bundle) + other.pem
        hook.client_config.ca_bundle = base64.b64encode(pem).decode()
    hooks.replace_mutating_webhook_configuration(name, held)
    time.sleep(1)


def test_the_api_server_restarts(own_cluster: Cluster, webhook: Webhook, namespace: str) -> None:
    own_cluster.stop("kube-apiserver")
    assert webhook.replicas[-1].ready(), "it serves what it last saw"
    own_cluster.start("kube-apiserver")
    wait_for(lambda: INJECTED in create(webhook, namespace), "pods are injected")
    before = webhook.replicas[-1].count("stitch_webhook_watch_failures_total")
    wait_for(lambda: _follows(webhook, namespace), "it sees what changes")
    assert before > 0


def _follows(webhook: Webhook, namespace: str) -> bool:
    """Whether what is said of a namespace now decides about its pods."""
    word = {"metadata": {"annotations": {"stitchcore.io/mode": "off"}}}
    client.CoreV1Api(webhook.api).patch_namespace(namespace, word)
    return create(webhook, namespace).get(SKIPPED) == "policy_off"


LIMITS = {
    "below the init container's": {"max": {"cpu": "50m", "memory": "64Mi"},
                                   "default": {"cpu": "50m", "memory": "64Mi"}},
    "above the pod's": {"min": {"cpu": "1", "memory": "1Gi"},
                        "default": {"cpu": "1", "memory": "1Gi"}},
    "a ratio of one": {"maxLimitRequestRatio": {"cpu": "1", "memory": "1"},
                       "default": {"cpu": "100m", "memory": "100Mi"}},
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS, ids=[name.replace(" ", "_") for name in LIMITS])
def test_limits_in_the_way(webhook: Webhook, namespace: str, name: str) -> None:
    """A pod that may be created without us may be created with us: injected, or with a reason."""
    core = client.CoreV1Api(webhook.api)
    line = {"type": "Container", **LIMITS[name]}
    line["defaultRequest"] = line["default"]
    core.create_namespaced_limit_range(
        namespace, {"metadata": {"name": "limits"}, "spec": {"limits": [line]}}
    )
    time.sleep(2)  # the API server has seen it
    container = {"name": "main", "image": "tf"}

    def admitted() -> dict[str, str] | None:
        """None until the webhook has seen it too."""
        with suppress(client.ApiException):
            return create(webhook, namespace, containers=[container])
        return None

    words = wait_for(admitted, "the pod is created")
    assert INJECTED in words or words[SKIPPED] == "limit_range"


def test_a_quota_that_is_just_enough(webhook: Webhook, namespace: str) -> None:
    """Injected or not: the pod costs what it cost."""
    core = client.CoreV1Api(webhook.api)
    cost = {"cpu": "500m", "memory": "512Mi"}
    used = core.list_namespaced_pod(namespace).items
    for pod in used:
        core.delete_namespaced_pod(pod.metadata.name, namespace, grace_period_seconds=0)
    hard = {f"{kind}.{what}": value for what, value in cost.items()
            for kind in ("requests", "limits")}  # fmt: skip
    core.create_namespaced_resource_quota(
        namespace, {"metadata": {"name": "quota"}, "spec": {"hard": {**hard, "pods": "1"}}}
    )
    container = {"name": "main", "image": "tf", "resources": {"requests": cost, "limits": cost}}

    def counted() -> bool:
        status = core.read_namespaced_resource_quota("quota", namespace).status
        return bool(status.used) and status.used.get("pods") == "0"

    wait_for(counted, "the quota is counted")
    assert INJECTED in create(webhook, namespace, containers=[container])
    with pytest.raises(client.ApiException, match="exceeded quota"):
        create(webhook, namespace, containers=[container])
