"""The reconciler and a gateway, both real, against a real API server: what users see of a job."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client

from stitch_operator.gateway.service import tenant_of
from stitchcore.artifact.store import open_store
from tests.cluster import places, reconciling
from tests.cluster.plane import client_of
from tests.cluster.reconciling import Gateway, Place, Played, Running, failed, job, running
from tests.operator.gateway import support as graphs
from tests.tiers import nightly_but
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
SECOND = 10**9


@pytest.fixture(scope="module")
def place(
    api: client.ApiClient, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    given = places.given_kubeconfig()
    if given is None:
        given = request.getfixturevalue("own_cluster").kubeconfig
    with reconciling.installed(api, given, tmp_path_factory.mktemp("release")) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(place: Place) -> Iterator[Gateway]:
    with place.gateway() as made:
        yield made


@pytest.fixture
def reconciler(place: Place, gateway: Gateway) -> Iterator[Running]:
    with place.reconciler(url=gateway.url) as made:
        yield made


def train(place: Place, namespace: str, name: str = "train", **spec: Any) -> Played:
    template = reconciling.injected_template(place.release, namespace)
    return job(place, namespace, name, template, **spec)


def becomes(played: Played, phase: str, reason: str = "") -> None:
    try:
        wait_for(lambda: played.phase() == (phase, reason), f"{phase} {reason}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {played.status()}") from None


def test_a_job_from_its_creation_to_its_savings(
    place: Place, gateway: Gateway, reconciler: Running, namespace: str
) -> None:
    played = train(place, namespace)
    becomes(played, "Pending")
    [pod] = played.pods
    made = played.stitched()
    assert made is not None
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner.get("controller")) == ("Job", "train", None)
    assert "finalizers" not in made["metadata"]
    played.set(pod, running())
    becomes(played, "Observing")
    data = graphs.graph(salt=time.monotonic_ns() % 2**31)
    digest, request = graphs.key_of(data, namespace)
    with gateway.client(place.token(namespace, pod)) as asked:
        assert asked.post("/v1/graphs", json=graphs.submission(data)).status_code == 202
        becomes(played, "Compiling")
        artifact = f"{time.monotonic_ns():064x}"
        graphs.publish(open_store(str(place.folder / "store")), request, artifact)
        wait_for(lambda: asked.get(f"/v1/graphs/{request}").status_code == 200, "ready")
        becomes(played, "Measuring")
        event = {"session": "s1", "graph": digest, "key": artifact}
        for seq, kind in ((1, "timed"), (2, "swap-begin"), (3, "swap-ok")):
            said = {**event, "seq": seq, "type": kind}
            assert asked.post("/v1/jobs/events", json=said).status_code == 200
        said = {**event, "seq": 4, "steps": 70, "baseline_ns": 12 * SECOND,
                "stitched_ns": 10 * SECOND, "interval": [SECOND, 3 * SECOND], "pairs": 9,
                "devices": 1.0}  # fmt: skip
        assert asked.post("/v1/savings", json=said).json()["status"] == "counted"
    becomes(played, "Optimized")
    status = played.status()
    told = {"ratio": 1.2, "low": 1.1, "high": 1.3, "summary": "1.200 [1.100, 1.300]"}
    assert status["speedup"] == told
    assert (status["step"]["time"], status["step"]["kernels"]) == ("171 ms → 143 ms", "57 → 5")
    assert status["step"]["left"] == "5 x library_call"
    cells = printed(place, namespace)
    assert (cells["Phase"], cells["Speedup"], cells["Replicas"]) == (
        *("Optimized", told["summary"], "1/1"),
    )
    assert (cells["Step"], cells["Kernels"]) == ("171 ms → 143 ms", "57 → 5")
    assert status["cpuCoreSecondsSaved"] == 2.0 and status["replicas"]["summary"] == "1/1"
    assert [one["graph"] for one in status["graphs"]] == [digest]
    assert sorted(played.events()) == ["Compiling", "Injected", "Optimized", "Swapped"]
    assert sorted(played.described()) == ["Compiling", "Injected", "Optimized", "Swapped"]
    assert tenant_of(namespace) not in str(played.stitched())
    client.BatchV1Api(place.api).delete_namespaced_job(
        "train", namespace, propagation_policy="Background"
    )
    wait_for(lambda: _none(place, namespace), "it goes with its job")


def printed(place: Place, namespace: str) -> dict[str, object]:
    """What `kubectl get stitchedjobs -o wide` prints of the one that is there."""
    accept = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
    table = client.CustomObjectsApi(place.api).list_namespaced_custom_object(
        "stitchcore.io", "v1alpha1", namespace, "stitchedjobs", _headers=accept
    )
    [row] = table["rows"]
    return {one["name"]: cell for one, cell in zip(table["columnDefinitions"], row["cells"],
                                                   strict=True)}  # fmt: skip


def _none(place: Place, namespace: str) -> bool:
    custom = client.CustomObjectsApi(place.api)
    found = custom.list_namespaced_custom_object("stitchcore.io", "v1alpha1", namespace,
                                                 "stitchedjobs")  # fmt: skip
    return not found["items"]


@pytest.mark.parametrize(
    "killed", nightly_but("once it has told", of=("once it has told", "once it has written"))
)
def test_killed_anywhere_it_tells_everything_once(
    place: Place, gateway: Gateway, namespace: str, killed: str
) -> None:
    with place.reconciler(url=gateway.url) as first:
        played = train(place, namespace, parallelism=2)
        [one, other] = played.pods
        played.set(one, running())
        wait_for(lambda: played.events() == ["Injected"], "told")
        if killed == "once it has written":
            becomes(played, "Observing")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(120)
    before = played.status().get("conditions", [])
    assert before or killed == "once it has told"
    played.set(other, running())
    with place.reconciler(url=gateway.url) as second:
        becomes(played, "Observing")
        wait_for(lambda: played.status()["replicas"]["injected"] == 2, "both")
        time.sleep(2)
        assert played.events() == played.described() == ["Injected"]
        assert second.metric('stitch_events_total{type="Injected"}') == 0
    after = played.status()["conditions"]
    assert [one for one in before if one not in after] == []


def test_missed_pods_are_told_and_left_as_they_are(
    place: Place, reconciler: Running, namespace: str
) -> None:
    played = job(place, namespace, "missed", {"spec": reconciling.TRAINS})
    becomes(played, "Skipped", "missed_admission")
    assert played.events() == ["Skipped"]
    assert reconciler.metric("stitch_missed_admissions_total") == 1
    [before] = played.pods
    time.sleep(1)
    [after] = played.pods
    assert after.metadata.uid == before.metadata.uid
    assert after.metadata.resource_version == before.metadata.resource_version


def test_silence_is_told_after_five_minutes(
    place: Place, reconciler: Running, namespace: str
) -> None:
    played = train(place, namespace)
    played.set(played.pods[0], running(ago=400))
    becomes(played, "NoContact", "no_contact")
    assert "NoContact" in played.events()


def test_while_the_gateway_is_away_nothing_is_concluded(place: Place, namespace: str) -> None:
    with place.reconciler() as alone:
        played = train(place, namespace)
        played.set(played.pods[0], running(ago=400))
        becomes(played, "Observing")
        wait_for(lambda: alone.metric("stitch_reconciler_gateway_failures_total") > 0, "it asks")
        other = train(place, namespace, "broken", backoffLimit=0)
        other.set(other.pods[0], failed())
        time.sleep(3)
        assert f"{namespace} broken" not in lines(place, "workloads")
        assert played.phase() == ("Observing", "")


def lines(place: Place, kind: str) -> list[str]:
    try:
        found = place.core.read_namespaced_config_map("stitch-breakers", place.release.namespace)
    except client.ApiException:
        return []
    return [line for line in (found.data or {}).get(kind, "").splitlines() if line]


def test_what_fails_before_its_first_step_is_left_alone(
    place: Place, reconciler: Running, namespace: str
) -> None:
    played = train(place, namespace, "early", backoffLimit=0)
    played.set(played.pods[0], failed())
    wait_for(lambda: f"{namespace} early" in lines(place, "workloads"), "it is listed")


def test_a_stranger_can_read_no_stitched_job(
    place: Place, reconciler: Running, namespace: str
) -> None:
    played = train(place, namespace)
    becomes(played, "Pending")
    account = place.kubeconfig("default", "default")
    custom = client.CustomObjectsApi(client_of(account))
    where = ("stitchcore.io", "v1alpha1", namespace, "stitchedjobs")
    calls: list[tuple[Callable[..., object], tuple[str, ...]]] = [
        (custom.list_namespaced_custom_object, where),
        (custom.get_namespaced_custom_object, (*where, played.name_of_stitched)),
        (custom.list_cluster_custom_object, ("stitchcore.io", "v1alpha1", "stitchedjobs")),
    ]
    for call, arguments in calls:
        with pytest.raises(client.ApiException) as caught:
            call(*arguments)
        assert caught.value.status == 403


def test_its_account_may_touch_no_job_and_read_no_secret(place: Place, namespace: str) -> None:
    """What must fail, tried: a reconciler that was taken over is not the cluster's end."""
    account = place.kubeconfig(place.release.namespace, reconciling.ACCOUNT)
    mine = client_of(account)
    core, batch = client.CoreV1Api(mine), client.BatchV1Api(mine)
    played = train(place, namespace)
    [pod] = played.pods
    name, another = pod.metadata.name, {"metadata": {"name": "p"}, "spec": reconciling.TRAINS}
    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
        (core.delete_namespaced_pod, (name, namespace)),
        (core.patch_namespaced_pod, (name, namespace, {"metadata": {"labels": {"a": "b"}}})),
        (core.create_namespaced_pod, (namespace, another)),
        (batch.patch_namespaced_job, ("train", namespace, {"spec": {"suspend": True}})),
        (batch.delete_namespaced_job, ("train", namespace)),
        (core.list_namespaced_secret, (namespace,)),
        (core.list_namespaced_config_map, (namespace,)),
        (core.patch_namespace, (namespace, {"metadata": {"labels": {"a": "b"}}})),
    ]
    for call, arguments in calls:
        with pytest.raises(client.ApiException) as caught:
            call(*arguments)
        assert caught.value.status == 403


def test_a_pod_of_another_account_is_told_nothing(
    place: Place, gateway: Gateway, namespace: str
) -> None:
    made = place.core.create_namespaced_pod(
        place.release.namespace, {"metadata": {"name": "curious"}, "spec": reconciling.TRAINS}
    )
    with gateway.client(place.token(place.release.namespace, made)) as asked:
        assert asked.get("/v1/workloads").status_code == 403
    own = (place.folder / "token").read_text()
    with gateway.client(own) as asked:
        assert asked.get("/v1/workloads").status_code == 200
