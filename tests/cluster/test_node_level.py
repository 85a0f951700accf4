"""The node is a real one: containers run, Services and names lead there, and it all goes again."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from stitch_operator.gateway.tokenreview import TokenReview
from stitch_operator.names import AUDIENCE
from tests.cluster import cluster as clusters
from tests.cluster import enclosure, images, node, pki, places, plane, processes
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import namespace_in, require
from tests.cluster.objects import RESTRICTED, job, pod
from tests.cluster.parts import Level
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]
ROOT = Path(__file__).resolve().parents[2]
UP = "import sys; from tests.cluster import cluster, parts; "
UP += "cluster.up(parts.Level.NODE, sys.argv[1])"
QUERY = (
    bytes.fromhex("abcd01000001000000000000")
    + b"".join(
        bytes([len(word)]) + word for word in b"kubernetes default svc cluster local".split()
    )
    + bytes.fromhex("0000010001")
)
"""A DNS question for the address of kubernetes.default.svc.cluster.local."""


@pytest.fixture(scope="module")
def core(node_cluster: Cluster) -> Iterator[client.CoreV1Api]:
    with node_cluster.api() as api:
        yield client.CoreV1Api(api)


@pytest.fixture
def space(core: client.CoreV1Api) -> Iterator[str]:
    """A namespace of the node's cluster that enforces `restricted`."""
    with namespace_in(core) as name:
        label = {"pod-security.kubernetes.io/enforce": "restricted"}
        core.patch_namespace(name, {"metadata": {"labels": label}})
        yield name


def container(*arguments: str, **more: Any) -> dict[str, Any]:
    """A pod of one real container."""
    main = {
        "name": "main",
        "image": images.PAUSE,
        "imagePullPolicy": "Never",
        "args": list(arguments),
        "securityContext": RESTRICTED,
    }
    spec = {"containers": [{**main, **more.pop("main", {})}], "restartPolicy": "Never"}
    return {**spec, "terminationGracePeriodSeconds": 1, **more}


def ended(core: client.CoreV1Api, space: str, name: str) -> client.V1Pod:
    def over() -> client.V1Pod | None:
        found = core.read_namespaced_pod(name, space)
        return found if found.status.phase in ("Succeeded", "Failed") else None

    return wait_for(over, f"{name} ends")


def test_a_real_container_of_a_job_runs(
    node_cluster: Cluster, core: client.CoreV1Api, space: str
) -> None:
    batch = client.BatchV1Api(core.api_client)
    batch.create_namespaced_job(space, job("train", container("say", "hello", "from a container")))
    wait_for(lambda: batch.read_namespaced_job("train", space).status.succeeded, "its end")
    words = node_cluster.kubectl("logs", "--namespace", space, "job/train")
    assert words == "hello\nfrom a container\n"


def test_its_exit_code_is_the_programs(core: client.CoreV1Api, space: str) -> None:
    core.create_namespaced_pod(space, pod("fails", container("say", "no", "exits", "7")))
    [status] = ended(core, space, "fails").status.container_statuses
    assert status.state.terminated.exit_code == 7


def test_our_token_review_knows_a_token_that_the_kubelet_gave(
    core: client.CoreV1Api, space: str
) -> None:
    source = {"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": 600, "path": "t"}}
    volume = {"name": "gateway", "projected": {"sources": [source], "defaultMode": 0o444}}
    mount = {"volumeMounts": [{"name": "gateway", "mountPath": "/gateway"}]}
    first = container("show", "/gateway/t", main=mount)["containers"][0]
    waits = container(main={"resources": {"limits": {"cpu": "250m"}}}, volumes=[volume])
    waits["initContainers"] = [{**first, "name": "shows"}]
    began = time.time()
    core.create_namespaced_pod(space, pod("train", waits))
    running = wait_for(
        lambda: (
            (found := core.read_namespaced_pod("train", space)).status.phase == "Running" and found
        ),
        "the pod runs",
    )
    token = core.read_namespaced_pod_log("train", space, container="shows")
    identity = TokenReview(core.api_client).identify(token)
    assert (identity.namespace, identity.owner, identity.gpu) == (space, "train", "cpu")
    assert (identity.pod, identity.devices) == (running.metadata.uid, 0.25)
    assert identity.started is not None and began - 2 < identity.started < time.time() + 1


def test_services_are_reached_through_kube_proxy(node_cluster: Cluster) -> None:
    address = pki.first_host(node_cluster.record.network.services)
    trusted = ssl.create_default_context(cafile=str(node_cluster.state / "pki" / "ca.crt"))

    def version() -> bytes:
        try:
            with urllib.request.urlopen(f"https://{address}/version", context=trusted) as answer:
                return bytes(answer.read())
        except OSError:
            return b""

    assert b"v1.36" in wait_for(version, "the Service answers")


def test_names_of_services_are_found(node_cluster: Cluster) -> None:
    network = node_cluster.record.network
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.settimeout(5)
        asked.sendto(QUERY, (node.dns_address(network), 53))
        answer = asked.recv(512)
    assert answer.endswith(socket.inet_aton(pki.first_host(network.services)))


