"""Instructions in cubins: the decoder on kernels whose instructions are known, and what the opcode
table says of a GPU against what NVRTC makes of each opcode."""

from __future__ import annotations

from functools import lru_cache

import pytest

from bench import sass
from stitchcore.fusion.instructions import NARROWED
from stitchcore.hlo.ir import opcodes
from stitchcore.toolchain import nvrtc

pytestmark = pytest.mark.usefixtures("needs_nvrtc")

NAMES = {"f32": "float"}
LOOSE = {
    "sine": "the reduction of large arguments is written in place",
    "cosine": "the reduction of large arguments is written in place",
    "tan": "the reduction of large arguments is written in place",
    "power": "special cases are branches in place",
    "remainder": "a loop and special cases are in place",
    "atan2": "special cases are branches in place",
}
"""Opcodes of which not all that stands before the first EXIT is the ordinary way."""


def kernel(name: str, expression: str) -> str:
    return (
        f'extern "C" __global__ void k_{name}(const float *a, const float *b, const float *d, '
        "float *c) { const int i = blockIdx.x * 256 + threadIdx.x; "
        f"const float x = a[i], y = b[i], z = d[i]; c[i] = {expression}; }}\n"
    )


def classes(source: str, ordinary: bool = False) -> dict[str, dict[str, int]]:
    made = nvrtc.compile_cuda('#include "stitch_cuda.h"\n' + source)
    found = sass.operations(made.data, ordinary)
    return {name.removeprefix("k_"): sass.by_class(codes) for name, codes in found.items()}


def test_known_instructions_are_found() -> None:
    """Three loads and a store in each; what the expressions add."""
    found = classes(
        kernel("sum", "x + y + z")
        + kernel("product", "x * y * z * x")
        + kernel("special", "__expf(__sinf(x)) + __cosf(y) + z")
        + kernel("shuffled", "__shfl_xor_sync(~0u, x, 1) + __shfl_xor_sync(~0u, y, 2) + z")
        + kernel("wide", "(float)((double)x * (double)y + (double)z)")
        + 'extern "C" __global__ void k_shared(float *c) { __shared__ float s[256]; '
        "s[threadIdx.x] = c[threadIdx.x]; __syncthreads(); c[threadIdx.x] = s[threadIdx.x ^ 1]; "
        "__syncthreads(); c[threadIdx.x + 256] = s[threadIdx.x ^ 2]; }\n"
    )
    assert all(found[name]["memory"] == 4 for name in found if name != "shared")
    assert (found["sum"]["float32"], found["product"]["float32"]) == (2, 3)
    assert found["special"]["special"] == 3
    assert found["shuffled"]["shuffle"] == 2
    # The third compares: a result that is denormal as a float is flushed.
    assert found["wide"]["float64"] == 3 and found["wide"]["special"] == 4
    assert (found["shared"]["shared"], found["shared"]["barrier"]) == (3, 2)
    assert found["sum"]["special"] == found["sum"]["shared"] == found["sum"]["float64"] == 0


@lru_cache(maxsize=1)
def added() -> dict[str, dict[str, int]]:
    """What each opcode adds to x + y + z when it stands there in place of x."""
    source = kernel("nothing", "x + y + z")
    known = []
    for name, record in opcodes.OPCODES.items():
        if record.kind != "elementwise" or "f32" not in record.dtypes or not record.flops:
            continue
        given = {"t": "f32", "s": "f32", "from": "f32", "to": "f32", "op": "<"}
        bits = {"exponent_bits": "5", "mantissa_bits": "10"}
        text = opcodes.c_template(name, "f32", cuda=True).format("x", "y", "z", **given, **bits)
        if name in (opcodes.COMPARE, opcodes.IS_FINITE):
            text = f"({text} ? x : z)"
        elif name in (opcodes.SELECT, opcodes.CONVERT):
            continue  # no operand of type pred, and f32 to f32
        source += kernel(name.replace("-", "_"), f"({text}) + y + z")
        known.append(name)
    found = classes(source, ordinary=True)
    base = found["nothing"]
    return {
        name: {k: n - base[k] for k, n in found[name.replace("-", "_")].items()} for name in known
    }


def test_the_opcode_table_says_what_nvrtc_makes() -> None:
    """Special functions to the instruction; all of an opcode's to three or a fifth, as base and
    kernel share addresses differently."""
    wrong = {}
    for name, found in added().items():
        expected = opcodes.record(name).gpu
        whole, said = sum(found.values()), sum(expected)
        if name not in LOOSE and (
            found["special"] != expected[2] or abs(whole - said) > max(3, 0.2 * whole)
        ):
            wrong[name] = (found, expected)
        if name in LOOSE:
            assert said <= whole, LOOSE[name]
    assert not wrong
    assert len(added()) > 25


def test_what_rounding_to_a_narrow_type_takes() -> None:
    source = kernel("nothing", "x + y + z")
    for dtype in NARROWED:
        source += kernel(dtype, f"st_round_{dtype}(x) + y + z")
    found = classes(source)
    for dtype, said in NARROWED.items():
        more = {name: count - found["nothing"][name] for name, count in found[dtype].items()}
        assert abs(more["integer"] - said.integer) <= 1 and more["float32"] == said.float32, dtype
        assert more["special"] == more["memory"] == 0
