"""Kernels for jobs on a GPU: each a launch table of its own, which the plug-in loads by its key.

Made where there may be no GPU: nothing here is measured (docs/contracts.md 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stitchcore.codegen.cuda import THREADS, shared_bytes
from stitchcore.compiler.module import CompiledKernel
from stitchcore.compiler.stages import Progress
from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.opcode_record import highest, lowest
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.cuda_program import KernelLaunch, Place, launch_table
from stitchcore.launch.cuda_table import Cubin, Input, Output, write
from stitchcore.loop_ir.nodes import (
    Apply,
    Expression,
    Kernel,
    Let,
    Literal,
    Role,
    Scalar,
    Statement,
)
from stitchcore.loop_ir.visitor import expressions, statements
from stitchcore.toolchain import cuda_compiler
from stitchcore.toolchain.c_compiler import CompiledLibrary

DRIVER = 12000
"""The oldest driver that is asked of (CUDA 12.0): what NVRTC 12 compiles for."""


def compile_programs(
    kernels: Mapping[str, Kernel],
    device: Device,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, CompiledKernel], tuple[CompiledLibrary, ...], dict[str, Refusal]]:
    """Kernels by key that have a launch table, the tables, and by key why the others have none.

    Raises Refused(NO_COMPILER) without NVRTC, Refused(WRONG_TARGET) for an architecture that it
    does not know.
    """
    made: dict[str, CompiledKernel] = {}
    tables: list[CompiledLibrary] = []
    refused: dict[str, Refusal] = {}
    cuda_compiler.require(device.target)
    for number, (key, kernel) in enumerate(kernels.items()):
        if progress is not None:
            progress("compile", number, len(kernels))
        if (why := differs(kernel)) is not None:
            refused[key] = why
            continue
        units, left = cuda_compiler.compile_kernels([kernel], device.target, cache)
        if left:
            refused[key] = left[0]
            continue
        [unit] = units
        made[key] = CompiledKernel(key, kernel, len(tables))
        compiler = f"NVRTC {unit.program.version}"
        tables.append(CompiledLibrary(_table(kernel, unit.program.data, device), compiler, ()))
    return made, tuple(tables), refused


def _table(kernel: Kernel, cubin: bytes, device: Device) -> bytes:
    inputs, outputs = (len(kernel.with_role(role)) for role in (Role.INPUT, Role.OUTPUT))
    places: tuple[Place, ...] = tuple(map(Input, range(inputs)))
    places += tuple(map(Output, range(outputs)))
    launch = KernelLaunch(kernel, 0, THREADS, shared_bytes(kernel), places)
    modules = [[Cubin(device.target, cubin)]]
    return write(launch_table([launch], modules, kernel.symbols, inputs, outputs, DRIVER))


def differs(kernel: Kernel) -> Refusal | None:
    """Why `kernel`, which computes what TensorFlow does on a CPU, may not on a GPU, or None.

    TensorFlow's kernels on a GPU raise no error for data, and a conversion of a float that no
    integer holds is CUDA's, not x86's. Regions lowered for a GPU have neither (tensorflow/
    meaning.py: REWRITES); what came some other way is refused here.
    """
    if kernel.errors:
        detail = f"on a GPU TensorFlow does not raise: {kernel.errors[0]}"
        return Refusal(kernel.name, Reason.DATA_DEPENDENT_ERROR, detail)
    sections = [section for phase in kernel.phases for section in phase.sections]
    if any(_narrows(section.body) for section in sections):
        detail = "a float becomes an integer: TensorFlow's rule on a GPU is CUDA's, not x86's"
        return Refusal(kernel.name, Reason.UNSUPPORTED_OPCODE, detail)
    return None


def _narrows(body: Sequence[Statement]) -> bool:
    """Whether a float that may not fit in becomes an integer."""
    lets = {s.scalar: s.value for s in statements(body) if isinstance(s, Let)}
    return any(
        isinstance(one, Apply) and _is_narrowing(one) and not _fits(one, lets)
        for one in expressions(body)
    )


def _is_narrowing(apply: Apply) -> bool:
    if apply.opcode != op.CONVERT or DTYPES[apply.dtype].kind not in ("signed", "unsigned"):
        return False
    [value] = apply.operands
    return DTYPES[value.dtype].kind == "float"


def _fits(apply: Apply, lets: Mapping[Scalar, Expression]) -> bool:
    """Whether the converted value has been brought between limits that the integer type holds:
    minimum(maximum(x, low), high). A NaN passes through: who selects it away knows its own rule."""
    low, high = lowest(apply.dtype), highest(apply.dtype)
    value = apply.operands[0]
    for opcode in (op.MINIMUM, op.MAXIMUM):
        value = lets.get(value, value) if isinstance(value, Scalar) else value
        if not isinstance(value, Apply) or value.opcode != opcode:
            return False
        constants = [one.value for one in value.operands if isinstance(one, Literal)]
        if not constants or not low <= constants[0] <= high:
            return False
        value = next((one for one in value.operands if not isinstance(one, Literal)), value)
    return True
