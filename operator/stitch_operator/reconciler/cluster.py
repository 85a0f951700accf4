"""What the reconciler watches: pods, metadata of workloads, namespaces, its own objects.

Of pods all of the cluster's, since an annotation cannot be selected by; each is cut down as it
arrives. Plain watches rather than kopf's: its index keeps what was deleted while a watch was away
(a new list is not compared with the old one), and a pod that is no more would count for ever.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from kubernetes import client

from stitch_operator.reconciler import breakers, pods
from stitch_operator.reconciler.breakers import Refusal
from stitch_operator.reconciler.pods import Namespace, Pod, Workload
from stitch_operator.reconciler.records import StitchedJob, WorkloadReference
from stitch_operator.watch import Watched, WatchGroup, config_map, custom
from stitch_operator.webhook.adapters import ADAPTERS
from stitch_operator.webhook.adapters import pod as pod_adapter
from stitch_operator.webhook.cluster import breakers_name
from stitch_operator.webhook.objects import NEVER
from stitch_operator.webhook.release import Release

PLURAL = "stitchedjobs"
METADATA_ONLY = {
    "list": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    "watch": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
}
REFUSED = ("FailedCreate", "FailedCreatePod")
"""Reasons of Events by which controllers say that a pod was refused."""
OURS = re.compile(r"\bstitchcore-(runtime|cache|identity)\b|usage per (Container|Pod) is ")
"""In their messages. A LimitRange names no container; where the pod's own is to blame it cannot be
created either way."""
KINDS = tuple(one for one in ADAPTERS.values() if one.kind != pod_adapter.Pod.kind)
Tell = Callable[[Any, Any], None]


class Existing(msgspec.Struct, frozen=True):
    """A StitchedJob as it is there."""

    namespace: str
    name: str
    workload: WorkloadReference
    job: StitchedJob
    uid: str = ""


class Watches(WatchGroup):
    """All watches. `tell` is told of every change, in the watches' threads: what it was, and what
    it is. `failed` counts a watch's error."""

    def __init__(
        self, api: client.ApiClient, release: Release, tell: Tell, failed: Callable[[str], None]
    ) -> None:
        core, objects = client.CoreV1Api(api), client.CustomObjectsApi(api)
        breakers_map = config_map(core, release.namespace, breakers_name(release.name))
        excluded = frozenset({*NEVER, release.namespace})
        read_pod = functools.partial(pods.read_pod, excluded=excluded)
        every_pod = core.list_pod_for_all_namespaces
        self.pods: Watched[Pod] = Watched("pods", every_pod, read_pod, failed, tell)
        self.namespaces: Watched[Namespace] = Watched(
            *("namespaces", core.list_namespace, pods.read_namespace, failed, tell)
        )
        self.jobs: Watched[Existing] = Watched(
            PLURAL, custom(objects, PLURAL), read_job, failed, tell
        )
        self.breakers: Watched[dict[breakers.Line, float]] = Watched(
            *("configmaps", breakers_map, read_breakers, failed)
        )
        self.refusals: list[Watched[Refusal]] = [
            Watched(
                "events",
                functools.partial(
                    core.list_event_for_all_namespaces, field_selector=f"reason={reason}"
                ),
                read_refusal,
                failed,
            )
            for reason in REFUSED
        ]
        self.workloads: dict[tuple[str, str], Watched[Workload]] = {
            (one.group, one.kind): Watched(
                one.resource,
                functools.partial(_metadata, objects, one.group, one.version, one.resource),
                functools.partial(
                    pods.read_workload,
                    api_version=f"{one.group}/{one.version}",
                    kind=one.kind,
                    excluded=excluded,
                ),
                failed,
                tell,
            )
            for one in KINDS
        }
        super().__init__(
            [self.pods, self.namespaces, self.jobs, self.breakers, *self.refusals,
             *self.workloads.values()]
        )  # fmt: skip

    def knows(self, group: str, kind: str) -> bool:
        """Whether objects of this kind would be known here."""
        found = self.workloads.get((group, kind))
        return found is not None and found.served

    def refused(self) -> list[Refusal]:
        return [one for watched in self.refusals for one in watched.values()]


def _metadata(objects: Any, group: str, version: str, plural: str, **query: Any) -> Any:
    """A list or a watch of metadata alone: thousands of pod templates are not sent."""
    accept = METADATA_ONLY["watch" if query.get("watch") else "list"]
    call = objects.list_cluster_custom_object
    return call(group, version, plural, _headers={"Accept": accept}, **query)


def read_job(document: Mapping[str, Any]) -> Existing:
    metadata = document["metadata"]
    job = msgspec.convert(document, StitchedJob)
    where = (metadata["namespace"], metadata["name"])
    return Existing(*where, job.spec.workload, job, metadata["uid"])


def read_breakers(document: Mapping[str, Any]) -> dict[breakers.Line, float]:
    return breakers.parse(document.get("data") or {})


def read_refusal(document: Mapping[str, Any]) -> Refusal | None:
    """None where something else than ours was refused."""
    if not OURS.search(str(document.get("message", ""))):
        return None
    series = document.get("series") or {}
    times = (series.get("lastObservedTime"), document.get("lastTimestamp"),
             document.get("eventTime"), document["metadata"].get("creationTimestamp"))  # fmt: skip
    found = [pods.seconds(one) for one in times]
    when = max((one for one in found if one is not None), default=0.0)
    return Refusal(str(document["metadata"]["namespace"]), when)
