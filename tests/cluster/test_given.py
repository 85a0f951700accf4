"""A cluster that somebody gives to the tests: taken where it says that it may be thrown away."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.cluster import cluster as clusters
from tests.cluster import places, processes
from tests.cluster.cluster import Record
from tests.cluster.conftest import refuse_precious
from tests.cluster.parts import Level
from tests.cluster.plane import Network


def kubeconfig(folder: Path, name: str) -> Path:
    path = folder / "config"
    context = {"name": name, "context": {"cluster": "c", "user": "u"}}
    document: dict[str, object] = {"apiVersion": "v1", "kind": "Config", "current-context": name}
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


def test_a_cluster_of_another_pid_namespace_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner and programs cannot be seen from here: what looks dead may well be alive."""
    monkeypatch.setattr(places, "MEMORY", tmp_path / "none")
    monkeypatch.setattr(places, "DISK", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = Network(port=1, etcd_port=2, peer_port=3, fake_nodes_port=4)
    dead = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    for where in ("pid:[1]", processes.namespace()):
        state = places.states(in_memory=False) / "somebodys"
        state.mkdir(exist_ok=True)
        record = Record(Level.API, network, dead, where)
        (state / clusters.RECORD).write_bytes(msgspec.json.encode(record))
        clusters.sweep()
        assert state.exists() == (where == "pid:[1]")
        if state.exists():
            with pytest.raises(processes.NotUp, match="another pid namespace"):
                clusters.down("somebodys")
            assert state.exists()
