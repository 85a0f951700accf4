"""Who reaches whom, by the NetworkPolicies as they are written.

The cluster of the tests enforces none (docs/cluster.md), so their meaning is computed here, from
Kubernetes' rules: a pod that a policy selects is closed but for what some policy opens.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.helm import charts
from tests.helm.charts import COMBINATIONS, Object

STRANGER = {"team": "research"}
"""Labels of a pod of somebody else's."""
PORTS = {"webhook": 9443, "gateway": 8443, "store": 8444, "redis": 6379}
METRICS = 9090
OUTSIDE = None
EXTERNAL = ("bucket", "external-broker", "existing-secrets", "replicas")
"""Combinations with something outside, to which egress is open by default."""
INWARD = {
    "webhook": {"stranger"},
    "gateway": {"stranger", "reconciler"},
    "store": {"gateway", "worker", "signer", "collect"},
    "redis": {"gateway", "worker"},
}
"""Who must reach the port of a component; nobody of the others may, but for open ones."""


def labels_of(found: list[Object]) -> dict[str, dict[str, str]]:
    """Labels of a pod of each component."""
    made = {}
    for _, metadata, _ in charts.pods(found):
        made[metadata["labels"]["app.kubernetes.io/component"]] = metadata["labels"]
    return made


NAME = "kubernetes.io/metadata.name"


def peer_matches(peer: Object, labels: dict[str, str] | None, same: bool) -> bool:
    """Whether a peer of a rule is that pod; `labels` None: an address outside of the cluster. What
    is chosen by its namespace's name is none of a stranger's, whatever its labels."""
    if "ipBlock" in peer or labels is None:
        return "ipBlock" in peer and labels is None
    if "namespaceSelector" in peer:
        namespaced = not peer["namespaceSelector"]  # {} is all
    else:
        namespaced = same
    return namespaced and charts.selected(
        peer.get("podSelector", {}).get("matchLabels", {}), labels
    )


def opens(rules: list[Object], side: str, port: int, labels: Any, same: bool) -> bool:
    for rule in rules:
        ports = [one["port"] for one in rule.get("ports", ())]
        peers = rule.get(side)
        if ports and port not in ports:
            continue
        if not peers or any(peer_matches(peer, labels, same) for peer in peers):
            return True
    return False


def reaches(
    found: list[Object],
    source: dict[str, str] | None,
    target: dict[str, str] | None,
    port: int,
    ours: tuple[bool, bool],
) -> bool:
    """`ours`: whether source and target are in the release's namespace."""
    policies = [one["spec"] for one in found if one["kind"] == "NetworkPolicy"]
    same = ours == (True, True)

    def side(pod: Any, kind: str, key: str, other: Any, mine: bool) -> bool:
        if pod is None or not mine:
            return True  # policies of the release select nobody else
        own = [
            spec
            for spec in policies
            if kind in spec["policyTypes"]
            and charts.selected(spec["podSelector"]["matchLabels"], pod)
        ]
        rules = [rule for spec in own for rule in spec.get(kind.lower(), ())]
        return not own or opens(rules, key, port, other, same)

    return side(source, "Egress", "to", target, ours[0]) and side(
        target, "Ingress", "from", source, ours[1]
    )


@pytest.mark.parametrize("combination", [one for one in COMBINATIONS if one != "placed"])
def test_who_needs_a_port_has_it_and_nobody_else(combination: str) -> None:
    found = charts.of(combination)
    pods = labels_of(found)
    for target, port in PORTS.items():
        if target not in pods:
            continue
        for source, labels in [*pods.items(), ("stranger", STRANGER)]:
            ours = (source != "stranger", True)
            open_ = target in ("webhook", "gateway") and source not in (
                "worker", "signer", "collect", "redis",
            )  # fmt: skip
            expected = source in INWARD[target] or open_
            if source == target or combination in EXTERNAL:
                continue
            assert reaches(found, labels, pods[target], port, ours) == expected, (source, target)


@pytest.mark.parametrize("combination", [one for one in COMBINATIONS if one != "placed"])
def test_no_other_port_is_open(combination: str) -> None:
    found = charts.of(combination)
    for component, labels in labels_of(found).items():
        for port in (22, 80, 443, 5555, 8080):
            assert not reaches(found, STRANGER, labels, port, (False, True)), component


@pytest.mark.parametrize("combination", ["default", "monitoring", "keda"])
def test_figures_of_all_namespaces_are_no_strangers(combination: str) -> None:
    """They were anybody's by default; under KEDA, of every pod that is labelled as its operator."""
    found = charts.of(combination)
    pods = labels_of(found)
    for labels in (STRANGER, {"app": "keda-operator"}, {NAME: "monitoring"}):
        for component, target in pods.items():
            assert not reaches(found, labels, target, METRICS, (False, True)), component


def test_metrics_are_for_whom_the_values_name() -> None:
    everybody = "networkPolicy: {metricsFrom: [{namespaceSelector: {}}]}"
    found = charts.objects(charts.rendered(everybody))
    pods = labels_of(found)
    for component in ("webhook", "gateway", "reconciler", "store"):
        assert reaches(found, STRANGER, pods[component], METRICS, (False, True)), component
    for component in ("worker", "signer", "redis"):
        assert not reaches(found, STRANGER, pods[component], METRICS, (False, True)), component
    rules = {
        one["metadata"]["name"]: one["spec"].get("ingress", [])
        for one in charts.of("keda")
        if one["kind"] == "NetworkPolicy"
    }
    chosen = [peer["namespaceSelector"]["matchLabels"][NAME]
              for rule in rules["stitch-gateway"] for peer in rule.get("from", ())]  # fmt: skip
    assert chosen == ["monitoring", "keda"]


def test_workers_reach_nothing_but_names_broker_and_store() -> None:
    """They read graphs of strangers."""
    found = charts.of("default")
    pods = labels_of(found)
    for component in ("worker", "signer", "collect", "redis"):
        for port in (80, 443, 6443, 8443):
            assert not reaches(found, pods[component], OUTSIDE, port, (True, False)), component
            assert not reaches(found, pods[component], STRANGER, port, (True, False)), component
    assert reaches(found, pods["worker"], STRANGER, 53, (True, False))
    assert not reaches(found, pods["redis"], STRANGER, 53, (True, False))
    for component in ("webhook", "gateway", "reconciler", "store"):
        assert reaches(found, pods[component], OUTSIDE, 6443, (True, False)), "the API server"


def test_a_store_outside_is_reached_by_the_rules_of_the_values() -> None:
    found = charts.of("bucket")
    pods = labels_of(found)
    for component in ("worker", "signer", "collect"):
        assert reaches(found, pods[component], OUTSIDE, 443, (True, False)), component
        assert not reaches(found, pods[component], OUTSIDE, 80, (True, False)), component
    assert reaches(found, pods["worker"], pods["redis"], 6379, (True, True))
    assert not reaches(found, pods["signer"], pods["redis"], 6379, (True, True))
    anywhere = charts.of("external-broker")
    pods = labels_of(anywhere)
    assert reaches(anywhere, pods["worker"], OUTSIDE, 5671, (True, False))


def test_they_can_be_left_out() -> None:
    assert not [one for one in charts.of("placed") if one["kind"] == "NetworkPolicy"]
