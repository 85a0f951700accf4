"""The product in a real cluster, with nothing mocked: charts installed, a job annotated, followed.

Used by the end-to-end test and by `make demo-cluster`. Images are those that the project's own
Dockerfiles give; the job's container is TensorFlow on a stand-in of the public Python image.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from kubernetes import client

from stitch_operator.webhook.pieces import INIT_CONTAINER
from tests.cluster import parts
from tests.cluster.cluster import Cluster
from tests.cluster.objects import RESTRICTED
from tests.cluster.processes import NotUp
from tests.ports import free_ports
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RELEASE, NAMESPACE, TEAM = "stitch", "stitch-system", "team-a"
VALUES = Path(__file__).parent / "whole-values.yaml"
IMPORTED = Path(__file__).parent / "imported-values.yaml"
VOLUMES = {"store": "8Gi", "ledger": "1Gi"}
OWNER = 65532
ENFORCE = {"pod-security.kubernetes.io/enforce": "restricted"}
LOSS = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)
VARIABLES = re.compile(r"^variables ([0-9a-f]{64})$", re.MULTILINE)
STITCHED = ("stitchcore.io", "v1alpha1")
STITCHED_JOBS = "stitchedjobs"
OPTIMIZE = "stitchcore.io/optimize"


@dataclass(frozen=True)
class Whole:
    """A cluster with the product in it."""

    cluster: Cluster
    trainer: str
    """Image of the jobs' containers: Python with TensorFlow."""
    settings: tuple[str, ...] = (f"--values={IMPORTED}",)
    """What Helm is told of the product's images: those that the node was given."""
    program: str = "helm"

    def helm(self, *arguments: str) -> str:
        """What helm prints. Raises NotUp with its words."""
        command = [str(parts.program(self.program)), f"--kubeconfig={self.cluster.kubeconfig}"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise NotUp(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def prepare(self) -> None:
        """Namespaces, volumes (there is no provisioner here) and scripts."""
        for number, (name, size) in enumerate(VOLUMES.items()):
            folder = self.cluster.state / "volumes" / name
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)
            self.apply(_volume(f"{name}-{number}", folder, size))
        for name in (NAMESPACE, TEAM):
            labels = {"metadata": {"name": name, "labels": ENFORCE}}
            self.apply({"apiVersion": "v1", "kind": "Namespace", **labels})
        scripts = [EXAMPLES / "train_mlp.py", EXAMPLES / "kubernetes" / "train_replicas.py"]
        data = {script.name: script.read_text() for script in scripts}
        place = {"metadata": {"name": "scripts", "namespace": TEAM}}
        self.apply({"apiVersion": "v1", "kind": "ConfigMap", **place, "data": data})

    def install(self, *more: str, seconds: int = 300) -> str:
        """`helm install` of both charts, as docs/install.md says. Raises NotUp where not all of it
        is ready in so many seconds."""
        self.helm("upgrade", "--install", "stitch-crds", str(ROOT / "helm" / "stitch-crds"),
                  f"--namespace={NAMESPACE}", "--wait", "--timeout=60s")  # fmt: skip
        return self.helm("upgrade", "--install", RELEASE, str(ROOT / "helm" / "stitch"),
                         f"--namespace={NAMESPACE}", f"--values={VALUES}", *self.settings,
                         "--wait", f"--timeout={seconds}s", *more)  # fmt: skip

    def apply(self, *documents: Mapping[str, Any]) -> None:
        """`kubectl apply`."""
        self.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def train(self, name: str, annotations: Mapping[str, str], steps: int) -> None:
        """Applies a Job that trains examples/train_mlp.py."""
        run = ["python", "/scripts/train_mlp.py", "--steps", str(steps)]
        job = _job(name, annotations, {"restartPolicy": "Never"}, self._container(run))
        self.apply(job)

    def train_replicas(self, name: str, annotations: Mapping[str, str], steps: int) -> None:
        """An Indexed Job of two pods that train examples/kubernetes/train_replicas.py together;
        a Service without an address gives them their names."""
        workers = [f"{name}-{index}.{name}.{TEAM}.svc.cluster.local:2222" for index in range(2)]
        cluster = json.dumps({"worker": workers})
        task = '{"cluster": %s, "task": {"type": "worker", "index": \'"$JOB_COMPLETION_INDEX"\'}}'
        run = f"TF_CONFIG='{task % cluster}' exec python /scripts/train_replicas.py"
        container = self._container(["sh", "-c", f"{run} --steps {steps}"])
        job = _job(name, annotations, {"restartPolicy": "Never", "subdomain": name}, container)
        job["spec"] |= {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
        selector = {"clusterIP": "None", "selector": {"job-name": name},
                    "publishNotReadyAddresses": True}  # fmt: skip
        place = {"metadata": {"name": name, "namespace": TEAM}}
        self.apply({"apiVersion": "v1", "kind": "Service", **place, "spec": selector}, job)

    def _container(self, command: list[str]) -> dict[str, Any]:
        return {
            "name": "train",
            "image": self.trainer,
            "imagePullPolicy": "Never",
            "command": command,
            "env": [{"name": "HOME", "value": "/tmp"}],
            "resources": {
                "requests": {"cpu": "200m", "memory": "1Gi"},
                "limits": {"cpu": "2", "memory": "3Gi"},
            },
            "securityContext": {**RESTRICTED, "runAsUser": OWNER},
            "volumeMounts": [
                {"name": "scripts", "mountPath": "/scripts"},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
        }

    def pods(self, job: str) -> list[Any]:
        """The job's pods, by name."""
        with self.cluster.api() as api:
            found = client.CoreV1Api(api).list_namespaced_pod(
                TEAM, label_selector=f"job-name={job}"
            )
        return sorted(found.items, key=lambda pod: pod.metadata.name)

    def logs(self, job: str) -> list[str]:
        """What its containers have said, one text per pod. Raises ApiException for one that has
        not begun."""
        texts = []
        with self.cluster.api() as api:
            for pod in self.pods(job):
                texts.append(
                    client.CoreV1Api(api).read_namespaced_pod_log(
                        pod.metadata.name, TEAM, container="train"
                    )
                )
        return texts

    def described(self, job: str) -> str:
        """What `kubectl` tells of the job's pods: their state, their Events, their logs."""
        chosen = ("--namespace", TEAM, "--selector", f"job-name={job}")
        texts = [self.cluster.kubectl("describe", "pods", *chosen)]
        for container in (INIT_CONTAINER, "train"):
            with suppress(NotUp):  # of a container that has not begun
                texts.append(
                    self.cluster.kubectl("logs", *chosen, f"--container={container}", "--tail=200")
                )
        return "\n".join(texts)

    def losses(self, job: str) -> list[dict[int, float]]:
        """Losses by step, one mapping per pod."""
        return [{int(step): float(loss) for step, loss in LOSS.findall(t)} for t in self.logs(job)]

    def ended(self, job: str) -> bool:
        """Whether it has completed. Raises NotUp where it has failed."""
        with self.cluster.api() as api:
            status = client.BatchV1Api(api).read_namespaced_job(job, TEAM).status
        if status.failed:
            raise NotUp(f"the job {job} has failed:\n{self.described(job)}")
        return bool(status.completion_time)

    def stitched_job(self, job: str) -> dict[str, Any]:
        """The StitchedJob of a Job; empty where there is none yet."""
        with self.cluster.api() as api:
            found = client.CustomObjectsApi(api).list_namespaced_custom_object(
                *STITCHED, TEAM, STITCHED_JOBS
            )
        for item in found["items"]:
            if any(owner["name"] == job for owner in item["metadata"]["ownerReferences"]):
                return dict(item)
        return {}

    def phases(self, job: str, seconds: float) -> Iterator[dict[str, Any]]:
        """Its StitchedJob, each time its phase changes, until the job has ended and what it last
        reported has been written. Raises NotUp when it takes longer."""
        deadline, last, after = time.monotonic() + seconds, "", 0.0
        while time.monotonic() < deadline:
            found = self.stitched_job(job)
            phase = str(found.get("status", {}).get("phase", ""))
            if phase != last:
                last = phase
                yield found
            if self.ended(job):
                after = after or time.monotonic() + SETTLE_SECONDS
                if time.monotonic() > after:
                    yield found
                    return
            time.sleep(1)
        raise NotUp(f"{job} did not end within {seconds:g} s: {last}\n{self.described(job)}")

    def events(self, job: str) -> list[tuple[str, str]]:
        """(reason, text) of our Events on the job."""
        with self.cluster.api() as api:
            found = client.CoreV1Api(api).list_namespaced_event(
                TEAM, field_selector=f"involvedObject.name={job}"
            )
        ours = [one for one in found.items if _of_us(one)]
        return [(str(one.reason), str(one.message)) for one in ours]

    def scraped(self) -> list[tuple[str, str]]:
        """(component, address) of the release's pods that have metrics."""
        with self.cluster.api() as api:
            pods = client.CoreV1Api(api).list_namespaced_pod(NAMESPACE).items
        return [
            (pod.metadata.labels["app.kubernetes.io/component"], pod.status.pod_ip)
            for pod in pods
            if any(p.name == "metrics" for c in pod.spec.containers for p in c.ports or ())
        ]

    def images(self) -> dict[str, str]:
        """Digest by image, of all containers that ran in the release's and the team's pods."""
        digests = {}
        with self.cluster.api() as api:
            for namespace in (NAMESPACE, TEAM):
                for pod in client.CoreV1Api(api).list_namespaced_pod(namespace).items:
                    statuses = pod.status.container_statuses or []
                    for status in [*statuses, *(pod.status.init_container_statuses or [])]:
                        digests[status.image] = status.image_id
        return digests


SETTLE_SECONDS = 20.0
"""After a job's end: its last report, and the reconciler's next look."""


def _of_us(event: Any) -> bool:
    source = event.reporting_component or (event.source.component if event.source else "")
    return "stitch" in str(source)


def _volume(name: str, folder: Path, size: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "hostPath": {"path": str(folder)},
        },
    }


def _job(
    name: str,
    annotations: Mapping[str, str],
    spec: Mapping[str, Any],
    container: Mapping[str, Any],
) -> dict[str, Any]:
    volumes = [{"name": "scripts", "configMap": {"name": "scripts"}},
               {"name": "tmp", "emptyDir": {}}]  # fmt: skip
    pod = {**spec, "containers": [container], "volumes": volumes}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": TEAM, "annotations": dict(annotations)},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }


@contextmanager
def prometheus(program: str, whole: Whole, folder: Path) -> Iterator[str]:
    """A real Prometheus that scrapes the release's pods; its URL. Debian's cannot ask an API server
    for them (built without it), so it is told where they are now."""
    (port,) = free_ports(1)
    targets = [
        {"targets": [f"{address}:9090"], "labels": {"component": component}}
        for component, address in whole.scraped()
    ]
    job = {"job_name": "stitch", "static_configs": targets, "scrape_interval": "2s"}
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "prometheus.yml"
    settings.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    command = [program, f"--config.file={settings}", f"--storage.tsdb.path={folder / 'data'}",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _is_up(url), "Prometheus answers")
        yield url
    finally:
        process.terminate()
        process.wait(120)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def asked(url: str, query: str) -> float:
    """The sum of what Prometheus finds."""
    answer = httpx.get(f"{url}/api/v1/query", params={"query": f"sum({query})"}, trust_env=False)
    found = answer.json()["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0
