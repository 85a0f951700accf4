"""kubeflow.org TFJob (training operator v1): a template per role, pods made by it directly."""

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

ROLES = ("spec", "tfReplicaSpecs")


class TFJob:
    group, kind, resource = "kubeflow.org", "TFJob", "tfjobs"
    version = "v1"

    def templates(self, workload: Workload) -> list[Template]:
        roles = at(workload, ROLES)
        return [
            Template((*ROLES, role, "template"), count(roles[role].get("replicas")))
            for role in sorted(roles)
        ]

    def stamp(self, workload: Workload, annotations: Annotations) -> list[Operation]:
        return stamped(workload, self.templates(workload), annotations)


ADAPTER: Adapter = TFJob()
