"""Each elementwise opcode, at each type: numpy = interpreter = C, on edge values and ordinary ones.

And each opcode has a mutant: the kernel of a neighbour with the same signature must fail its test.
"""

from __future__ import annotations

from collections import defaultdict

import ml_dtypes
import numpy as np
import pytest

from stitchcore.device.host import host_device
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.loop_ir.verifier import check
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library
from stitchcore.toolchain import c_compiler
from tests.codegen.opcode_cases import Array, Case, cases, inputs
from tests.codegen.units import compile_units

ALL = list(cases())
NAMES = sorted({case.opcode for case in ALL})
ZERO_SIGN_FREE = frozenset({opcodes.MAXIMUM, opcodes.MINIMUM, opcodes.CLAMP})
"""Of two zeros of unlike sign these may return either."""

EXPECTED_SCALAR = ("remainder", "divide", "power", "popcnt", "count_leading_zeros")
"""Opcodes with no vector instruction on integers (or, float remainder, only in libm)."""


SILENT = frozenset(
    f"k_{name}.lane"
    for name in (
        "convert_pred_u64",
        "convert_pred_u8",
        "bitcast_convert_bf16_u16",
        "bitcast_convert_f16_u16",
    )
)
"""Kernels that gcc turns into a plain copy, with no remark at all."""


def agrees(opcode: str, found: Array, expected: Array, dtype: str) -> bool:
    """Equal, or floats within twice the opcode's ulp (a vector and a scalar may differ by one).

    Results below the smallest normal number are equal: they are flushed.
    """
    if DTYPES[dtype].kind != "float":
        return bool(np.array_equal(found, expected))
    numbers = ml_dtypes.finfo(DTYPES[dtype].numpy)  # type: ignore[no-untyped-call]
    a, b = found.astype(np.float64), expected.astype(np.float64)
    tiny, epsilon = float(numbers.tiny), float(numbers.eps)
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = np.maximum(2 * opcodes.record(opcode).ulp * np.abs(b) * epsilon, tiny)
        close = (a == b) | (np.isfinite(b) & (np.abs(a - b) <= allowed))
    same_nan = np.isnan(a) & np.isnan(b)
    zeros = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    if opcode in ZERO_SIGN_FREE:
        zeros &= False
    return bool(np.all((close | same_nan) & ~zeros))


@pytest.fixture(scope="module")
def compiled() -> dict[str, CpuKernel]:
    """Every case's kernel, compiled for this machine, by name."""
    generator = np.random.default_rng(1)
    kernels = [case.kernel(len(inputs(case, generator)[0])) for case in ALL]
    found: dict[str, CpuKernel] = {}
    units = compile_units(kernels, host_device())
    scalar = []
    for batch, library in units:
        loaded = load_library(library.data)
        found |= {kernel.name: CpuKernel(loaded, kernel) for kernel in batch}
        scalar += [report.loop for report in library.scalar_loops]
    unexpected = [
        loop
        for loop in scalar
        if not any(f"k_{name}" in loop for name in EXPECTED_SCALAR) and "f64" not in loop
    ]
    if "v4" in host_device().target and "gcc" in c_compiler.find_compiler().family:
        assert set(unexpected) <= SILENT
    return found


@pytest.mark.slow
@pytest.mark.parametrize("opcode", NAMES)
def test_numpy_interpreter_and_c_agree(opcode: str, compiled: dict[str, CpuKernel]) -> None:
    generator = np.random.default_rng(2)
    for case in (case for case in ALL if case.opcode == opcode):
        operands = inputs(case, generator)
        expected = opcodes.compute(opcode, operands, case.target, dict(case.attributes))
        kernel = compiled[case.name].kernel
        check(kernel)
        assert parse_kernel(print_kernel(kernel)) == kernel
        [interpreted] = interpret(kernel, operands, {}, generator)
        assert agrees(opcode, interpreted, expected, case.target), case.name
        [computed] = compiled[case.name].run(operands)
        assert agrees(opcode, computed, expected, case.target), case.name


def _signature(case: Case) -> tuple[tuple[str, ...], str]:
    return case.sources, case.target


@pytest.mark.slow
@pytest.mark.parametrize("opcode", NAMES)
def test_a_neighbours_template_fails(opcode: str, compiled: dict[str, CpuKernel]) -> None:
    by_signature: dict[tuple[tuple[str, ...], str], list[Case]] = defaultdict(list)
    for case in ALL:
        by_signature[_signature(case)].append(case)
    killed = 0
    generator = np.random.default_rng(3)
    for case in (case for case in ALL if case.opcode == opcode):
        operands = inputs(case, generator)
        expected = opcodes.compute(opcode, operands, case.target, dict(case.attributes))
        for other in by_signature[_signature(case)]:
            meant = opcodes.compute(other.opcode, operands, case.target, dict(other.attributes))
            if other == case or agrees(opcode, meant, expected, case.target):
                continue  # itself, or the same function of these types (or and add of pred)
            [mutant] = compiled[other.name].run(operands)
            assert not agrees(opcode, mutant, expected, case.target), (case.name, other.name)
            killed += 1
    if opcode not in (opcodes.SELECT, opcodes.CLAMP):
        assert killed > 0, f"{opcode} has no neighbour to be confused with"
