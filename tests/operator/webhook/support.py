"""The release and the pods that tests of the webhook use: the cases of pods/, pieces spliced in.
What a pod looks like after a patch is computed by `jsonpatch`, not by code of ours."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonpatch
import msgspec
import yaml

from stitch_operator.webhook import policy, resources
from stitch_operator.webhook.injection import Decision, Situation, decide
from stitch_operator.webhook.release import Release
from stitch_operator.webhook.trust import Trust

PODS = Path(__file__).parent / "pods"
CASES = sorted(path.stem for path in PODS.glob("*.yaml") if path.stem != "pieces")
PIECES = yaml.safe_load((PODS / "pieces.yaml").read_text())
CA = "-----BEGIN CERTIFICATE-----\nbm90IGEgcmVhbCBvbmU=\n-----END CERTIFICATE-----\n"
INJECTED = "1.2.3-000000000000"
RELEASE = {
    "name": "stitch",
    "namespace": "stitch",
    "version": "1.2.3",
    "image": PIECES["init"]["image"],
    "gatewayUrl": "https://stitch-gateway.stitch.svc:8443",
    "gatewayAddress": "10.96.0.7:8443",
}
TRUST = Trust(CA, ("a" * 64,))


@dataclass(frozen=True)
class Plain:
    """Surroundings that never change."""

    namespaces: Mapping[str, policy.Namespace] = field(default_factory=dict)
    all_policies: Sequence[policy.Policy] = ()
    ranges: Mapping[str, Sequence[resources.Range]] = field(default_factory=dict)
    cron_jobs: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    breakers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    failures: Mapping[str, frozenset[str]] = field(default_factory=dict)
    trusted: Trust | None = None
    known: bool = True

    def ready(self) -> bool:
        return self.known

    def trust(self) -> Trust | None:
        return self.trusted

    def namespace(self, name: str) -> policy.Namespace:
        return self.namespaces.get(name, policy.Namespace(name))

    def policies(self) -> Sequence[policy.Policy]:
        return self.all_policies

    def limit_ranges(self, namespace: str) -> Sequence[resources.Range]:
        return self.ranges.get(namespace, ())

    def cron_job(self, namespace: str, name: str) -> Mapping[str, str]:
        return self.cron_jobs.get((namespace, name), {})

    def broken(self, namespace: str) -> frozenset[str]:
        return self.breakers.get(namespace, frozenset())

    def failed(self, namespace: str) -> frozenset[str]:
        return self.failures.get(namespace, frozenset())


def release(**changes: Any) -> Release:
    return msgspec.convert({**RELEASE, **changes}, Release)


@dataclass(frozen=True)
class Case:
    """A file of pods/: `given` becomes `expected` in this situation."""

    given: dict[str, Any]
    expected: dict[str, Any]
    result: str
    reason: str | None
    situation: Situation
    release: Release


def case(name: str) -> Case:
    document = yaml.safe_load((PODS / f"{name}.yaml").read_text())
    given = splice(document["in"])
    expected, result = splice(document.get("out", document["in"])), "injected"
    if "skipped" in document:
        annotations = expected["metadata"].setdefault("annotations", {})
        annotations["stitchcore.io/skipped"], result = document["skipped"], "skipped"
    elif "ignored" in document:
        result = "already" if "$ours" in str(document) else "ignored"
    elif "stitchcore.io/would-inject" in str(document["out"]):
        result = "dryRun"
    limits = [one for some in document.get("limitRanges", []) for one in resources.ranges(some)]
    situation = Situation(
        policy.Namespace(**{"name": "team", **document.get("namespace", {})}),
        TRUST,
        [policy.decode(one) for one in document.get("policies", [])],
        limits,
        frozenset(document.get("broken", [])),
        frozenset(document.get("failed", [])),
    )
    made = release(**document.get("release", {}))
    return Case(given, expected, result, document.get("skipped"), situation, made)


def splice(value: Any) -> Any:
    """The document with `$names` replaced by the pieces of pods/pieces.yaml."""
    if isinstance(value, list):
        return [one for entry in value for one in _entry(entry)]
    if isinstance(value, dict):
        made = {key: splice(one) for key, one in value.items() if key != "$ours"}
        if "$ours" in value:
            made |= {
                "stitchcore.io/injected": INJECTED,
                "stitchcore.io/gateway-ca": CA,
                "stitchcore.io/workload": value["$ours"],
            }
        return made
    return value


def _entry(entry: Any) -> list[Any]:
    named = entry if isinstance(entry, str) else next(iter(entry), "") if entry else ""
    if not str(named).startswith("$"):
        return [splice(entry)]
    changes = entry[named] if isinstance(entry, dict) else {}
    if named == "$identity":
        return [copy.deepcopy(PIECES["volumes"][2])]
    piece = copy.deepcopy(PIECES[named[1:]])
    if named == "$init":
        return [{**piece, "resources": changes} if changes else piece]
    if named == "$variables":
        values = {one["name"]: one["value"] for one in piece} | changes
        return [{"name": n, "value": v} for n, v in values.items() if v is not None]
    return piece if isinstance(piece, list) else [piece]


def applied(pod: Mapping[str, Any], decision: Decision) -> dict[str, Any]:
    """The pod after the decision's patch."""
    return dict(jsonpatch.JsonPatch(list(decision.operations)).apply(copy.deepcopy(dict(pod))))


def injected(pod: Mapping[str, Any], situation: Situation, settings: Release) -> dict[str, Any]:
    return applied(pod, decide(pod, situation, settings))


def plain(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The pod with the hash of what was injected taken out: cases do not compute it."""
    made = copy.deepcopy(dict(pod))
    annotations = made.get("metadata", {}).get("annotations", {})
    if "stitchcore.io/injected" in annotations:
        annotations["stitchcore.io/injected"] = INJECTED
    return made
