"""Where a pod can run, as far as admission can know: operating system, architecture, name service.

Nothing is looked up: selectors and required affinity that leave no node of ours are enough to skip
a pod; one that may run anywhere is injected, and the job side judges where it has landed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

OS = ("kubernetes.io/os", "beta.kubernetes.io/os")
ARCHITECTURE = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
MIRROR = "kubernetes.io/config.mirror"
RESOLVING = ("ClusterFirst", "ClusterFirstWithHostNet")


def windows(pod: Mapping[str, Any]) -> bool:
    spec = pod.get("spec") or {}
    named = (spec.get("os") or {}).get("name", "linux")
    return named == "windows" or not possible(pod, OS, ("linux",))


def mirror(pod: Mapping[str, Any]) -> bool:
    """Made by a kubelet from a file; such pods may hold no token."""
    return MIRROR in ((pod.get("metadata") or {}).get("annotations") or {})


def resolves(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's containers can resolve names of the cluster's services."""
    spec = pod.get("spec") or {}
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    if spec.get("hostNetwork"):
        return bool(policy == "ClusterFirstWithHostNet")
    return policy in RESOLVING


def possible(pod: Mapping[str, Any], keys: Sequence[str], values: Collection[str]) -> list[str]:
    """Those of `values` that a node's label of `keys` may have for the pod to run there."""
    spec = pod.get("spec") or {}
    selector = spec.get("nodeSelector") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or []

    def allowed(value: str) -> bool:
        if any(selector.get(key, value) != value for key in keys):
            return False
        return not terms or any(_allows(term, keys, value) for term in terms)

    return [value for value in values if allowed(value)]


def _allows(term: Mapping[str, Any], keys: Sequence[str], value: str) -> bool:
    for expression in term.get("matchExpressions") or []:
        if expression.get("key") not in keys:
            continue
        operator, listed = expression.get("operator"), expression.get("values") or []
        if operator == "In" and value not in listed:
            return False
        if operator == "NotIn" and value in listed:
            return False
        if operator == "DoesNotExist":
            return False
    return True
