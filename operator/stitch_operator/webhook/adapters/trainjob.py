"""trainer.kubeflow.org TrainJob: it holds no template, a TrainingRuntime does.

Its API keeps a place for others, `runtimePatches` keyed by manager, through which a pod's metadata
may be set, but no environment of the trainer. So the stamp goes there, onto the group of Jobs that
Trainer calls `node`, and the pods are injected when they are made.
"""

from __future__ import annotations

from typing import Any

from stitch_operator import names
from stitch_operator.webhook.adapters.adapter import Annotations, Template, Workload, at
from stitch_operator.webhook.patch import Operation, extend

TRAINER = "node"


class TrainJob:
    group, kind, resource = "trainer.kubeflow.org", "TrainJob", "trainjobs"
    version = "v1alpha1"

    def templates(self, workload: Workload) -> list[Template]:
        return []

    def suspended(self, workload: Workload) -> bool:
        return bool(at(workload, ("spec",)).get("suspend"))

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        steps = ("spec", "runtimePatches")
        present = at(workload, steps) or None
        if any(one.get("manager") == names.MANAGER for one in present or []):
            return []
        pod = {"metadata": {"annotations": dict(annotations)}}
        job = {"name": TRAINER, "template": {"spec": {"template": pod}}}
        spec: dict[str, Any] = {"template": {"spec": {"replicatedJobs": [job]}}}
        own = {"manager": names.MANAGER, "trainingRuntimeSpec": spec}
        return extend(present, [own], *steps)
