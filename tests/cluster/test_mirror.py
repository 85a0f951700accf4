"""The product in a cluster without a way out: by Helm 3, with all images from a mirror.

The mirror has what the chart's own list names, under the names that docs/install.md says, and the
nodes know no other registry. Only a job's own container is of an image that the node was given.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from kubernetes import client

from images import catalogue
from images.builder import Built
from stitch_operator.webhook.pieces import INIT_CONTAINER
from tests.cluster import images, own_images, registry
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import of_this_session
from tests.cluster.objects import RESTRICTED, job
from tests.cluster.parts import Level
from tests.cluster.registry import Registry
from tests.cluster.whole import NAMESPACE, OPTIMIZE, RELEASE, ROOT, TEAM, VALUES, Whole
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]
MIRROR = f"{registry.NAME}/mirror"
IMAGES = {
    "stitchcore/operator": catalogue.operator(),
    "stitchcore/runtime": catalogue.runtime(),
    "stitchcore/worker": catalogue.worker(),
    "library/redis": own_images.REDIS,
}
STEPS = 40
READY_SECONDS = 600.0
TRY = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.partition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
        print(place, "reached")
    except OSError as error:
        print(place, "refused by whom it reached" if error.errno == 111 else "not reached")
"""


@dataclass(frozen=True)
class Mirrored:
    """The product, installed from `registry`; images there by name."""

    whole: Whole
    registry: Registry
    pushed: dict[str, Built]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One of its own: the node of other tests has these images already."""
    with of_this_session(Level.NODE, "mirror") as made:
        yield made


@pytest.fixture(scope="module")
def mirrored(cluster: Cluster) -> Mirrored:
    settings = (f"--set=global.imageRegistry={MIRROR}",)
    whole = Whole(cluster, own_images.TRAINER.name, settings, program="helm3")
    built = {path: own_images.built(image) for path, image in IMAGES.items()}
    kept = registry.start(cluster)
    pushed = {}
    for name in listed(whole):
        path, _, tag = name.partition("/")[2].partition(":")
        pushed[f"{MIRROR}/{path}:{tag}"] = built[path]
        kept.push(built[path], f"mirror/{path}", tag)
    own_images.give(cluster, own_images.TRAINER)
    whole.prepare()
    whole.install(seconds=600)
    return Mirrored(whole, kept, pushed)


def listed(whole: Whole) -> list[str]:
    """What docs/install.md says is to be copied."""
    text = whole.helm(
        *("template", RELEASE, str(ROOT / "helm" / "stitch"), f"--values={VALUES}"),
        "--show-only=templates/release.yaml",
    )
    return str(yaml.safe_load(text)["data"]["images"]).split()


def test_all_of_it_runs_and_is_of_the_mirror(mirrored: Mirrored) -> None:
    """Helm 3 waits for a Deployment only until no more pods are missing than an update may take."""
    with mirrored.whole.cluster.api() as api:
        core = client.CoreV1Api(api)
        wait_for(
            lambda: all(map(ready, release(core))), "all pods are ready", seconds=READY_SECONDS
        )
        pods = release(core)
        given = {*mirrored.pushed, own_images.TRAINER.name, images.PAUSE}
        wait_for(
            lambda: there(core) == given, "the node has these images and no others", seconds=600
        )
    parts = {pod.metadata.labels["app.kubernetes.io/component"] for pod in pods}
    assert parts >= {"webhook", "gateway", "reconciler", "signer", "store", "redis", "worker"}
    for pod in pods:
        for status in [*pod.status.container_statuses, *(pod.status.init_container_statuses or ())]:
            assert status.image_id.endswith(f"@{mirrored.pushed[status.image].digest}")


def there(core: client.CoreV1Api) -> set[str]:
    """Names of the node's images, as it said last."""
    (node,) = core.list_node().items
    return {name for image in node.status.images for name in image.names if "@" not in name}


def release(core: client.CoreV1Api) -> list[Any]:
    """The release's pods; that of `helm test` is gone when it has passed."""
    return list(core.list_namespaced_pod(NAMESPACE).items)


