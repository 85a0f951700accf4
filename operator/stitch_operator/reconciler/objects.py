"""The reconciler's Kubernetes objects, rendered from what the code itself uses, so none can drift.

The CRD's schema comes from the records that are written, the rules from what is watched and called.
`python -m stitch_operator.reconciler.objects` prints them as YAML.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from stitch_operator.names import GROUP
from stitch_operator.objects import RBAC, READ, Object, account, definition, labels_of, schema
from stitch_operator.reconciler.cluster import KINDS, PLURAL
from stitch_operator.reconciler.records import Spec, Status
from stitch_operator.reconciler.writer import KIND
from stitch_operator.webhook import release as releases
from stitch_operator.webhook.cluster import breakers_name
from stitch_operator.webhook.release import Release

WATCH = ["list", "watch"]
VIEW = "stitchcore-view"
"""The same in every release: two in one cluster would inject into the same pods, and Helm refuses
what another release owns."""


def job_definition() -> Object:
    """The CustomResourceDefinition of StitchedJob."""
    columns: list[Object] = [
        {"name": "Workload", "type": "string", "jsonPath": ".spec.workload.name"},
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Speedup", "type": "string", "jsonPath": ".status.speedup.summary"},
        {"name": "GPU-h saved", "type": "number", "jsonPath": ".status.gpuHoursSaved"},
        {"name": "Replicas", "type": "string", "jsonPath": ".status.replicas.summary"},
        {"name": "Reason", "type": "string", "jsonPath": ".status.reason"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Step", "type": "string", "jsonPath": ".status.step.time", "priority": 1},
        {"name": "Kernels", "type": "string", "jsonPath": ".status.step.kernels", "priority": 1},
        {"name": "Core-s saved", "type": "number", "jsonPath": ".status.cpuCoreSecondsSaved",
         "priority": 1},
        {"name": "Kind", "type": "string", "jsonPath": ".spec.workload.kind", "priority": 1},
    ]  # fmt: skip
    properties = {"spec": schema(Spec), "status": schema(Status)}
    kind = {"plural": PLURAL, "singular": "stitchedjob", "kind": KIND, "shortNames": ["sj"]}
    return definition("Namespaced", kind, properties, columns, subresources={"status": {}})


def roles(release: Release) -> list[Object]:
    """What the reconciler's account may do: read what it watches, write its own objects. And what
    whoever may view a namespace may: read the StitchedJobs there."""
    kinds: dict[str, list[str]] = {}
    for one in KINDS:
        kinds.setdefault(one.group, []).append(one.resource)
    rules = [
        {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": WATCH},
        # The release before posts events of the older kind: in an upgrade it leads under this role.
        {"apiGroups": [""], "resources": ["events"], "verbs": [*WATCH, "create"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
        *({"apiGroups": [group], "resources": names, "verbs": WATCH}
          for group, names in kinds.items()),
        {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": [*WATCH, "create"]},
        {"apiGroups": [GROUP], "resources": [f"{PLURAL}/status"], "verbs": ["patch"]},
    ]  # fmt: skip
    own = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": [*WATCH, "patch"],
         "resourceNames": [breakers_name(release.name)]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
         "verbs": ["get", "update"], "resourceNames": [f"{release.name}-reconciler"]},
    ]  # fmt: skip
    viewers = {
        "name": VIEW,
        "labels": {**labels_of(release), "rbac.authorization.k8s.io/aggregate-to-view": "true"},
    }
    viewed = [{"apiGroups": [GROUP], "resources": [PLURAL], "verbs": READ}]
    return [
        *account(release, "reconciler", rules, own),
        {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": viewers, "rules": viewed},
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stitch_operator.reconciler.objects")
    parser.add_argument("--release", type=Path, help="settings; without it the CRD alone")
    given = parser.parse_args(arguments)
    made = [job_definition()]
    if given.release is not None:
        made += roles(releases.read(given.release))
    yaml.safe_dump_all(made, sys.stdout, sort_keys=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
