"""The charts in a real API server: installed, upgraded, refused, removed, installed again."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
import yaml
from kubernetes import client

from stitch_operator.reconciler import trust
from stitch_operator.webhook.release import Release
from tests.cluster import foreign
from tests.cluster.cluster import Cluster
from tests.cluster.processes import NotUp
from tests.helm import charts
from tests.helm.charts import CHART, COMBINATIONS, CRDS
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
RESTRICTED = {
    f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")
}
LEFT = ["PersistentVolumeClaim/stitch-ledger", "PersistentVolumeClaim/stitch-store"]
OURS = "app.kubernetes.io/part-of=stitchcore"
KINDS = (
    "deployments,statefulsets,cronjobs,services,configmaps,secrets,serviceaccounts,roles,"
    "rolebindings,persistentvolumeclaims,networkpolicies,poddisruptionbudgets"
)
EVERYWHERE = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,stitchpolicies"


@dataclass(frozen=True)
class Place:
    """A cluster with the CRDs, and a restricted namespace."""

    cluster: Cluster
    api: client.ApiClient
    namespace: str

    def helm(self, *arguments: str, namespace: str = "", stdin: str = "") -> str:
        where = ["--kubeconfig", str(self.cluster.kubeconfig)]
        return charts.helm(
            *arguments, *where, "--namespace", namespace or self.namespace, stdin=stdin
        )

    def install(self, name: str = "stitch", values: str = "{}", *more: str, **where: str) -> str:
        return self.helm("install", name, str(CHART), "--values=-", *more, stdin=values, **where)

    def ours(self, namespace: str = "") -> list[str]:
        """What is there of ours, as Kind/name."""
        own = self.cluster.kubectl(
            "get", KINDS, "-n", namespace or self.namespace, "-l", OURS, "-o", "yaml"
        )
        everywhere = self.cluster.kubectl("get", EVERYWHERE, "-l", OURS, "-o", "yaml")
        items = [*yaml.safe_load(own)["items"], *yaml.safe_load(everywhere)["items"]]
        going = [one for one in items if "deletionTimestamp" not in one["metadata"]]
        return sorted(f"{one['kind']}/{one['metadata']['name']}" for one in going)


@pytest.fixture(scope="module")
def knowing(own_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster that knows our kinds, by their chart, and those of others."""
    where = ["--kubeconfig", str(own_cluster.kubeconfig), "--namespace", "kube-system"]
    charts.helm("install", "stitch-crds", str(CRDS), *where)
    with own_cluster.api() as api:
        extensions = client.ApiextensionsV1Api(api)
        made = foreign.definitions()
        for one in made:
            extensions.create_custom_resource_definition(one)
        names = [one["metadata"]["name"] for one in made]
        wait_for(lambda: all(_served(extensions, name) for name in names), "they are served")
        yield own_cluster
        for one in made:
            extensions.delete_custom_resource_definition(one["metadata"]["name"])
        charts.helm("uninstall", "stitch-crds", *where)
        kept = ("stitchpolicies.stitchcore.io", "stitchedjobs.stitchcore.io")
        for name in kept:  # kept, or this is an error
            extensions.delete_custom_resource_definition(name)
        gone = [*names, *kept]  # others may make theirs anew
        wait_for(lambda: not any(_known(extensions, name) for name in gone), "they are gone")


@pytest.fixture
def place(knowing: Cluster) -> Iterator[Place]:
    with knowing.api() as api:
        core = client.CoreV1Api(api)
        name = f"chart-{uuid.uuid4().hex[:8]}"
        core.create_namespace({"metadata": {"name": name, "labels": RESTRICTED}})
        made = Place(knowing, api, name)
        yield made
        for release in made.helm("list", "--short").split():
            made.helm("uninstall", release)
        core.delete_namespace(name)


def test_it_is_installed_upgraded_and_leaves_what_it_should(place: Place) -> None:
    place.install()
    first = place.ours()
    assert {"Deployment/stitch-webhook", "StitchPolicy/stitch", *LEFT} <= set(first)
    admission = client.AdmissionregistrationV1Api(place.api)
    apps = client.AppsV1Api(place.api)

    def generations() -> dict[str, int]:
        found = apps.list_namespaced_deployment(place.namespace).items
        return {one.metadata.name: one.metadata.generation for one in found}

    bundle = base64.b64encode(b"what the reconciler writes").decode()
    hooks = admission.read_mutating_webhook_configuration("stitch-webhook").webhooks
    patch = [{"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
             for number in range(len(hooks))]  # fmt: skip
    admission.patch_mutating_webhook_configuration("stitch-webhook", patch)
    before = generations()
    place.helm("upgrade", "stitch", str(CHART))
    assert generations() == before, "an upgrade to the same starts nothing anew"
    place.helm("upgrade", "stitch", str(CHART), "--set", "runtime.size=300Mi")
    after = generations()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"stitch-webhook", "stitch-reconciler"}, "they read release.json at start"
    kept = admission.read_mutating_webhook_configuration("stitch-webhook").webhooks
    assert {hook.client_config.ca_bundle for hook in kept} == {bundle}
    place.helm("upgrade", "stitch", str(CHART), "--reuse-values", "--server-side=false")
    kept = admission.read_mutating_webhook_configuration("stitch-webhook").webhooks
    assert {hook.client_config.ca_bundle for hook in kept} == {bundle}, "nor by a merge of three"
    assert place.ours() == first
    place.helm("uninstall", "stitch")
    wait_for(lambda: place.ours() == LEFT, "volumes alone are left")


