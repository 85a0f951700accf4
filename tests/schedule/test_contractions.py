"""Products of small matrices in kernels: right for any shapes, whole models in few kernels, and
only where the device's prices say so. Expected values are numpy's own matmul and einsum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.compiler import pipeline
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.records import DEVICES, Call, Device, Gemm
from stitchcore.fusion.contraction import LONGEST, Product, is_contraction, pays, product_of
from stitchcore.fusion.extents import NOMINAL_EXTENT
from stitchcore.fusion.mechanisms import ALL, Mechanism
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.transforms.expand import expand
from tests.schedule import agree
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    scalar,
    whole,
)
from tests.tiers import slow_but

CPU, GPU = DEVICES["cpu-x86-64-v3"], DEVICES["sm_80"]
DEAR = replace(CPU, gemm=Gemm(Call(1.0, 1e12), Call(1.0, 1e12), 1e9))
"""A library whose calls take a second: any product joins a kernel."""

Array = np.ndarray[Any, np.dtype[Any]]


def planned(module: Module, device: Device = CPU, mechanisms: Any = ALL) -> ModuleState:
    options = BuildOptions(mechanisms=mechanisms, verify_passes=True)
    return pipeline.run(PLANNED, ModuleState(module, device, options))


def opcodes_of(module: Module) -> set[str]:
    return {node.opcode for node in topological([module.entry.root])}


# ---- any product ---------------------------------------------------------------------------------
@st.composite
def dots(draw: st.DrawFn) -> tuple[Module, str]:
    """A dot of up to two batch, row, contracted and column dimensions, in any order of each
    operand's, and the einsum that it is."""
    names = iter("abcdefghijkl")
    groups = [
        [(next(names), draw(st.integers(1, most))) for _ in range(draw(st.integers(least, 2)))]
        for least, most in ((0, 3), (1, 6), (1, 19), (1, 35))
    ]
    batch, rows, contracted, columns = groups
    size = dict(pair for group in groups for pair in group)
    sides = [
        draw(st.permutations([name for name, _ in (*batch, *contracted, *free)]))
        for free in (rows, columns)
    ]
    free_of = [[name for name in side if (name, size[name]) in free]
               for side, free in zip(sides, (rows, columns), strict=True)]  # fmt: skip
    result = [*(name for name, _ in batch), *free_of[0], *free_of[1]]
    operands = [parameter(n, tuple(size[d] for d in side)) for n, side in enumerate(sides)]
    left, right = ([side.index(name) for name, _ in contracted] for side in sides)
    left_batch, right_batch = ([side.index(name) for name, _ in batch] for side in sides)
    dot = instruction(
        op.DOT,
        Shape("f32", tuple(size[d] for d in result)),
        tuple(operands),
        lhs_batch_dims=tuple(left_batch),
        rhs_batch_dims=tuple(right_batch),
        lhs_contracting_dims=tuple(left),
        rhs_contracting_dims=tuple(right),
    )
    return module_of([dot], operands), f"{''.join(sides[0])},{''.join(sides[1])}->{''.join(result)}"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(dots(), st.sampled_from(["cpu-x86-64-v2", "cpu-x86-64-v4", "sm_80"]), st.integers(0, 99))
def test_any_product_is_right(case: tuple[Module, str], target: str, seed: int) -> None:
    module, formula = case
    expanded = expand(module, dot_pays=lambda dot: True).module
    assert op.DOT not in opcodes_of(expanded)
    pattern = whole(expanded)
    given_ = draw_inputs(pattern, seed)
    kernel = agree.check(pattern, expanded, given_, device=DEVICES[target])
    arrays = dict(zip(pattern.inputs, given_, strict=True))
    inputs = [arrays[p].astype(np.float64) for p in module.entry.parameters]
    expected = np.einsum(formula, *inputs).astype(np.float32)
    ours = evaluate(expanded, [arrays[p] for p in module.entry.parameters])
    agree.assert_close(ours, [expected], kernel)


@st.composite
def chains(draw: st.DrawFn) -> Module:
    """Products of products, with what stands between them in models: sums along a side, what they
    are taken off, transposes, functions; values are read more than once, by both sides too."""
    sizes = (6, 8, 17)
    values = [
        parameter(n, (draw(st.sampled_from(sizes)), draw(st.sampled_from(sizes)))) for n in range(3)
    ]
    parameters_ = list(values)
    for _ in range(draw(st.integers(2, 7))):
        left = draw(st.sampled_from(values))
        match draw(st.integers(0, 5)):
            case 0 | 1 | 2:
                pairs = [
                    (right, over)
                    for right in values
                    for over in ((1, 0), (1, 1), (0, 0), (0, 1))
                    if left.shape.dims[over[0]] == right.shape.dims[over[1]]
                ]
                made = dot(left, *draw(st.sampled_from(pairs)))
            case 3:
                made = apply(draw(st.sampled_from((op.TANH, op.NEGATE))), left)
            case 4:
                along = draw(st.integers(0, 1))
                mean = broadcast(reduce(left, (along,)), left.shape.dims, (1 - along,))
                made = apply(op.SUBTRACT, left, mean)
            case _:
                made = builder.transpose(left, (1, 0))
        values.append(apply(op.MULTIPLY, made, broadcast(scalar(0.25), made.shape.dims, ())))
    outputs = draw(st.sets(st.sampled_from(values[3:]), min_size=1, max_size=3))
    return module_of([v for v in values if v in outputs], parameters_)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(chains(), st.sampled_from(["cpu-x86-64-v3", "sm_80"]), st.integers(0, 99))
