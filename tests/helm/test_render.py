"""Every combination of values renders objects that Kubernetes knows, the same each time."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import kubernetes_validate
import msgspec
import pytest
import yaml

from stitch_operator import names
from stitch_operator.webhook.release import Release
from tests.cluster import build, foreign
from tests.helm import charts
from tests.helm.charts import CHART, COMBINATIONS, CRDS, NAMESPACE
from tests.tiers import nightly_but, slow_but

OURS = {"part-of": "stitchcore", "instance": "stitch", "managed-by": "Helm"}
FOREIGN = {"ServiceMonitor", "PrometheusRule", "ScaledObject",
           "Certificate", "Issuer", "StitchPolicy"}  # fmt: skip
"""Kinds that are not Kubernetes' own."""
OLDEST, *LAST = ("1.30", "1.35", "1.36", "1.37")
"""Kubernetes' releases: the first that the chart takes, and the last three."""
everywhere = pytest.mark.parametrize("combination", COMBINATIONS)


def test_there_are_ten_or_more_combinations() -> None:
    assert len(COMBINATIONS) >= 10


@pytest.mark.parametrize("combination", slow_but("default", of=COMBINATIONS))
def test_lint_finds_nothing(combination: str) -> None:
    charts.helm("lint", "--strict", str(CHART), f"--values={CHART}/ci/{combination}-values.yaml")


def test_lint_finds_nothing_in_the_definitions() -> None:
    charts.helm("lint", "--strict", str(CRDS))


@pytest.mark.slow
@pytest.mark.parametrize("release", nightly_but(OLDEST, LAST[-1], of=[OLDEST, *LAST]))
@everywhere
def test_objects_are_kubernetes_own(combination: str, release: str) -> None:
    """A field or a version of an API that this release does not have fails, strictly."""
    checked = 0
    for made in charts.of(combination):
        if made["kind"] not in FOREIGN:
            kubernetes_validate.validate(made, release, strict=True)
            checked += 1
    assert checked > 30


def test_the_releases_are_the_last_three_and_the_oldest_is_the_charts() -> None:
    newest = [int(one.partition(".")[2]) for one in LAST]
    assert newest == list(range(newest[0], newest[0] + 3))
    assert kubernetes_validate.latest_version().startswith(f"{LAST[-1]}.")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"


def test_an_object_of_an_older_api_or_with_a_wrong_field_is_found() -> None:
    deployment = charts.one(charts.of("default"), "Deployment", "stitch-webhook")
    for wrong in ({"apiVersion": "apps/v1beta1"}, {"spec": {**deployment["spec"], "replica": 2}}):
        with pytest.raises((kubernetes_validate.SchemaNotFoundError,
                            kubernetes_validate.ValidationError)):  # fmt: skip
            kubernetes_validate.validate({**deployment, **wrong}, LAST[-1], strict=True)


@pytest.fixture(scope="module")
def schemas() -> dict[tuple[str, str], Any]:
    """Of the kinds that are not Kubernetes' own, by (apiVersion, kind): ours by their chart, those
    of others as their projects define them. Skips where those cannot be fetched."""
    if reason := build.unable():
        pytest.skip(reason)
    ours = charts.objects(charts.helm("template", "crds", str(CRDS)))
    return {
        (f"{spec['group']}/{version['name']}", spec["names"]["kind"]): closed(
            version["schema"]["openAPIV3Schema"]
        )
        for spec in (one["spec"] for one in (*ours, *foreign.definitions()))
        for version in spec["versions"]
    }


def closed(schema: Any) -> Any:
    """The schema, of which an object may have no other fields: an API server would drop them."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(one) for name, one in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def fits(schemas: dict[tuple[str, str], Any], made: charts.Object) -> None:
    """Raises jsonschema.ValidationError. Kubernetes itself knows a kind's version and metadata."""
    schema = schemas[made["apiVersion"], made["kind"]]
    rest = {name: one for name, one in made.items() if name not in ("apiVersion", "kind")}
    given = {**schema, "required": [], "properties": {**schema["properties"], "metadata": {}}}
    jsonschema.Draft7Validator(given).validate(rest)


