"""Training jobs of every kind, alike but for their kind, with and without our annotation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.objects import SELECTOR

Object = dict[str, Any]
OPTIMIZE = "stitchcore.io/optimize"
RUNS = {"stitch-testbed/runs-on": ""}
"""On pods: kwok leaves them running."""
REQUESTS = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
QUEUE = "kueue.x-k8s.io/queue-name"


def template(name: str = "main") -> Object:
    """A pod template with what a user's has: resources, a limit, a second container."""
    main = {
        "name": name,
        "image": "example.test/train:1",
        "command": ["python", "train.py"],
        "resources": {"requests": dict(REQUESTS), "limits": dict(REQUESTS)},
    }
    log = {"name": "log", "image": "example.test/log:1", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"containers": [main, log], "nodeSelector": SELECTOR, "restartPolicy": "Never"}
    return {"metadata": {"annotations": dict(RUNS)}, "spec": spec}


@dataclass(frozen=True)
class Kind:
    """How one kind is made and suspended. `pods` it has; `suspend` are the steps to the field."""

    group: str
    version: str
    plural: str
    kind: str
    pods: int
    spec: Callable[[], Object]
    suspend: tuple[str, ...]

    def make(self, name: str, ours: bool, queue: str = "") -> Object:
        annotations = {OPTIMIZE: "true"} if ours else {}
        labels = {QUEUE: queue} if queue else {}
        return {
            "apiVersion": f"{self.group}/{self.version}",
            "kind": self.kind,
            "metadata": {"name": name, "annotations": annotations, "labels": labels},
            "spec": copy.deepcopy(self.spec()),
        }

    def suspended(self, value: bool) -> Object:
        """A merge patch."""
        patch: Any = value
        for step in reversed(self.suspend):
            patch = {step: patch}
        return dict(patch)


def _job() -> Object:
    return {"parallelism": 2, "completions": 2, "template": template()}


def _job_set() -> Object:
    jobs = [
        {"name": name, "replicas": 1,
         "template": {"spec": {"parallelism": pods, "completions": pods, "template": template()}}}
        for name, pods in (("leader", 1), ("workers", 2))
    ]  # fmt: skip
    return {"replicatedJobs": jobs}


def _tf_job() -> Object:
    def role(replicas: int) -> Object:
        made = template("tensorflow")
        del made["spec"]["restartPolicy"]
        return {"replicas": replicas, "restartPolicy": "Never", "template": made}

    return {"tfReplicaSpecs": {"Chief": role(1), "Worker": role(2)}}


def _train_job() -> Object:
    return {"runtimeRef": {"name": RUNTIME}, "trainer": {"numNodes": 2}}


RUNTIME = "tensorflow"
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def training_runtime() -> Object:
    """What an administrator installs once for TrainJobs: a step that fetches data, and training."""

    def job(name: str, step: str, **more: Any) -> Object:
        labels = {"labels": {STEP: step}}
        spec = {"template": template(name)}
        return {"name": name, "template": {"metadata": labels, "spec": spec}, **more}

    jobs = [job("dataset-initializer", "dataset-initializer"), job("node", "trainer")]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": RUNTIME, "labels": {"trainer.kubeflow.org/framework": "tensorflow"}},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": jobs}}},
    }


KINDS = {
    "Job": Kind("batch", "v1", "jobs", "Job", 2, _job, ("spec", "suspend")),
    "JobSet": Kind(
        *("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"), 3, _job_set, ("spec", "suspend")
    ),
    "TFJob": Kind(
        *("kubeflow.org", "v1", "tfjobs", "TFJob"), 3, _tf_job, ("spec", "runPolicy", "suspend")
    ),
    "TrainJob": Kind(
        *("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
        *(3, _train_job, ("spec", "suspend")),
    ),
}


def queues(namespace: str, nodes: int = 100) -> list[Object]:
    """Quota for everything here, under the namespace's name."""
    api = "kueue.x-k8s.io/v1beta1"
    quotas = [
        {"name": name, "nominalQuota": quota}
        for name, quota in (("cpu", 4 * nodes), ("memory", f"{8 * nodes}Gi"),
                            ("nvidia.com/gpu", nodes))
    ]  # fmt: skip
    flavors = [{"name": namespace, "resources": quotas}]
    group = {"coveredResources": [one["name"] for one in quotas], "flavors": flavors}
    named = {"metadata": {"name": namespace}, "apiVersion": api}
    return [
        {**named, "kind": "ResourceFlavor"},
        {**named, "kind": "ClusterQueue",
         "spec": {"namespaceSelector": {}, "resourceGroups": [group]}},
        {"apiVersion": api, "kind": "LocalQueue",
         "metadata": {"name": namespace, "namespace": namespace},
         "spec": {"clusterQueue": namespace}},
    ]  # fmt: skip
