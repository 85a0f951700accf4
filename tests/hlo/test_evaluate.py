"""Numpy evaluation against XLA's own CPU backend, and against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.evaluator.evaluate import decisions, evaluate, evaluate_all
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import print_module
from tests.fuzz.draw import FuzzOptions
from tests.fuzz.modules import random_arguments, random_module
from tests.hlo import workloads, xla

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def client() -> Any:
    return xla.client()


def ordinary(module: Module, seed: int = 0, scale: float = 0.1) -> list[Array]:
    """Small positive floats (second moments must be), small indices."""
    rng = np.random.default_rng(seed)
    arguments = []
    for parameter in module.entry.parameters:
        dtype, dims = DTYPES[parameter.shape.dtype], parameter.shape.static
        value: Array
        if dtype.kind == "float":
            value = np.abs(rng.standard_normal(dims)) * scale
        else:
            value = rng.integers(0, 2 if dtype.kind == "pred" else 10, dims)
        arguments.append(np.asarray(value).astype(dtype.numpy))
    return arguments


def close(ours: Array, theirs: Array, wide: Array, bound: float) -> None:
    """Within `bound` of the largest magnitude; integers and preds equal."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if ours.dtype.kind in "iub":
        assert np.array_equal(ours, theirs)
        return
    scale = np.abs(wide).max(initial=0.0) + 1e-30
    assert np.isfinite(wide).all()
    assert (
        np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max(initial=0) <= bound * scale
    )
    assert np.abs(ours.astype(np.float64) - wide).max(initial=0) <= bound * scale


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("softmax_grad", 1e-6),
        ("layernorm_gelu_grad", 1e-6),
        ("mlp_nodrop_train", 2e-6),
        ("dien_infer", 1e-5),
        pytest.param("crnn_infer", 3e-5, marks=pytest.mark.nightly),
        pytest.param("transformer_dec_step", 1e-4, marks=pytest.mark.nightly),
    ],
)
def test_workload_against_xla(client: Any, name: str, bound: float) -> None:
    module = workloads.module(name)
    arguments = ordinary(module)
    theirs = xla.run(client, workloads.text(name), arguments)
    ours = evaluate(module, arguments)
    wide = evaluate(module, arguments, precision="float64")
    assert len(ours) == len(theirs) == len(wide)
    for mine, other, exact in zip(ours, theirs, wide, strict=True):
        close(np.asarray(mine), other, np.asarray(exact), bound)


