"""What of a pod or a workload is kept: a few hundred bytes of the kilobytes that a watch brings.

Ten thousand jobs must fit into little memory, and whatever decides about a job is here as plain
data, so that decisions need no API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from stitch_operator import names
from stitch_operator.webhook import injection, pieces, placement, policy
from stitch_operator.webhook.environment import STITCH_MODE

Document = Mapping[str, Any]
WAITS = frozenset({"", "PodInitializing", "ContainerCreating"})
"""Reasons of a container that waits as it should."""


class Owner(msgspec.Struct, frozen=True):
    """The controller of an object."""

    api_version: str
    kind: str
    name: str
    uid: str


class Failure(msgspec.Struct, frozen=True):
    """A container that ended with another code than 0. Epoch seconds."""

    started: float
    finished: float


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """`asked` is the pod's own word, None where it says nothing. `injected`, `skipped` and `would`
    are what the webhook wrote on it; the rest is known of injected pods, `failure` of all.

    `started` and `finished` of the containers that train; `stuck` why the runtime's container does
    not start (`gave_up`: when, where it is not tried again), `delivered` once it has. `workload` is
    the name that breakers go by.
    """

    namespace: str
    name: str
    uid: str
    created: float
    owner: Owner | None = None
    asked: bool | None = None
    phase: str = "Pending"
    leaving: bool = False
    injected: str = ""
    skipped: str = ""
    would: bool = False
    workload: str = ""
    image: str = ""
    mode: str = ""
    started: float | None = None
    finished: float | None = None
    stuck: str = ""
    gave_up: float | None = None
    delivered: bool = False
    failure: Failure | None = None

    @property
    def active(self) -> bool:
        return self.phase in ("Pending", "Running", "Unknown") and not self.leaving

    @property
    def reviewed(self) -> bool:
        """Whether the webhook has had it."""
        return bool(self.injected or self.skipped or self.would)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What makes pods. `asked` is its own word."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    owner: Owner | None = None
    asked: bool | None = None


class Namespace(msgspec.Struct, frozen=True):
    """`since` (epoch seconds) says when its label came to ask, None where it does not. `team` is
    its label `team`."""

    name: str
    since: float | None = None
    team: str = ""


def read_pod(document: Document, excluded: frozenset[str]) -> Pod | None:
    """None for pods that are never injected: of `excluded` namespaces, ours, the kubelet's own."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    labels, annotations = policy.texts(document, "labels"), policy.texts(document, "annotations")
    ours = labels.get(names.PART_OF) == names.PRODUCT
    if metadata["namespace"] in excluded or ours or placement.mirror(document):
        return None
    status = document.get("status") or {}
    fields: dict[str, Any] = {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "created": seconds(metadata.get("creationTimestamp")) or 0.0,
        "owner": controller(metadata),
        "asked": own_word(document),
        "phase": str(status.get("phase") or "Pending"),
        "leaving": _leaving(metadata, status),
    }
    injected = any(v.get("name") == pieces.RUNTIME_VOLUME for v in spec.get("volumes") or [])
    fields["skipped"] = annotations.get(names.SKIPPED, "")[:64]
    fields["would"] = names.WOULD_INJECT in annotations
    if injected and annotations.get(names.INJECTED):
        fields |= _of_injected(document, annotations)
    if fields["asked"] is not None or fields.get("injected") or fields["skipped"]:
        fields["workload"] = injection.owner(document)
        every = status.get("containerStatuses") or []
        fields["failure"] = _failure(_trains(spec, every) if injected else every)
    return Pod(**fields)


def read_workload(
    document: Document, api_version: str, kind: str, excluded: frozenset[str]
) -> Workload | None:
    """From its metadata alone; None where its pods are never injected."""
    metadata = document["metadata"]
    if metadata["namespace"] in excluded:
        return None
    return Workload(
        api_version=api_version,
        kind=kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        owner=controller(metadata),
        asked=own_word(document),
    )


def read_namespace(document: Document) -> Namespace:
    """A label that was put on it later asks for the pods created since."""
    metadata = document["metadata"]
    labels = policy.texts(document, "labels")
    team = labels.get("team", "")
    if labels.get(names.OPTIMIZE) != "true":
        return Namespace(metadata["name"], team=team)
    written = [seconds(metadata.get("creationTimestamp")) or 0.0]
    for entry in metadata.get("managedFields") or []:
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
        if f"f:{names.OPTIMIZE}" in fields:
            written.append(seconds(entry.get("time")) or 0.0)
    return Namespace(metadata["name"], max(written), team)