def test_products_of_products_are_right(module: Module, target: str, seed: int) -> None:
    """As one kernel, and as the planner cuts it."""
    device = replace(DEVICES[target], gemm=DEAR.gemm)
    state = planned(module, device)
    expanded, random = state.module, np.random.default_rng(seed)
    assert state.plan is not None and not state.plan.opaque
    given_ = [
        random.uniform(-1, 1, p.shape.static).astype(np.float32) for p in module.entry.parameters
    ]
    expected = evaluate(module, given_)
    pattern = whole(expanded)
    by_parameter = dict(zip(expanded.entry.parameters, given_, strict=True))
    kernel = agree.check(
        pattern, expanded, [by_parameter[p] for p in pattern.inputs], device=device
    )
    agree.assert_close(evaluate(expanded, given_), expected, kernel)


TILED = [(33, 300, 70), (5, 17, 100), (64, 512, 16), (70, 64, 256), (40, 50, 600)]


@pytest.mark.parametrize(
    ("rows", "contracted", "columns"),
    slow_but((5, 17, 100), of=TILED),
)
def test_tiles_of_several_rows_are_right(rows: int, contracted: int, columns: int) -> None:
    """As C: terms that are no multiple of what a lane takes together, rows that are none of a
    tile's, columns of none and of several tiles; the bias is another piece of the lanes' body."""
    x, w, b = parameters((rows, contracted), (contracted, columns), (columns,))
    module = module_of([apply(op.TANH, biased(dot(x, w), b))], [x, w, b])
    state = planned(module, DEAR)
    assert state.plan is not None
    (pattern,) = state.plan.patterns
    agree.check(pattern, state.module, draw_inputs(pattern, 2), compiled=True)


# ---- models --------------------------------------------------------------------------------------
def dot(left: Instruction, right: Instruction, over: tuple[int, int] = (1, 0)) -> Instruction:
    """A product of two matrices, or of two batches of them (the first dimensions)."""
    batch = tuple(range(left.shape.rank - 2))
    kept = [tuple(d for d in range(len(batch), o.shape.rank) if d != n)
            for o, n in zip((left, right), over, strict=True)]  # fmt: skip
    dims = [left.shape.dims[d] for d in (*batch, *kept[0])] + [right.shape.dims[kept[1][0]]]
    return instruction(
        op.DOT,
        Shape("f32", tuple(dims)),
        (left, right),
        lhs_batch_dims=batch,
        rhs_batch_dims=batch,
        lhs_contracting_dims=(over[0],),
        rhs_contracting_dims=(over[1],),
    )


def parameters(*dims: tuple[int, ...]) -> list[Instruction]:
    return [parameter(number, some) for number, some in enumerate(dims)]


def biased(value: Instruction, bias: Instruction) -> Instruction:
    return apply(op.ADD, value, broadcast(bias, value.shape.dims, (value.shape.rank - 1,)))


def policy() -> tuple[Module, Any]:
    """Three layers of a reinforcement learner's policy, 64 wide."""
    x, *weights = parameters((32, 64), (64, 64), (64,), (64, 64), (64,), (64, 8), (8,))
    h = apply(op.TANH, biased(dot(x, weights[0]), weights[1]))
    h = apply(op.TANH, biased(dot(h, weights[2]), weights[3]))
    y = biased(dot(h, weights[4]), weights[5])

    def numpy_(x: Array, a: Array, b: Array, c: Array, d: Array, e: Array, f: Array) -> Array:
        return np.tanh(np.tanh(x @ a + b) @ c + d) @ e + f

    return module_of([y], [x, *weights]), numpy_


