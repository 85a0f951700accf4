"""Simplification: the same values, a fixed point, bounded steps, and the rules it must not have."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, computation, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import print_module
from stitchcore.hlo.transforms.expand import expand
from stitchcore.hlo.transforms.simplify import RULES, NamedRule, simplify
from tests.calls import calls
from tests.fuzz.draw import FuzzOptions
from tests.fuzz.modules import random_arguments, random_module
from tests.hlo import workloads
from tests.hlo.test_evaluate import CASES, FUZZ_DTYPES, ordinary

X = builder.parameter(0, "f32", (4, 6))
ZERO, ONE = builder.splat(0.0, X), builder.splat(1.0, X)
NEGATIVE_ZERO = builder.splat(-0.0, X)
N = builder.parameter(0, "s32", (4, 6))


def simple(node: Instruction) -> Instruction:
    parameters = [n for n in topological((node,)) if n.opcode == op.PARAMETER]
    return simplify(Module("m", computation(parameters, node))).module.entry.root


def elementwise(name: str, *operands: Instruction, **attributes: Any) -> Instruction:
    return builder.elementwise(name, *operands, **attributes)


EXPONENTIAL = elementwise(op.EXPONENTIAL, X)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (builder.reverse(builder.slice_(X, [(0, 4, 1), (3, 3, 1)]), (1,)),
         builder.broadcast(builder.constant(0.0, "f32"), (4, 0), ())),
        (builder.pad(builder.slice_(X, [(0, 4, 1), (3, 3, 1)]), builder.constant(2.0, "f32"),
                     [(0, 0, 0), (1, 2, 0)]),
         builder.broadcast(builder.constant(2.0, "f32"), (4, 3), ())),
        (elementwise(op.MULTIPLY, X, ONE), X),
        (elementwise(op.MULTIPLY, ONE, X), X),
        (elementwise(op.DIVIDE, X, ONE), X),
        (elementwise(op.ADD, X, NEGATIVE_ZERO), X),
        (elementwise(op.SUBTRACT, X, ZERO), X),
        (elementwise(op.ADD, EXPONENTIAL, ZERO), EXPONENTIAL),
        (elementwise(op.MAXIMUM, X, builder.splat(-np.inf, X)), X),
        (elementwise(op.MAXIMUM, X, X), X),
        (elementwise(op.SUBTRACT, N, N), builder.splat(0, N)),
        (elementwise(op.NEGATE, elementwise(op.NEGATE, X)), X),
        (elementwise(op.DIVIDE, X, builder.splat(8.0, X)),
         elementwise(op.MULTIPLY, X, builder.splat(0.125, X))),
        (elementwise(op.POWER, X, builder.splat(2.0, X)), elementwise(op.MULTIPLY, X, X)),
        (elementwise(op.SELECT, builder.broadcast(builder.constant(True, "pred"), (4, 6), ()), X,
                     ONE),
         X),
        (builder.convert(builder.convert(N, "f64"), "s32"), N),
        (builder.reshape(builder.reshape(X, (24,)), (4, 6)), X),
        (builder.transpose(builder.transpose(X, (1, 0)), (1, 0)), X),
        (builder.slice_(X, [(0, 4, 1), (0, 6, 1)]), X),
        (builder.slice_(builder.slice_(X, [(1, 4, 1), (0, 6, 2)]), [(1, 3, 1), (1, 3, 1)]),
         builder.slice_(X, [(2, 4, 1), (2, 5, 2)])),
        (builder.slice_(builder.concatenate([X, ZERO], 0), [(1, 3, 1), (0, 6, 1)]),
         builder.slice_(X, [(1, 3, 1), (0, 6, 1)])),
        (builder.concatenate([X], 0), X),
        (builder.pad(X, builder.constant(0.0, "f32"), [(0, 0, 0), (0, 0, 0)]), X),
        (builder.pad(X, builder.constant(0.0, "f32"), [(0, -1, 0), (-2, 0, 0)]),
         builder.slice_(X, [(0, 3, 1), (2, 6, 1)])),
        (builder.reverse(builder.reverse(X, (1,)), (1,)), X),
        (builder.get_tuple_element(builder.tuple_([X, ONE]), 0), X),
        (builder.reduce(builder.reshape(X, (4, 1, 6)), (1,), op.MAXIMUM), X),
        (elementwise(op.ADD, builder.constant(2.5, "f32"), builder.constant(1.0, "f32")),
         builder.constant(3.5, "f32")),
        (elementwise(op.ADD, builder.broadcast(builder.parameter(1, "f32", (6,)), (4, 6), (1,)),
                     ONE),
         builder.broadcast(elementwise(op.ADD, builder.parameter(1, "f32", (6,)),
                                       builder.broadcast(builder.constant(1.0, "f32"), (6,), ())),
                           (4, 6), (1,))),
    ],
)  # fmt: skip
def test_rule(node: Instruction, expected: Instruction) -> None:
    assert simple(node) is expected


@pytest.mark.parametrize(
    "node",
    [
        elementwise(op.ADD, X, ZERO),  # -0 + 0 is 0
        elementwise(op.SUBTRACT, X, NEGATIVE_ZERO),
        elementwise(op.SUBTRACT, X, X),  # inf - inf
        elementwise(op.MULTIPLY, X, ZERO),
        elementwise(op.DIVIDE, X, builder.splat(3.0, X)),  # 1/3 is not exact
        elementwise(op.COMPARE, X, X, direction="EQ"),  # NaN
        builder.convert(builder.convert(X, "bf16"), "f32"),  # rounds
        builder.convert(builder.convert(N, "f32"), "s32"),  # 24 bits
        builder.convert(builder.convert(X, "s32"), "f32"),
        builder.reduce(builder.reduce(X, (1,), op.ADD), (0,), op.ADD),  # another order of sums
    ],
)
def test_what_only_holds_in_real_arithmetic_stays(node: Instruction) -> None:
    assert simple(node) is node


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150)
def test_random_modules_keep_their_values(seed: int) -> None:
    """Bit for bit; where dimensions of extent 1 leave a float reduce, numpy may regroup the sum."""
    rng = np.random.default_rng(seed)
    dtypes = FUZZ_DTYPES[seed % len(FUZZ_DTYPES)]
    options = FuzzOptions(dtypes=dtypes, instructions=25, extents=(1, 1, 2, 3, 4, 8))
    module = random_module(rng, options)
    arguments = random_arguments(module, rng)
    simplified = simplify(module)
    assert simplify(simplified.module).trace == {}
    regrouped = "reduce_of_unit_dimensions" in simplified.trace
    for before, after in zip(
        evaluate(module, arguments), evaluate(simplified.module, arguments), strict=True
    ):
        before, after = np.asarray(before), np.asarray(after)
        if before.tobytes() != after.tobytes():
            both_nan = np.isnan(before.astype(np.float64)) & np.isnan(after.astype(np.float64))
            assert regrouped or np.array_equal(before[~both_nan], after[~both_nan])
            np.testing.assert_allclose(
                before.astype(np.float64), after.astype(np.float64), 1e-5, 1e-6
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layernorm_gelu_grad", "mlp_train", "dien_infer"])
def test_workloads_keep_their_values(name: str) -> None:
    module = workloads.module(name)
    arguments = ordinary(module)
    simplified = simplify(module).module
    for before, after in zip(
        evaluate(module, arguments), evaluate(simplified, arguments), strict=True
    ):
        scale = np.abs(before.astype(np.float64)).max(initial=0) + 1e-30
        assert np.abs(after.astype(np.float64) - before).max(initial=0) <= 1e-6 * scale


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads.NAMES)
def test_workloads_shrink_to_a_fixed_point(name: str) -> None:
    module = workloads.module(name)
    simplified = simplify(module)
    before = sum(1 for _ in topological((module.entry.root,)))
    after = list(topological((simplified.module.entry.root,)))
    assert len(after) < before
    assert simplify(simplified.module).module.entry is simplified.module.entry
    assert parse(print_module(simplified.module)).entry is simplified.module.entry
    assert simplified.module.aliases == module.aliases
    working = [n for n in after if op.record(n.opcode).kind in ("elementwise", "reduce", "library")]
    lost = [n for n in working if n not in simplified.module.provenance]
    assert lost == [], "every instruction that works knows the framework operation it is from"


def batched(sizes: tuple[int, ...], along: tuple[int | None, ...]) -> Instruction:
    """A lookup in a table of `sizes`, [3, 4, 5] indices: one component of each index vector for
    each dimension, which counts along a dimension of the indices, or is data."""
    dims = (3, 4, 5, 1)
    table = builder.parameter(0, "f32", (*sizes, 7))
    data = builder.parameter(1, "s32", dims)
    pieces = [data if axis is None else builder.iota("s32", dims, axis) for axis in along]
    return builder.gather(
        table,
        builder.concatenate(pieces, 3),
        range(len(sizes)),
        (*(1 for _ in sizes), 7),
        vector_dim=3,
        offset_dims=[3],
        collapsed=range(len(sizes)),
    )


@pytest.mark.parametrize(
    ("sizes", "along", "expected"),
    [
        ((3, 9), (0, None), {0: 0}),
        ((4, 3, 9), (1, 0, None), {0: 1, 1: 0}),
        ((9, 5), (None, 2), {1: 2}),
        ((1, 9), (0, None), {}),
        ((4, 9), (0, None), None),
        ((3, 3, 9), (0, 0, None), {0: 0}),
        ((3, 4), (0, 1), None),
    ],
    ids=["first", "two", "last", "one place", "too many places", "a dimension twice", "no data"],
)
def test_indices_that_count_are_a_batch(
    sizes: tuple[int, ...], along: tuple[int | None, ...], expected: dict[int, int] | None
) -> None:
    """`expected`: dimension of the table -> of the indices; None where nothing is changed."""
    node = batched(sizes, along)
    parameters = (
        builder.parameter(0, "f32", (*sizes, 7)),
        builder.parameter(1, "s32", (3, 4, 5, 1)),
    )
    module = Module("m", computation(parameters, node))
    simpler = simplify(module).module
    random = np.random.default_rng(5)
    arrays = [
        random.normal(size=(*sizes, 7)).astype(np.float32),
        random.integers(-3, 12, (3, 4, 5, 1)).astype(np.int32),
    ]
    np.testing.assert_array_equal(evaluate(module, arrays)[0], evaluate(simpler, arrays)[0])
    root = simpler.entry.root
    found = zip(
        root.get("operand_batching_dims", ()),
        root.get("start_indices_batching_dims", ()),
        strict=True,
    )
    assert dict(found) == (expected or {})
    assert (len(root["start_index_map"]) == len(sizes)) == (expected is None)


def test_step_limit_is_an_error() -> None:
    with pytest.raises(Refused) as caught:
        simplify(workloads.module("mlp_train"), step_limit=10)
    assert caught.value.refusal.reason is Reason.STEP_LIMIT


def test_rules_that_undo_each_other_are_stopped() -> None:
    def swap(node: Instruction) -> Instruction:
        return elementwise(node.opcode, node.operands[1], node.operands[0])

    rule = NamedRule("swap", frozenset({op.SUBTRACT}), swap)
    other = elementwise(op.SUBTRACT, X, builder.parameter(1, "f32", (4, 6)))
    module = Module("m", computation((X, other.operands[1]), other))
    with pytest.raises(Refused) as caught:
        simplify(module, step_limit=100, rules=(rule,))
    assert caught.value.refusal.reason is Reason.STEP_LIMIT


def test_every_rule_is_named_once() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_work_grows_linearly() -> None:
    """Per instruction, a chain of 8,000 takes what one of 500 takes. `python -m bench.linear` tells
    the seconds."""
    each = [calls(partial(simplify, chain(length))) / length for length in (500, 8_000)]
    assert each[1] < 1.1 * each[0]


def chain(length: int) -> Module:
    node = X
    for _ in range(length // 2):
        node = elementwise(op.MULTIPLY, elementwise(op.ADD, node, X), ONE)
    return Module("chain", computation((X,), node))


@pytest.mark.parametrize(
    "name", ["batch_norm_training", "batch_norm_inference", "batch_norm_gradient"]
)
def test_batch_norm_expands_to_stitchable_opcodes(name: str) -> None:
    module = parse(CASES[name])
    arguments = ordinary(module, seed=3, scale=1.0)
    expanded = expand(module)
    kinds = {op.record(n.opcode).kind for n in topological((expanded.module.entry.root,))}
    assert kinds <= op.STITCHABLE_KINDS | {"structure"}
    before = evaluate(module, arguments)
    flat = list(before[0]) if isinstance(before[0], tuple) else before
    after = evaluate(expanded.module, arguments)
    for expected, result in zip(flat, after, strict=True):
        np.testing.assert_allclose(result, expected, 2e-5, 2e-5)


def test_independent_reductions_are_split() -> None:
    text = """HloModule two
both {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] parameter(2)
  d = f32[] parameter(3)
  s = f32[] add(a, c)
  m = f32[] maximum(d, b)
  ROOT t = (f32[], f32[]) tuple(s, m)
}
ENTRY main {
  x = f32[5,6] parameter(0)
  z = f32[] constant(0)
  l = f32[] constant(-inf)
  ROOT r = (f32[5], f32[5]) reduce(x, x, z, l), dimensions={1}, to_apply=both
}
"""
    module = parse(text)
    expanded = expand(module).module
    assert [n.opcode for n in expanded.outputs] == [op.REDUCE, op.REDUCE]
    arguments = ordinary(module)
    whole = evaluate(module, arguments)[0]
    parts = evaluate(expanded, arguments)
    assert all(np.allclose(a, b) for a, b in zip(whole, parts, strict=True))
