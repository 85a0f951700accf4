"""Pods as the API server would accept them, for property tests: containers, sidecars, init
containers and resources in every notation, and fields that the webhook does not know."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

CPU = ["0", "1m", "5m", "10m", "30m", "100m", "250m", "0.5", "1", "1500m", "2", "1e1", "3e-2"]
MEMORY = [
    "0",
    "4Mi",
    "16Mi",
    "20M",
    "100Mi",
    "128Mi",
    "1.5Gi",
    "2G",
    "1e8",
    "134217728",
    "700000000000m",
]
STORAGE = ["0", "10Mi", "1Gi", "2Gi", "20G"]
CHOICES = {"cpu": CPU, "memory": MEMORY, "ephemeral-storage": STORAGE}
NAMES = ["main", "worker-0", "istio-proxy", "logs"]


def _value(text: str) -> float:
    for unit, size in (("Mi", 2**20), ("Gi", 2**30), ("m", 1e-3), ("M", 1e6), ("G", 1e9)):
        if text.endswith(unit):
            return float(text[: -len(unit)]) * size
    return float(text)


@st.composite
def resources(draw: st.DrawFn) -> dict[str, Any]:
    """Requests at most the limits, as validation demands."""
    made: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for name, choices in CHOICES.items():
        form = draw(st.sampled_from(["none", "none", "request", "limit", "equal", "both"]))
        one, other = sorted(draw(st.tuples(*[st.sampled_from(choices)] * 2)), key=_value)
        if form in ("request", "both"):
            made["requests"][name] = one
        if form in ("limit", "both", "equal"):
            made["limits"][name] = other
        if form == "equal":
            made["requests"][name] = other
    gpus = draw(st.sampled_from([None, None, "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]))
    if gpus:
        made["limits"][gpus] = made["requests"][gpus] = "1"
    return {kind: amounts for kind, amounts in made.items() if amounts}


@st.composite
def variables(draw: st.DrawFn) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"name": "HOME_DIR", "value": "/home"}]
    form = draw(st.sampled_from(["none", "none", "value", "empty", "twice", "source"]))
    if form in ("value", "twice"):
        made.append({"name": "PYTHONPATH", "value": "$(HOME_DIR)/lib:/x"})
    if form in ("empty", "twice"):
        made.append({"name": "PYTHONPATH", "value": ""})
    if form == "source":
        reference = {"name": "c", "key": "k"}
        made.append({"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": reference}})
    if draw(st.booleans()):
        mode = draw(st.sampled_from(["off", "observe", "optimize"]))
        made.append({"name": "STITCH_MODE", "value": mode})
    if draw(st.booleans()):
        made.append({"name": "TF_CONFIG", "value": "{}"})
    return draw(st.sampled_from([made, made, []]))


@st.composite
def container(draw: st.DrawFn, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "image": "tf", "workingDir": "/w"}
    found, env = draw(resources()), draw(variables())
    if found or draw(st.booleans()):
        made["resources"] = found
    if env or draw(st.booleans()):
        made["env"] = env
    source = draw(st.sampled_from([None, None, None, "", "DB_"]))
    if source is not None:
        made["envFrom"] = [{"prefix": source, "configMapRef": {"name": "c"}}]
    if draw(st.booleans()):
        made["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    return made


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """A pod that asks to be optimized; most can be."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    spec: dict[str, Any] = {"containers": [draw(container(name)) for name in names]}
    starting = []
    for number in range(draw(st.integers(0, 3))):
        one = draw(container(f"init-{number}"))
        if draw(st.booleans()):
            one["restartPolicy"] = "Always"
        starting.append(one)
    if starting or draw(st.booleans()):
        spec["initContainers"] = starting
    spec["volumes"] = [{"name": "data", "emptyDir": {}}]
    if draw(st.booleans()):
        spec["securityContext"] = {"runAsUser": draw(st.sampled_from([0, 1000])), "fsGroup": 5}
    spec |= draw(st.sampled_from([{}, {}, {"hostNetwork": True}, {"dnsPolicy": "None"}]))
    _shape(spec, draw(st.sampled_from(["", "", "guaranteed", "bare", "pod level"])))
    annotations = {"stitchcore.io/optimize": "true", "team/a~b": "x"}
    annotations |= draw(
        st.sampled_from(
            [{}, {}, {"stitchcore.io/pythonpath": ""}, {"stitchcore.io/pythonpath": "/p"}]
            + [{"stitchcore.io/container-names": ",".join(names)}] * 2
        )
    )
    return {"metadata": {"name": "train", "annotations": annotations}, "spec": spec}


def _shape(spec: dict[str, Any], shape: str) -> None:
    """Kinds of pods that drawing each container by itself hardly ever gives."""
    if not shape:
        return
    equal = {"cpu": "40m", "memory": "100Mi"}
    for one in [*spec["containers"], *spec.get("initContainers", [])]:
        one.pop("resources", None)
        if shape == "guaranteed":
            one["resources"] = {"limits": dict(equal), "requests": dict(equal)}
    if shape == "pod level":
        spec["resources"] = {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": dict(equal)}
        spec["resources"]["requests"]["memory"] = "64Mi"
