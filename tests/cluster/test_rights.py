"""What the accounts of a release may do in a real API server, proved by what must fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kubernetes import client

from tests.cluster.cluster import Cluster
from tests.cluster.processes import NotUp
from tests.helm import charts
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
HERE, TEAM, OTHER = "rights-release", "rights-team", "rights-other"

# (component, verb, resource, namespace or "" for the cluster's, name): what it needs
MAY = [
    ("webhook", "watch", "namespaces", "", ""),
    ("webhook", "list", "limitranges", TEAM, ""),
    ("webhook", "watch", "cronjobs.batch", TEAM, ""),
    ("webhook", "list", "stitchpolicies.stitchcore.io", "", ""),
    ("webhook", "get", "configmaps", HERE, "stitch-breakers"),
    ("webhook", "watch", "configmaps", HERE, "stitch-trust"),
    ("gateway", "create", "tokenreviews.authentication.k8s.io", "", ""),
    ("gateway", "get", "pods", TEAM, "train"),
    ("gateway", "get", "nodes", "", "n1"),
    ("store", "create", "tokenreviews.authentication.k8s.io", "", ""),
    ("reconciler", "watch", "pods", TEAM, ""),
    ("reconciler", "watch", "jobs.batch", TEAM, ""),
    ("reconciler", "watch", "tfjobs.kubeflow.org", TEAM, ""),
    ("reconciler", "create", "stitchedjobs.stitchcore.io", TEAM, ""),
    ("reconciler", "patch", "stitchedjobs.stitchcore.io/status", TEAM, ""),
    ("reconciler", "create", "events.events.k8s.io", TEAM, ""),
    ("reconciler", "create", "events", TEAM, ""),  # of the release before
    ("reconciler", "patch", "configmaps", HERE, "stitch-breakers"),
    ("reconciler", "update", "configmaps", HERE, "stitch-trust"),
    ("reconciler", "create", "secrets", HERE, ""),
    ("reconciler", "update", "secrets", HERE, "stitch-store-tls"),
    ("reconciler", "patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "",
     "stitch-webhook"),
]  # fmt: skip
# and what must fail
MAY_NOT = [
    ("webhook", "get", "secrets", HERE, "stitch-webhook-tls"),
    ("webhook", "list", "pods", TEAM, ""),
    ("webhook", "get", "configmaps", HERE, "stitch-release"),
    ("webhook", "get", "configmaps", TEAM, "stitch-trust"),
    ("webhook", "update", "configmaps", HERE, "stitch-trust"),
    ("webhook", "patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "",
     "stitch-webhook"),
    ("webhook", "create", "stitchpolicies.stitchcore.io", "", ""),
    ("gateway", "list", "pods", TEAM, ""),
    ("gateway", "get", "secrets", HERE, "stitch-broker"),
    ("gateway", "get", "secrets", TEAM, "any"),
    ("gateway", "create", "stitchedjobs.stitchcore.io", TEAM, ""),
    ("gateway", "patch", "nodes", "", "n1"),
    ("store", "get", "pods", TEAM, "train"),
    ("store", "get", "secrets", HERE, "stitch-store-tls"),
    ("reconciler", "get", "secrets", TEAM, "any"),
    ("reconciler", "list", "secrets", HERE, ""),
    ("reconciler", "delete", "secrets", HERE, "stitch-ca"),
    ("reconciler", "create", "secrets", TEAM, ""),
    ("reconciler", "get", "secrets", HERE, "somebody-elses"),
    ("reconciler", "update", "pods", TEAM, "train"),
    ("reconciler", "delete", "pods", TEAM, "train"),
    ("reconciler", "patch", "jobs.batch", TEAM, "train"),
    ("reconciler", "patch", "configmaps", TEAM, "stitch-breakers"),
    ("reconciler", "patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "",
     "somebody-elses"),
    ("reconciler", "create", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "", ""),
    ("reconciler", "create", "clusterrolebindings.rbac.authorization.k8s.io", "", ""),
    ("reconciler", "impersonate", "serviceaccounts", HERE, ""),
]  # fmt: skip
EVERYTHING = [
    (component, verb, resource, where, "")
    for component in ("signer", "worker", "redis", "collect")
    for verb in ("get", "list", "create")
    for resource, where in (("pods", HERE), ("secrets", HERE), ("configmaps", HERE),
                            ("tokenreviews.authentication.k8s.io", ""), ("nodes", ""))
]  # fmt: skip
"""Those that talk to nobody's API server have no right at all."""