def test_nothing_inside_reaches_another_network(
    node_cluster: Cluster, core: client.CoreV1Api, space: str
) -> None:
    """A node's programs reach this machine by the link between the two, pods not even that."""
    core.create_namespaced_pod(space, pod("waits", container()))
    running = wait_for(
        lambda: (
            (found := core.read_namespaced_pod("waits", space)).status.phase == "Running" and found
        ),
        "the pod runs",
    )
    network = node_cluster.record.network
    pid = contained(node_cluster.state, running.metadata.uid)[0]
    in_pod = ("nsenter", f"--net=/proc/{pid}/ns/net")
    on_node = enclosure.entering(enclosure.Site(node_cluster.state))
    assert reaches(in_pod, pki.first_host(network.services)) and reaches(in_pod, network.address)
    assert reaches(on_node, network.gateway) and not reaches(in_pod, network.gateway)
    for address in (*addresses_of_this_machine() - {network.gateway}, "8.8.8.8"):
        assert not reaches(in_pod, address) and not reaches(on_node, address), address


def addresses_of_this_machine() -> set[str]:
    shown = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, check=True).stdout
    found = {one["local"] for link in json.loads(shown) for one in link.get("addr_info", ())}
    return found - {"127.0.0.1"}


@pytest.fixture
def name() -> Iterator[str]:
    require(Level.NODE)
    chosen = f"updown-{uuid.uuid4().hex[:8]}"
    yield chosen
    clusters.down(chosen)


def traces() -> set[str]:
    """Mounts, links, routes, named namespaces and cgroups of this machine."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    for command in ("ip -brief link", "ip route", "iptables-save -t nat"):
        shown = subprocess.run(command.split(), capture_output=True, text=True).stdout
        lines += [line for line in shown.splitlines() if not line.startswith(("#", ":"))]
    kept = [*Path("/run").glob("*/*"), *Path("/var/lib").glob("*/*"), *Path("/var/log").iterdir()]
    kept += enclosure.CGROUPS.rglob("*stitch-testbed*")
    return {*lines, *map(str, kept)}


def test_nothing_of_a_node_with_running_pods_is_left(name: str) -> None:
    before = traces()
    up = clusters.up(Level.NODE, name)
    with plane.client_of(up.kubeconfig) as api:
        core = client.CoreV1Api(api)
        with namespace_in(core) as space:
            core.create_namespaced_pod(space, pod("waits", container()))
            wait_for(
                lambda: core.read_namespaced_pod("waits", space).status.phase == "Running",
                "the pod runs",
            )
    assert len(contained(up.state)) == 2  # the sandbox and the container
    clusters.down(name)
    assert processes.owned(up.state) == []
    assert contained(up.state) == []
    assert not up.state.exists()
    assert traces() <= before


def test_a_second_node_joins_runs_pods_and_leaves_nothing(name: str) -> None:
    """Pods of the two reach each other, a Service and the cluster's names; logs are read."""
    before = traces()
    up = clusters.up(Level.NODE, name)
    assert up.add_node() == enclosure.SECOND
    with up.api() as api:
        core = client.CoreV1Api(api)
        with namespace_in(core) as space:
            said = container("say", "from", "the second", nodeName=enclosure.SECOND)
            core.create_namespaced_pod(space, pod("says", said))
            assert ended(core, space, "says").spec.node_name == enclosure.SECOND
            assert core.read_namespaced_pod_log("says", space) == "from\nthe second\n"
            for node_name in (enclosure.FIRST, enclosure.SECOND):
                core.create_namespaced_pod(space, pod(node_name, container(nodeName=node_name)))
            wait_for(
                lambda: all(
                    core.read_namespaced_pod(node_name, space).status.phase == "Running"
                    for node_name in (enclosure.FIRST, enclosure.SECOND)
                ),
                "both run",
            )
            address = core.read_namespaced_pod(enclosure.SECOND, space).status.pod_ip
            second = enclosure.Site(up.state, enclosure.SECOND)
            for beginning in ((), enclosure.entering(enclosure.Site(up.state))):
                assert reaches(beginning, address)
            server = f"{pki.first_host(up.record.network.services)}"
            assert reaches(enclosure.entering(second), server)
            up.kubectl("drain", enclosure.SECOND, "--force", "--timeout=60s")
            assert [one.spec.node_name for one in core.list_namespaced_pod(space).items] == [
                enclosure.FIRST
            ]
    clusters.down(name)
    assert processes.owned(up.state) == [] and not up.state.exists()
    assert traces() <= before


def reaches(beginning: tuple[str, ...], address: str) -> bool:
    """Whether something at `address` takes or refuses a connection to port 443, from inside."""
    program = (
        "import socket, sys; s = socket.socket(); s.settimeout(5); "
        "sys.exit(s.connect_ex((sys.argv[1], 443)) not in (0, 111))"
    )
    command = [*beginning, sys.executable, "-c", program, address]
    return subprocess.run(command).returncode == 0


def test_a_killed_up_of_a_node_leaves_nothing_after_down(name: str) -> None:
    before = traces()
    state = places.states(in_memory=False) / name
    killed = subprocess.Popen([sys.executable, "-c", UP, name], cwd=ROOT, start_new_session=True)
    wait_for(lambda: processes.alive(state, "kubelet"), "the kubelet runs", seconds=600)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert clusters.down(name)
    assert processes.owned(state) == [] and not state.exists()
    assert traces() <= before


def contained(state: Path, pod: str = "") -> list[int]:
    """Processes of the pods of the cluster at `state`, or of the one with this uid: they bear no
    mark, but are in its cgroup."""
    own = enclosure.cgroup(enclosure.Site(state))
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and own in (group := _cgroup(entry)) and pod in group
    ]


def _cgroup(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""
