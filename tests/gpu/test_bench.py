"""`python -m bench.gpu` where there is no GPU: it says so, and its dry run goes all the way."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu.__main__ import NO_GPU, main
from bench.gpu.inductor import NotExpressed, function
from bench.gpu.report import Figures, Machine, Row, table
from bench.gpu.trace import CONTRACTION, events, intensive
from stitchcore.errors import Reason, Refused
from stitchcore.gpu import cupy_device
from stitchcore.hlo.evaluate import evaluate
from tests.gpu.whole import arguments, error_of
from tests.hlo import workloads


def absent() -> Any:
    raise Refused("GPU", Reason.NO_DEVICE, "there is no GPU here")


def test_without_a_gpu_nothing_is_measured_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cupy_device, "_cupy", absent)
    assert main(["--output", str(tmp_path)]) == NO_GPU == 2
    assert "nothing was measured: GPU: no_device (there is no GPU here)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_dry_run_goes_all_the_way_and_claims_nothing(tmp_path: Path) -> None:
    """Stitched, as a graph and one kernel an instruction on the stand-in, XLA on the CPU."""
    assert main(["--dry-run", "--output", str(tmp_path), "softmax_grad"]) == 0
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["machine"]["dry"]
    [row] = document["rows"]
    figures = row["figures"]
    assert set(figures) >= {"stitched", "stitched, graph", "one kernel per op", "XLA"}
    assert figures["stitched"]["kernels"] == 1 < figures["one kernel per op"]["kernels"]
    assert all(one["step"] is None and one["share"] is None for one in figures.values())
    assert row["ratios"] == {} and row["error"] < 1e-5
    assert "nothing here was measured on a GPU" in (tmp_path / "gpu.md").read_text()
    assert (tmp_path / "gpu.png").stat().st_size > 1000


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


def test_a_trace_counts_what_runs_on_streams_of_a_gpu(tmp_path: Path) -> None:
    def named(kind: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}

    def ran(name: str, microseconds: float, pid: int = 1, tid: int = 7) -> dict[str, Any]:
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "dur": microseconds}

    found = [
        named("process_name", "/device:GPU:0", 1),
        named("process_name", "/host:CPU", 2),
        named("thread_name", "Stream #13(Compute)", 1, 7),
        named("thread_name", "XLA Ops", 1, 8),
        ran("loop_add_fusion", 5),
        ran("gemm_fusion_dot", 100),
        ran("MemcpyH2D", 100),
        ran("MemcpyD2D", 2),
        ran("loop_add_fusion", 100, tid=8),
        ran("loop_add_fusion", 100, pid=2),
    ]
    folder = tmp_path / "plugins" / "profile" / "now"
    folder.mkdir(parents=True)
    data = json.dumps({"traceEvents": found}).encode()
    (folder / "host.trace.json.gz").write_bytes(gzip.compress(data))
    assert intensive(events(tmp_path)) == pytest.approx(7e-6)
    with pytest.raises(FileNotFoundError):
        events(tmp_path / "none")


def test_the_table_has_the_ratio_and_its_interval() -> None:
    ours, other = Figures(1.0, 0.5, 3, 2, 600, 0.9), Figures(2.0, 1.0, 9, 2, None, None)
    ratios = {"XLA: step": (2.0, 1.9, 2.1), "XLA: intensive": (2.0, 2.0, 2.0)}
    large = [("k_1", 100_000_000, 0.05, 0.88)]
    row = Row("bert", {"stitched": ours, "XLA": other}, ratios, large, 1e-6, ["Inductor: none"])
    text = table(Machine("H200", "sm_90", "driver", 4e12, False), [row])
    assert "| bert | 1.000 / 0.500 (3 + 2, 90 %) | 2.000 / 1.000 (9 + 2) |" in text
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
