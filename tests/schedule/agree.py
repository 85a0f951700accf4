"""Does a scheduled kernel compute what its module says, in the interpreter and as C?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stitchcore.codegen import c
from stitchcore.device.records import DEVICES, Device
from stitchcore.fusion.mechanisms import ALL, Mechanisms
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir import index
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Kernel, Role
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain.c_compiler import compile_c

DEVICE = DEVICES["cpu-x86-64-v3"]


def collapsed(kernel: Kernel, inputs: Sequence[Any], bindings: dict[str, int]) -> list[Any]:
    """Inputs in the shapes of the kernel's buffers (same elements, fewer dimensions)."""
    return [
        array.reshape([index.evaluate(d, bindings) for d in buffer.dims])
        for array, buffer in zip(inputs, kernel.with_role(Role.INPUT), strict=True)
    ]


def assert_close(ours: Sequence[Any], theirs: Sequence[Any], kernel: Kernel) -> None:
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        a, b = np.asarray(a).reshape(-1), np.asarray(b).reshape(-1)
        if a.dtype.kind in "biu":
            assert np.array_equal(a, b), f"{kernel.name}: output {number}"
            continue
        scale = np.abs(b.astype(np.float64)).max(initial=0.0)
        tolerance = {1: 0.3, 2: 3e-2}.get(a.dtype.itemsize, 2e-5)
        np.testing.assert_allclose(
            a.astype(np.float64),
            b.astype(np.float64),
            rtol=tolerance,
            atol=tolerance * (scale + 1e-6),
            err_msg=f"{kernel.name}: output {number}",
        )


def check(
    pattern: Pattern,
    module: Module,
    inputs: Sequence[Any],
    bindings: dict[str, int] | None = None,
    compiled: bool = False,
    device: Device = DEVICE,
    mechanisms: Mechanisms = ALL,
) -> Kernel:
    """Schedule, then compare with numpy; every output of the module must be one of the pattern."""
    bound = bindings or {}
    kernel = schedule(pattern, module, device, "kernel", verify=True, mechanisms=mechanisms)
    arguments = dict(zip(pattern.inputs, inputs, strict=True))
    given = [
        arguments.get(p, np.zeros([d if isinstance(d, int) else 1 for d in p.shape.dims], "f4"))
        for p in module.entry.parameters
    ]
    values = evaluate(module, given, bound)
    expected = dict(zip(module.outputs, values, strict=True))
    theirs = [expected[value] for value in pattern.outputs]
    shaped = collapsed(kernel, inputs, bound)
    random = np.random.default_rng(1)
    assert_close(interpret(kernel, shaped, bound, random), theirs, kernel)
    if kernel.aliases:
        shared = interpret(kernel, shaped, bound, random, share_aliases=True)
        assert_close(shared, theirs, kernel)
    if compiled:
        library = compile_c(c.render([kernel]), DEVICE)
        assert_close(CpuKernel(library.data, kernel).run(shaped, bound, 2), theirs, kernel)
    return kernel
