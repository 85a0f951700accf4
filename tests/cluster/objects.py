"""Objects that tests put into a cluster, as small as the API server allows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

Found = TypeVar("Found")
LONGEST = 5.0
FAKE = {"kwok.x-k8s.io/node": "fake"}
SELECTOR = {"type": "fake"}
RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What Pod Security `restricted` asks of a container."""


def wait_for(
    condition: Callable[[], Found | Literal[False] | None], seconds: float, what: str
) -> Found:
    """The first true value of `condition`, asked now and then; `seconds` are those of a machine
    that does nothing else, and where others work beside they are more."""
    began, pause = time.monotonic(), 0.05
    while True:
        if found := condition():
            return found
        taken = time.monotonic() - began
        if taken > seconds * slower():
            raise AssertionError(f"not within {taken:.0f} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.2, 0.25)


def slower() -> float:
    """How many times longer things may take now: as many as programs wait for each processor."""
    waiting, _, _ = os.getloadavg()
    return min(max(waiting / (os.cpu_count() or 1), 1.0), LONGEST)


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
