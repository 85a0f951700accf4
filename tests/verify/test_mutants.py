"""A mutant of each opcode that is not elementwise: its kernel's check fails (docs/decisions.md 24).

Elementwise opcodes have theirs in tests/codegen/test_opcodes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from stitchcore.compiler.module import CompiledModule
from stitchcore.compiler.stages import compile_module
from stitchcore.device.host import host_device
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.runtime.module import load, run_kernel
from stitchcore.verify.kernel import check_kernel

SUM = "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
TOP = SUM.replace("sum {", "top {").replace("add(", "maximum(")
ZERO = "z = f32[] constant(0)"

FROM_LAST = ("i = s32[6] iota(), iota_dimension=0", "n = s32[] constant(5)",
             "m = s32[6] broadcast(n), dimensions={}")  # fmt: skip
ROWS = (
    "y = f32[6,6] gather(x, c), offset_dims={1}, collapsed_slice_dims={0}, "
    "start_index_map={0}, index_vector_dim=1, slice_sizes={1,6}"
)


def scattered(indices: str, by: str) -> str:
    """Rows of x into x itself."""
    return (
        f"y = f32[6,6] scatter(x, {indices}, x), update_window_dims={{1}}, "
        "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
        f"to_apply={by}"
    )


def summed(window: str, by: str) -> tuple[str, ...]:
    """Cumulative sums (or maxima) of all elements of x, one after another."""
    return (
        "v = f32[36] reshape(x)",
        f"z = f32[] constant({'0' if by == 'sum' else '-inf'})",
        f"w = f32[36] reduce-window(v, z), window={{size={window}}}, to_apply={by}",
        "y = f32[6,6] reshape(w)",
    )


MUTANTS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    op.CONSTANT: (
        ("v = f32[] constant(1.5)", "y = f32[6,6] broadcast(v), dimensions={}"),
        (("v = f32[] constant(1.25)", "y = f32[6,6] broadcast(v), dimensions={}"),),
    ),
    op.IOTA: (
        ("y = f32[6,6] iota(), iota_dimension=0",),
        (("y = f32[6,6] iota(), iota_dimension=1",),),
    ),
    op.CHECK: (  # that it raises: tests/hlo/test_keep_checks.py
        ("p = pred[6,6] compare(x, x), direction=EQ",
         'y = f32[6,6] custom-call(x, p), custom_call_target="stitch.check", backend_config="bad"'),
        (("p = pred[6,6] compare(x, x), direction=EQ", "n = f32[6,6] negate(x)",
          'y = f32[6,6] custom-call(n, p), custom_call_target="stitch.check", '
          'backend_config="bad"'),),
    ),
    op.BROADCAST: (
        ("s = f32[1,6] slice(x), slice={[0:1], [0:6]}", "v = f32[6] reshape(s)",
         "y = f32[6,6] broadcast(v), dimensions={1}"),
        (("s = f32[1,6] slice(x), slice={[0:1], [0:6]}", "v = f32[6] reshape(s)",
          "y = f32[6,6] broadcast(v), dimensions={0}"),),
    ),
    op.RESHAPE: (
        ("v = f32[4,9] reshape(x)", "w = f32[9,4] transpose(v), dimensions={1,0}",
         "y = f32[6,6] reshape(w)"),
        (("v = f32[9,4] reshape(x)", "w = f32[4,9] transpose(v), dimensions={1,0}",
          "y = f32[6,6] reshape(w)"),),
    ),
    op.BITCAST: (
        ("v = f32[4,9] bitcast(x)", "w = f32[9,4] transpose(v), dimensions={1,0}",
         "y = f32[6,6] bitcast(w)"),
        (("v = f32[9,4] bitcast(x)", "w = f32[4,9] transpose(v), dimensions={1,0}",
          "y = f32[6,6] bitcast(w)"),),
    ),
    op.TRANSPOSE: (
        ("y = f32[6,6] transpose(x), dimensions={1,0}",),
        (("y = f32[6,6] transpose(x), dimensions={0,1}",),),
    ),
    op.SLICE: (
        ("v = f32[6,3] slice(x), slice={[0:6], [0:6:2]}",
         "y = f32[6,6] concatenate(v, v), dimensions={1}"),
        (("v = f32[6,3] slice(x), slice={[0:6], [1:6:2]}",
          "y = f32[6,6] concatenate(v, v), dimensions={1}"),
         ("v = f32[6,3] slice(x), slice={[0:6], [0:3]}",
          "y = f32[6,6] concatenate(v, v), dimensions={1}")),
    ),
    op.PAD: (
        ("v = f32[6,5] slice(x), slice={[0:6], [0:5]}", ZERO,
         "y = f32[6,6] pad(v, z), padding=0_0x0_1"),
        (("v = f32[6,5] slice(x), slice={[0:6], [0:5]}", ZERO,
          "y = f32[6,6] pad(v, z), padding=0_0x1_0"),
         ("v = f32[6,5] slice(x), slice={[0:6], [0:5]}", "z = f32[] constant(1)",
          "y = f32[6,6] pad(v, z), padding=0_0x0_1")),
    ),
    op.CONCATENATE: (
        ("a = f32[6,2] slice(x), slice={[0:6], [0:2]}",
         "b = f32[6,4] slice(x), slice={[0:6], [2:6]}",
         "y = f32[6,6] concatenate(b, a), dimensions={1}"),
        (("a = f32[6,2] slice(x), slice={[0:6], [0:2]}",
          "b = f32[6,4] slice(x), slice={[0:6], [2:6]}",
          "y = f32[6,6] concatenate(a, b), dimensions={1}"),),
    ),
    op.REVERSE: (
        ("y = f32[6,6] reverse(x), dimensions={0}",),
        (("y = f32[6,6] reverse(x), dimensions={1}",), ("y = f32[6,6] copy(x)",)),
    ),
    op.REDUCE: (
        (ZERO, "v = f32[6] reduce(x, z), dimensions={1}, to_apply=sum",
         "y = f32[6,6] broadcast(v), dimensions={0}"),
        ((ZERO, "v = f32[6] reduce(x, z), dimensions={0}, to_apply=sum",
          "y = f32[6,6] broadcast(v), dimensions={0}"),
         (ZERO, "v = f32[6] reduce(x, z), dimensions={1}, to_apply=top",
          "y = f32[6,6] broadcast(v), dimensions={0}"),
         ("z = f32[] constant(1)", "v = f32[6] reduce(x, z), dimensions={1}, to_apply=sum",
          "y = f32[6,6] broadcast(v), dimensions={0}")),
    ),
    op.GATHER: (
        (*FROM_LAST, "c = s32[6] subtract(m, i)", ROWS),
        ((*FROM_LAST, "c = s32[6] minimum(m, i)", ROWS),
         (*FROM_LAST, "c = s32[6] subtract(m, i)",
          "y = f32[6,6] gather(x, c), offset_dims={0}, collapsed_slice_dims={1}, "
          "start_index_map={1}, index_vector_dim=1, slice_sizes={6,1}")),
    ),
    op.DYNAMIC_SLICE: (
        ("i = s32[] constant(2)", "j = s32[] constant(1)",
         "v = f32[3,6] dynamic-slice(x, i, j), dynamic_slice_sizes={3,6}",
         "y = f32[6,6] concatenate(v, v), dimensions={0}"),
        (("i = s32[] constant(1)", "j = s32[] constant(1)",
          "v = f32[3,6] dynamic-slice(x, i, j), dynamic_slice_sizes={3,6}",
          "y = f32[6,6] concatenate(v, v), dimensions={0}"),
         ("v = f32[3,6] slice(x), slice={[0:3], [0:6]}",
          "y = f32[6,6] concatenate(v, v), dimensions={0}")),
    ),
    op.SCATTER: (
        (*FROM_LAST, "c = s32[6] subtract(m, i)", scattered("c", "sum")),
        ((*FROM_LAST, "c = s32[6] minimum(m, i)", scattered("c", "sum")),
         (*FROM_LAST, "c = s32[6] subtract(m, i)", scattered("c", "top")),
         ("y = f32[6,6] add(x, x)",)),
    ),
    op.REDUCE_WINDOW: (
        summed("36 pad=35_0", "sum"),
        (summed("36 pad=35_0", "top"), summed("36 pad=0_35", "sum"), summed("36 pad=36_-1", "sum"),
         summed("1", "sum")),
    ),
    op.DYNAMIC_UPDATE_SLICE: (
        ("i = s32[] constant(2)", "j = s32[] constant(0)",
         "v = f32[3,6] slice(x), slice={[0:3], [0:6]}",
         "y = f32[6,6] dynamic-update-slice(x, v, i, j)"),
        (("i = s32[] constant(3)", "j = s32[] constant(0)",
         "v = f32[3,6] slice(x), slice={[0:3], [0:6]}",
          "y = f32[6,6] dynamic-update-slice(x, v, i, j)"),
         ("i = s32[] constant(2)", "j = s32[] constant(0)",
         "v = f32[3,6] slice(x), slice={[3:6], [0:6]}",
          "y = f32[6,6] dynamic-update-slice(x, v, i, j)"),
         ("y = f32[6,6] copy(x)",)),
    ),
}  # fmt: skip
"""By opcode: how y is made of x, and wrong ways of the same types. The result is x + y."""


def compiled(lines: Sequence[str]) -> CompiledModule:
    body = "".join(f"  {line}\n" for line in lines)
    text = f"HloModule m\n\n{SUM}\n{TOP}\nENTRY main {{\n  x = f32[6,6] parameter(0)\n{body}"
    return compile_module(
        parse(text + "  ROOT out = f32[6,6] add(x, y)\n}\n"),
        host_device(),
    )


def running(kernel: CpuKernel, pattern: Pattern, given: Sequence[Any]) -> Sequence[Any]:
    return run_kernel(kernel, pattern, given, {})


def test_every_such_opcode_has_a_mutant() -> None:
    kinds = op.STITCHABLE_KINDS - {"elementwise"}
    assert set(MUTANTS) == {name for name, r in op.OPCODES.items() if r.kind in kinds}


@pytest.mark.slow
@pytest.mark.parametrize("opcode", sorted(MUTANTS))
def test_the_check_fails_for_mutants_only(opcode: str) -> None:
    right, wrong = MUTANTS[opcode]
    made = compiled(right)
    [pattern] = made.plan.patterns
    check = partial(check_kernel, pattern, made.module)
    assert check(partial(running, load(made)[0], pattern), {}).passed
    for lines in wrong:
        mutant = compiled(lines)
        [other] = mutant.plan.patterns
        found = check(partial(running, load(mutant)[0], other), {})
        assert not found.passed, lines
