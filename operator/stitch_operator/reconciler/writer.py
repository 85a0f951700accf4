"""What the reconciler writes: StitchedJobs, their status, Events, one ConfigMap. Nothing else.

Every call may be repeated. None touches a workload or a pod.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from stitch_operator import names
from stitch_operator.names import GROUP, VERSION
from stitch_operator.objects import labels_of
from stitch_operator.reconciler import breakers
from stitch_operator.reconciler.cluster import PLURAL
from stitch_operator.reconciler.records import (
    WARNINGS,
    Condition,
    Spec,
    Status,
    WorkloadReference,
    name_of,
)
from stitch_operator.webhook.cluster import breakers_name
from stitch_operator.webhook.release import Release

KIND = "StitchedJob"
COMPONENT = "stitchcore.io/reconciler"
MOST_NOTE = 1024
"""Bytes of an Event's text that the API server takes."""
SECONDS = 10.0
CONFLICT, NOT_FOUND = 409, 404
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"


class Writer:
    """Calls of the API server; `count` is told of each: its name and its result."""

    def __init__(
        self, api: client.ApiClient, release: Release, count: Callable[[str, str], None]
    ) -> None:
        self._custom = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)
        self._events = client.EventsV1Api(api)
        self._release = release
        self._count = count

    def create(self, namespace: str, workload: WorkloadReference) -> str:
        """The StitchedJob of a workload, which goes when the workload does: its uid, "" where it
        was there already."""
        owner = {
            "apiVersion": workload.api_version,
            "kind": workload.kind,
            "name": workload.name,
            "uid": workload.uid,
        }
        metadata = {
            "name": name_of(workload),
            "labels": {names.PART_OF: names.PRODUCT},
            "ownerReferences": [owner],
        }
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": metadata,
            "spec": msgspec.to_builtins(Spec(workload=workload)),
        }
        call = self._custom.create_namespaced_custom_object
        made = self._call("create", call, GROUP, VERSION, namespace, PLURAL, body)
        return str(made["metadata"]["uid"]) if made is not None else ""

    def write(self, namespace: str, name: str, status: Status) -> bool:
        """The whole status; False where the object is no more."""
        body = [{"op": "add", "path": "/status", "value": msgspec.to_builtins(status)}]
        call = self._custom.patch_namespaced_custom_object_status
        where = (GROUP, VERSION, namespace, PLURAL, name)
        return self._call("status", call, *where, body, _content_type=JSON_PATCH) is not None

    def tell(self, namespace: str, workload: WorkloadReference, uid: str, held: Condition) -> bool:
        """Events on the workload and on its StitchedJob, which has this `uid`, for `kubectl
        describe` shows those of one object; False where the workload's was posted before."""
        name = name_of(workload)
        transition = f"{held.type.lower()}.{held.transitions}"
        own = WorkloadReference(api_version=f"{GROUP}/{VERSION}", kind=KIND, name=name, uid=uid)
        told = self._event(namespace, f"{name}.{transition}", workload, held)
        self._event(namespace, f"{name}.stitchedjob.{transition}", own, held)
        return told

    def _event(self, namespace: str, name: str, about: WorkloadReference, held: Condition) -> bool:
        """The name says what was told of what, so that nothing is told twice."""
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "regarding": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "reason": held.type,
            "action": held.type,
            "note": held.message.encode()[:MOST_NOTE].decode(errors="ignore"),
            "type": "Warning" if held.type in WARNINGS else "Normal",
            "reportingController": COMPONENT,
            "reportingInstance": self._release.name,
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        call = self._events.create_namespaced_event
        return self._call("event", call, namespace, body) is not None

    def write_breakers(self, lines: breakers.Lines) -> None:
        """The ConfigMap that the webhook watches."""
        name, namespace = breakers_name(self._release.name), self._release.namespace
        data = breakers.data(lines)
        patch = self._core.patch_namespaced_config_map
        where = (name, namespace)
        if (
            self._call("breakers", patch, *where, {"data": data}, _content_type=MERGE_PATCH)
            is not None
        ):
            return
        body = {"metadata": {"name": name, "labels": labels_of(self._release)}, "data": data}
        self._call("breakers", self._core.create_namespaced_config_map, namespace, body)

    def _call(self, what: str, call: Callable[..., Any], *given: Any, **more: Any) -> Any:
        """The answer; None where it was there already, or is no more. Raises what else the API
        says."""
        try:
            answer = call(*given, **more, _request_timeout=SECONDS)
        except ApiException as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                self._count(what, "failed")
                raise
            self._count(what, "exists" if error.status == CONFLICT else "gone")
            return None
        except Exception:
            self._count(what, "failed")
            raise
        self._count(what, "done")
        return answer