@everywhere
def test_objects_of_other_kinds_fit_their_definitions(
    schemas: dict[tuple[str, str], Any], combination: str
) -> None:
    for made in charts.of(combination):
        if made["kind"] in FOREIGN:
            fits(schemas, made)


def test_a_wrong_field_of_another_kind_is_found(schemas: dict[tuple[str, str], Any]) -> None:
    seen = set()
    for combination in ("monitoring", "keda", "cert-manager"):
        for made in charts.of(combination):
            if made["kind"] in FOREIGN and made["kind"] not in seen:
                seen.add(made["kind"])
                with pytest.raises(jsonschema.ValidationError, match="unheardOf"):
                    fits(schemas, {**made, "spec": {**made["spec"], "unheardOf": 1}})
    assert seen == FOREIGN


@everywhere
def test_everything_is_ours_by_its_labels(combination: str) -> None:
    for made in charts.of(combination):
        labels = made["metadata"]["labels"]
        assert {key: labels[f"app.kubernetes.io/{key}"] for key in OURS} == OURS
        if made["kind"] not in ("ClusterRole", "ClusterRoleBinding", "StitchPolicy",
                                "MutatingWebhookConfiguration"):  # fmt: skip
            where = made["metadata"]["namespace"]
            assert where == NAMESPACE or made["metadata"]["name"] == "stitch-test"


@everywhere
def test_our_own_hook_leaves_our_pods_alone(combination: str) -> None:
    for name, metadata, _ in charts.pods(charts.of(combination)):
        assert metadata["labels"][names.PART_OF] == names.PRODUCT, name


@everywhere
def test_rendering_again_gives_the_same(combination: str) -> None:
    """Argo CD and Flux compare: nothing random, no time, nothing that only a cluster knows."""
    assert charts.text_of(combination) == charts.text_of.__wrapped__(combination)


def test_templates_ask_no_cluster() -> None:
    words = ("lookup", "randAlpha", "randNumeric", "randAscii", "randBytes", "uuidv4", "now",
             "genCA", "genSelfSigned", "genSigned", "genPrivateKey", "Release.Revision",
             "Release.IsInstall", "Release.IsUpgrade", "htpasswd", "derivePassword")  # fmt: skip
    for path in CHART.rglob("templates/**/*"):
        if path.is_file():
            inside = [part.partition("}}")[0] for part in path.read_text().split("{{")[1:]]
            code = " ".join(part for part in inside if not part.lstrip("- ").startswith("/*"))
            assert not [word for word in words if word in code.split()], path.name


def test_a_cluster_that_lacks_their_kinds_gets_none_of_them() -> None:
    for combination in ("monitoring", "keda"):
        values = f"--values={CHART}/ci/{combination}-values.yaml"
        plain = charts.objects(charts.helm("template", "stitch", str(CHART), values))
        assert not FOREIGN - {"StitchPolicy"} & {made["kind"] for made in plain}
        deployments = [made for made in plain if made["kind"] == "Deployment"]
        assert all("replicas" in made["spec"] for made in deployments), "a fixed number instead"
    kinds = {made["kind"] for made in [*charts.of("monitoring"), *charts.of("keda")]}
    assert {"ServiceMonitor", "PrometheusRule", "ScaledObject"} <= kinds


@everywhere
def test_the_release_is_what_the_processes_read(combination: str) -> None:
    document = charts.release_of(charts.of(combination))
    release = msgspec.convert(document, Release)
    assert (release.name, release.namespace) == ("stitch", NAMESPACE)
    assert release.server_name == f"stitch-gateway.{NAMESPACE}.svc"
    assert release.runtime_size == document["runtimeSize"]


