"""batch.volcano.sh Job: a template per task. Volcano's own webhook replaces `spec.tasks` whole,
from what it was given: a stamp before it stays, and one after it is added to what it wrote."""

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


class VolcanoJob:
    group, kind, resource = "batch.volcano.sh", "Job", "jobs"
    version = "v1alpha1"

    def templates(self, workload: Workload) -> list[Template]:
        tasks = at(workload, ("spec", "tasks")) or []
        return [
            Template(("spec", "tasks", number, "template"), count(task.get("replicas")))
            for number, task in enumerate(tasks)
        ]

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        return stamped(workload, self.templates(workload), annotations)


ADAPTER: Adapter = VolcanoJob()
