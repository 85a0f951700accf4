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
        self._release = release
        self._count = count

    def create(self, namespace: str, workload: WorkloadReference) -> None:
        """The StitchedJob of a workload, which goes when the workload does."""
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
        self._call("create", call, GROUP, VERSION, namespace, PLURAL, body)

    def write(self, namespace: str, name: str, status: Status) -> bool:
        """The whole status; False where the object is no more."""
        body = [{"op": "add", "path": "/status", "value": msgspec.to_builtins(status)}]
        call = self._custom.patch_namespaced_custom_object_status
        where = (GROUP, VERSION, namespace, PLURAL, name)
        return self._call("status", call, *where, body, _content_type=JSON_PATCH)

    def tell(self, namespace: str, workload: WorkloadReference, held: Condition) -> bool:
        """An Event on the workload; False where it was posted before."""
        name = f"{name_of(workload)}.{held.type.lower()}.{held.transitions}"
        about = {
            "apiVersion": workload.api_version,
            "kind": workload.kind,
            "namespace": namespace,
            "name": workload.name,
            "uid": workload.uid,
        }
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about,
            "reason": held.type,
            "message": held.message,
            "type": "Warning" if held.type in WARNINGS else "Normal",
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._release.name,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        return self._call("event", self._core.create_namespaced_event, namespace, body)

    def write_breakers(self, lines: breakers.Lines) -> None:
        """The ConfigMap that the webhook watches."""
        name, namespace = breakers_name(self._release.name), self._release.namespace
        data = breakers.data(lines)
        patch = self._core.patch_namespaced_config_map
        where = (name, namespace)
        if self._call("breakers", patch, *where, {"data": data}, _content_type=MERGE_PATCH):
            return
        body = {"metadata": {"name": name, "labels": labels_of(self._release)}, "data": data}
        self._call("breakers", self._core.create_namespaced_config_map, namespace, body)

    def _call(self, what: str, call: Callable[..., Any], *given: Any, **more: Any) -> bool:
        """False where it was there already, or is no more. Raises what else the API says."""
        try:
            call(*given, **more, _request_timeout=SECONDS)
        except ApiException as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                self._count(what, "failed")
                raise
            self._count(what, "exists" if error.status == CONFLICT else "gone")
            return False
        except Exception:
            self._count(what, "failed")
            raise
        self._count(what, "done")
        return True
