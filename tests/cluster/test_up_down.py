"""Bringing a cluster up and taking it down: quick, killed at any moment, and nothing stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import cluster as clusters
from tests.cluster import places, plane, processes
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import require
from tests.cluster.parts import Level
from tests.cluster.plane import Network
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
UP = """
import sys
from tests.cluster import cluster
from tests.cluster.parts import Level
from tests.cluster.plane import Network
cluster.up(Level.API, sys.argv[1], owner=int(sys.argv[2]))
"""


@pytest.fixture
def name() -> Iterator[str]:
    require(Level.API)
    chosen = f"updown-{uuid.uuid4().hex[:8]}"
    yield chosen
    clusters.down(chosen)


def traces() -> set[str]:
    """Mounts and network namespaces of this machine."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    named = Path("/run/netns")
    return {*mounts, *(str(path) for path in (named.iterdir() if named.is_dir() else ()))}


def test_a_cluster_comes_up_and_leaves_nothing(name: str) -> None:
    before, began = traces(), time.monotonic()
    up = clusters.up(Level.API, name)
    print(f"up after {time.monotonic() - began:.1f} s")
    assert up.healthy()
    assert '"gitVersion": "v1.36' in up.kubectl("get", "--raw", "/version")
    assert len(processes.owned(up.state)) == 5
    assert clusters.up(Level.API, name) == up  # once more changes nothing
    assert len(processes.owned(up.state)) == 5
    assert clusters.down(name)
    assert not up.state.exists()
    assert processes.owned(up.state) == []
    assert traces() == before
    assert not clusters.down(name)


def _state_exists(state: Path) -> bool:
    return state.exists()


def _etcd_runs(state: Path) -> bool:
    return processes.alive(state, "etcd")


def _server_runs(state: Path) -> bool:
    return processes.alive(state, "kube-controller-manager")


@pytest.mark.parametrize("moment", [_state_exists, _etcd_runs, _server_runs])
def test_a_killed_up_is_taken_down_or_mended(name: str, moment: Callable[[Path], bool]) -> None:
    state = places.states(in_memory=True) / name
    killed = subprocess.Popen(
        [sys.executable, "-c", UP, name, "0"], cwd=ROOT, start_new_session=True
    )
    wait_for(lambda: moment(state), moment.__name__)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    left = processes.owned(state)
    up = clusters.up(Level.API, name)
    assert up.healthy() and not set(left) & set(processes.owned(state))
    clusters.down(name)
    assert processes.owned(state) == [] and not state.exists()


def test_a_killed_up_leaves_nothing_after_down(name: str) -> None:
    state = places.states(in_memory=True) / name
    killed = subprocess.Popen(
        [sys.executable, "-c", UP, name, "0"], cwd=ROOT, start_new_session=True
    )
    wait_for(lambda: _etcd_runs(state), "etcd runs")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert clusters.down(name)
    assert processes.owned(state) == [] and not state.exists()


def test_a_cluster_whose_owner_died_is_swept(name: str) -> None:
    script = UP.replace("int(sys.argv[2])", "__import__('os').getpid()")
    subprocess.run([sys.executable, "-c", script, name], cwd=ROOT, check=True, timeout=120)
    left = Cluster(places.states(in_memory=True) / name)
    assert left.healthy()
    clusters.sweep()
    assert not left.state.exists() and processes.owned(left.state) == []


def test_a_program_that_does_not_start_says_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = plane.daemons

    def broken(state: Path, network: Network) -> tuple[processes.Daemon, ...]:
        first, *others = real(state, network)
        return (processes.Daemon(first.name, (*first.command, "--no-such-flag")), *others)

    monkeypatch.setattr(plane, "daemons", broken)
    with pytest.raises(processes.NotUp, match="etcd ended"):
        clusters.up(Level.API, name)
    assert not (places.states(in_memory=True) / name).exists()


def test_the_command_line_says_what_to_do_next(name: str) -> None:
    command = [sys.executable, "-m", "tests.cluster"]
    up = [*command, "up", "--name", name]
    done = subprocess.run(up, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = re.search(r"export KUBECONFIG=(\S+)", done.stdout)
    assert found and Path(found[1]).is_file() and "make cluster-down" in done.stdout
    down = [*command, "down", "--name", name]
    assert subprocess.run(down, cwd=ROOT, capture_output=True, text=True).stdout == "ended\n"
    assert (
        subprocess.run(down, cwd=ROOT, capture_output=True, text=True).stdout == "there is none\n"
    )
