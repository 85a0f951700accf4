"""Service accounts of tests: what they may do is what their roles say, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kubernetes import client

from tests.waiting import wait_for

RBAC = "rbac.authorization.k8s.io"
Role = Mapping[str, Any]


def account(
    api: client.ApiClient, namespace: str, name: str, roles: Iterable[Role], folder: Path
) -> Path:
    """A new account that may do what these roles say, by now: the API server learns of them a
    little later than they are stored. A kubeconfig in `folder` with a token of its own."""
    core = client.CoreV1Api(api)
    core.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
    roles = list(roles)
    for role in roles:
        _bind(api, role, {"kind": "ServiceAccount", "name": name, "namespace": namespace})
    for role in roles:
        wait_for(partial(_in_force, api, role, namespace, name), f"{name} has its roles")
    made = core.create_namespaced_service_account_token(
        name, namespace, {"spec": {"expirationSeconds": 3600}}
    )
    settings = api.configuration
    authority = Path(settings.ssl_ca_cert)
    (folder / f"{name}.ca").write_bytes(authority.read_bytes())
    cluster = {"server": settings.host, "certificate-authority": str(folder / f"{name}.ca")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stitch-testbed", "cluster": cluster}],
        "users": [{"name": name, "user": {"token": made.status.token}}],
        "contexts": [
            {"name": "stitch-testbed", "context": {"cluster": "stitch-testbed", "user": name}}
        ],
        "current-context": "stitch-testbed",
    }
    path = folder / f"{name}.conf"
    path.write_text(json.dumps(document))
    return path


def _bind(api: client.ApiClient, role: Role, subject: Mapping[str, str]) -> None:
    rules, kind, name = client.RbacAuthorizationV1Api(api), role["kind"], role["metadata"]["name"]
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [dict(subject)],
    }
    if kind == "ClusterRole":
        rules.create_cluster_role(dict(role))
        rules.create_cluster_role_binding(body)
    else:
        namespace = role["metadata"]["namespace"]
        rules.create_namespaced_role(namespace, dict(role))
        rules.create_namespaced_role_binding(namespace, body)


def _in_force(api: client.ApiClient, role: Role, namespace: str, name: str) -> bool:
    """Whether the account may do the first thing that the role allows."""
    rule = role["rules"][0]
    attributes = {
        "namespace": role["metadata"].get("namespace", ""),
        "group": rule["apiGroups"][0],
        "resource": rule["resources"][0],
        "verb": rule["verbs"][0],
        "name": rule.get("resourceNames", [""])[0],
    }
    resource, _, attributes["subresource"] = attributes["resource"].partition("/")
    asked = client.AuthorizationV1Api(api).create_subject_access_review(
        {
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{name}",
                "resourceAttributes": {**attributes, "resource": resource},
            }
        }
    )
    return bool(asked.status.allowed)


def unbind(api: client.ApiClient, roles: Iterable[Role]) -> None:
    """Removes what outlives the namespace."""
    rules = client.RbacAuthorizationV1Api(api)
    for role in roles:
        if role["kind"] == "ClusterRole":
            rules.delete_cluster_role_binding(role["metadata"]["name"])
            rules.delete_cluster_role(role["metadata"]["name"])
