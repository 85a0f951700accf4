"""batch/v1 Job: one template, `parallelism` pods at a time."""

from __future__ import annotations

from stitch_operator.webhook.adapters.adapter import (
    Adapter,
    Annotations,
    Template,
    Workload,
    at,
    count,
    stamped,
)
from stitch_operator.webhook.patch import Operation


class Job:
    group, kind, resource = "batch", "Job", "jobs"
    version = "v1"

    def templates(self, workload: Workload) -> list[Template]:
        pods = count(at(workload, ("spec",)).get("parallelism"))
        return [Template(("spec", "template"), pods)]

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        return stamped(workload, self.templates(workload), annotations)


ADAPTER: Adapter = Job()
