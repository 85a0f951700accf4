"""Published rates follow from a record's lanes and clock; a written record is read as it was."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from stitchcore.device import records
from stitchcore.device.records import DEVICES
from stitchcore.device.timing import NAMES, Classes
from stitchcore.errors import Reason, Refused

PEAKS = {
    "sm_70": (15.7, 7.8),
    "sm_80": (19.5, 9.7),
    "sm_86": (31.2, None),
    "sm_89": (30.3, None),
    "sm_90": (67.0, 34.0),
}
"""TFLOP/s of float32 and float64 in the vendor's data sheets (V100 SXM2, A100, A10, L4, H100 SXM),
a fused multiply-add counted as two."""


@pytest.mark.parametrize("target", PEAKS)
def test_peaks_of_data_sheets_follow(target: str) -> None:
    device = DEVICES[target]
    assert device.timing is not None
    a_lane = 2 * device.units * device.timing.hertz / 1e12
    peaks = (a_lane * device.timing.lanes.float32, a_lane * device.timing.lanes.float64)
    for mine, published in zip(peaks, PEAKS[target], strict=True):
        assert published is None or mine == pytest.approx(published, rel=0.02)


def test_every_gpu_has_a_timing_and_no_cpu() -> None:
    for device in DEVICES.values():
        assert (device.timing is not None) == (device.kind == "gpu")


def test_units_work_side_by_side_and_the_dispatcher_starts_four_warps() -> None:
    """sm_80: 64 lanes of float32 and 64 of integers fill what is dispatched; 16 special ones do
    not."""
    timing = DEVICES["sm_80"].timing
    assert timing is not None
    assert timing.issue(Classes(float32=64, integer=64)) == 1.0
    assert timing.issue(Classes(float32=64)) == 1.0
    assert timing.issue(Classes(special=16)) == 1.0
    assert timing.issue(Classes(float32=64, integer=64, special=16)) == pytest.approx(144 / 128)
    assert timing.chain(Classes(float32=3, special=2)) == 3 * 4 + 2 * 21


def test_counts_add_up_class_by_class() -> None:
    one, other = Classes(*range(8)), Classes(*range(10, 18))
    assert (one + other).figures == tuple(range(10, 26, 2))
    assert one.times(3).figures == tuple(range(0, 24, 3))
    assert tuple(asdict(one)) == NAMES and tuple(asdict(one).values()) == one.figures


def written(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({"device": {**asdict(DEVICES["sm_90"]), **changes}}))
    return path


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert records.read(written(tmp_path / "gpu.json")) == DEVICES["sm_90"]
    cpu = DEVICES["cpu-x86-64-v3"]
    old = {name: value for name, value in asdict(cpu).items() if name != "timing"}
    (tmp_path / "cpu.json").write_text(json.dumps({"device": old}))
    assert records.read(tmp_path / "cpu.json") == cpu


def test_a_timing_that_is_none_is_refused(tmp_path: Path) -> None:
    timing = DEVICES["sm_90"].timing
    assert timing is not None
    still = replace(timing, lanes=replace(timing.lanes, special=0.0))
    for wrong in ("fast", {}, {"hertz": 1e9, "cpi": {}, "lanes": 1}, asdict(still)):
        with pytest.raises(Refused) as refused:
            records.read(written(tmp_path / "gpu.json", timing=wrong))
        assert refused.value.refusal.reason is Reason.PARSE_ERROR
