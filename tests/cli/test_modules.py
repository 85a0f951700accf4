"""`plan`, `compile`, `bench` and `explain` on real modules."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stitchcore.cli.common import host_target
from stitchcore.cli.main import stitch

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
SMALL = WORKLOADS / "softmax_grad.hlo.xz"
LAYER_NORM = WORKLOADS / "layernorm_gelu_grad.hlo.xz"
MLP = WORKLOADS / "mlp_nodrop_train.hlo.xz"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(stitch, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output + result.stderr
    return result


def as_json(*arguments: object) -> Any:
    return json.loads(call(*arguments, "--json").stdout)


def test_plan_estimates_less_work_than_unfused() -> None:
    plan = as_json("plan", SMALL)
    assert len(plan["kernels"]) == 1
    assert plan["planned"]["bytes"] < plan["unfused"]["bytes"]
    assert plan["kernels"][0]["bytes_saved"] > 0
    assert "kernels 14 → 1" in call("plan", SMALL).stdout


def test_plan_without_a_mechanism() -> None:
    assert len(as_json("plan", SMALL, "--without", "regional")["kernels"]) > 1
    assert len(as_json("plan", SMALL, "--without", "aliasing,atm")["kernels"]) == 1


def test_plan_draws_the_graph(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    call("plan", MLP, "--html", page)
    text = page.read_text()
    assert text.count('class="kernel"') == len(as_json("plan", MLP)["kernels"])
    assert "library_call" in text
    assert "://" not in text.replace("http://www.w3.org", ""), "the page fetches something"


def test_plan_names_kernels_and_loop_bodies(tmp_path: Path) -> None:
    module = WORKLOADS / "crnn_infer.hlo.xz"
    plan = as_json("plan", module, "--dump", tmp_path)
    text = (tmp_path / "02_plan.txt").read_text()
    assert [body["computation"] for body in plan["loop_bodies"]]
    assert all(f"computation {body['computation']}\n" in text for body in plan["loop_bodies"])
    schedule = (tmp_path / "03_schedule.txt").read_text()
    for part in (plan, *plan["loop_bodies"]):
        assert all(f"kernel {one['name']}(" in schedule for one in part["kernels"])
        assert all({"subject", "reason", "detail"} == set(one) for one in part["refusals"])
    assert plan["kernels"][0]["seconds_estimated"] > 0


def test_compile_writes_sources_and_binaries(tmp_path: Path) -> None:
    result = as_json("compile", SMALL, "--out", tmp_path / "out")
    entry = result["binaries"][0]
    assert result["target"] == host_target()
    assert (tmp_path / "out" / entry["source"]).exists()
    assert Path(result["report"]).exists()
    assert result["left_as_it_was"] == {}
    assert (tmp_path / "out" / "report.html").exists()
    assert "int64_t" in (tmp_path / "out" / "kernels_00.c").read_text()
    library = ctypes.CDLL(str(tmp_path / "out" / entry["file"]))
    name = (tmp_path / "out" / "kernels.txt").read_text().split()[1].partition("(")[0]
    assert getattr(library, name)


def test_compile_for_another_level_of_the_same_architecture(tmp_path: Path) -> None:
    result = as_json("compile", SMALL, "--target", "cpu-x86-64-v2", "--out", tmp_path / "v2")
    assert result["target"] == "cpu-x86-64-v2"
    assert result["binaries"][0]["bytes"] > 0


def test_bench_judges_and_times_every_kernel() -> None:
    kernels = as_json("bench", LAYER_NORM, "--rounds", "3", "--no-xla")["kernels"]
    assert len(kernels) == 1
    assert kernels[0]["passed"]
    assert kernels[0]["informative"]
    assert kernels[0]["seconds"] > 0


def test_bench_compares_with_xla() -> None:
    pytest.importorskip("jaxlib", reason="no XLA beside our kernels: pip install jaxlib")
    kernel = as_json("bench", SMALL, "--rounds", "3")["kernels"][0]
    assert kernel["note"] == ""
    ratio = kernel["xla_over_ours"]
    assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
    assert (kernel["failures"], kernel["called"]) == (0, False)
    assert 0 <= kernel["worst_error"] < 1e-3


def test_restart_from_an_edited_stage(tmp_path: Path) -> None:
    call("plan", SMALL, "--dump", tmp_path)
    stage = tmp_path / "01_simplify.txt"
    text = stage.read_text()
    assert "exponential(" in text
    stage.write_text(text.replace("exponential(", "tanh("))
    assert as_json("bench", SMALL, "--rounds", "1", "--no-xla", "--from", stage)["kernels"]
    call("compile", SMALL, "--from", stage, "--out", tmp_path / "out")
    source = (tmp_path / "out" / "kernels_00.c").read_text()
    assert "st_tanh" in source
    assert "st_exp" not in source.replace("st_expm1", "")


def test_explain_names_the_reason_of_a_refusal() -> None:
    plan = as_json("plan", MLP)
    refused = plan["refusals"]
    name = next(one["subject"] for one in refused if one["reason"] == "library_call")
    place = as_json("explain", name, "--module", MLP)[0]
    assert place["kernels"] == []
    assert place["reason"] == "library_call"
    assert "library_call" in call("explain", name, "--module", MLP).stdout


@pytest.mark.slow
def test_explain_finds_what_stands_between_two_kernels(tmp_path: Path) -> None:
    call("plan", MLP, "--dump", tmp_path)
    lines = (tmp_path / "02_plan.txt").read_text().splitlines()
    outputs = [line.split()[1] for line in lines if line.startswith("  outputs ")]
    told = [as_json("explain", outputs[0], other, "--module", MLP) for other in outputs[1:]]
    assert any(one["reason"] == "cycle" and one["path"] for one in told)
    assert not any(one["together"] for one in told)


def test_explain_says_when_one_kernel_holds_both(tmp_path: Path) -> None:
    call("plan", SMALL, "--dump", tmp_path)
    lines = (tmp_path / "02_plan.txt").read_text().splitlines()
    both = next(line.split()[1:3] for line in lines if line.startswith("  outputs "))
    assert as_json("explain", *both, "--module", SMALL)["together"]


def test_explain_takes_a_pair_and_a_planner(tmp_path: Path) -> None:
    call("plan", MLP, "--dump", tmp_path, "--planner", "explore")
    lines = (tmp_path / "02_plan.txt").read_text().splitlines()
    pair = [line.split()[1] for line in lines if line.startswith("  outputs ")][:2]
    rest = ("--module", MLP, "--planner", "explore")
    assert as_json("explain", "--pair", *pair, *rest) == as_json("explain", *pair, *rest)
    assert not as_json("explain", "--pair", *pair, *rest)["together"]
    nothing = CliRunner().invoke(stitch, ["explain", "--module", str(MLP)])
    assert nothing.exit_code != 0
    assert "no operation is named" in nothing.stderr


PLANNERS = ["exhaustive", "explore", "exact"]


@pytest.mark.slow
def test_plan_shows_all_planners_side_by_side(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    shown = call("plan", MLP, "--planner", "auto", "--html", page).stdout
    rows = [line.split()[0] for line in shown.splitlines() if line.strip()]
    assert set(PLANNERS) <= set(rows)
    assert "no choice from the pool saves more" in " ".join(shown.split())
    told = page.read_text()
    told = told[told.index("Planners side by side") :]
    assert all(f"<td>{name}</td>" in told or f"{name} (taken)" in told for name in PLANNERS)
    plan = as_json("plan", MLP, "--planner", "auto")
    assert [one["planner"] for one in plan["planners"]] == PLANNERS
    assert plan["planned"]["seconds_estimated"] <= min(p["seconds"] for p in plan["planners"])
    assert plan["bound"]["closed"]


@pytest.mark.usefixtures("needs_nvrtc")
def test_compile_as_cuda_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "cuda"
    document = as_json("compile", SMALL, "--device", "sm_90", "--out", out)
    [entry] = document["binaries"]
    assert 16 <= entry["registers"] <= 255 and 16 <= entry["registers_predicted"] <= 255
    assert entry["spill_bytes"] == 0 and entry["fewest_blocks"] >= 1
    assert document["refused"] == []
    assert f"{entry['registers']} (" in (out / "report.html").read_text()
    assert (out / entry["file"]).read_bytes()[:4] == b"\x7fELF"
    assert "__global__" in (out / "kernels_00.cu").read_text()
