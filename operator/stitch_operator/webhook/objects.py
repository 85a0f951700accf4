"""The webhook's Kubernetes objects, rendered from what the code itself uses, so none can drift.

The CRD's schema comes from the record that decodes a StitchPolicy, the rules from the adapters, the
names of annotations from `names`. `python -m stitch_operator.webhook.objects` prints them as YAML.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from stitch_operator import names
from stitch_operator.objects import READ, Object, account, definition, labels_of, schema
from stitch_operator.webhook import release as releases
from stitch_operator.webhook.adapters import ADAPTERS
from stitch_operator.webhook.adapters.cronjob import CronJob
from stitch_operator.webhook.adapters.pod import Pod
from stitch_operator.webhook.cluster import PLURAL, breakers_name
from stitch_operator.webhook.policy import PolicySpec
from stitch_operator.webhook.release import Release

TIMEOUT_SECONDS = 5
NEVER = ("kube-system", "kube-node-lease")
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label of every namespace; the API server sets it, nobody can forget or forge it."""
OWN_WORD = " || ".join(
    f'"{names.OPTIMIZE}" in object.metadata.?{field}.orValue({{}})'
    for field in ("annotations", "labels")
)
OF_CRON_JOB = (
    f'object.metadata.?ownerReferences.orValue([]).exists(owner, owner.kind == "{CronJob.kind}")'
)
ANY_POLICY = {"Ignore", "Fail"}


def client_of_service(release: Release, path: str) -> Object:
    """How the API server reaches the webhook within the cluster."""
    service = {
        "name": f"{release.name}-webhook",
        "namespace": release.namespace,
        "path": path,
        "port": 443,
    }
    return {"service": service}


def configuration(
    release: Release, url: str = "", ca_bundle: str = "", failure_policy: str = "Ignore"
) -> Object:
    """The MutatingWebhookConfiguration. `url` is https://host:port of a webhook outside of the
    cluster, `ca_bundle` base64 of PEM; without it the reconciler fills it in."""

    def hook(name: str, path: str, extra: Object) -> Object:
        where = {"url": f"{url}{path}"} if url else client_of_service(release, path)
        return {
            "name": f"{name}.webhook.{names.GROUP}",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {**where, **({"caBundle": ca_bundle} if ca_bundle else {})},
            "failurePolicy": failure_policy,
            "matchPolicy": "Equivalent",
            "reinvocationPolicy": "IfNeeded",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "objectSelector": {"matchExpressions": _not_declined()},
            **extra,
        }

    elsewhere = [{"key": NAMESPACE_NAME, "operator": "NotIn",
                  "values": [*NEVER, release.namespace]}]  # fmt: skip
    asking = [{"key": names.OPTIMIZE, "operator": "In", "values": ["true"]}]
    hooks = [
        hook("pods", "/mutate/pods", {
            "namespaceSelector": {"matchExpressions": elsewhere},
            "rules": [_rule(Pod.group, [Pod.resource])],
            "matchConditions": [{"name": "has-a-word", "expression": OWN_WORD}],
        }),
        hook("namespaces", "/mutate/pods", {
            "namespaceSelector": {"matchExpressions": [*elsewhere, *asking]},
            "rules": [_rule(Pod.group, [Pod.resource])],
            "matchConditions": [{"name": "has-no-word", "expression": f"!({OWN_WORD})"}],
        }),
        hook("workloads", "/mutate/workloads", {
            "namespaceSelector": {"matchExpressions": elsewhere},
            "rules": _workload_rules(),
            "matchConditions": [
                {"name": "has-a-word", "expression": f"{OWN_WORD} || {OF_CRON_JOB}"}
            ],
        }),
    ]  # fmt: skip
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": f"{release.name}-webhook", "labels": labels_of(release)},
        "webhooks": hooks,
    }


def _rule(group: str, resources: list[str]) -> Object:
    """Of any version: what is created in another one is converted."""
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": resources,
        "scope": "Namespaced",
    }


def _workload_rules() -> list[Object]:
    groups: dict[str, list[str]] = {}
    for (group, kind), adapter in ADAPTERS.items():
        if kind != Pod.kind:
            groups.setdefault(group, []).append(adapter.resource)
    return [_rule(group, resources) for group, resources in groups.items()]


def _not_declined() -> list[Object]:
    return [
        {"key": names.OPTIMIZE, "operator": "NotIn", "values": ["false"]},
        {"key": names.PART_OF, "operator": "NotIn", "values": [names.PRODUCT]},
    ]


def policy_definition() -> Object:
    """The CustomResourceDefinition of StitchPolicy."""
    columns = [
        {"name": "Mode", "type": "string", "jsonPath": ".spec.maxMode"},
        {"name": "Priority", "type": "integer", "jsonPath": ".spec.priority"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    kind = {"plural": PLURAL, "singular": "stitchpolicy", "kind": "StitchPolicy"}
    return definition("Cluster", kind, {"spec": schema(PolicySpec)}, columns)


def roles(release: Release) -> list[Object]:
    """What the webhook's account may do: read what it watches."""
    rules = [
        {"apiGroups": [names.GROUP], "resources": [PLURAL], "verbs": READ},
        {"apiGroups": [""], "resources": ["namespaces", "limitranges"], "verbs": READ},
        {"apiGroups": ["batch"], "resources": [CronJob.resource], "verbs": READ},
    ]
    held = [breakers_name(release.name), names.trust_name(release.name)]
    one = {"apiGroups": [""], "resources": ["configmaps"], "verbs": READ, "resourceNames": held}
    return account(release, "webhook", rules, [one])


def trust_roles(release: Release) -> list[Object]:
    """What keeping certificates and keys asks of the reconciler's account. RBAC has no names for
    what is only going to be created."""

    def rule(resource: str, verbs: list[str], *names_: str) -> Object:
        made: Object = {"apiGroups": [""], "resources": [resource], "verbs": verbs}
        return {**made, "resourceNames": list(names_)} if names_ else made

    rules = [
        rule("configmaps", ["create"]),
        rule("configmaps", ["get", "update"], names.trust_name(release.name)),
        rule("configmaps", ["get"], f"{release.name}-release"),
    ]
    if release.made_secrets:  # a rule without names is one for all Secrets
        rules.append(rule("secrets", ["create"]))
        rules.append(rule("secrets", ["get", "update"], *release.made_secrets))
    if release.read_secrets:
        rules.append(rule("secrets", ["get"], *release.read_secrets))
    hooks = {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["mutatingwebhookconfigurations"],
        "resourceNames": [f"{release.name}-webhook"],
        "verbs": ["get", "patch"],
    }
    return account(release, "reconciler-trust", [hooks], rules)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stitch_operator.webhook.objects")
    parser.add_argument("--release", type=Path, help="settings; without it the CRD alone")
    parser.add_argument("--url", default="", help="of a webhook outside of the cluster")
    parser.add_argument("--ca-bundle", default="", help="base64")
    parser.add_argument("--failure-policy", choices=sorted(ANY_POLICY), default="Ignore")
    given = parser.parse_args(arguments)
    made = [policy_definition()]
    if given.release is not None:
        release = releases.read(given.release)
        hooks = configuration(release, given.url, given.ca_bundle, given.failure_policy)
        made += [hooks, *roles(release), *trust_roles(release)]
    yaml.safe_dump_all(made, sys.stdout, sort_keys=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
