"""Calibration finds the coefficients that made the measurements, and its file is a record."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.ranking import kendall
from stitchcore.autotune import calibrate, calibrate_gpu
from stitchcore.autotune.least_squares import Measured
from stitchcore.cli.main import stitch
from stitchcore.device import records
from stitchcore.device.host import host_device
from stitchcore.device.records import DEVICES, Device
from stitchcore.errors import Reason, Refused
from stitchcore.fusion import candidates
from stitchcore.fusion.cost import cost, kernel_seconds
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.pattern_from_set import Extractor

BEGIN = DEVICES["cpu-x86-64-v3"]
TRUE = replace(
    BEGIN,
    cache_bytes=2**22,
    bytes_per_second=4.1e10,
    cached_speedup=3.0,
    flops_per_second=1.9e11,
    overlap=0.4,
    unit_share=0.6,
)


def patterns() -> dict[str, Pattern]:
    found = {}
    for name, module in calibrate.calibration_modules().items():
        graph = candidates.build(module, {})
        found[name] = Extractor(graph).pattern(tuple(graph.placed()))
    return found


def measured(device: Device, noise: float) -> list[Measured]:
    draw = random.Random(1)
    unit = device.one_unit
    return [
        Measured(
            name,
            pattern,
            (cost(pattern, unit).seconds - unit.launch_seconds)
            * draw.uniform(1 - noise, 1 + noise),
        )
        for name, pattern in patterns().items()
    ]


@pytest.mark.slow
def test_the_coefficients_that_made_the_measurements_are_found() -> None:
    found = calibrate.fitted(BEGIN, measured(TRUE, 0.02), TRUE.unit_share)
    assert found.error < 0.03 < found.before
    assert found.device.cache_bytes == TRUE.cache_bytes
    for name in ("bytes_per_second", "cached_speedup", "flops_per_second"):
        assert getattr(found.device, name) == pytest.approx(getattr(TRUE, name), rel=0.1), name
    assert found.device.overlap == pytest.approx(TRUE.overlap, abs=0.1)
    kept = ("target", "units", "launch_seconds", "phase_seconds", "inline_seconds")
    assert all(getattr(found.device, name) == getattr(BEGIN, name) for name in kept)


@pytest.mark.slow
def test_a_fit_never_makes_the_record_worse() -> None:
    for noise in (0.0, 0.5, 0.9):
        found = calibrate.fitted(BEGIN, measured(BEGIN, noise), BEGIN.unit_share)
        assert found.error <= found.before + 1e-9


def test_one_unit_is_a_share_of_the_whole() -> None:
    unit = TRUE.one_unit
    assert unit.bytes_per_second == pytest.approx(0.6 * 4.1e10)
    assert unit.bytes_per_second * unit.cached_speedup == pytest.approx(4.1e10 * 3.0 / 2)
    assert (unit.units, unit.flops_per_second) == (1, 1.9e11 / 2)


def test_a_unit_that_works_alone_waits_for_none() -> None:
    """Below `inline_seconds` phases cost nothing and one unit's rates hold; beyond, all work."""
    device = replace(BEGIN, overlap=0.0, unit_share=0.5, inline_seconds=2e-4)
    small = kernel_seconds(5e-5, 0, 3, device)
    assert small == pytest.approx(device.launch_seconds + 1e-4)
    large = kernel_seconds(5e-4, 0, 3, device)
    assert large == pytest.approx(device.launch_seconds + 5e-4 + 2 * device.phase_seconds)
    gpu = DEVICES["sm_90"]
    assert kernel_seconds(1e-6, 0, 2, gpu) - kernel_seconds(1e-6, 0, 1, gpu) == pytest.approx(
        gpu.phase_seconds
    )


@pytest.mark.slow
def test_this_machine_is_measured_and_its_record_plans(tmp_path: Path) -> None:
    record = tmp_path / "here.json"
    done = CliRunner().invoke(stitch, ["calibrate", "--out", str(record), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert 0 < told["error"] <= told["before"] + 1e-9
    device = records.read(record)
    assert device.target == host_device().target and device.bytes_per_second > 1e8
    module = Path(__file__).parents[1] / "workloads" / "softmax_grad.hlo.xz"
    done = CliRunner().invoke(stitch, ["plan", str(module), "--target", str(record), "--json"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": {"target": "sm_90"}}'])
def test_a_file_that_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(Refused) as refused:
        records.read(path)
    assert refused.value.refusal.reason is Reason.PARSE_ERROR
    assert refused.value.refusal.subject == str(path)
    done = CliRunner().invoke(stitch, ["plan", "module.hlo", "--target", str(path)])
    assert done.exit_code == 2 and "stitch calibrate --out" in done.output


@pytest.mark.parametrize("command", ["calibrate", "tune"])
def test_what_cannot_be_written_is_said_before_anything_is_measured(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "calibrate", None)
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "below" / "record.json"
    module = Path(__file__).parents[1] / "workloads" / "softmax_grad.hlo.xz"
    given = ["calibrate"] if command == "calibrate" else ["tune", str(module)]
    done = CliRunner().invoke(stitch, [*given, "--out", str(inside)])
    assert done.exit_code == 2 and "Not a directory" in done.output
    assert "to mend it: name a f" in done.output, "a file, or a folder"


def test_without_a_gpu_none_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise Refused("GPU", Reason.NO_DEVICE, "there is no GPU here")

    monkeypatch.setattr(calibrate_gpu, "CupyDevice", none)
    done = CliRunner().invoke(stitch, ["calibrate", "--target", "sm_90"])
    assert done.exit_code == 2 and "there is no GPU here" in done.output


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=9))
def test_kendall_is_scipys(pairs: list[tuple[int, int]]) -> None:
    from scipy.stats import kendalltau  # takes two seconds

    left, right = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    expected = kendalltau(left, right).statistic
    assert kendall(left, right) == pytest.approx(0.0 if expected != expected else expected)
