"""What must hold of sizes for parts to lie within tensors: as few polynomials as tell it."""

from __future__ import annotations

import pytest

from stitchcore.hlo.symbolic.parts import never_positive
from stitchcore.hlo.text.parser import parse

BODIES = {
    "within": ("s = f32[n,7] slice(a), slice={[0:n], [1:8]}", "f32[n,7]", []),
    "all but the last": (
        "s = f32[n-1,8] slice(a), slice={[0:n-1], [0:8]}",
        "f32[n-1,8]",
        ["1-1*n"],
    ),
    "of a table": ("s = f32[n,8] slice(t), slice={[0:n], [0:8]}", "f32[n,8]", ["-200+n"]),
    "from a place on": ("s = f32[9,8] slice(t), slice={[n:n+9], [0:8]}", "f32[9,8]", ["-191+n"]),
    "of two tables": (
        "s = f32[2*n,8] slice(t), slice={[0:2*n], [0:8]}",
        "f32[2*n,8]",
        ["-200+2*n"],
    ),
    "at a place": (
        "s = f32[n,8] dynamic-slice(t, i, z), dynamic_slice_sizes={n,8}",
        "f32[n,8]",
        ["-200+n"],
    ),
    "written": ("s = f32[200,8] dynamic-update-slice(t, a, i, z)", "f32[200,8]", ["-200+n"]),
}


@pytest.mark.parametrize("kind", BODIES)
def test_what_must_hold(kind: str) -> None:
    body, shape, expected = BODIES[kind]
    module = parse(
        f"HloModule m, symbols={{n}}\n\nENTRY main {{\n  a = f32[n,8] parameter(0)\n"
        f"  t = f32[200,8] parameter(1)\n  i = s32[] parameter(2)\n  z = s32[] constant(0)\n"
        f"  {body}\n  ROOT r = {shape} negate(s)\n}}\n"
    )
    assert [str(dim) for dim in never_positive(module)] == expected


def test_of_what_differs_by_a_number_the_greatest_is_enough() -> None:
    module = parse(
        "HloModule m, symbols={n}\n\nENTRY main {\n  a = f32[n] parameter(0)\n"
        "  s = f32[n-3] slice(a), slice={[3:n]}\n  u = f32[n-5] slice(a), slice={[0:n-5]}\n"
        "  ROOT r = (f32[n-3], f32[n-5]) tuple(s, u)\n}\n"
    )
    assert [str(dim) for dim in never_positive(module)] == ["5-1*n"]
