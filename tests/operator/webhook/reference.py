"""What Kubernetes counts and forbids, written down from its documentation and apart from our code:
effective requests and limits, class of service, the Pod Security standard `restricted`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

UNITS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3),
    "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "Ki": Decimal(2**10),
    "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
}  # fmt: skip
COMPUTE = ("cpu", "memory")
RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret", "image",
}  # fmt: skip


def number(text: Any) -> Decimal:
    text = str(text)
    for unit in sorted(UNITS, key=len, reverse=True):
        if text.endswith(unit):
            return Decimal(text[: -len(unit)]) * UNITS[unit]
    return Decimal(text)


def quantities(container: Mapping[str, Any], kind: str) -> dict[str, Decimal]:
    found = container.get("resources", {})
    taken = {**(found.get("limits", {}) if kind == "requests" else {}), **found.get(kind, {})}
    return {name: number(value) for name, value in taken.items()}


def totals(pod: Mapping[str, Any], kind: str) -> dict[str, Decimal]:
    """https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/ (resource sharing)"""
    spec = pod["spec"]
    resources = {name for container in every(pod) for name in quantities(container, kind)} | set(
        spec.get("resources", {}).get(kind, {})
    )
    made = {}
    for name in resources:
        sidecars = Decimal(0)
        peak = Decimal(0)
        for container in spec.get("initContainers", []):
            own = quantities(container, kind).get(name, Decimal(0))
            peak = max(peak, sidecars + own)
            if container.get("restartPolicy") == "Always":
                sidecars += own
        running = sum((quantities(c, kind).get(name, Decimal(0)) for c in spec["containers"]),
                      Decimal(0))  # fmt: skip
        made[name] = max(peak, running + sidecars)
        if name in spec.get("resources", {}).get(kind, {}):
            made[name] = number(spec["resources"][kind][name])
    return made


def service_class(pod: Mapping[str, Any]) -> str:
    """https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/"""
    of_pod = pod["spec"].get("resources")
    holders = [{"resources": of_pod}] if of_pod else list(every(pod))
    asked = [{**quantities(one, "requests"), **quantities(one, "limits")} for one in holders]
    if not any(values.get(name) for values in asked for name in COMPUTE):
        return "BestEffort"
    for one in holders:
        requests, limits = quantities(one, "requests"), quantities(one, "limits")
        for name in COMPUTE:
            if not limits.get(name) or requests.get(name) != limits[name]:
                return "Burstable"
    return "Guaranteed"


def every(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def restricted(pod: Mapping[str, Any], containers: list[Mapping[str, Any]]) -> list[str]:
    """What of these containers and of the pod's volumes `restricted` forbids.
    https://kubernetes.io/docs/concepts/security/pod-security-standards/"""
    found = []
    for volume in pod["spec"].get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= RESTRICTED_VOLUMES:
            found.append(f"volume {volume['name']}: {kinds}")
    of_pod = pod["spec"].get("securityContext", {})
    for container in containers:
        context = container.get("securityContext", {})
        user = context.get("runAsUser", of_pod.get("runAsUser"))
        seccomp = context.get("seccompProfile", of_pod.get("seccompProfile", {})).get("type")
        capabilities = context.get("capabilities", {})
        wrong = {
            "privileged": context.get("privileged", False),
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is not False,
            "runAsNonRoot": not context.get("runAsNonRoot", of_pod.get("runAsNonRoot", False)),
            "runAsUser": user == 0,
            "seccompProfile": seccomp not in ("RuntimeDefault", "Localhost"),
            "capabilities.drop": "ALL" not in capabilities.get("drop", []),
            "capabilities.add": set(capabilities.get("add", [])) > {"NET_BIND_SERVICE"},
            "procMount": context.get("procMount", "Default") != "Default",
            "hostPorts": any(port.get("hostPort") for port in container.get("ports", [])),
        }
        found += [f"{container['name']}: {name}" for name, bad in wrong.items() if bad]
    return found