def attention() -> tuple[Module, Any]:
    """Heads of short sequences, with a mask."""
    q, k, v, mask = parameters((8, 12, 16), (8, 12, 16), (8, 12, 16), (8, 12, 12))
    scores = apply(op.ADD, dot(q, k, (2, 2)), mask)
    top = broadcast(reduce(scores, (2,), op.MAXIMUM), scores.shape.dims, (0, 1))
    raised = apply(op.EXPONENTIAL, apply(op.SUBTRACT, scores, top))
    total = broadcast(reduce(raised, (2,)), scores.shape.dims, (0, 1))
    out = dot(apply(op.DIVIDE, raised, total), v, (2, 1))

    def numpy_(q: Array, k: Array, v: Array, mask: Array) -> Array:
        scores = q @ k.transpose(0, 2, 1) + mask
        raised = np.exp(scores - scores.max(-1, keepdims=True))
        return raised / raised.sum(-1, keepdims=True) @ v

    return module_of([out], [q, k, v, mask]), numpy_


def lstm_cell() -> tuple[Module, Any]:
    x, h, c, w, u, b = parameters((16, 24), (16, 32), (16, 32), (24, 128), (32, 128), (128,))
    gates = biased(apply(op.ADD, dot(x, w), dot(h, u)), b)
    i, f, g, o = (
        instruction(op.SLICE, Shape("f32", (16, 32)), (gates,),
                    slice=((0, 16, 1), (32 * n, 32 * n + 32, 1)))
        for n in range(4)
    )  # fmt: skip
    i, f, o = (apply(op.LOGISTIC, gate) for gate in (i, f, o))
    state = apply(op.ADD, apply(op.MULTIPLY, f, c), apply(op.MULTIPLY, i, apply(op.TANH, g)))
    out = apply(op.MULTIPLY, o, apply(op.TANH, state))

    def numpy_(x: Array, h: Array, c: Array, w: Array, u: Array, b: Array) -> Array:
        i, f, g, o = np.split(x @ w + h @ u + b, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        return o * np.tanh(f * c + i * np.tanh(g))

    return module_of([out], [x, h, c, w, u, b]), numpy_


def batched() -> tuple[Module, Any]:
    left, right = parameters((40, 16, 16), (40, 16, 16))
    return module_of([dot(left, right, (2, 1))], [left, right]), np.matmul


def gram() -> tuple[Module, Any]:
    """Both factors are one value: of the two ways to walk it one is across its rows."""
    (x,) = parameters((24, 20))
    return module_of([dot(x, x, (1, 1))], [x]), lambda x: x @ x.T


def gradient() -> tuple[Module, Any]:
    """Of a layer behind tanh: of its weights, and of what it read."""
    x, w, y, dy = parameters((32, 40), (40, 48), (32, 48), (32, 48))
    g = apply(op.MULTIPLY, dy, apply(op.SUBTRACT, broadcast(scalar(1.0), (32, 48), ()),
                                     apply(op.MULTIPLY, y, y)))  # fmt: skip
    outputs = [dot(x, g, (0, 0)), dot(g, w, (1, 1))]

    def numpy_(x: Array, w: Array, y: Array, dy: Array) -> list[Array]:
        g = dy * (1 - y * y)
        return [x.T @ g, g @ w.T]

    return module_of(outputs, [x, w, y, dy]), numpy_


MODELS = (policy, attention, lstm_cell, batched, gram, gradient)


@pytest.mark.parametrize("model", slow_but(attention, lstm_cell, gram, gradient, of=MODELS))
def test_a_small_model_is_one_kernel_and_right(model: Any) -> None:
    module, numpy_ = model()
    state = planned(module, DEAR)
    assert state.plan is not None and not state.plan.opaque
    (pattern,) = state.plan.patterns
    given_ = draw_inputs(pattern, 1)
    arrays = dict(zip(pattern.inputs, given_, strict=True))
    expanded = state.module
    kernel = agree.check(pattern, expanded, given_, compiled=True)
    inputs = [arrays[p] for p in expanded.entry.parameters]
    expected = numpy_(*(array.astype(np.float64) for array in inputs))
    expected = expected if isinstance(expected, list) else [expected]
    agree.assert_close(
        evaluate(expanded, inputs), [array.astype(np.float32) for array in expected], kernel
    )


@pytest.mark.parametrize("model", [policy, attention, batched])
def test_without_it_products_are_the_librarys(model: Any) -> None:
    module, _ = model()
    state = planned(module, DEAR, ALL - {Mechanism.GEMM})
    assert state.plan is not None
    assert {node.opcode for node in state.plan.opaque} == {op.DOT}
    free = replace(GPU, gemm=replace(GPU.gemm, call=Call(0.0, 1e15), batched=Call(0.0, 1e15)))  # type: ignore
    assert op.DOT in opcodes_of(planned(module, free).module)


def test_what_is_computed_for_a_product_is_computed_once() -> None:
    """tanh of a factor is not computed again for each row or column, and a factor that lies across
    the lanes is turned first: two loops before the product's own."""
    x, w = parameters((32, 48), (64, 48))
    product = dot(apply(op.TANH, x), w, (1, 1))
    state = planned(module_of([product], [x, w]), DEAR)
    (kernel,) = state.kernels
    scratch = {tuple(b.dims) for b in kernel.buffers if b.role.value == "scratch"}
    assert scratch == {(32, 48), (48, 64)}


# ---- which ---------------------------------------------------------------------------------------
def product(rows: int, contracted: int, columns: int) -> Product:
    left, right = parameters((rows, contracted), (contracted, columns))
    sizes = product_of(dot(left, right))
    assert sizes == Product(rows * columns, contracted, columns, batched=False)
    return sizes


def priced(seconds: float) -> Device:
    return replace(CPU, gemm=Gemm(Call(seconds, 6e10), Call(2 * seconds, 6e10), 3e10))


def test_a_product_joins_a_kernel_while_its_call_takes_longer() -> None:
    """2 x 32^3 operations take 1.1 us more in a kernel's loops, 2 x 256^3 half a millisecond."""
    assert pays(product(32, 32, 32), priced(1.2e-6))
    assert not pays(product(32, 32, 32), priced(1.0e-6))
    assert not pays(product(256, 256, 256), priced(5e-6))
    assert pays(product(256, 256, 256), priced(1e-3))


def test_lanes_without_columns_are_paid_for() -> None:
    """Nine columns take as long as sixteen, in vectors of eight."""
    assert pays(product(64, 64, 16), priced(2.2e-6))
    assert not pays(product(64, 64, 9), priced(2.2e-6))


@pytest.mark.parametrize("target", [t for t, device in DEVICES.items() if device.kind == "gpu"])
def test_a_gpus_library_keeps_what_it_is_quicker_with(target: str) -> None:
    """What a lane waits for decides where there are few results, else what all lanes load. A
    slower first cache, or a library that is no slower than an empty kernel, changes sides."""
    device = DEVICES[target]
    heads = [Product(heads * 4096, 64, 64, batched=True) for heads in (4, 256)]
    assert pays(product(32, 64, 64), device) and pays(heads[0], device)
    assert not pays(product(32, 256, 64), device) and not pays(heads[1], device)
    assert not pays(product(256, 256, 256), device)
    assert device.gemm is not None and device.timing is not None
    quick = replace(
        device, gemm=replace(device.gemm, call=Call(1e-7, device.gemm.call.flops_per_second))
    )
    assert not pays(product(32, 64, 64), quick)
    slow = replace(device.timing, hertz=device.timing.hertz / 4)
    assert not pays(product(32, 64, 64), replace(device, timing=slow))


def test_never_a_long_or_unknown_or_unpriced_product() -> None:
    assert not pays(product(1024, LONGEST + 1, 8), DEAR)
    assert not pays(product(4, 64, 4), DEAR)  # fewer results than terms of each
    assert not pays(product(8, 8, 8), replace(CPU, gemm=None))
    text = """HloModule m
ENTRY e {
  x = s32[8,8] parameter(0)
  ROOT y = s32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
    assert product_of(parse(text).entry.root) is None
    wide = product_of(parse(text.replace("s32", "f64")).entry.root)
    assert wide is not None and wide.width == 8 and pays(wide, DEAR)
    assert not pays(wide, DEVICES["sm_90"])  # of which there are no prices
    rows = product_of(dot(*unknown("b,8", "8,8")))
    assert rows is not None and not pays(rows, DEAR)
    assert product_of(dot(*unknown("8,b", "b,8"))) is None
    assert product_of(dot(*unknown("8,8", "8,b"))) is None


def unknown(*shapes: str) -> tuple[Instruction, ...]:
    lines = [f"  p{n} = f32[{shape}] parameter({n})" for n, shape in enumerate(shapes)]
    root = f"  ROOT r = f32[{shapes[0]}] negate(p0)"
    text = "\n".join(["HloModule m", "ENTRY e {", *lines, root, "}"])
    return parse(text).entry.parameters


def test_a_batch_of_unknown_size_is_taken_for_the_nominal_one() -> None:
    left, right = unknown("b,8,16", "b,16,24")
    made = product_of(dot(left, right, (2, 1)))
    assert made == Product(NOMINAL_EXTENT * 8 * 24, 16, 24, batched=True, known=False)
    assert pays(made, DEAR)


def test_a_product_written_by_hand_is_one_too() -> None:
    """As a framework's einsum may arrive: no library call, and no pass over all products."""
    x, w = parameters((64, 32), (32, 48))
    dims = (64, 32, 48)
    products = apply(op.MULTIPLY, broadcast(x, dims, (0, 1)), broadcast(w, dims, (1, 2)))
    value = reduce(products, (1,))
    assert is_contraction(value)
    assert not is_contraction(reduce(products, (2,)))
    (pattern,) = planned(module_of([value], [x, w])).plan.patterns  # type: ignore[union-attr]
    agree.check(pattern, module_of([value], [x, w]), draw_inputs(pattern, 0), compiled=True)
