"""jobset.x-k8s.io JobSet: a Job template per group, each for several Jobs."""

from __future__ import annotations

from stitch_operator.webhook.adapters.adapter import (
    Annotations,
    Template,
    Workload,
    at,
    count,
    stamped,
)
from stitch_operator.webhook.patch import Operation


class JobSet:
    group, kind, resource = "jobset.x-k8s.io", "JobSet", "jobsets"
    version = "v1alpha2"

    def templates(self, workload: Workload) -> list[Template]:
        made = []
        for number, one in enumerate(at(workload, ("spec", "replicatedJobs")) or []):
            job = at(one, ("template", "spec"))
            pods = count(one.get("replicas")) * count(job.get("parallelism"))
            steps = ("spec", "replicatedJobs", number, "template", "spec", "template")
            made.append(Template(steps, pods))
        return made

    def suspended(self, workload: Workload) -> bool:
        return bool(at(workload, ("spec",)).get("suspend"))

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        return stamped(workload, self.templates(workload), annotations)
