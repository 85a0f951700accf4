"""A cluster that somebody gives to the tests: taken where it says that it may be thrown away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.conftest import refuse_precious


def kubeconfig(folder: Path, name: str) -> Path:
    path = folder / "config"
    context = {"name": name, "context": {"cluster": "c", "user": "u"}}
    document = {"apiVersion": "v1", "kind": "Config", "current-context": name}
    document |= {"clusters": [{"name": "c", "cluster": {}}], "users": [{"name": "u", "user": {}}]}
    path.write_text(json.dumps({**document, "contexts": [context]}))
    return path


@pytest.mark.parametrize("name", ["production", "my-kind-cluster", "kind"])
def test_a_precious_cluster_is_not_touched(tmp_path: Path, name: str) -> None:
    with pytest.raises(pytest.skip.Exception, match="unset KUBECONFIG"):
        refuse_precious(kubeconfig(tmp_path, name))


@pytest.mark.parametrize("name", ["kind-tests", "k3d-tests", "stitch-testbed"])
def test_a_disposable_cluster_is_taken(tmp_path: Path, name: str) -> None:
    refuse_precious(kubeconfig(tmp_path, name))
