"""One rule at a time: what decides about a pod, beside the whole pods of pods/."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from stitch_operator import names
from stitch_operator.webhook import policy, resources, trust
from stitch_operator.webhook.injection import Decision, Situation, decide, owner
from stitch_operator.webhook.policy import Namespace
from tests.operator.webhook import support

CASE = support.case("one_container")
GPU = {"limits": {"nvidia.com/gpu": "1"}}


def pod(annotations: dict[str, str] | None = None, *containers: dict[str, Any],
        **spec: Any) -> dict[str, Any]:  # fmt: skip
    made = copy.deepcopy(CASE.given)
    made["metadata"]["annotations"] |= annotations or {}
    made["spec"] |= spec
    if containers:
        made["spec"]["containers"] = [{"image": "x", **one} for one in containers]
    return made


def decided(given: dict[str, Any], **situation: Any) -> Decision:
    known: Situation = replace(CASE.situation, **situation)
    return decide(given, known, CASE.release)


def reason(given: dict[str, Any], **situation: Any) -> str:
    found = decided(given, **situation)
    return found.reason.word if found.reason else found.result


def injected(given: dict[str, Any]) -> list[str]:
    made = support.injected(given, CASE.situation, CASE.release)
    return [one["name"] for one in made["spec"]["containers"] if one.get("volumeMounts")]


def limited(name: str = "p", **spec: Any) -> policy.Policy:
    return policy.decode({"metadata": {"name": name}, "spec": spec})


def test_a_policy_is_of_the_namespaces_and_pods_that_it_selects() -> None:
    team = Namespace("team", {"tier": "x"})
    off = {"maxMode": "off"}
    for selector, expected in (({"tier": "x"}, "policy_off"), ({"tier": "y"}, "injected")):
        by_namespace = limited(**off, namespaceSelector={"matchLabels": selector})
        by_pod = limited(**off, podSelector={"matchLabels": selector})
        given = pod()
        assert reason(given, policies=[by_namespace], namespace=team) == expected
        given["metadata"]["labels"] = {"tier": "x"}
        assert reason(given, policies=[by_pod]) == expected


def test_of_equal_priority_the_first_name_applies() -> None:
    both = [limited("b", maxMode="off"), limited("a", maxMode="dryRun")]
    assert reason(pod(), policies=both) == reason(pod(), policies=both[::-1]) == "dryRun"
    higher = limited("c", maxMode="off", priority=1)
    assert reason(pod(), policies=[*both, higher]) == "policy_off"


def test_a_namespace_may_lower_the_mode_and_nobody_raises_it() -> None:
    quiet = Namespace("team", {}, {names.MODE: "dryRun"})
    assert reason(pod(), namespace=quiet) == "dryRun"
    assert reason(pod({names.MODE: "optimize"}), namespace=quiet) == "dryRun"
    assert reason(pod({names.MODE: "everything"})) == "bad_annotation"
    assert reason(pod(), namespace=Namespace("team", {}, {names.MODE: ""})) == "bad_annotation"


def test_a_breaker_is_of_one_image_of_the_runtime() -> None:
    assert reason(pod(), broken=frozenset({"another@sha256:1"})) == "injected"
    assert reason(pod(), broken=frozenset({CASE.release.image})) == "breaker_open"


def test_a_workload_has_the_name_that_was_stamped() -> None:
    given = pod({names.WORKLOAD: "nightly"})
    given["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": "set"}
    assert owner(given) == "nightly"
    assert reason(given, failed=frozenset({"nightly"})) == "failed_before_start"
    del given["metadata"]["annotations"][names.WORKLOAD]
    assert owner(given) == "set"


def test_of_an_injected_pod_a_dry_run_says_nothing_and_a_bare_copy_is_injected_anew() -> None:
    made = support.injected(pod(), CASE.situation, CASE.release)
    dry = limited(maxMode="dryRun")
    assert decided(made, policies=[dry]) == Decision("already")
    copied = pod(made["metadata"]["annotations"])  # its annotations without its volumes
    again = decided(copied)
    assert again.result == "injected" and injected(copied) == ["main"]


@pytest.mark.parametrize("value", ["", " ", ",", " , "])
def test_naming_no_container_is_naming_an_unknown_one(value: str) -> None:
    assert reason(pod({names.CONTAINERS: value})) == "unknown_container"


def test_who_asks_for_gpus_trains_whatever_kubectl_shows_first() -> None:
    shown = {"kubectl.kubernetes.io/default-container": "a"}
    two = [{"name": "a"}, {"name": "b", "resources": GPU}]
    assert injected(pod(shown, *two)) == ["b"]
    assert injected(pod(shown, {"name": "a"}, {"name": "b"})) == ["a"]
    assert injected(pod({**shown, names.CONTAINERS: "a"}, *two)) == ["a"]


@pytest.mark.parametrize(("operator", "expected"), [("DoesNotExist", "architecture"),
                                                    ("Exists", "injected")])  # fmt: skip
def test_nodes_without_an_architecture_are_none_of_ours(operator: str, expected: str) -> None:
    terms = [{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": operator}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    # a node without any operating system is not a Linux one, but that is another label
    assert reason(pod(affinity={"nodeAffinity": required})) == expected


def test_a_mode_that_cannot_be_known_may_be_above_what_is_allowed() -> None:
    source = {"configMapKeyRef": {"name": "c", "key": "mode"}}
    for entry in ({"valueFrom": source}, {"value": "everything"}, {}):
        container = {"name": "main", "env": [{"name": "STITCH_MODE", **entry}]}
        assert reason(pod(None, container)) == "mode_above_policy"


def test_a_path_that_the_image_brings_stays_behind_ours() -> None:
    given = pod({names.PYTHON_PATH: "/image:/more"})
    made = support.injected(given, CASE.situation, CASE.release)
    [value] = [one["value"] for one in made["spec"]["containers"][0]["env"]
               if one["name"] == "PYTHONPATH"]  # fmt: skip
    assert value == "/stitchcore/runtime/inject/bootstrap:/image:/more"


def ranges(*lines: dict[str, Any]) -> list[resources.Range]:
    return resources.ranges({"spec": {"limits": list(lines)}})


def test_of_several_ranges_the_narrowest_holds_and_only_of_containers() -> None:
    sizes = {"cpu": "2", "memory": "1Gi"}
    given = pod(None, {"name": "train", "resources": {"limits": sizes, "requests": sizes}})

    def cpu(*lines: dict[str, Any]) -> str:
        situation = replace(CASE.situation, limit_ranges=ranges(*lines))
        made = support.injected(given, situation, CASE.release)
        return str(made["spec"]["initContainers"][0]["resources"]["limits"]["cpu"])

    wide, narrow = ({"type": "Container", "max": {"cpu": most}} for most in ("90m", "50m"))
    assert cpu() == "100m" and cpu(wide, narrow) == cpu(narrow, wide) == "50m"
    low, high = ({"type": "Container", "min": {"cpu": least}} for least in ("200m", "500m"))
    assert cpu(low, high) == cpu(high, low) == "500m"
    assert cpu({"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "20m"}}) == "100m"


CERTIFICATE, KEY = support.CA, "a" * 64


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"ca.pem": "nothing", "public-keys": KEY},
        {"ca.pem": CERTIFICATE},
        {"ca.pem": CERTIFICATE, "public-keys": "A" * 64},
        {"ca.pem": CERTIFICATE, "public-keys": "\n".join(c * 64 for c in "abc")},
    ],
    ids=["empty", "no certificate", "no key", "no digits", "three keys"],
)
def test_trust_that_no_pod_could_use_is_none(data: dict[str, str]) -> None:
    assert trust.decode({"data": {"ca.pem": CERTIFICATE, "public-keys": KEY}})
    with pytest.raises(ValueError, match=r"ca\.pem|public-keys"):
        trust.decode({"data": data})


@pytest.mark.parametrize(
    "wrong",
    [{"gatewayUrl": "http://gateway:8443"}, {"gatewayUrl": "https://gateway/path"},
     {"gatewayUrl": "https://"}, {"gatewayAddress": "10.0.0.1"}, {"cpu": "0"}],
    ids=str,
)  # fmt: skip
def test_a_release_that_makes_no_sense_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not"):
        support.release(**wrong)