def test_the_reconciler_makes_what_pods_wait_for_and_it_goes_with_the_release(
    place: Place,
) -> None:
    """By the account, the roles and the settings that the chart has given it."""
    place.install()
    core = client.CoreV1Api(place.api)
    held = core.read_namespaced_config_map("stitch-release", place.namespace)
    release = msgspec.json.decode(held.data["release.json"], type=Release)
    with place.cluster.api() as reconciler:
        name = f"system:serviceaccount:{place.namespace}:stitch-reconciler"
        reconciler.set_default_header("Impersonate-User", name)
        trust.step(reconciler, release, time.time())
        trust.step(reconciler, release, time.time())
    assert wanted(charts.objects(charts.rendered(namespace=place.namespace))) <= there(place)
    hooks = client.AdmissionregistrationV1Api(place.api)
    made = hooks.read_mutating_webhook_configuration("stitch-webhook").webhooks
    assert all(hook.client_config.ca_bundle for hook in made)
    place.helm("upgrade", "stitch", str(CHART), "--set", "webhook.replicas=1")
    again = core.read_namespaced_config_map("stitch-release", place.namespace)
    assert again.metadata.uid == held.metadata.uid, "else an upgrade would take keys away"
    place.helm("uninstall", "stitch")
    left = sorted([*LEFT, "Secret/stitch-kernel-key", "Secret/stitch-signing"])
    wait_for(lambda: place.ours() == left, "the garbage collector has been")


def wanted(found: list[charts.Object]) -> set[tuple[str, str, str]]:
    """(kind, name, key) of what pods mount or read, and cannot start without."""
    made = set()
    for _, _, spec in charts.pods(found):
        volumes = list(spec["volumes"])
        volumes += [one for v in volumes for one in v.get("projected", {}).get("sources", ())]
        for volume in volumes:
            secret = volume.get("secret") or {}
            for item in secret.get("items") or [{"key": ""}] * bool(secret):
                made.add(("Secret", secret.get("secretName") or secret["name"], item["key"]))
            config = volume.get("configMap") or {}
            if config and not config.get("optional"):
                keys = [item["key"] for item in config.get("items", ())] or [""]
                made |= {("ConfigMap", config["name"], key) for key in keys}
        for entry in (one for made in spec["containers"] for one in made.get("env", ())):
            if reference := entry.get("valueFrom", {}).get("secretKeyRef"):
                made.add(("Secret", reference["name"], reference["key"]))
    return made


def there(place: Place) -> set[tuple[str, str, str]]:
    core = client.CoreV1Api(place.api)
    held = [("Secret", one) for one in core.list_namespaced_secret(place.namespace).items]
    maps = core.list_namespaced_config_map(place.namespace).items
    held += [("ConfigMap", one) for one in maps]
    return {(kind, one.metadata.name, key) for kind, one in held for key in ["", *(one.data or {})]}


def test_nothing_is_left_where_nothing_is_to_be_kept(place: Place) -> None:
    values = yaml.safe_dump({
        "store": {"persistence": {"keep": False}}, "ledger": {"persistence": {"keep": False}},
    })  # fmt: skip
    place.install("stitch", values)
    place.helm("uninstall", "stitch")
    wait_for(lambda: place.ours() == [], "nothing is left")


def test_it_is_installed_again_with_what_was_kept(place: Place) -> None:
    place.install()
    place.helm("uninstall", "stitch")
    wait_for(lambda: place.ours() == LEFT, "volumes alone are left")
    place.install()  # by the same name: they are taken up
    place.helm("uninstall", "stitch")
    wait_for(lambda: place.ours() == LEFT, "volumes alone are left")
    values = yaml.safe_dump({
        "store": {"persistence": {"existingClaim": "stitch-store"}},
        "ledger": {"persistence": {"existingClaim": "stitch-ledger"}},
    })  # fmt: skip
    place.install("again", values)
    claims = [one for one in place.ours() if one.startswith("PersistentVolumeClaim")]
    assert claims == LEFT
    text = place.cluster.kubectl(
        "get", "deploy", "again-store", "-n", place.namespace, "-o", "yaml"
    )
    assert "claimName: stitch-store" in text
    place.helm("uninstall", "again")
    wait_for(lambda: place.ours() == LEFT, "volumes alone are left")


