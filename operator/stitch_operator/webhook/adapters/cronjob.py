"""batch/v1 CronJob: the template of its Jobs' pods, so that each Job is born with the stamp."""

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

JOB = ("spec", "jobTemplate", "spec")


class CronJob:
    group, kind, resource = "batch", "CronJob", "cronjobs"
    version = "v1"

    def templates(self, workload: Workload) -> list[Template]:
        pods = count(at(workload, JOB).get("parallelism"))
        return [Template((*JOB, "template"), pods)]

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        return stamped(workload, self.templates(workload), annotations)


ADAPTER: Adapter = CronJob()
