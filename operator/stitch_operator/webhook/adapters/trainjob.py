"""trainer.kubeflow.org TrainJob: it holds no template, a TrainingRuntime does.

Its API has two places for others, each in its own time, and drops the field of the other. Trainer
2.0 puts `annotations` of the spec onto the JobSet that it makes, where the hook for workloads
stamps the templates in turn. Later ones have `runtimePatches`, keyed by manager, through which a
pod's metadata may be set (no environment of the trainer), here of the group of Jobs named `node`.
"""

from __future__ import annotations

from typing import Any

from stitch_operator import names
from stitch_operator.webhook.adapters.adapter import Adapter, Annotations, Template, Workload, at
from stitch_operator.webhook.patch import Operation, entries, extend

TRAINER = "node"


class TrainJob:
    group, kind, resource = "trainer.kubeflow.org", "TrainJob", "trainjobs"
    version = "v1alpha1"

    def templates(self, workload: Workload) -> list[Template]:
        return []

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        present = at(workload, ("spec", "annotations"))
        missing = {name: value for name, value in annotations.items() if name not in present}
        made = entries(present, missing, "spec", "annotations")
        steps = ("spec", "runtimePatches")
        patches = at(workload, steps) or None
        if any(one.get("manager") == names.MANAGER for one in patches or []):
            return made
        pod = {"metadata": {"annotations": dict(annotations)}}
        job = {"name": TRAINER, "template": {"spec": {"template": pod}}}
        spec: dict[str, Any] = {"template": {"spec": {"replicatedJobs": [job]}}}
        own = {"manager": names.MANAGER, "trainingRuntimeSpec": spec}
        return [*made, *extend(patches, [own], *steps)]


ADAPTER: Adapter = TrainJob()
