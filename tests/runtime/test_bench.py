"""`python -m bench.gpu` where there is no GPU: it says so, and its dry run goes all the way."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu import measure
from bench.gpu.__main__ import LEFT, NO_GPU, Order, Running, main
from bench.gpu.entrants import Entrant
from bench.gpu.inductor import NotExpressed, function
from bench.gpu.report import Figures, Machine, Row, read, read_row, table, write, write_row
from bench.gpu.trace import CONTRACTION, Traced, Window, by_contestant, events, windows
from stitchcore.errors import Reason, Refused
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.runtime.gpu import cupy_device
from stitchcore.verify.timing import Comparison
from tests.hlo import workloads
from tests.runtime.whole import arguments, error_of


def absent() -> Any:
    raise Refused("GPU", Reason.NO_DEVICE, "there is no GPU here")


def test_without_a_gpu_nothing_is_measured_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cupy_device, "_cupy", absent)
    assert measure.main(["softmax_grad", "--output", str(tmp_path / "row.json")]) == NO_GPU == 2
    assert "nothing was measured: GPU: no_device (there is no GPU here)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_dry_run_goes_all_the_way_and_claims_nothing(tmp_path: Path) -> None:
    """Stitched, as a graph and one kernel an instruction on the stand-in, XLA on the CPU, in a
    process of its own; run again, nothing is left to do."""
    call = ["--dry-run", "--output", str(tmp_path), "layernorm_gelu_grad"]
    assert main(call) == 0
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["machine"]["dry"]
    [row] = document["rows"]
    figures = row["figures"]
    assert set(figures) >= {"stitched", "stitched, graph", "one kernel per op", "XLA"}
    assert figures["stitched"]["kernels"] == 1 < figures["one kernel per op"]["kernels"]
    assert all(one["step"] is None and one["share"] is None for one in figures.values())
    assert row["ratios"] == {} and 0 < row["error"] < 1e-5
    assert "nothing here was measured on a GPU" in (tmp_path / "gpu.md").read_text()
    assert (tmp_path / "gpu.png").stat().st_size > 1000
    made = (tmp_path / "gpu.json").stat().st_mtime_ns
    assert main(call) == 0 and (tmp_path / "gpu.json").stat().st_mtime_ns == made


def test_a_module_without_figures_of_ours_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no result, and the next run has it again."""
    row = Row("softmax_grad", {}, {}, [], None, ["stitched: old_driver"])
    machine = Machine("stand-in driver", "sm_90", "no driver", 1.0, True)

    class Ended(Running):
        def __init__(self, name: str, order: Order, folder: Path) -> None:
            super().__init__("none", order, folder)
            self.process.wait()
            self.name = name
            write_row(self.row, machine, row)

    call = ["--dry-run", "--output", str(tmp_path), "softmax_grad"]
    monkeypatch.setattr("bench.gpu.__main__.Running", Ended)
    for _ in range(2):
        assert main(call) == 1
        assert read(tmp_path) == (machine, [row])
        (tmp_path / "gpu.png").unlink()  # made anew


def test_without_time_it_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["--dry-run", "--output", str(tmp_path), "--seconds", "1", "mlp_train"]
    assert main(call) == LEFT
    assert "left, as time was up: mlp_train" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_results_of_another_machine_are_not_put_into_one_table() -> None:
    one = Machine("H100", "sm_90", "driver", 3e12, False)
    assert one.same(replace(one, bytes_per_second=2.9e12))
    assert not one.same(replace(one, name="H200"))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    machine = Machine("H100", "sm_90", "driver", 3e12, False)
    figures = {"stitched": Figures(1.0, 0.5, 3, 2, 600, 0.9)}
    row = Row("m", figures, {"XLA: step": (2.0, 1.9, 2.1)}, [("k", 9, 1.0, 0.9)], None, ["note"])
    write_row(tmp_path / "row.json", machine, row)
    write(tmp_path, machine, [row])
    assert read_row(tmp_path / "row.json") == (machine, row)
    assert read(tmp_path) == (machine, [row])
    assert read_row(tmp_path / "none") is None and read(tmp_path / "none") is None


def test_a_dry_run_does_not_touch_the_results() -> None:
    with pytest.raises(SystemExit):
        main(["--dry-run"])


CONTRACTIONS = (
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_cublas",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT",
    "gemm_fusion_dot_38",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW",
    "sm80_xmma_fprop_implicit_gemm_tf32f32",
    "void gemv2T_kernel_val<int, int, float>",
    "void cublasLt::splitKreduce_kernel<32, 16>",
)
OTHERS = (
    "loop_multiply_fusion_3",
    "input_reduce_fusion",
    "triton_softmax_2",
    "wrapped_convert",
    "loop_convert_fusion_1",
    "wrapped_transpose",
    "input_scatter_fusion",
    "MemcpyD2D",
)


def test_contractions_are_known_by_their_names() -> None:
    assert all(CONTRACTION.search(name) for name in CONTRACTIONS)
    assert not any(CONTRACTION.search(name) for name in OTHERS)


