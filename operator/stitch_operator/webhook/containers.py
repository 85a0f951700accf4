"""Which containers train.

What the user names; else all that ask for devices; else the one that kubectl shows by default; else
the only one, sidecars of service meshes and the like aside. Anything else would be a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stitch_operator import names, quantity
from stitch_operator.webhook.policy import texts
from stitch_operator.webhook.reasons import Reason, Skip

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
DEVICE = re.compile(r"^[a-z0-9.-]+/(gpu(\.shared)?|mig-[a-z0-9.]+)$")
SIDECARS = frozenset(
    (
        *("istio-proxy", "linkerd-proxy", "consul-dataplane", "kuma-sidecar", "envoy"),
        *("vault-agent", "cloud-sql-proxy", "gke-gcsfuse-sidecar", "aws-guardduty-agent"),
        *("datadog-agent-injected", "otc-container", "daprd", "osm-envoy-sidecar"),
    )
)
"""Containers that other webhooks put beside the user's; they never train."""


def chosen(pod: Mapping[str, Any]) -> list[str]:
    """Names of the containers to inject, in the pod's order. Raises Skip."""
    containers = (pod.get("spec") or {}).get("containers") or []
    present = [str(one.get("name", "")) for one in containers]
    annotations = texts(pod, "annotations")
    if names.CONTAINERS in annotations:
        wanted = {name.strip() for name in annotations[names.CONTAINERS].split(",")} - {""}
        unknown = sorted(wanted - set(present))
        if unknown or not wanted:
            raise Skip(Reason.UNKNOWN_CONTAINER, ", ".join(unknown)[:200] or "it is empty")
        return [name for name in present if name in wanted]
    with_devices = [str(one["name"]) for one in containers if devices(one)]
    if with_devices:
        return with_devices
    default = annotations.get(DEFAULT_CONTAINER)
    if default in present:
        return [str(default)]
    own = [name for name in present if name not in SIDECARS]
    if len(own) != 1:
        raise Skip(Reason.AMBIGUOUS_CONTAINER, ", ".join(present)[:200])
    return own


def devices(container: Mapping[str, Any]) -> bool:
    """Whether a container asks for GPUs, slices of them, or claims devices (DRA)."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    counts = [quantity.parse(count) for name, count in asked.items() if DEVICE.match(name)]
    return any(counts) or bool(resources.get("claims"))
