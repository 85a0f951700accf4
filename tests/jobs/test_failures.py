"""What can go wrong around a stitched job: its losses stay bit-identical, and one line says why.

Through `stitch run` and a real script. The job side's own failures with a hand-made worker (slow,
crashing and wrong kernels) are in tests/inject/test_jobs.py; here the artifact is a generated one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stitchcore.artifact import sign
from tests import lean
from tests.jobs import judge as judges
from tests.waiting import RUN_SECONDS

JOB = judges.Job("tf1_session")
STEPS = 8
BOOTSTRAP = judges.ROOT / "stitchcore" / "inject" / "bootstrap"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> judges.Record:
    return judges.untouched(JOB, tmp_path_factory.mktemp("plain"), STEPS, forked=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, plain: judges.Record) -> Path:
    """A store whose artifact a first stitched run made and used."""
    folder = tmp_path_factory.mktemp("made")
    record = judges.stitched(JOB, folder / "out", STEPS, folder)
    assert judges.stitched_steps(record), record.lines
    return folder


def told(record: judges.Record) -> list[str]:
    """The lines in which the job side itself gives a reason."""
    return [line for line in record.lines if "the job runs its own step" in line]


def left_alone(record: judges.Record, plain: judges.Record, *reasons: str) -> None:
    """Losses are the untouched run's, bit for bit, and one line names one of `reasons`."""
    assert record.losses == plain.losses
    assert not judges.stitched_steps(record)
    lines = told(record) or list(record.lines)
    assert len(lines) == 1 and any(reason in lines[0] for reason in reasons), record.lines


def spoiled(made: Path, target: Path, spoil: Callable[[Path], None]) -> Path:
    """A copy of the store with its one artifact changed by `spoil`."""
    shutil.copytree(made, target)
    (artifact,) = (target / "store" / "artifacts").iterdir()
    spoil(artifact)
    return target


def test_untouched_runs_repeat_exactly(plain: judges.Record, tmp_path: Path) -> None:
    """Without this, bit-identity below would say nothing."""
    assert judges.untouched(JOB, tmp_path / "again", STEPS).losses == plain.losses


def test_the_artifact_is_used(plain: judges.Record, made: Path, tmp_path: Path) -> None:
    """The other tests spoil what works otherwise."""
    record = judges.stitched(JOB, tmp_path / "out", STEPS, made)
    assert judges.stitched_steps(record)
    assert judges.losses_apart(record.losses, plain.losses) <= judges.FIRST_TOLERANCE


def test_worker_dead(plain: judges.Record, tmp_path: Path) -> None:
    """The worker has no memory to start in."""
    limits = {"STITCH_WORKER_MEMORY": str(2**28)}
    record = judges.stitched(JOB, tmp_path / "out", STEPS, tmp_path, environ=limits)
    left_alone(record, plain, "worker_failed")


def test_worker_deadline(plain: judges.Record, tmp_path: Path) -> None:
    # The limit of processor time, which would end it otherwise, is that on every core.
    limits = {"STITCH_WORKER_SECONDS": "1"}
    record = judges.stitched(JOB, tmp_path / "out", STEPS, tmp_path, environ=limits)
    left_alone(record, plain, "deadline: the worker took longer than 1 s")


def test_job_deadline(plain: judges.Record, tmp_path: Path) -> None:
    """The job waits a tenth of a second, which no worker can keep."""
    limits = {"STITCH_WAIT": "0.1"}
    record = judges.stitched(JOB, tmp_path / "out", STEPS, tmp_path, environ=limits)
    left_alone(record, plain, "deadline")


def test_store_unreadable(plain: judges.Record, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the store should be")
    record = judges.stitched(JOB, tmp_path / "out", STEPS, tmp_path)
    left_alone(record, plain, "store_unreadable")


def test_kernel_file_truncated(plain: judges.Record, made: Path, tmp_path: Path) -> None:
    def spoil(artifact: Path) -> None:
        library = next(artifact.glob("*.so"))
        library.write_bytes(library.read_bytes()[:-512])

    store = spoiled(made, tmp_path / "spoiled", spoil)
    left_alone(judges.stitched(JOB, tmp_path / "out", STEPS, store), plain, "bad_artifact")


def test_signature_of_another_key(plain: judges.Record, made: Path, tmp_path: Path) -> None:
    def spoil(artifact: Path) -> None:
        other = sign.load_or_create_key(tmp_path / "other.key")
        manifest = (artifact / "manifest.json").read_bytes()
        (artifact / "manifest.sig").write_bytes(sign.sign(other, manifest))

    store = spoiled(made, tmp_path / "spoiled", spoil)
    left_alone(judges.stitched(JOB, tmp_path / "out", STEPS, store), plain, "bad_signature")


def test_wrong_instruction_set(plain: judges.Record, made: Path, tmp_path: Path) -> None:
    """A well-signed artifact for another machine."""

    def spoil(artifact: Path) -> None:
        manifest = json.loads((artifact / "manifest.json").read_text())
        manifest["target"] = "cpu-x86-64-v9"
        data = json.dumps(manifest).encode()
        key = sign.load_or_create_key(tmp_path / "spoiled" / "signing.key")
        (artifact / "manifest.json").write_bytes(data)
        (artifact / "manifest.sig").write_bytes(sign.sign(key, data))

    store = spoiled(made, tmp_path / "spoiled", spoil)
    left_alone(judges.stitched(JOB, tmp_path / "out", STEPS, store), plain, "wrong_target")


def test_exception_in_the_hook(plain: judges.Record, tmp_path: Path) -> None:
    """A plug-in that is no library: the hook cannot even start."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    for name in ("stitch_plugin.so", "shim_tf221.so"):
        (folder / name).write_bytes(b"not a library")
    limits = {"STITCH_PLUGIN": str(folder)}
    record = judges.stitched(JOB, tmp_path / "out", STEPS, tmp_path, environ=limits)
    left_alone(record, plain, "hook_error")


def test_a_plugin_that_is_not_built(plain: judges.Record, tmp_path: Path) -> None:
    limits = {"STITCH_PLUGIN": str(tmp_path)}
    record = judges.stitched(JOB, tmp_path / "out", STEPS, tmp_path, environ=limits)
    left_alone(record, plain, "unsupported_version")


def test_nothing_found(plain: judges.Record, tmp_path: Path) -> None:
    """The hook alone, with a store that nobody serves."""
    store, out = tmp_path / "store", tmp_path / "out"
    store.mkdir()
    env = lean.environment(PYTHONPATH=str(BOOTSTRAP), STITCH_STORE=str(store))
    out.mkdir()
    done = subprocess.run(
        JOB.command(out, STEPS),
        env=env,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=True,
    )
    assert tuple(json.loads((out / "losses.json").read_text())) == plain.losses
    lines = [line for line in done.stderr.splitlines() if "[stitch]" in line]
    assert len(lines) == 1 and "no_artifact" in lines[0]


def test_a_failing_script_keeps_its_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stitchcore.cli", "run", "--store", str(tmp_path / "store")]
    command += ["--", sys.executable, "-c", "import sys; sys.exit(7)"]
    env = lean.environment(PYTHONPATH=str(judges.ROOT), STITCH_KEY=str(tmp_path / "key"))
    assert (
        subprocess.run(command, env=env, timeout=RUN_SECONDS, capture_output=True).returncode == 7
    )
