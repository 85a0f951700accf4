"""The images where they belong: pods of a real node, in a namespace that enforces `restricted`.

Read-only root file systems, no capabilities, the runtime's default seccomp profile; what is written
goes to emptyDirs and to one volume. Nothing is mocked: the kubelet starts what containerd unpacked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Queue
from kubernetes import client

from images import archive, catalogue
from stitch_operator.webhook import policy
from stitch_operator.webhook.injection import Situation
from stitchcore.artifact.store import Store, open_store
from stitchcore.device.host import host
from stitchcore.service.queues import TASK, queue_name
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import namespace_in
from tests.cluster.objects import RESTRICTED, pod
from tests.cluster.own_images import REDIS, TRAINER, built, give
from tests.operator.webhook import support
from tests.waiting import wait_for
from tests.worker.requests import TF, meta_of, python_path, submit, tiny_graph

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]
ROOT = Path(__file__).resolve().parents[2]
RUNTIME, OPERATOR, WORKER = catalogue.runtime(), catalogue.operator(), catalogue.worker()
LOCKED = {**RESTRICTED, "readOnlyRootFilesystem": True}
PROFILE = ROOT / "images" / "worker" / "seccomp.json"
SILENT_SECONDS = 62.0
"""After a minute without an answer the job side says that it has no gateway."""


@pytest.fixture(scope="module")
def core(node_cluster: Cluster) -> Iterator[client.CoreV1Api]:
    with node_cluster.api() as api:
        yield client.CoreV1Api(api)


@pytest.fixture
def space(core: client.CoreV1Api) -> Iterator[str]:
    with namespace_in(core) as name:
        label = {"pod-security.kubernetes.io/enforce": "restricted"}
        core.patch_namespace(name, {"metadata": {"labels": label}})
        yield name


def container(image: str, *arguments: str, **more: Any) -> dict[str, Any]:
    """Of a pod that a chart would make: what it may write is /tmp."""
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, *more.pop("volumeMounts", [])]
    made = {"name": "main", "image": image, "imagePullPolicy": "Never", "args": list(arguments)}
    return {**made, "securityContext": LOCKED, "volumeMounts": mounts, **more}


def spec(main: dict[str, Any], *volumes: dict[str, Any]) -> dict[str, Any]:
    own = [{"name": "tmp", "emptyDir": {}}, *volumes]
    made = {"containers": [main], "volumes": own, "restartPolicy": "Never"}
    return {**made, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}


def phase(core: client.CoreV1Api, space: str, name: str, *wanted: str, seconds: float) -> Any:
    """The pod, once it is in one of these phases."""

    def there() -> Any:
        found = core.read_namespaced_pod(name, space)
        return found if found.status.phase in wanted else None

    try:
        return wait_for(there, f"{name} is {' or '.join(wanted)}", seconds=seconds)
    except AssertionError:
        events = core.list_namespaced_event(space).items
        print(*[f"{event.reason}: {event.message}" for event in events], sep="\n")
        raise


def test_a_job_trains_with_the_delivered_runtime_and_misses_its_gateway(
    node_cluster: Cluster, core: client.CoreV1Api, space: str
) -> None:
    """Injected by the webhook's own code, with the memory that the contract allows."""
    give(node_cluster, RUNTIME, TRAINER)
    resources = {"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "100m"}}
    pauses = str(SILENT_SECONDS / 50)
    given = pod("train", spec(container(TRAINER.name, "55", pauses, resources=resources)))
    given["metadata"]["annotations"] = {"stitchcore.io/optimize": "true"}
    settings = support.release(
        image=RUNTIME.name,
        imagePullPolicy="Never",
        memory="16Mi",
    )
    authorities = (node_cluster.state / "pki" / "ca.crt").read_text()
    trust = replace(support.TRUST, authorities=authorities)
    made = support.injected(given, Situation(policy.Namespace(name=space), trust), settings)
    assert "stitchcore.io/injected" in made["metadata"]["annotations"]
    core.create_namespaced_pod(space, made)
    ended = phase(core, space, "train", "Succeeded", "Failed", seconds=300)
    log = core.read_namespaced_pod_log("train", space, container="main")
    assert ended.status.phase == "Succeeded", log[-2000:]
    [delivered] = ended.status.init_container_statuses
    assert (delivered.state.terminated.exit_code, delivered.state.terminated.message) == (0, None)
    losses = [float(one) for one in re.findall(r"^loss \d+ (.+)$", log, re.MULTILINE)]
    assert len(losses) == 55 and losses[-1] < losses[0]
    assert "[stitch] gateway_unreachable" in log and "the job runs its own step" in log


def test_a_job_says_so_where_nothing_was_delivered(
    node_cluster: Cluster, core: client.CoreV1Api, space: str
) -> None:
    """The reason is the init container's message, where the reconciler finds it."""
    give(node_cluster, RUNTIME)
    target = [{"name": "runtime", "mountPath": "/stitchcore/runtime", "readOnly": True}]
    main = container(RUNTIME.name, "/nowhere")
    first = {**container(RUNTIME.name, "/stitchcore/runtime"), "name": "first"}
    first["volumeMounts"] = [*first["volumeMounts"], *target]
    made = spec(main, {"name": "runtime", "emptyDir": {}})
    made["initContainers"] = [first]
    core.create_namespaced_pod(space, pod("fails", made))
    ended = phase(core, space, "fails", "Succeeded", "Failed", seconds=60)
    assert ended.status.phase == "Succeeded"
    [refused] = ended.status.init_container_statuses
    why = "deliver: cannot create .partial: Read-only file system\n"
    assert refused.state.terminated.message == why


@pytest.fixture
def volume(core: client.CoreV1Api, space: str) -> Iterator[Path]:
    """A folder that this machine and pods with the claim `store` share."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="stitch-store-") as folder:
        Path(folder).chmod(0o777)
        name = f"store-{space}"
        size = {"storage": "1Gi"}
        place = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        whole = {"capacity": size, "hostPath": {"path": folder}, **place}
        core.create_persistent_volume({"metadata": {"name": name}, "spec": whole})
        claim = {"volumeName": name, "resources": {"requests": size}, **place}
        core.create_namespaced_persistent_volume_claim(
            space, {"metadata": {"name": "store"}, "spec": claim}
        )
        yield Path(folder)
        core.delete_persistent_volume(name)


STORE = {"name": "store", "persistentVolumeClaim": {"claimName": "store"}}


@pytest.fixture
def broker(node_cluster: Cluster, core: client.CoreV1Api, space: str) -> str:
    """A Redis in a pod: its URL for this machine and for pods."""
    give(node_cluster, REDIS)
    main = container(REDIS.name, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    core.create_namespaced_pod(space, pod("redis", spec(main, {"name": "data", "emptyDir": {}})))
    running = phase(core, space, "redis", "Running", seconds=60)
    return f"redis://{running.status.pod_ip}:6379/0"


def service(core: client.CoreV1Api, space: str, broker: str, seccomp: dict[str, str]) -> None:
    """A worker and a signer, as the chart starts them."""
    mounts = [{"name": "store", "mountPath": "/store"}, {"name": "key", "mountPath": "/key"}]
    key = {"name": "key", "emptyDir": {}}
    compiles = container(
        WORKER.name, "--store", "/store/store", "--kernel-key", "/key/kernel.key",
        "--heartbeat", "/tmp/heartbeat", volumeMounts=mounts,
        env=[{"name": "STITCH_BROKER", "value": broker}],
        securityContext={**LOCKED, "seccompProfile": seccomp},
    )  # fmt: skip
    signs = container(
        OPERATOR.name, "stitch_worker.signer", "--store", "/store/store", "--key",
        "/key/signing.key", volumeMounts=mounts,
    )  # fmt: skip
    for name, main in (("worker", compiles), ("signer", signs)):
        core.create_namespaced_pod(space, pod(name, spec(main, STORE, key)))


def enqueue(broker: str, key: str) -> None:
    """As the gateway does."""
    app = Celery("test", broker=broker, set_as_current=False)
    name = queue_name(host().target, TF)
    queue = Queue(name, routing_key=name)
    app.send_task(TASK, args=[key], queue=queue, ignore_result=True)


@pytest.mark.parametrize("profile", ["RuntimeDefault", "Localhost"])
def test_a_worker_compiles_what_a_signer_signs_and_it_is_right(
    node_cluster: Cluster, core: client.CoreV1Api, space: str, volume: Path, broker: str,
    tmp_path: Path, profile: str,
) -> None:  # fmt: skip
    """By Landlock, and by namespaces where the node's profile allows them: docs/images.md."""
    give(node_cluster, OPERATOR, WORKER)
    seccomp = {"type": profile}
    if profile == "Localhost":
        seccomp["localhostProfile"] = PROFILE.name
        known = node_cluster.state / "kubelet" / "seccomp"
        known.mkdir(exist_ok=True)
        (known / PROFILE.name).write_bytes(PROFILE.read_bytes())
    store = open_store(str(volume / "store"))
    graph = tiny_graph()
    key = submit(store, graph, meta_of(graph, scope="cluster"))
    for path in volume.rglob("*"):
        path.chmod(0o777)
    service(core, space, broker, seccomp)
    enqueue(broker, key)
    answer = answered(core, space, store, key)
    assert answer["status"] == "ready", answer
    report = judged(volume / "store" / "artifacts" / str(answer["key"]), volume, tmp_path)
    assert "StitchedFusion" in report["operations"] and "Relu" not in report["operations"]
    assert report["difference"] <= 1e-6 * report["magnitude"]
    assert answer.get("open", []) == []
    assert store.list("kernels"), "those of a confined child are kept"


def answered(core: client.CoreV1Api, space: str, store: Store, key: str) -> dict[str, Any]:
    """The final answer; a pod of the service that ends has failed, and its log says why."""
    names = ("worker", "signer")

    def final() -> dict[str, Any] | None:
        for name in names:
            assert core.read_namespaced_pod(name, space).status.phase != "Failed", name
        found = store.read_answer(key) or {}
        return found if found.get("status") in ("ready", "refused") else None

    try:
        return wait_for(final, "an answer", seconds=600)
    except AssertionError:
        print(*[core.read_namespaced_pod_log(name, space) for name in names], sep="\n")
        raise


def judged(artifact: Path, volume: Path, folder: Path) -> dict[str, Any]:
    """What becomes of the graph in a process that has the image's own native files."""
    made = built(RUNTIME).archive
    for name in ("stitch_plugin.so", "shim_tf221.so"):
        (folder / name).write_bytes(archive.read(made, f"/runtime/inject/lib/x86_64/{name}"))
    trusted = json.loads((volume / "store" / "public_keys.json").read_text())["public_keys"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.judge_artifact", artifact, folder, trusted[0]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
