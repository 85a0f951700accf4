"""Index expressions: what the builders simplify has the value of what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.hlo.ir import dim as dims
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index, Variable

BINDINGS = st.fixed_dictionaries({"i": st.integers(0, 50), "B": st.integers(1, 9)})
BUILD: dict[str, Callable[[Index, Index], Index]] = {
    "+": index.add,
    "*": index.multiply,
    "min": index.minimum,
    "max": index.maximum,
    "//": index.floor_divide,
    "%": index.modulo,
    "ceil": index.ceil_divide,
}
MEANING: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "min": min,
    "max": max,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "ceil": lambda a, b: -(-a // b),
}
DIVIDING = ("//", "%", "ceil")


@dataclass(frozen=True)
class Written:
    """What was written, before any simplification; divisors are one more than `right`."""

    operator: str
    left: Tree
    right: Tree


Tree = Written | int | str


def trees() -> st.SearchStrategy[Tree]:
    leaves: st.SearchStrategy[Tree] = st.integers(0, 7) | st.sampled_from(["i", "B"])
    return st.recursive(
        leaves,
        lambda inner: st.builds(Written, st.sampled_from(sorted(BUILD)), inner, inner),
        max_leaves=9,
    )


def build(tree: Tree) -> Index:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return Variable(tree)
    right = build(tree.right)
    divisor = index.add(right, 1) if tree.operator in DIVIDING else right
    return BUILD[tree.operator](build(tree.left), divisor)


def value(tree: Tree, bindings: dict[str, int]) -> int:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return bindings[tree]
    right = value(tree.right, bindings) + (tree.operator in DIVIDING)
    return MEANING[tree.operator](value(tree.left, bindings), right)


ROW, B, T, WIDTH = map(Variable, "iBTw")


def flat(number: Index, dims: tuple[Index, ...], times: Sequence[int] = ()) -> Index:
    """The position of row `number` in a row-major array of `dims`, by quotients as schedules write
    them: of the row by its last size, and of that again. Digits from the last on count `times`."""
    place: Index = 0
    stride: Index = WIDTH
    for n, extent in enumerate(reversed(dims)):
        digit = index.modulo(number, extent) if n < len(dims) - 1 else number
        often = times[n] if n < len(times) else 1
        place = index.add(index.multiply(index.multiply(digit, stride), often), place)
        stride = index.multiply(stride, extent)
        number = index.floor_divide(number, extent)
    return place


@pytest.mark.parametrize("dims", [(B, 4, T), (B, T), (T, 4, B), (B, T, 3), (B, 2, T, 5)])
def test_a_row_of_unknown_sizes_is_found_without_a_division(dims: tuple[Index, ...]) -> None:
    assert index.collapse(index.add(flat(ROW, dims), 7)) == index.add(index.multiply(ROW, WIDTH), 7)


@given(trees(), BINDINGS)
def test_joining_quotients_and_remainders_keeps_the_value(
    tree: Tree, bindings: dict[str, int]
) -> None:
    assert index.evaluate(index.collapse(build(tree)), bindings) == value(tree, bindings)


@given(
    st.lists(st.sampled_from([1, 2, 3, "B", "T"]), min_size=1, max_size=4),
    st.lists(st.sampled_from([1, 1, 2, -1]), max_size=4),
    st.integers(0, 500),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_joined_or_not_a_place_is_the_same(
    sizes: list[int | str], times: list[int], number: int, b: int, t: int
) -> None:
    dims = tuple(Variable(size) if isinstance(size, str) else size for size in sizes)
    place = index.add(flat(index.add(ROW, 5), dims), flat(ROW, dims, times))
    bindings = {"i": number, "B": b, "T": t, "w": 3}
    assert index.evaluate(index.collapse(place), bindings) == index.evaluate(place, bindings)


@given(trees(), BINDINGS)
def test_simplification_keeps_the_value(tree: Tree, bindings: dict[str, int]) -> None:
    assert index.evaluate(build(tree), bindings) == value(tree, bindings)


@given(trees(), BINDINGS)
def test_the_launch_tables_program_has_the_same_value(tree: Tree, bindings: dict[str, int]) -> None:
    program = index.postfix(build(tree), ("B", "i"))
    assert program[0] == len(program) - 1
    stack: list[int] = []
    values = (bindings["B"], bindings["i"])
    operators = [MEANING[name] for name in ("+", "*", "//", "%", "min", "max")]
    for code, operand in zip(program[1::2], program[2::2], strict=True):
        if code < 2:
            stack.append(operand if code == 0 else values[operand])
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(operators[code - 2](left, right))
    assert stack == [value(tree, bindings)]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 9))
def test_dimensions_become_indices(a: int, b: int, c: int) -> None:
    polynomial = dims.symbol("B") * dims.symbol("S") * a + dims.symbol("B") * b + c
    bindings = {"B": 3, "S": 4}
    found = index.evaluate(index.from_dim(polynomial), bindings)
    assert found == dims.evaluate(polynomial, bindings)


def test_constants_fold_and_units_vanish() -> None:
    i = Variable("i")
    assert index.add(index.add(i, 3), -3) == i
    assert index.multiply(index.multiply(i, 3), 4) == index.multiply(i, 12)
    assert index.multiply(i, 0) == 0
    assert index.floor_divide(i, 1) == i
    assert index.modulo(i, 1) == 0
    assert index.minimum(i, i) == i


@given(trees(), st.integers(0, 50), st.integers(0, 20), BINDINGS)
def test_simplification_by_ranges_keeps_every_value_within(
    tree: Tree, low: int, width: int, bindings: dict[str, int]
) -> None:
    node, ranges = build(tree), {"i": (low, low + width), "B": (1, 9)}
    simple, limits = index.simplify(node, ranges), index.bounds(node, ranges)
    for i in {low, low + width // 2, low + width}:
        inside = {"i": i, "B": bindings["B"]}
        found = index.evaluate(node, inside)
        assert index.evaluate(simple, inside) == found
        assert limits is None or limits[0] <= found <= limits[1]


def test_ranges_decide() -> None:
    i = Variable("i")
    ranges = {"i": (0, 17)}
    assert index.simplify(index.maximum(index.minimum(i, 17), 0), ranges) == i
    assert index.simplify(index.modulo(i, 18), ranges) == i
    assert index.simplify(index.floor_divide(i, 18), ranges) == 0
    assert index.simplify(index.modulo(i, 17), ranges) == index.modulo(i, 17)
    assert index.simplify(index.minimum(i, Variable("B")), ranges) == index.minimum(
        i, Variable("B")
    )
