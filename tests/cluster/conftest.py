"""Clusters for tests: one for the session, a namespace for each test.

A cluster named by KUBECONFIG is used where its context says that it is there to be thrown away;
else one is brought up from the programs of `make cluster-build`, and taken down at the end.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kubernetes import client, config

from tests.cluster import build, parts, places, plane
from tests.cluster import cluster as clusters
from tests.cluster.cluster import Cluster
from tests.cluster.parts import Level
from tests.waiting import wait_for

DISPOSABLE = ("kind-", "k3d-", "stitch-testbed")
"""Contexts of clusters that tests may fill and empty."""
BUILDING_SECONDS = 1500.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Building is waited for."""
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.timeout(BUILDING_SECONDS + 600))


def require(level: Level) -> None:
    """Programs that are being built are waited for; without them, or the right to run them, the
    test is skipped."""
    build.wait(level, BUILDING_SECONDS)
    if reason := (parts.missing(level) and build.unable()) or clusters.unable(level):
        pytest.skip(f"no cluster of the {level.value} level: {reason}")


@contextmanager
def of_this_session(level: Level, name: str = "") -> Iterator[Cluster]:
    """A cluster that ends with this process."""
    require(level)
    clusters.sweep()
    name = f"{name or level.value}-{os.getpid()}"
    yield clusters.up(level, name, owner=os.getpid())
    clusters.down(name)


@pytest.fixture(scope="session")
def own_cluster() -> Iterator[Cluster]:
    """A cluster of the API level that this session brought up: tests may hurt it."""
    with of_this_session(Level.API) as made:
        yield made


@pytest.fixture(scope="session")
def node_cluster() -> Iterator[Cluster]:
    """A cluster with a node that runs containers; tests may hurt it."""
    with of_this_session(Level.NODE) as made:
        yield made


@pytest.fixture(scope="session")
def controllers() -> Iterator[Cluster]:
    """A cluster of the API level with the controllers of other projects; tests may hurt it."""
    with of_this_session(Level.CONTROLLERS) as made:
        yield made


@pytest.fixture(scope="session")
def api(request: pytest.FixtureRequest) -> Iterator[client.ApiClient]:
    """An administrator's client of KUBECONFIG's disposable cluster, else of the session's own."""
    given = places.given_kubeconfig()
    if given is None:
        given = request.getfixturevalue("own_cluster").kubeconfig
    else:
        refuse_precious(given)
    with plane.client_of(given) as found:
        yield found


def refuse_precious(kubeconfig: os.PathLike[str]) -> None:
    """Tests never touch a cluster that somebody may need."""
    _, current = config.list_kube_config_contexts(str(kubeconfig))
    if not current["name"].startswith(DISPOSABLE):
        pytest.skip(
            f"KUBECONFIG's context {current['name']!r} is not one of a disposable cluster "
            f"({', '.join(DISPOSABLE)}...): `unset KUBECONFIG` to have one brought up"
        )


@pytest.fixture
def namespace(api: client.ApiClient) -> Iterator[str]:
    """A namespace of the test's own whose pods may be created at once."""
    with namespace_in(client.CoreV1Api(api)) as name:
        yield name


@contextmanager
def namespace_in(core: client.CoreV1Api) -> Iterator[str]:
    """A new namespace whose pods may be created at once."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    core.create_namespace({"metadata": {"name": name}})
    wait_for(lambda: _has_account(core, name), "the namespace has its service account")
    yield name
    core.delete_namespace(name)


def _has_account(core: client.CoreV1Api, namespace: str) -> bool:
    accounts = core.list_namespaced_service_account(namespace).items
    return any(account.metadata.name == "default" for account in accounts)
