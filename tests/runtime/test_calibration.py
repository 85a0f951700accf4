"""Calibration of a GPU: rehearsed on the stand-in driver, whose clock is a record's estimate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stitchcore.autotune import calibrate, calibrate_gpu, least_squares
from stitchcore.autotune.least_squares import Measured, coefficient
from stitchcore.cli.main import stitch
from stitchcore.device import records
from stitchcore.device.records import DEVICES, Device
from stitchcore.fusion import candidates
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.pattern_from_set import Extractor
from stitchcore.runtime.cuda_library import CudaLibrary
from tests.launch.conftest import cuda
from tests.launch.standin_cuda import Standin
from tests.runtime.host import HostDevice

__all__ = ["cuda"]

BEGIN = DEVICES["sm_90"]
WRONG = {
    "bytes_per_second": 0.8,
    "launch_seconds": 0.6,
    "timing.lanes.float32": 0.7,
    "timing.lanes.special": 0.5,
    "timing.cpi.float32": 1.5,
}
"""By how much the true device differs from its record."""


def true_device() -> Device:
    found = BEGIN
    for name, factor in WRONG.items():
        found = least_squares.with_coefficient(found, name, coefficient(found, name) * factor)
    return found


def patterns() -> dict[str, Pattern]:
    found = {}
    modules = {**calibrate.calibration_modules(), **calibrate.instruction_modules()}
    for name, module in modules.items():
        graph = candidates.build(module, {})
        found[name] = Extractor(graph).pattern(tuple(graph.placed()))
    return found


@pytest.mark.slow
def test_the_coefficients_that_made_the_measurements_are_found() -> None:
    true = true_device()
    made = [Measured(n, p, cost(p, true).seconds) for n, p in patterns().items()]
    found = calibrate.fitted_gpu(BEGIN, made)
    assert found.error < 0.02 < found.before
    for name in WRONG.keys() - {"launch_seconds"}:
        assert coefficient(found.device, name) == pytest.approx(coefficient(true, name), rel=0.1)
    assert found.device.launch_seconds == BEGIN.launch_seconds, "an executor's, not a graph's"
    assert found.device.cache_bytes == BEGIN.cache_bytes and found.device.units == BEGIN.units


def test_a_coefficient_is_changed_where_it_lies() -> None:
    changed: Device = least_squares.with_coefficient(BEGIN, "timing.lanes.special", 5.0)
    assert BEGIN.timing is not None and changed.timing is not None
    assert changed.timing.lanes == replace(BEGIN.timing.lanes, special=5.0)
    assert replace(changed, timing=BEGIN.timing) == BEGIN


class Timed(HostDevice):
    """The stand-in's device with a clock: what is between two marks takes longer each time."""

    launches = 0

    def mark(self) -> Any:
        self.synchronize()
        return self.launches

    def seconds(self, begin: Any, end: Any) -> float:
        assert end == begin + calibrate_gpu.TOGETHER, "launches of one graph lie between two marks"
        return 1e-6 * end


def test_each_kernel_is_launched_by_a_graph_and_the_record_written(
    standin: Standin, cuda: CudaLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the command: compiled by NVRTC, launched by the launch library, marked around."""
    standin.free_memory(1 << 33)
    few = dict(list(calibrate.calibration_modules().items())[:2])
    monkeypatch.setattr(calibrate, "calibration_modules", lambda: few)
    monkeypatch.setattr(calibrate, "instruction_modules", dict)

    @contextmanager
    def here(record: Device) -> Iterator[tuple[HostDevice, CudaLibrary]]:
        assert record == BEGIN
        with standin.context():
            device = Timed(standin)

            def launched(_: object) -> None:
                device.launches += 1

            standin.on_launch(launched)
            yield device, cuda

    monkeypatch.setattr(calibrate_gpu, "this_gpu", here)
    path = tmp_path / "gpu.json"
    given = ["calibrate", "--target", "sm_90", "--out", str(path), "--json"]
    done = CliRunner().invoke(stitch, given)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["error"] <= told["before"] and set(told["device"]) == set(calibrate.GPU_FITTED)
    written = json.loads(path.read_text())
    calls = calibrate_gpu.WARM_UPS + calibrate_gpu.REPEATS
    middle = calibrate_gpu.WARM_UPS + calibrate_gpu.REPEATS // 2 + 1
    seconds = [one["seconds"] for one in written["fit"]["kernels"]]
    assert seconds == pytest.approx([1e-6 * middle, 1e-6 * (middle + calls)])
    assert written["device"]["launch_seconds"] == BEGIN.launch_seconds
    assert records.read(path).timing is not None
