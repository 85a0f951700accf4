"""A worker that dies at any stage of a compilation, or whose disk is full there: in the end the
graph is finished, and nothing torn is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.local import LocalFileSystem

from tests.waiting import RUN_SECONDS

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from stitch_worker import units, unsigned
from stitch_worker.attempts import LOST
from stitch_worker.service import process
from stitch_worker.signer import Signer, run_once
from stitchcore.artifact import package, sign
from stitchcore.artifact.store import Store, open_store
from stitchcore.errors import Reason, Refused
from stitchcore.optimize import pipeline
from tests import tiers
from tests.worker import alone
from tests.worker.requests import meta_of, python_path, submit, tiny_graph

pytestmark = pytest.mark.slow
PIPELINE = [stage.name for stage in pipeline.STAGES]
COMPILING = ["begin", "start", *PIPELINE, "plan", "compile", "packed"]
"""Moments at which a death is a start without an end: before the compile child is started, and its
stages, of which building has parts."""
AFTER = ["upload", "uploaded"]


def attempt(folder: Path, key: str, what: str, stage: str) -> tuple[int, str]:
    """A worker's exit code, and what became of the request."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.alone", str(folder), key, what, stage],
        env={**os.environ, "PYTHONPATH": python_path()},
        stdout=subprocess.PIPE,
        text=True,
        timeout=RUN_SECONDS,
    )
    return done.returncode, done.stdout.strip()


def signed(store: Store, folder: Path, key: str) -> None:
    """The signer's round; then the artifact is there, and as a job would check it."""
    secret = sign.load_or_create_key(folder / "key")
    assert set(run_once(Signer(store, secret, (sign.public_hex(secret),))).values()) <= {"signed"}
    answer = store.read_answer(key) or {}
    assert answer["status"] == "ready" and answer["ratio"] >= 1.0, answer
    _, libraries = package.load(store, answer["key"], sign.public_hex(secret))
    assert libraries and not store.list(unsigned.FOLDER)


def whole(store: Store) -> None:
    """Whatever is to be seen in the store is complete."""
    for name in store.list("answers"):
        assert json.loads(store.read("answers", name))["status"] == "pending"
    for key in store.list(unsigned.FOLDER):
        assert unsigned.waiting(store, key)
    for scope in store.list(units.FOLDER):
        found = units.Units(store, alone.SECRET, scope, alone.host().target)
        for key in store.list(units.FOLDER, scope):
            assert found.find(key) is not None
    assert not store.list("artifacts")


@dataclass
class Lives:
    """Two graphs that workers die on, in turns: one alone would be quarantined for the deaths."""

    folder: Path
    keys: list[str] = field(default_factory=list)
    deaths: dict[str, int] = field(default_factory=dict)


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    made = Lives(tmp_path_factory.mktemp("lives"))
    store = open_store(str(made.folder / "store"))
    for rows in (1024, 2048):
        graph = tiny_graph(rows)
        meta = meta_of(graph, scope="cluster", tenant="cd" * 32)
        made.keys.append(submit(store, graph, meta))
    return made


@pytest.mark.parametrize(
    "stage",
    tiers.nightly_but(
        *("start", "lower", "build", "measure", "patch", "compile", "upload"),
        of=[*COMPILING, *AFTER],
    ),
)
def test_a_worker_is_killed(stage: str, lives: Lives) -> None:
    number = [*COMPILING, *AFTER].index(stage)
    key = lives.keys[number % 2]
    code, said = attempt(lives.folder, key, "die", stage)
    assert code == -9, f"it was to die at {stage}, and said {said}"
    if stage in COMPILING:
        lives.deaths[key] = lives.deaths.get(key, 0) + 1
    store = open_store(str(lives.folder / "store"))
    whole(store)
    known = json.loads(store.read("attempts", f"{key}.json"))
    assert known["started"] - known["ended"] == lives.deaths.get(key, 0) < LOST
    assert known["deaths"] == [], "a lost worker says nothing about the graph"


def test_every_graph_is_finished_in_the_end(lives: Lives) -> None:
    given = alone.service(lives.folder)
    for key in lives.keys:
        assert process(given, key) == "signing"
    for key in lives.keys:
        signed(given.store, lives.folder, key)
        assert process(given, key) == "ready"


# ---- a store that times out ----------------------------------------------------------------------
class Timing(LocalFileSystem):  # type: ignore[misc]
    """A network volume: from `late` on each call fails as fsspec's remote file systems do."""

    cachable = False
    late = False

    def _timed(name: str) -> Any:  # type: ignore[misc]
        def call(self: Timing, *given: Any, **named: Any) -> Any:
            if self.late:
                raise FSTimeoutError(f"{name}: no answer")
            return getattr(LocalFileSystem, name)(self, *given, **named)

        return call

    cat_file, pipe_file, exists = map(_timed, ("cat_file", "pipe_file", "exists"))
    ls, rm, makedirs, mv, open = map(_timed, ("ls", "rm", "makedirs", "mv", "open"))


def test_a_store_that_times_out_costs_time_only(tmp_path: Path) -> None:
    files = Timing()
    given = alone.service(tmp_path)
    store = Store(files, str(tmp_path / "store"))
    graph = tiny_graph()
    key = submit(given.store, graph, meta_of(graph, scope="cluster"))

    def told(event: str, _: str) -> None:
        files.late = files.late or event == "lower"

    late = replace(given, store=store, observe=told)
    with pytest.raises(Refused) as caught:
        process(late, key)
    assert caught.value.refusal.reason is Reason.STORE_UNREADABLE
    whole(given.store)
    files.late = False
    assert process(replace(late, observe=given.observe), key) == "signing"
    files.late = True
    with pytest.raises(Refused):
        run_once(Signer(store, sign.load_or_create_key(tmp_path / "key"), ()))
    files.late = False
    signed(store, tmp_path, key)


# ---- a full disk -------------------------------------------------------------------------------
FULL = ["begin", "lower", "compile", "upload"]
PROGRAM = """
import sys
from pathlib import Path
from tests.worker.test_stages import on_a_small_disk
on_a_small_disk(Path(sys.argv[1]))
print("all finished")
"""


def test_a_full_disk_during_a_compilation_costs_time_only(own_mounts: None, tmp_path: Path) -> None:
    """On a disk of its own, in a mount namespace of its own."""
    (tmp_path / "store").mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    mounted = 'mount -t tmpfs -o size=1m none "$1/store" && exec "$2" "$1/program.py" "$1"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted, "sh", str(tmp_path), sys.executable],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.stdout.strip().endswith("all finished"), (done.stdout, done.stderr[-3000:])


def on_a_small_disk(folder: Path) -> None:
    given = alone.service(folder)
    store, filler = given.store, folder / "store" / alone.FILLER
    graph = tiny_graph()
    key = submit(store, graph, meta_of(graph, scope="cluster"))
    for stage in FULL:
        code, said = attempt(folder, key, "fill", stage)
        assert (code, said) == (0, "store_unreadable"), (stage, code, said)
        assert os.statvfs(folder / "store").f_bavail == 0
        whole(store)
        assert store.read_answer(key) is not None, "what was told before stays"
        filler.unlink()
    assert process(given, key) == "signing"
    alone.fill(folder / "store")
    secret = sign.load_or_create_key(folder / "key")
    found = run_once(Signer(store, secret, (sign.public_hex(secret),)))
    assert list(found.values()) == ["store_unreadable"], found
    whole(store)
    filler.unlink()
    signed(store, folder, key)
