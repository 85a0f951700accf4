"""How rows lie on GPUs (AStitch, adaptive thread mapping): every size, four devices, the rules."""

from __future__ import annotations

import pytest

from stitchcore.device.occupancy import multiprocessor
from stitchcore.device.records import DEVICES
from stitchcore.fusion.mechanisms import ALL, Mechanism
from stitchcore.reproduce.mapping import mapping
from stitchcore.reproduce.papers import ASTITCH_PACKED_ROWS
from stitchcore.schedule import limits
from stitchcore.schedule.limits import blocks_per_unit

TARGETS = ("sm_70", "sm_80", "sm_89", "sm_90")
SIZES = (1, 7, 32, 64, 300, 1000, 4096, 30_000, 250_000, 1_000_000)


def wave(target: str) -> int:
    """Blocks that a device holds of a usual kernel."""
    return blocks_per_unit(256) * multiprocessor(target).count


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", SIZES)
def test_a_device_is_filled_where_there_is_work(rows: int, target: str) -> None:
    for columns in SIZES:
        found = mapping(rows, columns, target)
        subject = f"{rows} rows of {columns} on {target}: {found}"
        assert found.rows * found.blocks >= rows, subject
        assert found.occupancy >= 0.5, subject
        if rows * columns >= wave(target) * 16384 and columns > 1:
            assert found.blocks >= multiprocessor(target).count, subject
        if found.scheme == "split":
            assert found.parts * rows == found.blocks <= wave(target) + rows, subject


@pytest.mark.parametrize("target", TARGETS)
def test_few_long_rows_are_split_to_a_wave(target: str) -> None:
    for rows in (1, 7, 32):
        found = mapping(rows, 1_000_000, target)
        assert found.scheme == "split" and found.blocks > 0.7 * wave(target)
    assert mapping(1000, 1_000_000, target).scheme == "block"
    assert mapping(32, 1000, target).parts == 1


@pytest.mark.parametrize("target", TARGETS)
def test_many_short_rows_share_a_block(target: str) -> None:
    """The paper's <750000, 32>, and rows too few to share a warp without leaving others idle."""
    found = mapping(*ASTITCH_PACKED_ROWS, target)
    assert found.scheme == "warp" and found.rows >= 32 and found.waves > 1
    few = mapping(2 * wave(target), 32, target)
    assert few.scheme == "warp" and few.rows == limits.of(DEVICES[target]).warps


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_leave_multiprocessors_idle_share_no_block(target: str) -> None:
    for rows in (32, multiprocessor(target).count):
        assert mapping(rows, 1000, target).rows == 1


def test_without_adaptive_mapping_a_row_is_a_block() -> None:
    without = ALL - {Mechanism.ADAPTIVE_MAPPING}
    for rows, columns in ((7, 1_000_000), ASTITCH_PACKED_ROWS):
        found = mapping(rows, columns, "sm_80", without)
        assert (found.scheme, found.rows, found.parts) == ("block", 1, 1)
        assert found != mapping(rows, columns, "sm_80")
