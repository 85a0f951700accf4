"""Kubernetes objects of the product, as dictionaries: what its kinds and its accounts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stitch_operator import names
from stitch_operator.webhook.release import Release

Object = dict[str, Any]
READ = ["get", "list", "watch"]
RBAC = "rbac.authorization.k8s.io/v1"


def labels_of(release: Release) -> dict[str, str]:
    return {names.PART_OF: names.PRODUCT, "app.kubernetes.io/instance": release.name}


def account(
    release: Release, program: str, everywhere: Sequence[Object], here: Sequence[Object] = ()
) -> list[Object]:
    """What a program's account may do: a ClusterRole, and a Role in the release's namespace."""
    metadata: Object = {"name": f"{release.name}-{program}", "labels": labels_of(release)}
    local = {**metadata, "namespace": release.namespace}
    made: list[Object] = [
        {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": metadata, "rules": [*everywhere]}
    ]
    if here:
        made.append({"apiVersion": RBAC, "kind": "Role", "metadata": local, "rules": [*here]})
    return made


def definition(
    scope: str,
    kind: Mapping[str, Any],
    properties: Mapping[str, Object],
    columns: Sequence[Object],
    **version: Any,
) -> Object:
    """The CustomResourceDefinition of one of our kinds: its names, the schemas of its top fields,
    the columns that kubectl prints; `version` is said of its one version beside these."""
    plural = kind["plural"]
    served = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        **version,
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{names.GROUP}",
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {"group": names.GROUP, "scope": scope, "names": kind, "versions": [served]},
    }


def schema(record: type) -> Object:
    """A structural schema: no references, no null beside a type, a type beside every enum."""
    (top,), components = msgspec.json.schema_components([record])

    def plain(given: Mapping[str, Any]) -> Object:
        made = {name: value for name, value in given.items() if name not in ("title", "$ref")}
        if "$ref" in given:
            made = {**plain(components[given["$ref"].rsplit("/", 1)[1]]), **made}
        if "anyOf" in made:
            (some,) = [one for one in made.pop("anyOf") if one != {"type": "null"}]
            made = {**plain(some), **{k: v for k, v in made.items() if v is not None}}
        if "enum" in made:
            made["type"] = "string"
        if "properties" in made:
            made["properties"] = {name: plain(one) for name, one in made["properties"].items()}
        for name in ("items", "additionalProperties"):
            if isinstance(made.get(name), dict):
                made[name] = plain(made[name])
        if not made.get("required", True):
            del made["required"]
        return made

    return plain(top)
