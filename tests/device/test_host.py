"""Levels from processor flags, caches from /sys; the real machine has a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from stitchcore.device.host import LEVELS, host, host_device, target_of
from stitchcore.errors import Reason, Refused


def test_levels_are_cumulative_and_best_first() -> None:
    for target, flags in LEVELS:
        assert target_of(flags) == target
    v4 = dict(LEVELS)["cpu-x86-64-v4"]
    assert target_of(v4 - {"avx512vl"}) == "cpu-x86-64-v3"
    assert target_of(v4 - {"fma"}) == "cpu-x86-64-v2"


def test_an_old_processor_is_refused() -> None:
    with pytest.raises(Refused, match="sse4_2") as refused:
        target_of(frozenset({"sse4_1"}))
    assert refused.value.refusal.reason is Reason.WRONG_TARGET


def test_caches_and_model_are_read(tmp_path: Path) -> None:
    flags = " ".join(sorted(dict(LEVELS)["cpu-x86-64-v3"]))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"model name\t: Chip\nflags\t\t: {flags}\n")
    caches = {"index0": ("1", "Data", "48K"), "index1": ("1", "Instruction", "32K")}
    caches |= {"index2": ("2", "Unified", "2M"), "index3": ("3", "Unified", "16384K")}
    for name, (level, kind, size) in caches.items():
        folder = tmp_path / "sys/devices/system/cpu/cpu0/cache" / name
        folder.mkdir(parents=True)
        for file, text in (("level", level), ("type", kind), ("size", size)):
            (folder / file).write_text(text + "\n")
    device = host(tmp_path)
    assert (device.model, device.target) == ("Chip", "cpu-x86-64-v3")
    sizes = (device.level1_bytes, device.level2_bytes, device.level3_bytes)
    assert sizes == (48 * 2**10, 2 * 2**20, 16 * 2**20)


def test_this_machine() -> None:
    assert host().cores >= 1
    assert host_device().kind == "cpu"
