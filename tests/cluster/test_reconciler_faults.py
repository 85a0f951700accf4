"""The reconciler while what it needs goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kubernetes import client

from tests.cluster import reconciling
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import namespace_in
from tests.cluster.reconciling import Place, running
from tests.cluster.test_reconciler import becomes, train
from tests.operator.gateway import support as graphs
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def place(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """On a cluster that may be hurt."""
    folder = tmp_path_factory.mktemp("faults")
    with (
        own_cluster.api() as api,
        reconciling.installed(api, own_cluster.kubeconfig, folder) as made,
    ):
        yield made


@pytest.fixture
def own_namespace(place: Place) -> Iterator[str]:
    with namespace_in(place.core) as name:
        yield name


def test_an_api_server_that_went_away_is_followed_again(
    own_cluster: Cluster, place: Place, own_namespace: str
) -> None:
    with place.gateway() as gateway, place.reconciler(url=gateway.url) as reconciler:
        played = train(place, own_namespace)
        gone = train(place, own_namespace, "gone")
        becomes(played, "Pending")
        own_cluster.stop("kube-apiserver")
        wait_for(
            lambda: reconciler.metric('stitch_reconciler_watch_failures_total{resource="pods"}'),
            "it has noticed",
        )
        assert reconciler.healthy()
        own_cluster.start("kube-apiserver")
        played.set(played.pods[0], running())
        becomes(played, "Observing")
        assert sorted(played.events()) == ["Injected"]
        client.BatchV1Api(place.api).delete_namespaced_job(
            gone.name, own_namespace, propagation_policy="Background"
        )
        later = train(place, own_namespace, "later")
        becomes(later, "Pending")


def test_a_gateway_that_was_killed_is_heard_again(place: Place, own_namespace: str) -> None:
    port = free_port()
    data = graphs.graph(salt=port)
    with place.reconciler(url=f"https://localhost:{port}") as reconciler:
        played = train(place, own_namespace)
        [pod] = played.pods
        played.set(pod, running())
        becomes(played, "Observing")
        with place.gateway(port) as gateway, gateway.client(place.token(own_namespace, pod)) as one:
            assert one.post("/v1/graphs", json=graphs.submission(data)).status_code == 202
            becomes(played, "Compiling")
        failures = reconciler.metric("stitch_reconciler_gateway_failures_total")
        wait_for(
            lambda: reconciler.metric("stitch_reconciler_gateway_failures_total") > failures,
            "it has noticed",
        )
        assert played.phase() == ("Compiling", "")
        with place.gateway(port) as gateway, gateway.client(place.token(own_namespace, pod)) as one:
            said = {"session": "s1", "seq": 1, "graph": "ab" * 32, "type": "timed"}
            assert one.post("/v1/jobs/events", json=said).status_code == 200
            read = "stitch_reconciler_gateway_read_seconds"
            before = reconciler.metric(read)
            wait_for(lambda: reconciler.metric(read) > before, "it is heard again")
            assert played.phase() == ("Compiling", "")
