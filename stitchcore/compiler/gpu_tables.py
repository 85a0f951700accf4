"""Kernels for jobs on a GPU: the launch table of each, and what no job on a GPU may run.

Made where there may be no GPU: nothing here is measured (docs/contracts.md 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stitchcore.codegen.cuda import shared_bytes
from stitchcore.compiler.module import Unit
from stitchcore.errors import Reason, Refusal
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.opcode_record import highest, lowest
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.cuda_program import CudaLaunch, launch_table
from stitchcore.launch.cuda_table import Cubin, driver_of, write
from stitchcore.launch.place import Input, Output
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
from stitchcore.toolchain.c_compiler import CompiledLibrary
from stitchcore.toolchain.nvrtc import CompiledProgram


def table_of(unit: Unit) -> CompiledLibrary:
    """The launch table of a unit of one kernel, which the plug-in loads by the kernel's key."""
    [kernel], program = unit.kernels, unit.binary
    assert isinstance(program, CompiledProgram)
    table = launch_table_of(kernel, program)
    return CompiledLibrary(table, f"NVRTC {program.version}", ())


def launch_table_of(kernel: Kernel, program: CompiledProgram) -> bytes:
    """The table's bytes: `kernel` launched once, its inputs and outputs the program's."""
    inputs, outputs = (len(kernel.with_role(role)) for role in (Role.INPUT, Role.OUTPUT))
    places = tuple(map(Input, range(inputs))), tuple(map(Output, range(outputs)))
    launch = CudaLaunch(kernel, *places, 0, kernel.threads, shared_bytes(kernel))
    modules = [[Cubin(program.target, program.data)]]
    driver = driver_of(program.version)
    return write(launch_table([launch], modules, kernel.symbols, inputs, outputs, driver))


def differs(kernel: Kernel) -> Refusal | None:
    """Why `kernel`, which computes what TensorFlow does on a CPU, may not on a GPU, or None.

    TensorFlow's kernels on a GPU raise no error for data, and a conversion of a float that no
    integer holds is CUDA's, not x86's. Regions lowered for a GPU have neither (tensorflow/
    semantics.py: REWRITES); what came some other way is refused here.
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