FUZZ_DTYPES = [
    ("f32",),
    ("f32", "s32", "pred"),
    ("bf16", "f32"),
    ("f64", "s64"),
    ("s8", "u8", "u32", "f32"),
    ("f16", "u64", "s16", "u16"),
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_modules_against_xla(client: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtypes = FUZZ_DTYPES[seed % len(FUZZ_DTYPES)]
    module = random_module(rng, FuzzOptions(dtypes=dtypes))
    text = print_module(module)
    assert parse(text).entry is module.entry
    arguments = random_arguments(module, rng)
    tolerance = 3e-2 if {"bf16", "f16"} & set(dtypes) else 2e-4
    for mine, theirs in zip(
        evaluate(module, arguments), xla.run(client, text, arguments), strict=True
    ):
        if np.asarray(mine).dtype.kind in "iub":
            assert np.array_equal(mine, theirs)
        else:
            np.testing.assert_allclose(
                mine.astype(np.float64), theirs.astype(np.float64), tolerance, 1e-3
            )


def entry(body: str, helpers: str = "") -> str:
    return f"HloModule case\n\n{helpers}\nENTRY main {{\n{body}}}\n"


ADD = """add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
MAX = ADD.replace("add", "max").replace("max(a", "maximum(a")
LAST = "last {\n  a = f32[] parameter(0)\n  ROOT b = f32[] parameter(1)\n}\n"
GREATER = """greater {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT e = pred[] compare(a, b), direction=GT, type=TOTALORDER
}
"""
ARGMAX = """argmax {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  g = pred[] compare(a, b), direction=GE
  v = f32[] select(g, a, b)
  e = pred[] compare(a, b), direction=EQ
  l = s32[] minimum(i, j)
  k = s32[] select(g, i, j)
  w = s32[] select(e, l, k)
  ROOT t = (f32[], s32[]) tuple(v, w)
}
"""
GE = "ge {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = pred[] compare(a, b), direction=GE\n}\n"  # noqa: E501
X = "  x = f32[6,7] parameter(0)\n"
I = "  i = s32[4,1] parameter(1)\n"  # noqa: E741
IMAGE = "  x = f32[2,9,8,4] parameter(0)\n"

CASES = {
    "gather_rows": entry(
        X + I + "  ROOT g = f32[4,3] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}\n"
    ),
    "gather_windows": entry(
        X + "  i = s32[2,4] parameter(1)\n"
        "  ROOT g = f32[2,4,3] gather(x, i), offset_dims={0,2}, collapsed_slice_dims={}, "
        "start_index_map={1,0}, index_vector_dim=0, slice_sizes={2,3}\n"
    ),
    "gather_batched": entry(
        "  x = f32[3,6,7] parameter(0)\n  i = s32[3,2,1] parameter(1)\n"
        "  ROOT g = f32[3,2,7] gather(x, i), offset_dims={2}, collapsed_slice_dims={1}, "
        "start_index_map={1}, operand_batching_dims={0}, start_indices_batching_dims={0}, "
        "index_vector_dim=2, slice_sizes={1,1,7}\n"
    ),
    "scatter_add": entry(
        X + I + "  u = f32[4,7] parameter(2)\n"
        "  ROOT s = f32[6,7] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add\n", ADD
    ),
    "scatter_windows": entry(
        X + "  i = s32[4,2] parameter(1)\n  u = f32[4,2,3] parameter(2)\n"
        "  ROOT s = f32[6,7] scatter(x, i, u), update_window_dims={1,2}, inserted_window_dims={}, "
        "scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=max\n", MAX
    ),
    "scatter_last": entry(
        X + I + "  u = f32[4,7] parameter(2)\n"
        "  ROOT s = f32[6,7] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=last\n", LAST
    ),
    "sort_with_payload": entry(
        X + "  k = s32[6,7] iota(), iota_dimension=1\n"
        "  ROOT s = (f32[6,7], s32[6,7]) sort(x, k), dimensions={1}, is_stable=true, "
        "to_apply=greater\n", GREATER
    ),
    "argmax": entry(
        X + "  k = s32[6,7] iota(), iota_dimension=1\n  lo = f32[] constant(-inf)\n"
        "  z = s32[] constant(0)\n"
        "  ROOT s = (f32[6], s32[6]) reduce(x, k, lo, z), dimensions={1}, to_apply=argmax\n", ARGMAX
    ),
    "max_pool": entry(
        IMAGE + "  lo = f32[] constant(-inf)\n"
        "  ROOT r = f32[2,5,4,4] reduce-window(x, lo), window={size=1x3x3x1 stride=1x2x2x1 "
        "pad=0_0x1_1x1_1x0_0}, to_apply=max\n", MAX
    ),
    "dilated_sum_window": entry(
        X + "  z = f32[] constant(0)\n"
        "  ROOT r = f32[7,5] reduce-window(x, z), window={size=3x2 stride=1x2 pad=1_0x1_1 "
        "lhs_dilate=2x1 rhs_dilate=2x2}, to_apply=add\n".replace("f32[7,5]", "f32[8,4]"), ADD
    ),
    "cumulative_sum": entry(
        X + "  z = f32[] constant(0)\n"
        "  ROOT r = f32[6,7] reduce-window(x, z), window={size=1x7 pad=0_0x6_0}, to_apply=add\n",
        ADD
    ),
    "cumulative_sum_from_two": entry(
        X + "  z = f32[] constant(2)\n"
        "  ROOT r = f32[6,7] reduce-window(x, z), window={size=1x7 pad=0_0x6_0}, to_apply=add\n",
        ADD
    ),
    "padded_sum_from_two": entry(
        X + "  z = f32[] constant(2)\n"
        "  ROOT r = f32[6,7] reduce-window(x, z), window={size=1x3 pad=0_0x1_1}, to_apply=add\n",
        ADD
    ),
    "max_pool_gradient": entry(
        "  x = f32[2,8,8,4] parameter(0)\n  s = f32[2,4,4,4] parameter(1)\n"
        "  z = f32[] constant(0)\n"
        "  ROOT r = f32[2,8,8,4] select-and-scatter(x, s, z), window={size=1x3x3x1 "
        "stride=1x2x2x1 pad=0_0x0_1x0_1x0_0}, select=ge, scatter=add\n", ADD + "\n" + GE
    ),
    "convolution": entry(
        IMAGE + "  w = f32[3,3,4,6] parameter(1)\n"
        "  ROOT c = f32[2,5,4,6] convolution(x, w), window={size=3x3 stride=2x2 pad=1_1x1_1}, "
        "dim_labels=b01f_01io->b01f\n"
    ),
    "convolution_groups": entry(
        IMAGE + "  w = f32[3,3,2,6] parameter(1)\n"
        "  ROOT c = f32[2,7,6,6] convolution(x, w), window={size=3x3}, "
        "dim_labels=b01f_01io->b01f, feature_group_count=2\n"
    ),
    "convolution_of_gradient": entry(
        "  x = f32[2,5,4,6] parameter(0)\n  w = f32[3,3,4,6] parameter(1)\n"
        "  ROOT c = f32[2,9,7,4] convolution(x, w), window={size=3x3 pad=1_1x1_1 "
        "lhs_dilate=2x2 rhs_reversal=1x1}, dim_labels=b01f_01oi->b01f\n"
    ),
    "convolution_large_window": entry(
        IMAGE + "  g = f32[2,9,8,5] parameter(1)\n"
        "  ROOT c = f32[3,3,4,5] convolution(x, g), window={size=9x8 pad=1_1x1_1}, "
        "dim_labels=f01b_i01o->01bf\n"
    ),
    "convolution_batch_groups": entry(
        "  x = f32[4,6,6,3] parameter(0)\n  w = f32[3,3,3,8] parameter(1)\n"
        "  ROOT c = f32[2,4,4,8] convolution(x, w), window={size=3x3}, "
        "dim_labels=b01f_01io->b01f, batch_group_count=2\n"
    ),
    "dot_batched": entry(
        "  x = f32[3,4,5,2] parameter(0)\n  y = f32[2,5,6,3] parameter(1)\n"
        "  ROOT d = f32[3,2,4,6] dot(x, y), lhs_batch_dims={0,3}, rhs_batch_dims={3,0}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={1}\n"
    ),
    "pad_negative_and_interior": entry(
        X + "  z = f32[] constant(3)\n  ROOT p = f32[13,4] pad(x, z), padding=1_1_1x-2_-1\n"
    ),
    "dynamic_slices": entry(
        X + "  u = f32[2,3] parameter(1)\n  i = s32[] parameter(2)\n  j = s32[] parameter(3)\n"
        "  d = f32[2,3] dynamic-slice(x, i, j), dynamic_slice_sizes={2,3}\n"
        "  v = f32[2,3] add(d, u)\n"
        "  ROOT r = f32[6,7] dynamic-update-slice(x, v, j, i)\n"
    ),
    "batch_norm_training": entry(
        IMAGE + "  s = f32[4] parameter(1)\n  o = f32[4] parameter(2)\n"
        "  ROOT b = (f32[2,9,8,4], f32[4], f32[4]) batch-norm-training(x, s, o), epsilon=0.001, "
        "feature_index=3\n"
    ),
    "batch_norm_inference": entry(
        IMAGE + "".join(f"  p{i} = f32[4] parameter({i})\n" for i in range(1, 5))
        + "  ROOT b = f32[2,9,8,4] batch-norm-inference(x, p1, p2, p3, p4), epsilon=0.001, "
        "feature_index=3\n"
    ),
    "batch_norm_gradient": entry(
        IMAGE + "".join(f"  p{i} = f32[4] parameter({i})\n" for i in range(1, 4))
        + "  g = f32[2,9,8,4] parameter(4)\n"
        "  ROOT b = (f32[2,9,8,4], f32[4], f32[4]) batch-norm-grad(x, p1, p2, p3, g), "
        "epsilon=0.001, feature_index=3\n"
    ),
    "conditional": entry(
        "  x = f32[6,7] parameter(0)\n  p = pred[] parameter(1)\n"
        "  ROOT c = f32[6,7] conditional(p, x, x), true_computation=neg, false_computation=dbl\n",
        "neg {\n  a = f32[6,7] parameter(0)\n  ROOT n = f32[6,7] negate(a)\n}\n\n"
        "dbl {\n  a = f32[6,7] parameter(0)\n  ROOT n = f32[6,7] add(a, a)\n}\n",
    ),
    "case_out_of_range": entry(
        "  x = f32[3] parameter(0)\n  p = s32[] constant(9)\n"
        "  ROOT c = f32[3] conditional(p, x, x), branch_computations={neg, dbl}\n",
        "neg {\n  a = f32[3] parameter(0)\n  ROOT n = f32[3] negate(a)\n}\n\n"
        "dbl {\n  a = f32[3] parameter(0)\n  ROOT n = f32[3] add(a, a)\n}\n",
    ),
    "while": entry(
        "  x = f32[3] parameter(0)\n  z = s32[] constant(0)\n  t = (s32[], f32[3]) tuple(z, x)\n"
        "  ROOT w = (s32[], f32[3]) while(t), condition=cond, body=step\n",
        "cond {\n  t = (s32[], f32[3]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n"
        "  n = s32[] constant(5)\n  ROOT c = pred[] compare(i, n), direction=LT\n}\n\n"
        "step {\n  t = (s32[], f32[3]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n"
        "  x = f32[3] get-tuple-element(t), index=1\n  o = s32[] constant(1)\n"
        "  j = s32[] add(i, o)\n  y = f32[3] add(x, x)\n"
        "  ROOT r = (s32[], f32[3]) tuple(j, y)\n}\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_case_against_xla(client: Any, name: str) -> None:
    module = parse(CASES[name])
    arguments = ordinary(module, seed=3, scale=1.0)
    theirs = xla.run(client, CASES[name], arguments)
    for precision in ("storage", "float64"):
        values = evaluate(module, arguments, precision=precision)
        flat = list(values[0]) if isinstance(values[0], tuple) else values
        for mine, other in zip(flat, theirs, strict=True):
            assert mine.shape == other.shape
            np.testing.assert_allclose(mine, other, 2e-5, 2e-5)
    assert parse(print_module(module)).entry is module.entry


@pytest.mark.parametrize(("algorithm", "words"), [("rng_philox", 3), ("rng_three_fry", 2)])
@pytest.mark.parametrize("bits", ["u32[5]", "u32[4,6]", "u32[3,5]", "u32[7,4]", "u32[]", "u64[5]",
                                  "u64[4,6]", "u8[11]", "u16[4,3]"])  # fmt: skip
def test_random_bits_are_those_of_xla(client: Any, algorithm: str, words: int, bits: str) -> None:
    """The counter's low word is about to wrap."""
    text = entry(
        f"  s = u64[{words}] parameter(0)\n"
        f"  ROOT r = (u64[{words}], {bits}) rng-bit-generator(s), algorithm={algorithm}\n"
    )
    state = np.array([123456789012345678, 2**64 - 2, 77][:words], np.uint64)
    new_state, drawn = evaluate(parse(text), [state])[0]
    theirs = xla.run(client, text, [state])
    assert np.array_equal(new_state, theirs[0]) and np.array_equal(drawn, theirs[1])


def test_bounded_shapes_are_held_at_their_true_size() -> None:
    text = entry(
        "  x = f32[6] parameter(0)\n  n = s32[] parameter(1)\n"
        "  b = f32[<=6] set-dimension-size(x, n), dimensions={0}\n"
        "  y = f32[<=6] multiply(b, x)\n"
        "  m = s32[] get-dimension-size(y), dimensions={0}\n"
        "  ROOT t = (f32[<=6], s32[]) tuple(y, m)\n"
    )
    x = np.arange(6, dtype=np.float32)
    y, m = evaluate(parse(text), [x, np.asarray(4, np.int32)])
    assert y.tolist() == [0, 1, 4, 9] and m == 4


def test_an_argument_of_a_bounded_shape_may_be_smaller() -> None:
    text = (
        "HloModule m\n\nENTRY e {\n  x = f32[<=6,2] parameter(0)\n"
        "  ROOT y = f32[<=6,2] add(x, x)\n}\n"
    )
    module = parse(text)
    argument = np.ones((4, 2), np.float32)
    assert evaluate(module, [argument], {})[0].shape == (4, 2)
    for extents in ((7, 2), (4, 1), (4,)):
        with pytest.raises(ValueError, match="parameter 0"):
            evaluate(module, [np.ones(extents, np.float32)], {})


def test_float64_keeps_storage_rounding_and_range() -> None:
    text = entry(
        "  x = f32[4] parameter(0)\n  h = bf16[4] convert(x)\n  w = f32[4] convert(h)\n"
        "  b = s32[4] bitcast-convert(x)\n  e = f32[4] exponential(x)\n"
        "  ROOT t = (f32[4], s32[4], f32[4]) tuple(w, b, e)\n"
    )
    x = np.array([1.001, 2.5, 100.0, -100.0], np.float32)
    rounded, bits, grown = evaluate(parse(text), [x], precision="float64")
    assert rounded.dtype == np.float64
    assert np.array_equal(rounded, x.astype(DTYPES["bf16"].numpy).astype(np.float64))
    assert np.array_equal(bits, x.view(np.int32))
    assert grown[2] == np.inf and grown[3] == 0.0, "overflow and underflow are f32's"
    assert grown[1] == np.exp(np.float64(2.5)), "and nothing else is rounded to f32"


def test_decisions_can_be_forced() -> None:
    """A comparison that falls differently in float64 gets the other run's answer."""
    text = entry(
        "  x = f32[3] parameter(0)\n  y = f32[3] parameter(1)\n  s = f32[3] add(x, y)\n"
        "  d = f32[3] subtract(s, x)\n  c = pred[3] compare(d, y), direction=EQ\n"
        "  z = f32[3] subtract(d, d)\n  ROOT r = f32[3] select(c, x, z)\n"
    )
    module = parse(text)
    arguments = [np.full(3, 1e4, np.float32), np.array([1e-5, 0.5, 1.1], np.float32)]
    stored = evaluate_all(module, arguments)
    (wide,) = evaluate(module, arguments, precision="float64")
    chosen = decisions(module)
    assert [node.opcode for node in chosen] == [op.COMPARE]
    (forced,) = evaluate(
        module, arguments, precision="float64", forced={n: stored[n] for n in chosen}
    )
    assert not np.array_equal(wide, evaluate(module, arguments)[0])
    assert np.array_equal(forced, evaluate(module, arguments)[0])


def test_only_kept_values_are_returned() -> None:
    module = workloads.module("softmax_grad")
    arguments = ordinary(module)
    everything = evaluate_all(module, arguments)
    assert set(everything) == set(topological((module.entry.root,)))
    some = [n for n in everything if n.opcode == op.REDUCE]
    values = evaluate_all(module, arguments, keep=some)
    assert all(np.array_equal(values[n], everything[n]) for n in some)


def test_arguments_are_checked() -> None:
    module = workloads.module("softmax_grad")
    arguments = ordinary(module)
    arguments[0] = arguments[0].astype(np.float64)
    with pytest.raises(ValueError, match=r"parameter 0 is f32\[8,4,32,32\]"):
        evaluate(module, arguments)


def test_what_numpy_cannot_compute_is_refused() -> None:
    text = entry("  x = f32[4,4] parameter(0)\n  ROOT c = f32[4,4] cholesky(x), lower=true\n")
    with pytest.raises(Refused) as caught:
        evaluate(parse(text), [np.eye(4, dtype=np.float32)])
    assert caught.value.refusal.reason is Reason.UNSUPPORTED_OPCODE