def test_secrets_have_the_names_that_the_code_gives_them() -> None:
    """Volumes and variables of pods name the Secrets that the reconciler makes, or those given."""
    for combination in COMBINATIONS:
        found = charts.of(combination)
        release = msgspec.convert(charts.release_of(found), Release)
        used = {name: secrets(spec) for name, _, spec in charts.pods(found)}
        assert used["Deployment/stitch-webhook"] == {release.webhook_tls}
        assert release.gateway_tls in used["Deployment/stitch-gateway"]
        assert release.broker_secret in used["Deployment/stitch-gateway"]
        assert release.signing_secret in used["Deployment/stitch-signer"]
        workers = [name for name in used if name.startswith("Deployment/stitch-worker-")]
        for name in workers:
            assert {release.kernel_key_secret, release.broker_secret} <= used[name]
        assert workers


def secrets(spec: dict[str, Any]) -> set[str]:
    """Names of Secrets that a pod reads."""
    found = {one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
    for container in charts.containers(spec):
        for entry in container.get("env", ()):
            reference = entry.get("valueFrom", {}).get("secretKeyRef")
            found |= {reference["name"]} if reference else set()
        found |= {one["secretRef"]["name"] for one in container.get("envFrom", ())}
    return found


def test_only_the_signer_has_the_signing_key_and_only_workers_theirs() -> None:
    for combination in COMBINATIONS:
        for name, _, spec in charts.pods(charts.of(combination)):
            used = secrets(spec)
            assert ("signing" in "".join(used)) == ("signer" in name), name
            assert ("kernel-key" in "".join(used)) == ("worker" in name), name
            assert not any(one.endswith("-ca") for one in used), name


def test_a_kernel_key_is_alone_in_its_folder() -> None:
    """Its folder is hidden from compile children, whole."""
    for name, _, spec in charts.pods(charts.of("default")):
        if "worker" in name:
            mounts = spec["containers"][0]["volumeMounts"]
            near = [m for m in mounts if m["mountPath"].startswith("/etc/stitch/kernel-key")]
            assert [m["mountPath"] for m in near] == ["/etc/stitch/kernel-key"]
            (volume,) = [v for v in spec["volumes"] if v["name"] == near[0]["name"]]
            assert [one["path"] for one in volume["secret"]["items"]] == ["kernel.key"]


def test_the_list_for_a_mirror_is_whole() -> None:
    for combination in COMBINATIONS:
        found = charts.of(combination)
        listed = charts.one(found, "ConfigMap", "stitch-release")["data"]["images"].split()
        used = {c["image"] for _, _, spec in charts.pods(found) for c in charts.containers(spec)}
        assert set(listed) == used
        assert charts.release_of(found)["image"] in used
        assert listed == sorted(set(listed))
    mirrored = charts.one(charts.of("mirror"), "ConfigMap", "stitch-release")["data"]["images"]
    for image in mirrored.split():
        assert image.startswith("registry.internal:5000/mirror/") and "@sha256:" in image


@pytest.mark.parametrize(
    ("repository", "registry", "image"),
    [
        ("localhost/stitchcore/operator", "", "localhost/stitchcore/operator:0.1.0"),
        ("localhost/stitchcore/operator", "r.example:5", "r.example:5/stitchcore/operator:0.1.0"),
        ("docker.io/library/x", "r.example/mirror/", "r.example/mirror/library/x:0.1.0"),
        ("team/x", "r.example", "r.example/team/x:0.1.0"),
        ("x", "r.example", "r.example/x:0.1.0"),
    ],
)  # fmt: skip
def test_a_registry_takes_the_place_of_a_registry(
    repository: str, registry: str, image: str
) -> None:
    values = {"images": {"operator": {"repository": repository}}}
    found = charts.objects(
        charts.rendered(json.dumps({**values, "global": {"imageRegistry": registry}}))
    )
    spec = charts.one(found, "Deployment", "stitch-webhook")["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == image


@pytest.mark.slow
def test_a_release_may_be_called_by_a_number() -> None:
    for made in charts.objects(charts.rendered(name="7", namespace="42")):
        kubernetes_validate.validate(made, LAST[-1], strict=True) if made[
            "kind"
        ] not in FOREIGN else None
        assert isinstance(made["metadata"].get("namespace", ""), str)
