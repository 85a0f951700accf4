"""jobset.x-k8s.io JobSet: a Job template per group, each for several Jobs.

One that Kubeflow Trainer made has groups that fetch data or a model before the training: a label
tells them apart, and they are not stamped.
"""

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

STEP, TRAINER = "trainer.kubeflow.org/trainjob-ancestor-step", "trainer"


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

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        training = [one for one in self.templates(workload) if _trains(workload, one)]
        return stamped(workload, training, annotations)


def _trains(workload: Workload, template: Template) -> bool:
    of_job = at(workload, (*template.steps[:-2], "metadata", "labels"))
    return bool(of_job.get(STEP, TRAINER) == TRAINER)


ADAPTER: Adapter = JobSet()