def test_a_trace_is_cut_where_the_cache_was_flushed(tmp_path: Path) -> None:
    """Two rounds of two contestants, and what runs on no stream of a GPU; written by XLA's own
    code, read from a file as the profiler leaves it."""
    own = "k_" + "0af" * 8
    streams = {
        ("/device:GPU:0", "Stream #7(Kernel)"): [
            ("loop_add_fusion", 0, 100),  # before the first flush: a warm-up
            ("stitch_flush", 10, 1),
            (own, 20, 5),
            ("sm90_xmma_gemm_f32f32", 21, 40),
            ("stitch_flush", 30, 1),
            ("loop_add_fusion", 40, 3),
            ("MemcpyD2D", 44, 2),
            ("MemcpyH2D", 47, 70),
            ("stitch_flush", 50, 1),
            (own, 60, 7),
            ("stitch_flush", 70, 1),
            ("stitch_flush", 90, 1),
            ("loop_add_fusion", 95, 3),  # after the last
        ],
        ("/device:GPU:0", "Stream #9(Kernel)"): [("input_reduce_fusion", 80, 4)],
        ("/device:GPU:0", "XLA Ops"): [("loop_add_fusion", 20, 100)],
        ("/host:CPU", "Stream #1"): [("loop_add_fusion", 20, 100)],
    }
    names = sorted({name for some in streams.values() for name, _, _ in some})
    text = []
    for (plane, line), some in streams.items():
        shown = "".join(
            f"events {{ metadata_id: {names.index(name) + 1} offset_ps: {start * 1000} "
            f"duration_ps: {duration * 1000} }} "
            for name, start, duration in some
        )
        known = "".join(
            f'event_metadata {{ key: {n} value {{ id: {n} name: "{name}" }} }} '
            for n, name in enumerate(names, 1)
        )
        text.append(f'planes {{ name: "{plane}" lines {{ name: "{line}" {shown} }} {known} }}')
    data = pytest.importorskip("jax", reason="pip install jax").profiler.ProfileData
    folder = tmp_path / "plugins" / "profile" / "now"
    folder.mkdir(parents=True)
    serialized = data.text_proto_to_serialized_xspace("\n".join(text))
    (folder / "host.xplane.pb").write_bytes(serialized)
    found = windows(events(tmp_path))
    made = by_contestant(found, ["ours", "theirs"], 2)
    assert made.intensive.seconds["ours"] == pytest.approx([5e-9, 7e-9])
    assert made.intensive.seconds["theirs"] == pytest.approx([5e-9, 4e-9])
    assert made.windows["ours"] == Window(pytest.approx(5e-9), pytest.approx(5e-9), 1, 1)
    assert made.windows["theirs"] == Window(pytest.approx(5e-9), 0.0, 1, 0)
    with pytest.raises(ValueError, match="4 runs of 6"):
        by_contestant(found, ["ours", "theirs", "others"], 2)
    with pytest.raises(ValueError, match="1 without a kernel"):
        by_contestant([*found[:3], Window(0, 0, 0, 0)], ["ours", "theirs"], 2)
    with pytest.raises(FileNotFoundError):
        events(tmp_path / "none")


def test_ratios_are_of_rounds_side_by_side() -> None:
    """Ours as a graph where there is one; a dry run has no seconds."""

    def seconds(**given: list[float]) -> Comparison:
        return Comparison({name: np.asarray(values) for name, values in given.items()})

    def entrant(name: str, moved: int | None = None) -> Entrant:
        return Entrant(name, lambda: None, [], 3, 1, moved)

    names = ("stitched", "stitched, graph", "XLA")
    entrants = [entrant("stitched", 600), entrant("stitched, graph", 600), entrant("XLA")]
    steps = seconds(**dict(zip(names, ([4, 8], [1, 2], [2, 4]), strict=True)))
    work = seconds(**dict(zip(names, ([1, 1], [1, 1], [3, 3]), strict=True)))
    shown = {name: Window(1.0, 0.5, 7, 2) for name in names}
    taken = measure.Taken(steps, Traced(work, shown), seconds(), [])
    machine = Machine("H200", "sm_90", "driver", 4800.0, False)
    row = measure.row("m", machine, entrants, taken, None, [])
    assert row.ratios["XLA: step"][0] == 2.0 and row.ratios["XLA: intensive"][0] == 3.0
    assert row.figures["XLA"] == Figures(3000.0, 3000.0, 7, 2, None, None)
    assert row.figures["stitched"].share == pytest.approx(600 / 0.5 / 4800)
    dry = measure.row("m", replace(machine, dry=True), entrants, taken, None, [])
    assert dry.ratios == {} and dry.figures["XLA"].step is None


def test_what_takes_too_long_is_cut() -> None:
    with pytest.raises(TimeoutError, match="1 s"), measure.limited(1):
        time.sleep(5)


def test_the_table_has_the_ratio_and_its_interval() -> None:
    ours, other = Figures(1.0, 0.5, 3, 2, 600, 0.9), Figures(2.0, 1.0, 9, 2, None, None)
    ratios = {"XLA: step": (2.0, 1.9, 2.1), "XLA: intensive": (2.0, 2.0, 2.0)}
    large = [("k_1", 100_000_000, 0.05, 0.88)]
    row = Row("bert", {"stitched": ours, "XLA": other}, ratios, large, 1e-6, ["Inductor: none"])
    text = table(Machine("H200", "sm_90", "driver", 4e12, False), [row])
    assert "| bert | 1.000 / 0.500 (3 + 2, 0.0 MB, 90 %) | 2.000 / 1.000 (9 + 2) |" in text
    assert "2.00 [1.90, 2.10]" in text and "| geometric mean |" in text
    assert "k_1: 100 MB in 0.050 ms, 88 % of a copy" in text and "Inductor: none" in text


def test_what_inductor_gets_computes_the_same() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    for name in ("softmax_grad", "layernorm_gelu_grad", "mlp_nodrop_train"):
        module = workloads.module(name)
        given = arguments(module)
        made = function(module, torch, "cpu")(*map(torch.from_numpy, given))
        for one, right in zip(made, evaluate(module, given), strict=True):
            assert error_of(one.numpy(), np.asarray(right)) < 1e-5


def test_a_module_without_a_translation_says_what_lacks() -> None:
    with pytest.raises(NotExpressed, match="gather"):
        function(workloads.module("dien_infer"), None, "cpu")
