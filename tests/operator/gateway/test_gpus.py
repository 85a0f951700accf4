"""GPU accounting: a gateway's own process asks who a pod is, and what its node advertises."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from kubernetes import client

from stitch_operator.gateway.identity import GPUS
from stitch_operator.gateway.tokenreview import TokenReview
from stitch_operator.metrics import METRICS
from tests.operator.gateway import processes
from tests.operator.gateway.pods import READER, Made, Pods, serving
from tests.operator.gateway.support import graph, key_of, submission
from tests.ports import free_port

SECOND = 10**9
PRODUCT, REPLICAS = "nvidia.com/gpu.product", "nvidia.com/gpu.replicas"
H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-40GB"


@dataclass(frozen=True)
class Case:
    """A pod's limits and its node's labels; the `gpu` and the devices that it counts as."""

    limits: Mapping[str, str]
    labels: Mapping[str, str]
    gpu: str
    devices: float


CASES = {
    "two": Case({"nvidia.com/gpu": "2", "cpu": "16"}, {PRODUCT: H100}, "h100", 2.0),
    "slice": Case({"nvidia.com/mig-3g.20gb": "1"}, {PRODUCT: A100}, "a100", 3 / 7),
    "cut": Case({"nvidia.com/gpu": "2"}, {PRODUCT: f"{A100}-MIG-1g.5gb"}, "a100", 2 / 7),
    "shared": Case(
        {"nvidia.com/gpu": "1"}, {PRODUCT: "Tesla-T4-SHARED", REPLICAS: "4"}, "t4", 0.25
    ),
    "renamed": Case(
        {"nvidia.com/gpu.shared": "1"}, {PRODUCT: "NVIDIA-L4", REPLICAS: "2"}, "l4", 0.5
    ),
    "unknown": Case({"nvidia.com/gpu": "1"}, {PRODUCT: "NVIDIA-X9000"}, "other", 1.0),
    "unlabelled": Case({"nvidia.com/gpu": "8"}, {}, "other", 8.0),
    "excluded": Case({"nvidia.com/gpu": "1"}, {PRODUCT: "Tesla-T4-SHARED"}, "t4", 0.0),
    "cores": Case({"cpu": "4"}, {PRODUCT: H100}, "cpu", 4.0),
}
"""NVIDIA's device plugin and GPU feature discovery: resource names, product and replicas labels."""


@pytest.fixture
def pods() -> Iterator[Pods]:
    with serving() as found:
        yield found


def made(pods: Pods, name: str) -> Made:
    pods.nodes[f"node-{name}"] = CASES[name].labels
    return pods.add(f"team-{name}", name, CASES[name].limits, f"node-{name}", ago=60)


@pytest.mark.parametrize("name", CASES)
def test_a_pod_is_what_its_limits_and_its_node_say(pods: Pods, name: str) -> None:
    who = TokenReview(client.ApiClient(client.Configuration(host=pods.url)))
    found = who.identify(made(pods, name).token)
    assert (found.gpu, found.namespace) == (CASES[name].gpu, f"team-{name}")
    assert found.devices == pytest.approx(CASES[name].devices)


@pytest.mark.slow
def test_seconds_are_multiplied_by_what_the_pod_holds(pods: Pods, tmp_path: Path) -> None:
    """Every pod claims 3 s saved and 1 s lost on 64 devices. The reconciler reads the same."""
    data = graph()
    reader = pods.reader()
    access = ("--kubeconfig", str(pods.kubeconfig(tmp_path)), "--reader", READER)
    held = {name: made(pods, name) for name in CASES}
    with (
        processes.redis(free_port(), tmp_path) as broker,
        processes.gateway(tmp_path, broker, *access, token=False) as gateway,
    ):
        for name, pod in held.items():
            _saved(gateway, data, f"team-{name}", pod.token)
        page = httpx.get(gateway.metrics, trust_env=False).text
        answer = gateway.client.get("/v1/workloads", headers=_bearer(reader.token))
    rows = {one["namespace"]: one for one in answer.json()["workloads"]}
    for name, case in CASES.items():
        row = rows[f"team-{name}"]
        assert row.get("saved", 0.0) == pytest.approx(3 * case.devices)
        assert row.get("lost", 0.0) == pytest.approx(1 * case.devices)
        assert row.get("gpu", "cpu") == case.gpu
        if case.gpu == "cpu":
            saved = f'stitch_cpu_core_seconds_saved_total{{namespace="team-{name}"}}'
        else:
            saved = f'stitch_gpu_seconds_saved_total{{gpu="{case.gpu}",namespace="team-{name}"}}'
        assert _value(page, saved) == pytest.approx(3 * case.devices), name
    told = set(re.findall(r'gpu="([^"]*)"', page))
    assert told <= {*GPUS, "other"} and len(told) > 4, "of the closed list alone"
    assert set(METRICS["stitch_gpu_seconds_saved_total"].labels[1].values) == {*GPUS, "other"}


def _saved(gateway: processes.Gateway, data: bytes, namespace: str, token: str) -> None:
    who = _bearer(token)
    digest, request = key_of(data, namespace)
    gateway.client.post("/v1/graphs", json=submission(data), headers=who)
    about = {"session": "s1", "graph": digest, "key": request, "devices": 64, "pairs": 9}
    times = {"baseline_ns": 15 * SECOND, "stitched_ns": 12 * SECOND, "lost_ns": 0, "steps": 9}
    rose = {**about, **times, "seq": 1, "interval": [1, 2]}
    fell = {**rose, "seq": 2, "lost_ns": 1 * SECOND}
    for said in (rose, fell):
        answer = gateway.client.post("/v1/savings", json=said, headers=who)
        assert answer.json()["status"] == "counted", answer.text


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _value(page: str, series: str) -> float:
    lines = [line for line in page.splitlines() if line.startswith(f"{series} ")]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0
