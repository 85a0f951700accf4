"""The webhook behind a real API server: what it makes of pods and workloads is taken as it is."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from stitch_operator import check
from stitch_operator.webhook import objects
from stitch_operator.webhook.cluster import Cluster
from tests.operator.webhook import serving, support
from tests.operator.webhook.serving import Served
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
SITUATIONS = ("policies", "limitRanges", "release", "namespace", "broken", "failed")
OPTIMIZE, INJECTED, SKIPPED = (f"stitchcore.io/{n}" for n in ("optimize", "injected", "skipped"))
SELECTED_AWAY = {"release_label"}
"""Cases that the hook's objectSelector keeps from us."""
POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "tf"}]}


@pytest.fixture(scope="module")
def webhook(api: client.ApiClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Served by this process and registered by its URL."""
    folder = tmp_path_factory.mktemp("webhook")
    known = Cluster(api, "stitch", "stitch", lambda resource: None)
    extensions = client.ApiextensionsV1Api(api)
    admission = client.AdmissionregistrationV1Api(api)
    definition = objects.policy_definition()
    core = client.CoreV1Api(api)
    core.create_namespace({"metadata": {"name": "stitch"}})
    data = {"ca.pem": support.TRUST.authorities, "public-keys": support.TRUST.public_keys[0]}
    trust = {"metadata": {"name": "stitch-trust"}, "data": data}
    core.create_namespaced_config_map("stitch", trust)
    with serving.serve(folder, known) as served:
        authority = base64.b64encode((folder / "ca.pem").read_bytes()).decode()
        hooks = objects.configuration(support.release(), served.url, authority)
        extensions.create_custom_resource_definition(definition)
        known.start()
        wait_for(lambda: known.ready() and known.trust(), "policies and trust are known")
        admission.create_mutating_webhook_configuration(hooks)
        wait_for(lambda: _asked(api), "the API server asks the webhook")
        yield served
        admission.delete_mutating_webhook_configuration(hooks["metadata"]["name"])
        extensions.delete_custom_resource_definition(definition["metadata"]["name"])
        known.stop()
        core.delete_namespace("stitch")


def _asked(api: client.ApiClient) -> bool:
    made = support.case("one_container").given
    return SKIPPED in words(create(api, "default", made)) or INJECTED in words(
        create(api, "default", made)
    )


def create(api: client.ApiClient, namespace: str, pod: dict[str, Any]) -> Any:
    """The pod as the API server would keep it; it is not kept."""
    body = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(pod)}
    body["metadata"].pop("ownerReferences", None)
    return client.CoreV1Api(api).create_namespaced_pod(namespace, body, dry_run="All")


def words(pod: Any) -> dict[str, str]:
    return dict(pod.metadata.annotations or {})


def _of_this_cluster(name: str) -> bool:
    """Whether the case says nothing of its surroundings: tests/operator/webhook has all of them."""
    text = (support.PODS / f"{name}.yaml").read_text()
    return name not in SELECTED_AWAY and not any(f"\n{one}:" in text for one in SITUATIONS)


@pytest.mark.parametrize("name", [one for one in support.CASES if _of_this_cluster(one)])
def test_pods_are_taken_and_keep_their_class(
    api: client.ApiClient, webhook: Served, namespace: str, name: str
) -> None:
    case = support.case(name)
    made = create(api, namespace, case.given)
    expected = case.expected["metadata"].get("annotations", {})
    assert (INJECTED in words(made)) == (INJECTED in expected)
    assert words(made).get(SKIPPED) == expected.get(SKIPPED)
    declined = copy.deepcopy(case.given)
    declined["metadata"].setdefault("labels", {})[OPTIMIZE] = "false"
    assert create(api, namespace, declined).status.qos_class == made.status.qos_class


def test_restricted_namespaces_take_them(
    api: client.ApiClient, webhook: Served, namespace: str
) -> None:
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    client.CoreV1Api(api).patch_namespace(namespace, {"metadata": {"labels": label}})
    made = create(api, namespace, support.case("restricted_pod").given)
    assert made.spec.init_containers[0].name == "stitchcore-runtime"


def test_a_jobs_word_reaches_its_pods(
    api: client.ApiClient, webhook: Served, namespace: str
) -> None:
    body = {
        "metadata": {"generateName": "train-", "annotations": {OPTIMIZE: "true"}},
        "spec": {"parallelism": 2, "template": {"spec": POD}},
    }
    client.BatchV1Api(api).create_namespaced_job(namespace, body)
    core = client.CoreV1Api(api)
    wait_for(lambda: len(core.list_namespaced_pod(namespace).items) == 2, "it has its pods")
    pods = core.list_namespaced_pod(namespace).items
    assert len({words(pod)[INJECTED] for pod in pods}) == 1
    assert {words(pod)["stitchcore.io/workload"] for pod in pods} == {"train"}


def test_a_namespaces_label_asks_for_its_pods(
    api: client.ApiClient, webhook: Served, namespace: str
) -> None:
    silent = {"metadata": {"name": "silent"}, "spec": POD}
    assert INJECTED not in words(create(api, namespace, silent))
    body = {"metadata": {"labels": {OPTIMIZE: "true"}}}
    client.CoreV1Api(api).patch_namespace(namespace, body)
    wait_for(lambda: INJECTED in words(create(api, namespace, silent)), "its pods are injected")


def test_the_program_of_helm_test_sees_that_pods_are_injected(
    api: client.ApiClient, webhook: Served, namespace: str
) -> None:
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    client.CoreV1Api(api).patch_namespace(namespace, {"metadata": {"labels": label}})
    made = api.sanitize_for_serialization(create(api, namespace, check.POD))
    assert check.judged(made).good
    assert check.gateway_of(made) == (support.RELEASE["gatewayUrl"], support.CA)
    declined = copy.deepcopy(check.POD)
    declined["metadata"]["labels"] = {OPTIMIZE: "false"}
    made = api.sanitize_for_serialization(create(api, namespace, declined))
    assert "was not asked" in check.judged(made).text
    assert not client.CoreV1Api(api).list_namespaced_pod(namespace).items, "none was made"


def test_a_policy_is_obeyed_and_judged_by_its_schema(
    api: client.ApiClient, webhook: Served, namespace: str
) -> None:
    custom = client.CustomObjectsApi(api)
    place = ("stitchcore.io", "v1alpha1", "stitchpolicies")
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    body = {
        "apiVersion": "stitchcore.io/v1alpha1", "kind": "StitchPolicy",
        "metadata": {"name": "never"},
        "spec": {"maxMode": "everything", "namespaceSelector": selector},
    }  # fmt: skip
    with pytest.raises(client.ApiException, match="Unsupported value"):
        custom.create_cluster_custom_object(*place, body)
    body["spec"]["maxMode"] = "off"  # type: ignore[index]
    custom.create_cluster_custom_object(*place, body)
    pod = support.case("one_container").given
    wait_for(lambda: words(create(api, namespace, pod)).get(SKIPPED) == "policy_off", "obeyed")
    custom.delete_cluster_custom_object(*place, "never")


def test_limits_and_quotas_are_kept(api: client.ApiClient, webhook: Served, namespace: str) -> None:
    core = client.CoreV1Api(api)
    line = {"type": "Container", "default": {"cpu": "8", "memory": "1Gi"},
            "defaultRequest": {"cpu": "4", "memory": "1Gi"}, "min": {"cpu": "200m"}}  # fmt: skip
    core.create_namespaced_limit_range(
        namespace, {"metadata": {"name": "l"}, "spec": {"limits": [line]}}
    )
    hard = {"requests.cpu": "4", "limits.cpu": "8", "requests.memory": "1Gi"}
    core.create_namespaced_resource_quota(
        namespace, {"metadata": {"name": "q"}, "spec": {"hard": hard}}
    )
    pod = support.case("one_container").given

    def asked() -> dict[str, str]:
        try:
            made = create(api, namespace, pod)
        except client.ApiException as error:
            if error.status != 403:  # the API server knows a limit before the webhook's watch
                raise
            return {}
        return dict(made.spec.init_containers[0].resources.requests or {})

    wait_for(lambda: asked() == {"cpu": "200m", "memory": "128Mi"}, "both are kept")
