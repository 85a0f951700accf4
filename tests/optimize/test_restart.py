"""A request's dump: a file per stage, and a run that goes on from an edited one of them."""

from __future__ import annotations

import json
import lzma
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stitchcore.artifact.store import open_store
from stitchcore.device.host import host_device
from stitchcore.errors import Reason, Refusal
from stitchcore.options import Options

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")

from stitchcore.optimize import pipeline

pytestmark = pytest.mark.slow
CAPTURED = Path(__file__).parent / "requests" / "mlp"
DIGEST = (CAPTURED / "digest").read_text().strip()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the request in a store, and the dump of a whole run of it."""
    folder = tmp_path_factory.mktemp("restart")
    request = folder / "store" / "requests" / DIGEST
    request.mkdir(parents=True)
    (request / "graph.pb").write_bytes(lzma.decompress((CAPTURED / "graph.pb.xz").read_bytes()))
    shutil.copy(CAPTURED / "meta.json", request / "meta.json")
    assert isinstance(optimized(folder, options(folder, folder / "dump"), True), str)
    return folder


def options(folder: Path, dump: Path | None = None, restart: Path | None = None) -> Options:
    plain = Options(folder / "store", folder / "cache", folder / "key", jobs=2)
    return replace(plain, dump=dump, restart=restart)


def optimized(folder: Path, chosen: Options, verify: bool = False) -> str | Refusal:
    request = folder / "store" / "requests" / DIGEST
    return pipeline.optimize(request, str(folder / "store"), host_device(), chosen, verify)


def largest(work: Path) -> Path:
    """The folder of the region whose plan is longest."""
    plans = (work / "dump" / DIGEST[:12]).glob("*/02_plan.txt")
    return max(plans, key=lambda path: path.stat().st_size).parent


def edited(work: Path, folder: Path, source: Path, old: str, new: str) -> Path:
    """A changed copy of a dumped file, in folders of the same names."""
    path = folder / source.relative_to(work / "dump")
    path.parent.mkdir(parents=True)
    text = source.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def test_every_stage_of_a_request_is_dumped(work: Path) -> None:
    folder = work / "dump" / DIGEST[:12]
    files = sorted(path.name for path in folder.glob("*.txt"))
    names = (
        "partition",
        "lower",
        "build",
        "cut",
        "tune",
        "verify",
        "measure",
        "fallback",
        "limit",
        "patch",
        "rehearse",
    )
    assert files == [f"{number:02d}_{name}.txt" for number, name in enumerate(names)]
    texts = {path.name[3:-4]: path.read_text() for path in folder.glob("*.txt")}
    assert "member " in texts["partition"]
    assert "library_call" in texts["partition"]
    assert "points" in texts["lower"]
    assert "launch k_" in texts["build"]
    assert texts["cut"] == "none\n"
    assert "output 0: ok" in texts["verify"]
    assert "stitched / the framework" in texts["measure"]
    assert "stitch_fallback_" in texts["fallback"]
    assert "Live bytes of a step" in texts["limit"]
    assert json.loads(texts["patch"])["regions"][0]["remove"]
    region = largest(work)
    own = sorted(path.name for path in region.iterdir())
    assert own[:3] == ["00_import.txt", "01_simplify.txt", "02_plan.txt"]
    assert own[3:5] == ["03_schedule.trace.txt", "03_schedule.txt"]
    assert own[5].startswith("lowered_0.hlo")
    shared = sorted(path.name for path in (folder / "kernels").iterdir())
    assert shared == ["04_emit.c", "05_compile.txt"]


def test_the_report_tells_times_beside_the_framework(work: Path) -> None:
    page = next((work / "store" / "artifacts").glob("*/report.json"))
    report = json.loads(page.read_text())
    proofs = [region["proof"] for region in report["regions"] if region["proof"]]
    timed = [proof for proof in proofs if "ratio" in proof]
    assert len(timed) >= len(proofs) / 2
    assert all(proof["seconds"]["framework"] > 0 for proof in timed)
    assert all(proof.get("note") for proof in proofs if "ratio" not in proof)
    assert re.match(r"\d+ of \d+", report["figures"]["Distinct regions timed"])


def test_the_report_tells_when_its_compilation_is_won_back(work: Path) -> None:
    report = json.loads(next((work / "store" / "artifacts").glob("*/report.json")).read_text())
    proofs = [region["proof"] for region in report["regions"] if region["kernels"]]
    times = [proof["seconds"] for proof in proofs if "ratio" in proof]
    saved = sum(one["framework"] - one["stitched"] for one in times)
    spent = sum(value for name, value in report["seconds"].items() if "." not in name)
    assert saved > 0
    assert f"after {math.ceil(spent / saved):,} steps" in report["figures"]["Compilation won back"]


def test_a_job_goes_on_from_an_edited_plan(work: Path, tmp_path: Path) -> None:
    """A kernel cut in two: its last instruction that is an output alone in a new one."""
    source = largest(work) / "02_plan.txt"
    text = source.read_text()
    names = re.search(r"  instructions (.*)", text)
    outputs = re.search(r"  outputs (.*)", text)
    assert names is not None
    assert outputs is not None
    listed, last = names[1].split(), outputs[1].split()[-1]
    rest = " ".join(name for name in listed if name != last)
    cut = f"kernel\n  instructions {rest}\nkernel\n  instructions {last}\n"
    path = tmp_path / DIGEST[:12] / source.parent.name / "02_plan.txt"
    path.parent.mkdir(parents=True)
    path.write_text(cut)
    before, after = work / "dump" / DIGEST[:12], tmp_path / "dump" / DIGEST[:12]
    assert isinstance(optimized(work, options(work, tmp_path / "dump", path)), str)
    pattern = rf"structure {source.parent.name}: (\d+) kernels"
    counts = [
        int(found[1])
        for folder in (before, after)
        if (found := re.search(pattern, (folder / "02_build.txt").read_text())) is not None
    ]
    assert counts == [counts[0], counts[0] + 1]


def test_a_job_goes_on_from_edited_sources(work: Path, tmp_path: Path) -> None:
    source = work / "dump" / DIGEST[:12] / "kernels" / "04_emit.c"
    path = edited(work, tmp_path, source, "return 0;", "return 0; /* edited */")
    plain = optimized(work, options(work))
    other = optimized(work, options(work, tmp_path / "dump", path))
    assert isinstance(other, str)
    assert other != plain, "an edit has an artifact of its own"
    again = tmp_path / "dump" / DIGEST[:12] / "kernels" / "04_emit.c"
    assert "/* edited */" in again.read_text()


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("region/02_plan.txt", "  instructions ", "  instructions nobody.0 ", "nobody.0"),
        ("region/00_import.txt", "ROOT ", "", "00_import.txt:"),
        ("kernels/04_emit.c", "return 0;", "return 0 0;", "04_emit.c:"),
        ("elsewhere/02_plan.txt", "kernel", "kernel", "must lie in a folder"),
        ("region/09_plan.txt", "kernel", "kernel", "02_plan.txt"),
    ],
)
def test_a_broken_edit_refuses_the_request(
    work: Path, tmp_path: Path, file: str, old: str, new: str, told: str
) -> None:
    folder, name = file.split("/")
    region = largest(work)
    home = work / "dump" / DIGEST[:12] / "kernels" if folder == "kernels" else region
    source = home / (name if (home / name).exists() else "02_plan.txt")
    text = source.read_text().replace(old, new, 1)
    own = region.name if folder == "region" else folder
    path = tmp_path / DIGEST[:12] / own / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = optimized(work, options(work, restart=path))
    assert isinstance(found, Refusal)
    assert found.reason in (Reason.PARSE_ERROR, Reason.COMPILE_FAILED)
    assert told in str(found)
    answer = open_store(str(work / "store")).read_answer(DIGEST)
    assert answer is not None
    assert answer["status"] == "refused"
    assert told in answer["detail"]
    assert answer["detail"].count(found.reason.value) == 0, "the reason has a field of its own"
    assert answer["edited"], "the next run must not take it for its own"
