"""Kernels of tests, compiled as C for a CPU: two compilers at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from stitchcore.device.records import Device
from stitchcore.emit import c
from stitchcore.kernel.nodes import Kernel
from stitchcore.target import toolchain
from stitchcore.target.toolchain import CompiledLibrary


def compile_units(
    kernels: Sequence[Kernel], device: Device
) -> list[tuple[tuple[Kernel, ...], CompiledLibrary]]:
    """The kernels of each translation unit with its library, in the order of `kernels`."""
    batches = toolchain.batches(kernels)
    with ThreadPoolExecutor(2) as pool:
        libraries = pool.map(lambda batch: toolchain.compile_c(c.render(batch), device), batches)
        return list(zip(batches, libraries, strict=True))
