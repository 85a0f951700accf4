"""Assume, relax, apply on real kernels: the bound that was assumed is what their cubins keep."""

from __future__ import annotations

import pytest

from stitchcore.device.occupancy import multiprocessor
from stitchcore.fusion.mechanisms import ALL
from stitchcore.toolchain import cuda_compiler, launch_bounds
from stitchcore.toolchain.launch_bounds import MOST_REGISTERS
from tests.fusion.test_exhaustive import load
from tests.fusion.test_mechanisms import planned
from tests.tiers import slow_but

WORKLOADS = ["crnn_infer", "bert_infer", "transformer_dec_step"]
pytestmark = pytest.mark.usefixtures("needs_nvrtc")

GRANULE = 8
"""Registers of a thread are given out so many at a time."""


def budget(target: str, blocks: int, threads: int) -> int:
    """Registers that a thread may have where a multiprocessor holds so many blocks of `threads`."""
    registers = multiprocessor(target).registers // (blocks * threads)
    return min(registers // GRANULE * GRANULE, MOST_REGISTERS)


@pytest.mark.parametrize("target", slow_but("sm_80", of=["sm_80", "sm_90"]))
@pytest.mark.parametrize("name", WORKLOADS)
def test_cubins_keep_the_bound_that_was_assumed(name: str, target: str) -> None:
    kernels = planned(load(name), ALL, target).kernels
    units, refusals = cuda_compiler.compile_kernels(kernels, target)
    fits = [fit for unit in units for fit in unit.fits]
    assert not refusals and {fit.kernel for fit in fits} == {kernel.name for kernel in kernels}
    for fit in fits:
        assert fit.resources.spill_bytes == 0
        assert fit.resources.registers <= budget(target, fit.bound, fit.threads)
        assert fit.bound <= fit.assumed and fit.bound <= fit.blocks
        assert fit.wave == fit.blocks * multiprocessor(target).count
    assert len({fit.bound for fit in fits}) > 1  # not one bound for all


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_without_a_bound_registers_go_beyond_it(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Told nothing of how many blocks are to be held, the compiler takes more registers than leave
    room for them: the wave would be narrower than assumed."""
    kernels = planned(load("bert_infer"), ALL, target).kernels
    threads = {kernel.name: kernel.threads for kernel in kernels}
    assumed = {kernel.name: launch_bounds.assumed(kernel, target) for kernel in kernels}
    monkeypatch.setattr(launch_bounds, "assumed", lambda kernel, target: 1)
    units, _ = cuda_compiler.compile_kernels(kernels, target)
    used = {fit.kernel: fit.resources.registers for unit in units for fit in unit.fits}
    assert any(
        used[name] > budget(target, blocks, threads[name]) for name, blocks in assumed.items()
    )
