"""The examples as a real API server takes them, with the other projects' own definitions.

Those come from their Go modules. Volcano's module is not to be had from the public proxy: its
example is looked at by our adapter alone (tests/operator/webhook/test_examples.py).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.helm import charts

pytestmark = pytest.mark.cluster
FOLDER = charts.ROOT / "examples" / "kubernetes"
BUILT_IN = ("job", "cronjob", "pod", "egress")
FOREIGN = {
    "jobset": ("sigs.k8s.io/jobset@v0.10.1", "config/components/crd/bases/*_jobsets.yaml"),
    "trainjob": ("github.com/kubeflow/trainer/v2@v2.0.1", "manifests/base/crds/*_trainjobs.yaml"),
    "tfjob": (
        "github.com/kubeflow/training-operator@v1.9.3", "manifests/base/crds/*_tfjobs.yaml"
    ),
}  # fmt: skip


def tried(cluster: Cluster, name: str) -> None:
    """Raises where the API server does not take it, or knows a field of it not."""
    path = str(FOLDER / f"{name}.yaml")
    cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_kinds_of_kubernetes(own_cluster: Cluster, name: str) -> None:
    tried(own_cluster, name)


@pytest.fixture
def definition(own_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Its CustomResourceDefinition is in the cluster."""
    module, pattern = FOREIGN[request.param]
    asked = ["go", "mod", "download", "-json", module]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    paths = sorted(Path(json.loads(done.stdout)["Dir"]).glob(pattern))
    own_cluster.kubectl("create", "-f", str(paths[0]))
    name = yaml.safe_load(paths[0].read_text())["metadata"]["name"]
    own_cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")
    yield request.param
    own_cluster.kubectl("delete", "crd", name)


@pytest.mark.parametrize("definition", sorted(FOREIGN), indirect=True)
def test_kinds_of_others(own_cluster: Cluster, definition: str) -> None:
    tried(own_cluster, definition)


def test_the_policy(own_cluster: Cluster) -> None:
    text = charts.helm("template", "c", str(charts.CRDS))
    own_cluster.kubectl("create", "-f", "-", stdin=text)
    try:
        own_cluster.kubectl(
            "wait", "--for=condition=Established", "crd/stitchpolicies.stitchcore.io"
        )
        tried(own_cluster, "policy")
    finally:
        own_cluster.kubectl("delete", "-f", "-", stdin=text)
