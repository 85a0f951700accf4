"""Objects that tests put into a cluster, as small as the API server allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FAKE = {"kwok.x-k8s.io/node": "fake"}
SELECTOR = {"type": "fake"}
RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What Pod Security `restricted` asks of a container."""


def pod_spec(resources: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A pod of one container for a fake node."""
    container = {"name": "main", "image": "example.test/train:1", "resources": resources or {}}
    return {"containers": [container], "nodeSelector": SELECTOR, "restartPolicy": "Never", **more}


def pod(name: str, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec or pod_spec()}


def job(name: str, spec: Mapping[str, Any] | None = None, pods: int = 1) -> dict[str, Any]:
    template = {"spec": spec or pod_spec()}
    counts = {"completions": pods, "parallelism": pods}
    return {"metadata": {"name": name}, "spec": {**counts, "template": template}}


def fake_node(
    name: str, labels: Mapping[str, str] | None = None, pods: int = 110, gpus: int = 0
) -> dict[str, Any]:
    """A node whose kubelet kwok plays."""
    room = {"cpu": "1000", "memory": "4Ti", "pods": str(pods), "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name, "annotations": FAKE, "labels": {**SELECTOR, **(labels or {})}},
        "status": {"allocatable": room, "capacity": room},
    }
