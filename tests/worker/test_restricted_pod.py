"""A worker in a plain restricted pod, without namespaces: it compiles, and keeps kernels; one whose
children nothing would keep apart does not start."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stitch_worker.remote import Remote
from stitch_worker.service import process
from stitchcore.artifact.store import open_store
from tests.waiting import RUN_SECONDS
from tests.worker import alone
from tests.worker.requests import meta_of, python_path, submit, tiny_graph

IN_A_POD = [sys.executable, "-m", "tests.sandbox.restricted"]


def in_a_pod(*command: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": python_path(), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [*IN_A_POD, *command], capture_output=True, text=True, env=environment, timeout=timeout
    )


@pytest.mark.slow
def test_a_request_is_compiled_and_its_kernels_are_kept(
    tmp_path: Path, needs_landlock: None
) -> None:
    store = open_store(str(tmp_path / "store"))
    graph = tiny_graph()
    key = submit(store, graph, meta_of(graph, scope="cluster"))
    done = in_a_pod(sys.executable, "-m", "tests.worker.alone", str(tmp_path), key, "die", "never")
    assert done.stdout.strip() == "signing", done.stderr[-3000:]
    assert store.list("kernels", "cluster"), "also those for other graphs"
    assert "open" not in (store.read_answer(key) or {})


@pytest.mark.slow
def test_a_compiler_compiles_there_for_a_worker_elsewhere(
    tmp_path: Path, needs_landlock: None
) -> None:
    environment = {"PYTHONPATH": python_path(), "PATH": "/usr/bin:/bin"}
    argv = [*IN_A_POD, sys.executable, "-m", "stitch_worker.compiler", "--socket"]
    compiler = subprocess.Popen([*argv, str(tmp_path / "c")], env=environment)
    try:
        remote = Remote(tmp_path / "c")
        remote.awaited()
        service = replace(alone.service(tmp_path), children=remote)
        graph = tiny_graph()
        key = submit(service.store, graph, meta_of(graph, scope="cluster"))
        assert process(service, key) == "signing", service.store.read_answer(key)
        assert service.store.list("kernels", "cluster")
    finally:
        compiler.terminate()
        assert compiler.wait(RUN_SECONDS) == 0


PROGRAMS = {
    "worker": ["stitch_worker", "--broker", "redis://127.0.0.1:1/0", "--store"],
    "compiler": ["stitch_worker.compiler", "--socket"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_cannot_confine_does_not_start(tmp_path: Path, name: str) -> None:
    done = in_a_pod("--old", sys.executable, "-m", *PROGRAMS[name], str(tmp_path / "x"))
    assert done.returncode == 2
    what, mend = done.stderr.strip().splitlines()[-2:]
    assert what.startswith(f"{name}: compile children would not be confined: files: ")
    assert "libseccomp2" in mend and "seccompProfile" in mend