def ready(pod: Any) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())


def test_its_layers_came_from_there(mirrored: Mirrored) -> None:
    got = "\n".join(mirrored.registry.served())
    for name, built in mirrored.pushed.items():
        repository = name.removeprefix(f"{registry.NAME}/").partition(":")[0]
        assert f"/v2/{repository}/blobs/sha256:" in got, name
        assert f"/v2/{repository}/manifests/{built.digest}" in got, name


def test_helm_test_passes(mirrored: Mirrored) -> None:
    said = mirrored.whole.helm("test", RELEASE, f"--namespace={NAMESPACE}")
    assert "Phase:          Succeeded" in said


def test_an_annotated_job_gets_the_runtime_of_the_mirror(mirrored: Mirrored) -> None:
    whole = mirrored.whole
    whole.train("mlp", {OPTIMIZE: "true"}, STEPS)
    wait_for(lambda: whole.ended("mlp"), "it ends", seconds=600)
    (pod,) = whole.pods("mlp")
    (delivered,) = pod.status.init_container_statuses
    assert (delivered.name, delivered.state.terminated.exit_code) == (INIT_CONTAINER, 0)
    runtime = mirrored.pushed[delivered.image]
    assert runtime.image == catalogue.runtime()
    assert delivered.image_id.endswith(f"@{runtime.digest}")
    found = wait_for(
        lambda: whole.stitched_job("mlp").get("status"), "it has its StitchedJob", seconds=600
    )
    assert found["phase"] not in ("Skipped", "NoContact"), found
    (losses,) = whole.losses("mlp")
    assert losses


def test_no_pod_reaches_or_is_of_anything_else(mirrored: Mirrored) -> None:
    whole = mirrored.whole
    network = whole.cluster.record.network
    with socket.create_server((network.gateway, 0)) as machine:
        here = f"{network.gateway}:{machine.getsockname()[1]}"
        socket.create_connection(machine.getsockname()).close()
        outside = (here, "8.8.8.8:53", "8.8.8.8:443")
        inside = ("kubernetes.default.svc.cluster.local:443", mirrored.registry.address)
        said = tried(whole, *outside, *inside)
    assert said == {**dict.fromkeys(outside, "not reached"), **dict.fromkeys(inside, "reached")}
    with whole.cluster.api() as api:
        core = client.CoreV1Api(api)
        core.create_namespaced_pod(TEAM, stranger())
        waiting = wait_for(lambda: waits(core), "it waits for its image")
        assert waiting.reason in ("ErrImagePull", "ImagePullBackOff"), waiting
        core.delete_namespaced_pod("stranger", TEAM)


def tried(whole: Whole, *places: str) -> dict[str, str]:
    """What a pod says of connections to these places, host:port."""
    run = {**container(own_images.TRAINER.name), "imagePullPolicy": "Never",
           "command": ["python", "-c", TRY, *places]}  # fmt: skip
    with whole.cluster.api() as api:
        body = job("tries", {"restartPolicy": "Never", "containers": [run]})
        client.BatchV1Api(api).create_namespaced_job(TEAM, body)
    wait_for(lambda: whole.ended("tries"), "it has tried", seconds=600)
    said = whole.cluster.kubectl("logs", "--namespace", TEAM, "job/tries")
    return dict(line.split(" ", 1) for line in said.splitlines())


def stranger() -> dict[str, Any]:
    """A pod of an image that is in the mirror, by the name that it has elsewhere."""
    run = container("docker.io/library/redis:7.4-bookworm")
    return {"metadata": {"name": "stranger"}, "spec": {"containers": [run]}}


def container(image: str) -> dict[str, Any]:
    return {"name": "train", "image": image, "securityContext": {**RESTRICTED, "runAsUser": 65532}}


def waits(core: client.CoreV1Api) -> Any:
    statuses = core.read_namespaced_pod("stranger", TEAM).status.container_statuses
    return (
        statuses
        and statuses[0].state.waiting
        and statuses[0].state.waiting.message
        and (statuses[0].state.waiting)
    )
