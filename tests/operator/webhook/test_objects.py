"""The objects the API server is given: valid, narrow, and never apart from the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_operator.webhook import objects, policy
from stitch_operator.webhook.adapters import ADAPTERS
from stitch_operator.webhook.reasons import Reason
from tests.operator.webhook import support

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
HOOKS = objects.configuration(support.release())["webhooks"]
SCHEMA = objects.policy_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]


def test_the_objects_are_valid() -> None:
    release = support.release()
    made = [objects.configuration(release), objects.configuration(release, "https://h:1", "QQ==")]
    for one in [*made, objects.policy_definition(), *objects.roles(release)]:
        kubernetes_validate.validate(one, "1.36", strict=True)


def test_no_hook_can_stop_a_cluster() -> None:
    """What other operators learnt the hard way."""
    for hook in HOOKS:
        assert hook["failurePolicy"] == "Ignore" and hook["timeoutSeconds"] == 5
        assert hook["reinvocationPolicy"] == "IfNeeded" and hook["sideEffects"] == "None"
        assert {op for rule in hook["rules"] for op in rule["operations"]} == {"CREATE"}
        first = hook["namespaceSelector"]["matchExpressions"][0]
        assert first == {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", "kube-node-lease", "stitch"],
        }
        assert hook["objectSelector"]["matchExpressions"] == [
            {"key": "stitchcore.io/optimize", "operator": "NotIn", "values": ["false"]},
            {"key": "app.kubernetes.io/part-of", "operator": "NotIn", "values": ["stitchcore"]},
        ]
        assert hook["matchConditions"]


def test_a_word_is_an_annotation_or_a_label_and_jobs_of_cron_jobs_are_asked_for() -> None:
    """What the expressions do is tried in tests/cluster."""
    found = {hook["name"].split(".")[0]: hook["matchConditions"][0] for hook in HOOKS}
    own = " || ".join(
        f'"stitchcore.io/optimize" in object.metadata.?{field}.orValue({{}})'
        for field in ("annotations", "labels")
    )
    assert found["pods"]["expression"] == own
    above = "object.metadata.?ownerReferences.orValue([])"
    of_cron_job = f'{above}.exists(owner, owner.kind == "CronJob")'
    assert found["workloads"]["expression"] == f"{own} || {of_cron_job}"


def test_every_kind_with_an_adapter_is_asked_for() -> None:
    (rules,) = [hook["rules"] for hook in HOOKS if hook["name"].startswith("workloads")]
    found = {(rule["apiGroups"][0], name) for rule in rules for name in rule["resources"]}
    kinds = {(one.group, one.resource) for one in ADAPTERS.values()}
    assert found == kinds - {("", "pods")}


def test_a_pod_comes_once_whoever_asked() -> None:
    """Of the two hooks for pods exactly one condition holds."""
    pods = {hook["name"].split(".")[0]: hook for hook in HOOKS}
    (own,) = pods["pods"]["matchConditions"]
    (other,) = pods["namespaces"]["matchConditions"]
    assert other["expression"] == f"!({own['expression']})"
    asking = pods["namespaces"]["namespaceSelector"]["matchExpressions"][1]
    assert asking == {"key": "stitchcore.io/optimize", "operator": "In", "values": ["true"]}


def test_a_webhook_outside_of_the_cluster_is_reached_by_url() -> None:
    for hook in objects.configuration(support.release(), "https://10.0.0.1:9443", "QQ==")[
        "webhooks"
    ]:
        assert hook["clientConfig"]["url"].startswith("https://10.0.0.1:9443/mutate/")
        assert hook["clientConfig"]["caBundle"] == "QQ=="
    for hook in HOOKS:
        assert set(hook["clientConfig"]) == {"service"}


def schemas(schema: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [*schema.get("properties", {}).values()]
    inner += [schema[name] for name in ("items", "additionalProperties") if name in schema]
    return [schema, *(one for part in inner for one in schemas(part))]


def test_the_schema_is_structural() -> None:
    for one in schemas(SCHEMA):
        assert "type" in one
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title"} & set(one)


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from([0, 5, -(10**6), 10**7, "x"]),
        "maxMode": st.sampled_from(["off", "dryRun", "observe", "optimize", "on"]),
        "targets": st.lists(st.sampled_from(["cpu", "gpu", "tpu"]), max_size=2),
        "baselineSteps": st.sampled_from([1, 50, 0, 1.5]),
        "canaryShare": st.sampled_from([0, 0.5, 0.51]),
        "allowUnmeasured": st.sampled_from([True, "yes"]),
        "podSelector": st.sampled_from(
            [{}, {"matchLabels": {"a": "b"}}, {"matchLabels": {"a": 5}},
             {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
             {"matchExpressions": [{"key": "a", "operator": "exists"}]},
             {"matchExpressions": [{"operator": "Exists"}]}]
        ),
    },
)  # fmt: skip


@settings(max_examples=300)
@given(SPECS)
def test_the_schema_takes_what_the_record_takes(spec: dict[str, Any]) -> None:
    try:
        policy.decode({"metadata": {"name": "p"}, "spec": spec})
        record = True
    except msgspec.ValidationError:
        record = False
    assert jsonschema.Draft202012Validator(SPEC).is_valid(spec) == record


def test_selectors_are_kubernetes_own() -> None:
    labels = {"a": "b"}
    for operator, values, holds in [
        ("In", ["b"], True), ("In", ["c"], False), ("NotIn", ["b"], False), ("NotIn", ["c"], True),
        ("Exists", [], True), ("DoesNotExist", [], False),
    ]:  # fmt: skip
        requirement = policy.Requirement("a", operator, values)  # type: ignore[arg-type]
        assert policy.Selector({}, [requirement]).selects(labels) is holds
    assert policy.Requirement("x", "NotIn", ["b"]).holds(labels)
    assert not policy.Requirement("x", "In", ["b"]).holds(labels)
    assert not policy.Selector({"a": "c"}).selects(labels)
    assert policy.Selector().selects({})


def test_what_is_printed_is_what_is_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert objects.main([]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [objects.policy_definition()]
    (tmp_path / "release.json").write_text(json.dumps(support.RELEASE))
    objects.main(["--release", str(tmp_path / "release.json"), "--failure-policy", "Fail"])
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert printed[1] == objects.configuration(support.release(), failure_policy="Fail")
    assert [one["kind"] for one in printed[2:]] == ["ClusterRole", "Role"] * 2


def test_who_makes_no_secret_may_write_none() -> None:
    """A rule that names none would be one for all."""
    named = {"signing": "a", "kernelKey": "b", "broker": "c"}
    for mode, made in (("self", True), ("existing", False)):
        release = support.release(certificates={"mode": mode}, secrets=named)
        rules = [rule for role in objects.trust_roles(release) for rule in role["rules"]]
        of_secrets = [rule for rule in rules if rule["resources"] == ["secrets"]]
        assert all("resourceNames" in rule or rule["verbs"] == ["create"] for rule in of_secrets)
        writing = {verb for rule in of_secrets for verb in rule["verbs"]} - {"get"}
        assert bool(writing) == made


def test_the_account_reads_and_nothing_more() -> None:
    for role in objects.roles(support.release()):
        for rule in role["rules"]:
            assert rule["verbs"] == ["get", "list", "watch"]
            assert not {"secrets", "pods", "*"} & set(rule["resources"])
            named = rule.get("resourceNames")
            assert ("configmaps" in rule["resources"]) == (
                named == ["stitch-breakers", "stitch-trust"]
            )


@pytest.mark.parametrize("reason", list(Reason), ids=lambda reason: reason.word)
def test_the_page_has_every_reason_as_the_code_has_it(reason: Reason) -> None:
    remedy = reason.value
    assert f"| `{reason.word}` | {remedy.why} | {remedy.mend} |" in PAGE


def test_the_page_has_no_other_reason() -> None:
    table = PAGE.split("| reason |")[1].split("\n\n")[0]
    named = set(re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE))
    assert named == {reason.word for reason in Reason}


def test_the_page_has_every_field_of_a_policy() -> None:
    for name in SPEC["properties"]:
        assert f"| `{name}` |" in PAGE
