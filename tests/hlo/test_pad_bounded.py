"""Bounded arrays held at their bound: the numbers are those of arrays that really are so short."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import topological
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.transforms.pad_bounded import padded

SPARSE = """
HloModule sparse

combine (a: f32[], b: f32[]) -> f32[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main (n: s32[], m: s32[], rows: s32[5], where: s32[5], u: f32[5,2], table: f32[7,2])
    -> (f32[7,2], s32[], s32[]) {
  n = s32[] parameter(0)
  m = s32[] parameter(1)
  rows = s32[5] parameter(2)
  where = s32[5] parameter(3)
  u = f32[5,2] parameter(4)
  table = f32[7,2] parameter(5)
  chosen = s32[<=5] set-dimension-size(rows, n), dimensions={0}
  zero = f32[] constant(0)
  zeros = f32[5,2] broadcast(zero), dimensions={}
  empty = f32[<=5,2] set-dimension-size(zeros, n), dimensions={0}
  sums = f32[<=5,2] scatter(empty, where, u), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=combine
  short = f32[<=5,2] set-dimension-size(u, m), dimensions={0}
  product = f32[<=5,2] multiply(sums, short)
  made = f32[7,2] scatter(table, WHICH, UPDATE), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=combine
  size = s32[] get-dimension-size(product), dimensions={0}
  whole = s32[] get-dimension-size(product), dimensions={1}
  ROOT result = (f32[7,2], s32[], s32[]) tuple(made, size, whole)
}
"""


def sparse(which: str, update: str) -> str:
    text = SPARSE.replace("WHICH", which).replace("UPDATE", update)
    return text.replace("\n    ->", " ->").replace("},\n    ", "}, ").replace(",\n    ", ", ")


@pytest.mark.parametrize(("n", "m"), [(0, 0), (3, 3), (4, 4), (5, 5)])
@pytest.mark.parametrize("which", ["chosen", "rows"])
def test_what_lies_past_the_extent_is_not_seen(n: int, m: int, which: str) -> None:
    """`where` writes past the extent too; so do rows that are not among the chosen."""
    module = parse(sparse(which, "product" if which == "chosen" else "u"))
    whole = padded(module)
    assert not any(node.shape.bounded for node in topological([whole.entry.root]))
    random = np.random.default_rng(0)
    numbers = np.asarray(n, np.int32), np.asarray(m, np.int32)
    rows = np.array([6, 1, 1, 9, 0], np.int32)
    where = np.array([4, 0, 3, 0, 2], np.int32)
    floats = [random.standard_normal(shape, np.float32) for shape in ((5, 2), (7, 2))]
    arguments = [*numbers, rows, where, *floats]
    for result, right in zip(evaluate(whole, arguments), evaluate(module, arguments), strict=True):
        np.testing.assert_array_equal(result, right)


def test_a_product_is_as_long_as_its_shorter_factor() -> None:
    whole = padded(parse(sparse("rows", "u")))
    arguments = [np.asarray(one, np.int32) for one in (4, 2)]
    arguments += [np.zeros(5, np.int32), np.zeros(5, np.int32)]
    floats = np.ones((5, 2), np.float32), np.ones((7, 2), np.float32)
    _, size, extent = evaluate(whole, [*arguments, *floats])
    assert (int(size), int(extent)) == (2, 2)


def test_a_module_without_bounded_shapes_is_itself() -> None:
    module = parse(
        "HloModule m\n\nENTRY main (x: f32[3]) -> f32[3] {\n  x = f32[3] parameter(0)\n"
        "  ROOT y = f32[3] negate(x)\n}\n"
    )
    assert padded(module) is module


@pytest.mark.parametrize(
    ("root", "opcode"),
    [
        ("ROOT r = f32[<=4] reverse(c), dimensions={0}", op.REVERSE),
        ("ROOT r = f32[4] set-dimension-size(c, four), dimensions={0}", op.SET_DIMENSION_SIZE),
        ("ROOT r = f32[<=4] negate(c)", op.NEGATE),
        ("ROOT r = (f32[<=4]) tuple(c)", op.TUPLE),
    ],
)
def test_what_has_no_rule_is_refused(root: str, opcode: str) -> None:
    result = root.split(" = ")[1].split(" ")[0]
    lines = (
        "HloModule m",
        "",
        f"ENTRY main (x: f32[4], n: s32[]) -> {result} {{",
        "  x = f32[4] parameter(0)",
        "  n = s32[] parameter(1)",
        "  four = s32[] constant(4)",
        "  c = f32[<=4] set-dimension-size(x, n), dimensions={0}",
        f"  {root}",
        "}",
    )
    with pytest.raises(Refused) as refused:
        padded(parse("\n".join(lines) + "\n"))
    assert refused.value.refusal.reason is Reason.UNSUPPORTED_TYPE
    assert refused.value.refusal.subject == opcode
