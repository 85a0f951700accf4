"""Chart and code cannot drift: what follows from code is compared with it, object by object."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest
import yaml

from stitch_operator import names
from stitch_operator.gateway import objects as gateway
from stitch_operator.reconciler import objects as reconciler
from stitch_operator.store import objects as store
from stitch_operator.store.access import ROLES as STORE_ROLES
from stitch_operator.webhook import objects as webhook
from stitch_operator.webhook.release import Release
from tests.helm import charts
from tests.helm.charts import COMBINATIONS, CRDS, NAMESPACE, ROOT
from tools import chart

RBAC = ("Role", "ClusterRole")
CA = {"key": names.AUTHORITIES, "path": "ca.pem"}
everywhere = pytest.mark.parametrize("combination", COMBINATIONS)


def test_what_the_generator_writes_is_committed() -> None:
    """If it is not: `python tools/chart.py`."""
    done = subprocess.run(
        [sys.executable, "tools/chart.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_value_stands_under_what_it_means() -> None:
    """In values.yaml, as helm-docs reads it."""
    lines = (charts.CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    schema = json.loads((charts.CHART / "values.schema.json").read_text(encoding="utf-8"))
    given = yaml.safe_load("\n".join(lines))
    for path, _, _, meaning in chart.rows(schema, given):
        if path.startswith("policy.spec.") or ".NAME." in path or "issuerRef." in path:
            continue  # not set by default
        key = f"{'  ' * path.count('.')}{path.rpartition('.')[2]}:"
        comment = f"{'  ' * path.count('.')}# -- {meaning}"
        assert (
            any(
                line == comment and after.startswith(key)
                for line, after in itertools.pairwise(lines)
            )
            or path == "workers"
        ), path


@pytest.mark.parametrize("folder", [charts.CHART, CRDS], ids=lambda one: str(one.name))
def test_artifact_hub_is_told_the_kinds_an_example_and_a_picture(folder: Path) -> None:
    """Its annotations are YAML in strings; the example is one that the definition takes."""
    settings = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    told = settings["annotations"]
    assert told["artifacthub.io/category"] == "ai-machine-learning"  # of its closed list
    defined = {one["metadata"]["name"] for one in (webhook.policy_definition(),
                                                  reconciler.job_definition())}  # fmt: skip
    crds = yaml.safe_load(told["artifacthub.io/crds"])
    assert {one["name"] for one in crds} == defined
    assert all({"kind", "version", "displayName", "description"} < set(one) for one in crds)
    (example,) = yaml.safe_load(told["artifacthub.io/crdsExamples"])
    schema = webhook.policy_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    jsonschema.validate({"spec": example["spec"]}, chart.closed(schema))
    kind, _, data = settings["icon"].partition(";base64,")
    assert kind == "data:image/svg+xml"
    assert ElementTree.fromstring(base64.b64decode(data)).tag.endswith("svg")
    assert len(settings["keywords"]) >= 4


def release_of(found: list[Any]) -> Release:
    return msgspec.convert(charts.release_of(found), Release)


def alike(rendered: Any, made: Any) -> None:
    """The same, but for labels, of which the chart has more."""
    labels = made["metadata"].get("labels", {})
    assert rendered["metadata"]["labels"].items() >= labels.items()
    metadata = {**made["metadata"], "labels": rendered["metadata"]["labels"]}
    assert rendered == {**made, "metadata": metadata}


@everywhere
def test_the_webhooks_configuration_is_the_codes(combination: str) -> None:
    found = charts.of(combination)
    (rendered,) = [one for one in found if one["kind"] == "MutatingWebhookConfiguration"]
    alike(rendered, webhook.configuration(release_of(found)))
    assert not any("caBundle" in hook["clientConfig"] for hook in rendered["webhooks"])


def test_its_failure_policy_is_a_value() -> None:
    found = charts.objects(charts.rendered("webhook: {failurePolicy: Fail}"))
    (rendered,) = [one for one in found if one["kind"] == "MutatingWebhookConfiguration"]
    alike(rendered, webhook.configuration(release_of(found), failure_policy="Fail"))


@everywhere
def test_roles_are_the_codes_and_there_are_no_others(combination: str) -> None:
    found = charts.of(combination)
    release = release_of(found)
    made = [*webhook.roles(release), *gateway.roles(release), *reconciler.roles(release),
            *webhook.trust_roles(release)]  # fmt: skip
    if any(one["metadata"]["name"] == "stitch-store" for one in found if one["kind"] == "Service"):
        made += store.roles(release)
    rendered = {
        (one["kind"], one["metadata"]["name"]): one
        for one in found
        if one["kind"] in RBAC and one["metadata"]["name"] != "stitch-test"
    }
    assert set(rendered) == {(one["kind"], one["metadata"]["name"]) for one in made}
    for one in made:
        alike(rendered[one["kind"], one["metadata"]["name"]], one)


@everywhere
def test_a_role_is_bound_to_the_account_of_its_component_alone(combination: str) -> None:
    bound = {}
    for one in charts.of(combination):
        if one["kind"].endswith("RoleBinding"):
            (subject,) = one["subjects"]
            assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", NAMESPACE)
            assert one["kind"] == f"{one['roleRef']['kind']}Binding"
            bound[one["roleRef"]["kind"], one["roleRef"]["name"]] = subject["name"]
    for (_, role), account in bound.items():
        assert role == account or role.startswith(f"{account}-")
    assert ("ClusterRole", "stitchcore-view") not in bound
    assert set(bound.values()) <= {
        f"stitch-{name}" for name in ("webhook", "gateway", "reconciler", "store", "test")
    }, "signer, workers, collector and redis have no right at all"


def test_only_whom_the_api_server_serves_has_a_token_for_it() -> None:
    for combination in COMBINATIONS:
        for name, metadata, spec in charts.pods(charts.of(combination)):
            component = metadata["labels"]["app.kubernetes.io/component"]
            asks = component in ("webhook", "gateway", "reconciler", "store", "test")
            assert spec["automountServiceAccountToken"] is asks, name
            assert spec["serviceAccountName"] == f"stitch-{component}", name


@everywhere
def test_the_store_knows_its_clients_by_their_accounts(combination: str) -> None:
    found = charts.of(combination)
    served = [one for one in found if one["metadata"]["name"] == "stitch-store"]
    clients = [pod for pod in charts.pods(found) if "store-access" in str(pod[2]["volumes"])]
    if not served:
        assert not clients
        return
    (spec,) = [spec for name, _, spec in charts.pods(found) if name == "Deployment/stitch-store"]
    arguments = spec["containers"][0]["args"]
    accounts = {
        text.partition("=")[2].partition("=")[0]: text.rpartition("=")[2]
        for text in arguments
        if text.startswith("--account=")
    }
    assert set(accounts.values()) == set(STORE_ROLES)
    for _, metadata, client in clients:
        component = metadata["labels"]["app.kubernetes.io/component"]
        account = f"{NAMESPACE}/{client['serviceAccountName']}"
        assert accounts[account].startswith(component), "a role of its own name"
        (volume,) = [one for one in client["volumes"] if one["name"] == "store-access"]
        sources = volume["projected"]["sources"]
        assert sources[0]["serviceAccountToken"]["audience"] == names.STORE_AUDIENCE
        trust = {"name": names.trust_name("stitch"), "items": [CA]}
        assert sources[1]["configMap"] == trust


def test_definitions_are_the_codes_and_outlive_an_uninstall() -> None:
    rendered = charts.objects(charts.helm("template", "stitch-crds", str(CRDS)))
    made = [reconciler.job_definition(), webhook.policy_definition()]
    assert sorted(rendered, key=name) == sorted(made, key=name)
    for one in rendered:
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def name(made: Any) -> str:
    return str(made["metadata"]["name"])


def test_the_tokens_are_for_our_audiences() -> None:
    pods = {name: spec for name, _, spec in charts.pods(charts.of("default"))}
    projected = yaml.safe_dump(pods["Deployment/stitch-reconciler"]["volumes"])
    assert f"audience: {names.AUDIENCE}" in projected
