"""Occupancy: cases worked out by hand from NVIDIA's tables, and its bounds on random ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.device.gpus import GPUS, SHARED_EVERYWHERE
from stitchcore.device.occupancy import blocks_per_multiprocessor, multiprocessor
from stitchcore.device.records import DEVICES, device_of


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared", "blocks"),
    [
        ("sm_90", 256, 32, 0, 8),  # 2048 threads
        ("sm_90", 256, 64, 0, 4),  # 64 * 256 * 4 = 65536 registers
        ("sm_90", 1024, 65, 0, 0),  # 72 * 1024 registers do not exist
        ("sm_90", 32, 16, 0, 32),  # blocks
        ("sm_90", 256, 32, 116 * 1024 - 1024, 1),  # two need 232 KB, the multiprocessor has 228
        ("sm_90", 256, 32, 113 * 1024, 2),
        ("sm_90", 256, 32, 232449, 0),  # more than a block may have
        ("sm_80", 256, 22, 128 + 4096 * 4, 8),
        ("sm_86", 256, 32, 0, 6),
    ],
)
def test_worked_cases(target: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert blocks_per_multiprocessor(target, threads, registers, shared) == blocks


@given(
    st.sampled_from(sorted(GPUS)),
    st.integers(1, 32),
    st.integers(0, 255),
    st.integers(0, 240_000),
)
def test_no_resource_is_exceeded_and_one_more_block_would(
    target: str, warps: int, registers: int, shared: int
) -> None:
    unit = multiprocessor(target)
    blocks = blocks_per_multiprocessor(target, warps * 32, registers, shared)
    assert 0 <= blocks <= unit.blocks
    assert blocks * warps * 32 <= unit.threads
    assert blocks * warps * registers * 32 <= unit.registers
    assert blocks * (shared + unit.reserved_bytes_per_block) <= unit.shared_bytes or blocks == 0
    assert blocks <= blocks_per_multiprocessor(target, warps * 32, registers, 0)


def test_a_gpu_without_a_record_is_planned_for_as_the_one_before_it() -> None:
    """But with the shared memory that every GPU has: a newer one may have less."""
    blackwell, unknown = multiprocessor("sm_100"), multiprocessor("sm_120")
    assert (unknown.registers, unknown.threads) == (blackwell.registers, blackwell.threads)
    assert unknown.shared_bytes_per_block == SHARED_EVERYWHERE < blackwell.shared_bytes_per_block
    assert device_of("sm_120") is not None and device_of("sm_100") is DEVICES["sm_100"]
    for target in ("sm_61", "gfx942", "sm_", "cpu-x86-64-v9"):
        assert device_of(target) is None