def test_two_releases_are_refused(place: Place) -> None:
    """Both would inject into the same pods."""
    place.install()
    core = client.CoreV1Api(place.api)
    other = f"{place.namespace}-other"
    core.create_namespace({"metadata": {"name": other}})
    try:
        with pytest.raises(charts.Refused, match="stitchcore-view"):
            place.install("second", namespace=other)
        with pytest.raises(charts.Refused, match="stitchcore-view"):
            place.install("second")
        assert not any("second" in one for one in [*place.ours(), *place.ours(other)])
    finally:
        core.delete_namespace(other)


def test_without_the_definitions_it_says_so(place: Place) -> None:
    extensions = client.ApiextensionsV1Api(place.api)
    name = "stitchpolicies.stitchcore.io"
    extensions.delete_custom_resource_definition(name)
    try:
        wait_for(lambda: not _known(extensions, name), "it is gone")
        wait_for(lambda: "StitchPolicy" in _refused(place), "helm names what is missing")
    finally:
        place.cluster.kubectl("apply", "-f", "-", stdin=charts.helm("template", "c", str(CRDS)))
        wait_for(lambda: _known(extensions, name), "it is back")


def _served(extensions: client.ApiextensionsV1Api, name: str) -> bool:
    held = extensions.read_custom_resource_definition_status(name).status.conditions or ()
    return any(one.type == "Established" and one.status == "True" for one in held)


def _known(extensions: client.ApiextensionsV1Api, name: str) -> bool:
    found = extensions.list_custom_resource_definition().items
    return any(one.metadata.name == name for one in found)


def _refused(place: Place) -> str:
    try:
        place.install()
    except charts.Refused as refused:
        return str(refused)
    place.helm("uninstall", "stitch")
    return ""


@pytest.fixture(scope="module")
def platform(knowing: Cluster) -> Iterator[Cluster]:
    """A restricted namespace `platform`, with all accounts of a release, and what pods name."""
    with knowing.api() as api:
        core = client.CoreV1Api(api)
        metadata = {"name": charts.NAMESPACE, "labels": RESTRICTED}
        core.create_namespace({"metadata": metadata})
        for name in ("webhook", "gateway", "reconciler", "signer", "worker", "store", "redis",
                     "collect", "test"):  # fmt: skip
            core.create_namespaced_service_account(
                charts.NAMESPACE, {"metadata": {"name": f"stitch-{name}"}}
            )
        classes = client.SchedulingV1Api(api)
        classes.create_priority_class({"metadata": {"name": "platform"}, "value": 1000})
        runtimes = client.NodeV1Api(api)
        runtimes.create_runtime_class({"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        core.create_namespace({"metadata": {"name": "research"}})
        yield knowing
        core.delete_namespace(charts.NAMESPACE)
        core.delete_namespace("research")
        classes.delete_priority_class("platform")
        runtimes.delete_runtime_class("nvidia")


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_combination_is_taken_by_the_api_server(platform: Cluster, combination: str) -> None:
    """By the real one, with all that it checks; kinds of others as they define them."""
    said = platform.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-",
        stdin=charts.text_of(combination),
    )  # fmt: skip
    lines = said.strip().splitlines()
    assert len(lines) == len(charts.of(combination))


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_pod_is_taken_where_restricted_is_enforced(
    platform: Cluster, combination: str
) -> None:
    found = list(charts.pods(charts.of(combination)))
    assert len(found) >= 7
    bodies = [pod(metadata, spec) for _, metadata, spec in found]
    created(platform, bodies)
    for body in bodies:
        body["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(NotUp, match="violates PodSecurity"):
        created(platform, bodies[:1])


def pod(metadata: charts.Object, spec: charts.Object) -> charts.Object:
    """A pod of a template."""
    about = {"generateName": "p-", "labels": metadata["labels"], "namespace": charts.NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def created(cluster: Cluster, bodies: list[charts.Object]) -> None:
    """As far as the API server admits them; none is kept."""
    text = yaml.safe_dump_all(bodies)
    cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)


def test_a_dry_run_of_helm_waits_for_nobody(place: Place) -> None:
    """What a person tries first; helm would wait for five minutes."""
    began = time.monotonic()
    said = place.install("stitch", "{}", "--dry-run=server")
    assert "stitchcore.io/optimize" in said and time.monotonic() - began < 200
    assert place.ours() == []


def test_what_is_rendered_is_what_is_kept(place: Place) -> None:
    """Argo CD and Flux compare what `helm template` prints with what the API server shows."""
    text = charts.rendered(namespace=place.namespace)
    text = text.partition("# Source: stitch/templates/tests")[0]
    place.cluster.kubectl("apply", "-f", "-", stdin=text)
    try:
        place.cluster.kubectl("diff", "-f", "-", stdin=text)  # raises where there is any
    finally:
        place.cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)
