"""A bare Pod: its own template; the hook for pods reads its annotations where they are."""

from __future__ import annotations

from stitch_operator.webhook.adapters.adapter import Adapter, Annotations, Template, Workload
from stitch_operator.webhook.patch import Operation


class Pod:
    group, kind, resource = "", "Pod", "pods"
    version = "v1"

    def templates(self, workload: Workload) -> list[Template]:
        return [Template((), 1)]

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        return []


ADAPTER: Adapter = Pod()
