"""A captured training step through the whole worker: from the request in the store to an artifact.

`requests/mlp` is what the job side handed in for tests/jobs/scripts/mlp_function.py (Adam).
"""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stitchcore.artifact import package
from stitchcore.artifact.sign import load_or_create_key, public_hex
from stitchcore.artifact.store import open_store
from stitchcore.cli.main import stitch
from stitchcore.device.host import host_device
from stitchcore.errors import Reason, Refusal
from stitchcore.options import Options

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from stitchcore.optimize import pipeline
from tests.waiting import RUN_SECONDS

CAPTURED = Path(__file__).parent / "requests" / "mlp"
DIGEST = (CAPTURED / "digest").read_text().strip()


def submit(store: Path, graph: bytes | None = None) -> Path:
    folder = store / "requests" / DIGEST
    folder.mkdir(parents=True)
    data = lzma.decompress((CAPTURED / "graph.pb.xz").read_bytes()) if graph is None else graph
    (folder / "graph.pb").write_bytes(data)
    shutil.copy(CAPTURED / "meta.json", folder / "meta.json")
    return folder


def options_in(folder: Path) -> Options:
    return Options(folder / "store", folder / "cache", folder / "key", jobs=2)


def answered(store: Path) -> tuple[str, str]:
    answer = open_store(str(store)).read_answer(DIGEST) or {}
    return answer["status"], answer["key"]


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("pipeline")
    options = options_in(folder)
    request = submit(options.store)
    key = pipeline.optimize(request, str(options.store), host_device(), options)
    assert isinstance(key, str), str(key)
    return folder, key


@pytest.mark.slow
def test_a_captured_step_becomes_a_signed_artifact(optimized: tuple[Path, str]) -> None:
    folder, key = optimized
    store = open_store(str(folder / "store"))
    assert answered(folder / "store") == ("ready", key)
    manifest, libraries = package.load(store, key, public_hex(load_or_create_key(folder / "key")))
    assert manifest.digest == DIGEST
    assert libraries
    assert all(region.remove for region in manifest.patch.regions)
    added = [node.op for region in manifest.patch.regions for node in region.add]
    assert set(added) >= {"StitchedFusion"}
    symbols = {entry.symbol for entry in manifest.kernels}
    assert len(symbols) == len(manifest.kernels)
    assert all(entry.symbol.encode() in libraries[entry.library] for entry in manifest.kernels)
    expect = manifest.expect
    assert expect.kernels_after * 10 < expect.kernels_before
    assert expect.bytes_after * 2 < expect.bytes_before


@pytest.mark.slow
def test_every_region_was_proved_on_telling_data(optimized: tuple[Path, str]) -> None:
    folder, key = optimized
    report = json.loads((folder / "store" / "artifacts" / key / "report.json").read_text())
    stitched = [region for region in report["regions"] if region["stitched"]]
    assert len(stitched) >= 10
    for region in stitched:
        assert region["proof"]["passed"], region["name"]
        assert region["proof"]["informative"], region["name"]
    assert "wrong_result" not in report["refusals"]
    assert report["refusals"]["library_call"] >= 8


@pytest.mark.slow
def test_operations_of_the_job_are_explained(optimized: tuple[Path, str]) -> None:
    """By the names of the script, from the artifact and from a session that used it."""
    folder, key = optimized
    store = folder / "store"
    events = store / "sessions" / "s1" / "events.jsonl"
    events.parent.mkdir(parents=True)
    event = {"time": 1.0, "type": "ready", "digest": DIGEST, "key": key}
    events.write_text(json.dumps(event) + "\n")

    def explain(*arguments: str, code: int = 0) -> Any:
        command = ["explain", *arguments, "--store", str(store), "--json"]
        result = CliRunner().invoke(stitch, command)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    for chosen in ([], ["--artifact", key[:8]], ["--session", "s1"]):
        (place,) = explain("MatMul", *chosen)
        assert place["reason"] == "library_call"
        assert "library" in place["meaning"]
    between = explain("Gelu/mul", "Gelu_1/mul")
    assert between["reason"] == "cycle"
    assert between["path"] == ["BiasAdd_1"]
    assert any("level" in told for told in between["differences"])
    assert explain("Gelu/mul", "Gelu/Erfc")["together"]
    assert "Gelu/mul" in explain("gelu/mull", code=2)["error"]["mend"]
    assert "in full" in explain("mul", "Gelu/mul", code=2)["error"]["mend"]
    assert "s1" in explain("mul", "--session", "s2", code=2)["error"]["mend"]


@pytest.mark.slow
def test_a_known_request_is_answered_without_a_stage(
    optimized: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, key = optimized
    options = options_in(folder)
    request = options.store / "requests" / DIGEST
    (options.store / "answers" / f"{DIGEST}.json").unlink()
    monkeypatch.setattr(pipeline, "STAGES", ())
    assert pipeline.optimize(request, str(options.store), host_device(), options) == key
    assert answered(options.store) == ("ready", key)


@pytest.mark.parametrize("graph", [b"not a graph", b"\x0a\xff\xff\xff\xff"])
def test_a_damaged_graph_is_refused_with_its_reason(tmp_path: Path, graph: bytes) -> None:
    options = options_in(tmp_path)
    request = submit(options.store, graph)
    refusal = pipeline.optimize(request, str(options.store), host_device(), options)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.PARSE_ERROR
    answer = open_store(str(options.store)).read_answer(DIGEST)
    assert answer is not None
    assert (answer["status"], answer["reason"]) == ("refused", "parse_error")


def test_an_empty_graph_is_refused(tmp_path: Path) -> None:
    options = options_in(tmp_path)
    request = submit(options.store, b"")
    refusal = pipeline.optimize(request, str(options.store), host_device(), options)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.REGION_TOO_SMALL


def test_an_unknown_planner_is_named(tmp_path: Path) -> None:
    options = replace(options_in(tmp_path), planner="wishful")
    request = submit(options.store, b"")
    refusal = pipeline.optimize(request, str(options.store), host_device(), options)
    assert isinstance(refusal, Refusal)
    assert "'wishful' is no planner; there is exhaustive" in refusal.detail


def test_a_missing_request_is_refused(tmp_path: Path) -> None:
    options = options_in(tmp_path)
    missing = options.store / "requests" / DIGEST
    refusal = pipeline.optimize(missing, str(options.store), host_device(), options)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.STORE_UNREADABLE


def test_a_gpu_that_is_too_old_is_an_answer(tmp_path: Path) -> None:
    """The job side names what it has; the compiler says which it compiles for."""
    options = options_in(tmp_path)
    request = submit(options.store)
    meta = json.loads((request / "meta.json").read_text())
    (request / "meta.json").write_text(json.dumps({**meta, "target": "sm_61"}))
    asked = ["--store", str(options.store), "--cache", str(options.cache)]
    child = [sys.executable, "-m", "stitchcore.cli.optimize", *asked, "--key", str(options.key),
             "--planner", options.planner, "--jobs", "1"]  # fmt: skip
    digest = f"{request.name}\n".encode()
    assert subprocess.run(child, input=digest, timeout=RUN_SECONDS).returncode == 0
    answer = open_store(str(options.store)).read_answer(DIGEST) or {}
    assert (answer["status"], answer["reason"]) == ("refused", Reason.WRONG_TARGET.value)
    assert "sm_61" in answer["detail"] and "sm_90" in answer["detail"]
