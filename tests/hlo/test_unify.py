"""Symbolic modules from lowerings at several sizes: exact at a size that was not shown."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.instruction import topological
from stitchcore.hlo.ir.literal import scalar
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.rewrite import specialize
from stitchcore.hlo.symbolic.polynomial_fit import fit_dim, fit_scalar
from stitchcore.hlo.symbolic.unify import unify
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import print_module
from stitchcore.hlo.transforms.simplify import simplify
from tests.hlo import workloads
from tests.hlo.test_evaluate import ordinary


@pytest.mark.slow
@pytest.mark.parametrize(("name", "twin", "first", "second"), workloads.TWINS)
def test_twins(name: str, twin: str, first: int, second: int) -> None:
    left, right = workloads.module(name), workloads.module(twin)
    symbolic = unify([({"B": first}, left), ({"B": second}, right)])
    assert symbolic.symbols == ("B",)
    assert specialize(symbolic, {"B": first}).entry is left.entry
    assert specialize(symbolic, {"B": second}).entry is right.entry
    assert parse(print_module(symbolic)).entry is symbolic.entry
    assert set(symbolic.provenance.values()) == set(left.provenance.values())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "twin", "first", "second"), workloads.TWINS)
def test_simplification_commutes_with_sizes(name: str, twin: str, first: int, second: int) -> None:
    symbolic = unify(
        [({"B": first}, workloads.module(name)), ({"B": second}, workloads.module(twin))]
    )
    simplified = simplify(symbolic).module
    for size, module in ((first, workloads.module(name)), (second, workloads.module(twin))):
        static = simplify(specialize(simplified, {"B": size})).module
        assert static.entry is simplify(module).module.entry


def step(batch: int, length: int) -> Module:
    """A block with both unknown: products of symbols, their shares of a mean, tables, a mask."""
    rows, square = batch * length, length * length
    table = "{" + ", ".join(str(i) for i in range(length)) + "}"
    mask = "{" + ", ".join(
        "{" + ", ".join("1" if j <= i else "0" for j in range(length)) + "}" for i in range(length)
    ) + "}"  # fmt: skip
    return parse(f"""HloModule step
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
ENTRY main {{
  x = f32[{batch},{length},8] parameter(0)
  w = f32[8,4] parameter(1)
  f = f32[{rows},8] reshape(x)
  d = f32[{rows},4] dot(f, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  z = f32[] constant(0)
  s = f32[4] reduce(d, z), dimensions={{0}}, to_apply=add
  k = f32[] constant({np.float32(1 / rows):.9g})
  kb = f32[4] broadcast(k), dimensions={{}}
  m = f32[4] multiply(s, kb)
  p = s32[{length}] constant({table})
  pb = s32[{batch},{length}] broadcast(p), dimensions={{1}}
  c = f32[{length},{length}] constant({mask})
  cf = f32[{square}] reshape(c)
  h = f32[{batch},{length - 1},8] slice(x), slice={{[0:{batch}], [1:{length}], [0:8]}}
  q = f32[{batch},{2 * length + 1},8] pad(x, z), padding=0_0x1_{length}x0_0
  ROOT t = (f32[4], s32[{batch},{length}], f32[{square}], f32[{batch},{length - 1},8], f32[{batch},{2 * length + 1},8]) tuple(m, pb, cf, h, q)
}}
""")  # noqa: E501


POINTS = ((5, 7), (6, 7), (5, 11), (13, 17))


def test_two_symbols_predict_a_size_never_shown() -> None:
    points = [({"B": b, "S": s}, step(b, s)) for b, s in POINTS]
    symbolic = unify(points)
    shapes = {str(n.shape) for n in topological((symbolic.entry.root,))}
    assert {"f32[B*S,8]", "f32[S^2]", "f32[B,-1+S,8]", "f32[B,1+2*S,8]"} <= shapes
    for b, s in ((9, 3), (4, 32)):
        static, direct = specialize(symbolic, {"B": b, "S": s}), step(b, s)
        arguments = ordinary(direct)
        for predicted, expected in zip(
            evaluate(static, arguments), evaluate(direct, arguments), strict=True
        ):
            assert predicted.shape == expected.shape
            assert np.asarray(predicted).tobytes() == np.asarray(expected).tobytes()
        by_symbols = evaluate(symbolic, arguments, {"B": b, "S": s})
        assert np.array_equal(by_symbols[0], evaluate(direct, arguments)[0])
    assert parse(print_module(symbolic)).entry is symbolic.entry


def one(batch: int, line: str) -> Module:
    return parse(f"HloModule one\nENTRY e {{\n  x = f32[{batch}] parameter(0)\n{line}}}\n")


@pytest.mark.parametrize(
    ("make", "detail"),
    [
        (lambda b: one(b, f"  c = f32[] constant({b**0.5:.8g})\n  d = f32[{b}] broadcast(c), "
                          f"dimensions={{}}\n  ROOT r = f32[{b}] add(x, d)\n"), "constant"),
        (lambda b: one(b, f"  ROOT r = f32[{b}] {'negate' if b > 8 else 'abs'}(x)\n"), "opcodes"),
        (lambda b: one(b, f"  ROOT r = f32[{b // 2}] slice(x), slice={{[0:{b // 2}]}}\n"),
         "shape"),
        (lambda b: one(b, f"  ROOT r = f32[{b}] reverse(x), "
                          f"dimensions={{{'0' if b > 8 else ''}}}\n"),
         "dimensions"),
        (lambda b: one(b, "  c = f32[" + str(b) + "] constant({"
                          + ", ".join(str((i * i) % 7) for i in range(b))
                          + f"}})\n  ROOT r = f32[{b}] add(x, c)\n"), "array constant"),
    ],
    ids=["square-root", "opcode", "half", "attribute", "table"],
)  # fmt: skip
def test_what_does_not_unify_is_refused_by_name(make, detail: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Refused) as caught:
        unify([({"B": b}, make(b)) for b in (7, 9, 13)])
    refusal = caught.value.refusal
    assert refusal.reason is Reason.DOES_NOT_UNIFY
    assert detail in refusal.detail and refusal.subject.rpartition(".")[2].isdigit()


def test_reshapes_agree_as_symbols() -> None:
    """[B, 6] to [3*B, 2]: the sizes are equal polynomials, not only equal numbers."""

    def module(b: int) -> Module:
        return parse(
            f"HloModule m\nENTRY e {{\n  x = f32[{b},6] parameter(0)\n"
            f"  ROOT r = f32[{b * 3},2] reshape(x)\n}}\n"
        )

    symbolic = unify([({"B": 6}, module(6)), ({"B": 10}, module(10))])
    assert str(symbolic.entry.root.shape) == "f32[3*B,2]"


def folded(size: int, whole: bool) -> Module:
    """A mean's gradient: TensorFlow folds what is spread and divided as long as it is small."""
    shape = f"f32[{size},256]"
    made = f"""
  spread = {shape} broadcast(one), dimensions={{}}
  count = f32[] constant({size * 256})
  divisor = {shape} broadcast(count), dimensions={{}}
  share = {shape} divide(spread, divisor)"""
    if whole:
        value = np.float32(1) / np.float32(size * 256)
        made = f"""
  known = f32[] constant({float(value)!r})
  share = {shape} broadcast(known), dimensions={{}}"""
    return parse(f"""HloModule folded
ENTRY main {{
  x = {shape} parameter(0)
  one = f32[] constant(1){made}
  ROOT y = {shape} multiply(x, share)
}}""")


def test_what_is_folded_at_small_sizes_alone_is_one_value() -> None:
    sizes = (23, 40, 57)
    symbolic = unify([({"B": size}, folded(size, size < 50)) for size in sizes])
    for size in (*sizes, 31, 400):
        x = np.ones((size, 256), np.float32)
        [made] = evaluate(specialize(symbolic, {"B": size}), [x])
        np.testing.assert_allclose(made, x / (size * 256), rtol=2e-7)


@pytest.mark.parametrize("shape", [(1,), (3, 1), (1, 3)])
def test_a_table_of_indices_may_have_axes_of_one_element(shape: tuple[int, ...]) -> None:
    def counted(size: int) -> Module:
        dims_ = (size, *shape)
        values = np.broadcast_to(
            np.arange(size).reshape(size, *(1,) * len(shape)) * 7, dims_
        ).tolist()
        text = str(values).replace("[", "{").replace("]", "}")
        kind = f"s32[{','.join(map(str, dims_))}]"
        return parse(f"""HloModule counted
ENTRY main {{
  x = {kind} parameter(0)
  table = {kind} constant({text})
  ROOT y = {kind} add(x, table)
}}""")

    symbolic = unify([({"B": size}, counted(size)) for size in (23, 40, 57)])
    whole = np.zeros((9, *shape), np.int32)
    [made] = evaluate(specialize(symbolic, {"B": 9}), [whole])
    assert made[8].max() == made[8].min() == 56


def test_sizes_of_one_are_not_taken_for_others() -> None:
    with pytest.raises(ValueError, match="sizes of 0 and 1"):
        unify([({"B": 1}, one(1, "  ROOT r = f32[1] abs(x)\n")),
               ({"B": 2}, one(2, "  ROOT r = f32[2] abs(x)\n"))])  # fmt: skip


_sizes = st.integers(2, 500)
LARGEST = float(np.finfo(np.float32).max)
_coefficients = st.integers(-6, 6)


@given(_coefficients, _coefficients, _coefficients, st.lists(_sizes, min_size=3, unique=True))
def test_fit_reproduces_its_points(a: int, b: int, c: int, sizes: list[int]) -> None:
    """Whatever is found is right at every point shown, and linear functions are always found."""
    bindings = [{"B": size} for size in sizes]
    values = [b * size + c for size in sizes]
    fitted = fit_dim(values, bindings)
    assert fitted is not None
    assert [dims.evaluate(fitted, point) for point in bindings] == values
    curved = fit_dim([a * s * s for s in sizes], bindings)
    assert curved is not None and dims.evaluate(curved, {"B": 3}) == 9 * a


@given(st.integers(1, 40), _sizes, _sizes)
def test_fit_of_reciprocals(k: int, first: int, second: int) -> None:
    bindings = [{"B": first}, {"B": second}]
    literals = [scalar(float(np.float32(k / size)), "f32") for size in (first, second)]
    ratio = fit_scalar(literals, bindings)
    assert ratio is not None
    for literal, point in zip(literals, bindings, strict=True):
        above, below = (dims.evaluate(part, point) for part in ratio)
        assert np.float32(above / below) == literal.scalar


@given(
    st.floats(2.0**-20, 1024.0, width=32),
    st.integers(1, 4096),
    st.booleans(),
    st.booleans(),
    st.lists(_sizes, min_size=3, max_size=4, unique=True),
    _sizes,
)
@example(42.77978515625, 1, False, False, [2, 195, 213], 2)  # at two sizes half a unit more or less
def test_fit_of_a_weight_over_a_size(
    weight: float, count: int, over: bool, negative: bool, sizes: list[int], other: int
) -> None:
    """A loss's weight, whatever number it is, over a mean's count or times it: rounded twice."""

    def at(size: int) -> np.float32:
        number = np.float32(-weight if negative else weight)
        scale = np.float32(size * count)
        return number / scale if over else number * scale

    bindings = [{"B": size} for size in sizes]
    ratio = fit_scalar([scalar(float(at(size)), "f32") for size in sizes], bindings)
    assert ratio is not None
    for size in (*sizes, other):
        above, below = (dims.evaluate(part, {"B": size}) for part in ratio)
        found = np.float32(np.float64(above) / np.float64(below))
        apart = 0 if size in sizes else 1
        assert abs(int(found.view(np.int32)) - int(at(size).view(np.int32))) <= apart


@pytest.mark.parametrize(
    "value", [lambda size: 0.001 / (size + 3), lambda size: LARGEST if size == 40 else 0.1 * size]
)
def test_what_is_in_proportion_to_no_product_of_sizes_is_refused(
    value: Callable[[int], float],
) -> None:
    bindings = [{"B": size} for size in (24, 40, 56)]
    literals = [scalar(float(np.float32(value(size))), "f32") for size in (24, 40, 56)]
    assert fit_scalar(literals, bindings) is None


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=4), _sizes, _sizes)
def test_dimension_text_reads_back(coefficients: list[int], b: int, s: int) -> None:
    symbols = [dims.symbol("B"), dims.symbol("S"), dims.symbol("B") * dims.symbol("S")]
    total: dims.Dim = coefficients[0]
    for coefficient, term in zip(coefficients[1:], symbols, strict=False):
        total = total + term * coefficient
    assert dims.parse(str(total)) == total
    assert isinstance(dims.evaluate(total, {"B": b, "S": s}), int)