def own_word(document: Document) -> bool | None:
    """What an object itself says of optimizing, as the webhook reads it; a value that means nothing
    asks, since the webhook answers it with a reason."""
    said = [
        policy.texts(document, field).get(names.OPTIMIZE) for field in ("annotations", "labels")
    ]
    words = [word for word in said if word is not None]
    return None if not words else "false" not in words


def mode_of(document: Document) -> str:
    """Of the containers that train: what the webhook set."""
    for container in (document.get("spec") or {}).get("containers") or []:
        for entry in container.get("env") or []:
            if entry.get("name") == STITCH_MODE:
                return str(entry.get("value") or "")
    return ""


def controller(metadata: Document) -> Owner | None:
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller"):
            return Owner(owner["apiVersion"], owner["kind"], owner["name"], owner["uid"])
    return None


def seconds(text: Any) -> float | None:
    """Epoch seconds of a time as the API server writes it."""
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else None


def _leaving(metadata: Document, status: Document) -> bool:
    """Whether it ends because of somebody else: deleted, evicted, preempted, its node lost."""
    conditions = status.get("conditions") or []
    disrupted = any(
        condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
        for condition in conditions
    )
    return bool(metadata.get("deletionTimestamp") or status.get("reason") or disrupted)


def _of_injected(document: Document, annotations: Mapping[str, str]) -> dict[str, Any]:
    spec, status = document["spec"], document.get("status") or {}
    trains = _trains(spec, status.get("containerStatuses") or [])
    states = [
        container.get(field) or {} for container in trains for field in ("state", "lastState")
    ]
    begun = [
        seconds(state[kind].get("startedAt"))
        for state in states
        for kind in ("running", "terminated")
        if kind in state
    ]
    ended = [(container.get("state") or {}).get("terminated") for container in trains]
    finished = [seconds(state.get("finishedAt")) for state in ended if state]
    started = min((time for time in begun if time is not None), default=None)
    image, stuck, delivered, gave_up = _delivery(spec, status)
    return {
        "injected": annotations[names.INJECTED][:64],
        "image": image,
        "mode": mode_of(document),
        "started": started,
        "finished": max((time for time in finished if time), default=None) if all(ended) else None,
        "stuck": stuck,
        "gave_up": gave_up,
        "delivered": delivered or started is not None,
    }


def _trains(spec: Document, statuses: Iterable[Document]) -> list[Document]:
    """Statuses of the containers that see the runtime."""
    injected = {
        container["name"]
        for container in spec.get("containers") or []
        for mount in container.get("volumeMounts") or []
        if mount.get("name") == pieces.RUNTIME_VOLUME
    }
    return [container for container in statuses if container.get("name") in injected]


def _failure(statuses: Iterable[Document]) -> Failure | None:
    """The last one, also of a container that was started again."""
    failures = []
    for container in statuses:
        for field in ("state", "lastState"):
            ended = (container.get(field) or {}).get("terminated") or {}
            times = seconds(ended.get("startedAt")), seconds(ended.get("finishedAt"))
            if ended.get("exitCode") and times[1] is not None:
                failures.append(Failure(times[0] or times[1], times[1]))
    return max(failures, key=lambda failure: failure.finished, default=None)


def _delivery(spec: Document, status: Document) -> tuple[str, str, bool, float | None]:
    """The runtime's image in this pod, why it does not come, whether it has, and when it failed."""
    for container in spec.get("initContainers") or []:
        if container.get("name") == pieces.INIT_CONTAINER:
            return str(container.get("image", "")), *_of_init_container(status)
    volume = next(v for v in spec["volumes"] if v.get("name") == pieces.RUNTIME_VOLUME)
    image = str((volume.get("image") or {}).get("reference", ""))
    for entry in status.get("containerStatuses") or []:
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if image and image in str(waiting.get("message", "")):
            return image, str(waiting.get("reason", "")), False, None
    return image, "", False, None


def _of_init_container(status: Document) -> tuple[str, bool, float | None]:
    for container in status.get("initContainerStatuses") or []:
        if container.get("name") != pieces.INIT_CONTAINER:
            continue
        state = container.get("state") or {}
        waiting = str((state.get("waiting") or {}).get("reason") or "")
        ended = state.get("terminated")
        if ended and ended.get("exitCode"):
            return str(ended.get("reason") or "Error"), False, seconds(ended.get("finishedAt"))
        return ("" if waiting in WAITS else waiting), bool(ended), None
    return "", False, None
