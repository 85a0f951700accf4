"""Kernels of tests, compiled as C for a CPU: two compilers at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from stitchcore.codegen import c
from stitchcore.device.records import Device
from stitchcore.loop_ir.nodes import Kernel
from stitchcore.toolchain import c_compiler
from stitchcore.toolchain.c_compiler import CompiledLibrary


def compile_units(
    kernels: Sequence[Kernel], device: Device
) -> list[tuple[tuple[Kernel, ...], CompiledLibrary]]:
    """The kernels of each translation unit with its library, in the order of `kernels`."""
    batches = c_compiler.batches(kernels)
    with ThreadPoolExecutor(2) as pool:
        libraries = pool.map(lambda batch: c_compiler.compile_c(c.render(batch), device), batches)
        return list(zip(batches, libraries, strict=True))
