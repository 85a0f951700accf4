"""The reconciler's objects: definitions of its own kinds, and what its account may do."""

from __future__ import annotations

from typing import Any

from stitch_operator import names
from stitch_operator.webhook import objects as webhook
from stitch_operator.webhook.adapters import ADAPTERS
from stitch_operator.webhook.cluster import GROUP, PLURAL, breakers_name
from stitch_operator.webhook.release import Release

Object = dict[str, Any]
READ = ["get", "list", "watch"]


def definitions() -> list[Object]:
    """The CustomResourceDefinitions."""
    return [webhook.policy_definition()]


def roles(release: Release) -> list[Object]:
    """Read workloads, write StitchedJobs and Events, keep two ConfigMaps in its own namespace."""
    name = f"{release.name}-reconciler"
    labels = {names.PART_OF: names.PRODUCT, "app.kubernetes.io/instance": release.name}
    kinds: dict[str, list[str]] = {}
    for (group, _), adapter in ADAPTERS.items():
        kinds.setdefault(group, []).append(adapter.resource)
    cluster = [
        *({"apiGroups": [group], "resources": found, "verbs": READ}
          for group, found in kinds.items()),
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": READ},
        {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": READ},
        {"apiGroups": [GROUP], "resources": ["stitchedjobs"],
         "verbs": [*READ, "create", "patch", "delete"]},
        {"apiGroups": [GROUP], "resources": ["stitchedjobs/status"], "verbs": ["patch"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ]  # fmt: skip
    own = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": [*READ, "patch", "update"],
         "resourceNames": [breakers_name(release.name)]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
    ]  # fmt: skip
    api = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": name, "labels": labels},
         "rules": cluster},
        {"apiVersion": api, "kind": "Role",
         "metadata": {"name": name, "namespace": release.namespace, "labels": labels},
         "rules": own},
    ]  # fmt: skip