@pytest.fixture(scope="module")
def installed(own_cluster: Cluster) -> Iterator[client.ApiClient]:
    where = ["--kubeconfig", str(own_cluster.kubeconfig), "--namespace", HERE]
    with own_cluster.api() as api:
        core = client.CoreV1Api(api)
        for name in (HERE, TEAM, OTHER):
            core.create_namespace({"metadata": {"name": name}})
        own_cluster.kubectl(
            "apply", "-f", "-", stdin=charts.helm("template", "c", str(charts.CRDS))
        )
        charts.helm("install", "stitch", str(charts.CHART), *where)
        yield api
        charts.helm("uninstall", "stitch", *where)
        own_cluster.kubectl(
            "delete", "-f", "-", stdin=charts.helm("template", "c", str(charts.CRDS))
        )
        for name in (HERE, TEAM, OTHER):
            core.delete_namespace(name)


def allowed(api: client.ApiClient, user: str, what: tuple[str, str, str, str]) -> bool:
    """What the API server's own authorizer says."""
    verb, resource, namespace, name = what
    kind, _, sub = resource.partition("/")
    plural, _, group = kind.partition(".")
    attributes = {"verb": verb, "resource": plural, "group": group, "subresource": sub,
                  "namespace": namespace, "name": name}  # fmt: skip
    body = {"spec": {"user": user, "resourceAttributes": attributes,
                     "groups": ["system:serviceaccounts", "system:authenticated"]}}  # fmt: skip
    review = client.AuthorizationV1Api(api).create_subject_access_review(body)
    return bool(review.status.allowed)


def account(component: str) -> str:
    return f"system:serviceaccount:{HERE}:stitch-{component}"


@pytest.mark.parametrize("line", MAY, ids=lambda line: "-".join(line).replace("/", "."))
def test_what_it_needs(installed: client.ApiClient, line: tuple[str, str, str, str, str]) -> None:
    component, *what = line
    assert allowed(installed, account(component), tuple(what))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line", MAY_NOT + EVERYTHING, ids=lambda line: "-".join(line).replace("/", ".")
)
def test_what_must_fail(installed: client.ApiClient, line: tuple[str, str, str, str, str]) -> None:
    component, *what = line
    assert not allowed(installed, account(component), tuple(what))  # type: ignore[arg-type]


def test_a_namespaces_viewer_reads_its_own_stitched_jobs_alone(
    installed: client.ApiClient, own_cluster: Cluster
) -> None:
    """By impersonation: a person with Kubernetes' own role `view` in one namespace."""
    bind = {
        "metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    client.RbacAuthorizationV1Api(installed).create_namespaced_role_binding(TEAM, bind)

    def may(verb: str, what: str, namespace: str) -> bool:
        return allowed(installed, "eve", (verb, what, namespace, ""))

    jobs = "stitchedjobs.stitchcore.io"
    wait_for(lambda: may("list", jobs, TEAM), "the role is part of `view`")
    own_cluster.kubectl("get", "stitchedjobs", "-n", TEAM, "--as=eve")
    with pytest.raises(NotUp, match="forbidden"):
        own_cluster.kubectl("get", "stitchedjobs", "-n", OTHER, "--as=eve")
    with pytest.raises(NotUp, match="forbidden"):
        own_cluster.kubectl("get", "stitchedjobs", "-A", "--as=eve")
    assert not may("patch", f"{jobs}/status", TEAM) and not may("create", jobs, TEAM)
    with pytest.raises(NotUp, match="forbidden"):
        own_cluster.kubectl("get", "configmap", "stitch-release", "-n", HERE, "--as=eve")
