"""C text: kernels of several shapes are right, whatever the number of threads, and vectorise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stitchcore.codegen import c
from stitchcore.codegen.source import index_text, literal
from stitchcore.device.host import host_device
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.index import Variable, add, maximum, minimum, modulo
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import (
    Apply,
    Check,
    InRange,
    Kernel,
    Literal,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Section,
    Store,
)
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.runtime.cpu_kernel import CheckFailed, CpuKernel
from stitchcore.toolchain.c_compiler import compile_c
from tests.loop_ir.sample import LANES, column_sum, device, softmax, whole_sum


def extreme(size: int, reducer: str, dtype: str) -> Kernel:
    """`whole_sum` with another reducer."""
    return parse_kernel(print_kernel(whole_sum(size, dtype)).replace("add", reducer))


def build(kernel: Kernel) -> CpuKernel:
    library = compile_c(c.render([kernel]), host_device())
    assert not library.scalar_loops, library.scalar_loops
    return CpuKernel(library.data, kernel)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 33), (33, 100), (64, 1024)])
def test_softmax_agrees_with_the_interpreter(dtype: str, rows: int, columns: int) -> None:
    kernel = softmax(rows, columns, dtype)
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(DTYPES[dtype].numpy)
    library = compile_c(c.render([kernel]), host_device())
    [found] = CpuKernel(library.data, kernel).run([x], threads=2)
    [expected] = interpret(kernel, [x])
    tolerance = {"f32": 4e-6, "bf16": 8e-3, "f16": 1e-3}[dtype]
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=tolerance
    )


@pytest.mark.parametrize(
    ("columns", "parts"), [(36, 2), (64, 1), (47, 4), (31, 4), (7, 2), (3, 1), (1000, 1)]
)
def test_narrower_vectors_take_a_short_loops_remainder(columns: int, parts: int) -> None:
    kernel = softmax(5, columns, "f32")
    loops = c.render([kernel]).count("#pragma omp simd")
    x = np.random.default_rng(0).standard_normal((5, columns)).astype(np.float32)
    [found] = CpuKernel(compile_c(c.render([kernel]), host_device()).data, kernel).run([x])
    [expected] = interpret(kernel, [x])
    np.testing.assert_allclose(found, expected, rtol=4e-6)
    assert loops == parts * c.render([softmax(5, 16, "f32")]).count("#pragma omp simd")


def test_any_number_of_threads_gives_the_same_bits() -> None:
    kernel = build(column_sum(64))
    x = np.random.default_rng(1).standard_normal((1000, 64)).astype(np.float32)
    results = [kernel.run([x], {"B": 1000}, threads=n)[0].tobytes() for n in (1, 2, 3, 7)]
    assert len(set(results)) == 1


@pytest.mark.parametrize("rows", [1, 8, 9, 100])
def test_symbols_are_arguments(rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 40)).astype(np.float32)
    [y] = build(column_sum()).run([x], {"B": rows})
    np.testing.assert_allclose(y, x.sum(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 10_000, 1_000_000])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_long_sums_stay_accurate(size: int, dtype: str) -> None:
    """TensorFlow's sum of a million 0.1 is off by 2.3e-6 relative; ours must not be worse."""
    x = np.full(size, 0.1, DTYPES[dtype].numpy)
    [y] = build(whole_sum(size, dtype)).run([x])
    assert abs(float(y[0]) / (float(x[0]) * size) - 1) < 1e-6


def test_infinities_survive_long_sums() -> None:
    x = np.ones(5000, np.float32)
    x[17] = np.inf
    [y] = build(whole_sum(5000)).run([x])
    assert y[0] == np.inf


@pytest.mark.parametrize("reducer", [opcodes.MAXIMUM, opcodes.MINIMUM])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_nan_anywhere_reaches_the_end_of_a_reduction(reducer: str, dtype: str) -> None:
    """After a NaN come larger and smaller numbers, in the same lane and in others."""
    size = 133
    kernel = build(extreme(size, reducer, dtype))
    x = np.random.default_rng(6).standard_normal(size).astype(DTYPES[dtype].numpy)
    exact = {opcodes.MAXIMUM: np.max, opcodes.MINIMUM: np.min}[reducer]
    assert kernel.run([x])[0][0] == exact(x)
    for position in range(size):
        with_nan = x.copy()
        with_nan[position] = np.nan
        assert np.isnan(kernel.run([with_nan])[0][0]), position


def test_denormals_are_flushed_and_the_callers_state_is_kept() -> None:
    x = np.array([2e-39, 1.0], np.float32)
    [y] = build(whole_sum(2)).run([x])
    assert y[0] == 1.0
    tiny = np.array([1e-39], np.float32)
    assert (tiny + tiny)[0] > 0  # numpy, in this thread, still has denormals
    x[1] = 0.0
    assert build(whole_sum(2)).run([x])[0][0] == 0.0


ZERO = Literal(0, "s64")


def test_the_first_failed_check_is_reported() -> None:
    lane = Variable("lane")
    x, y = device("x", "f32", (40,), Role.INPUT), device("y", "f32", (40,), Role.OUTPUT)
    body = (
        Check(InRange(lane, 0, 99), 0, ZERO),
        Check(InRange(lane, 0, 39), 1, ZERO),
        Check(InRange(lane, 5, 40), 2, ZERO),
        Store(y, (lane,), Load(x, (lane,))),
    )
    section = Section("task", 1, (Loop("lane", 0, 40, LANES, body),))
    kernel = Kernel("k", (), (x, y), (Phase((section,)),), errors=("zero", "one", "two"))
    library = compile_c(c.render([kernel]), host_device())
    with pytest.raises(CheckFailed, match="one"):
        CpuKernel(library.data, kernel).run([np.zeros(40, np.float32)])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("in_lanes", [True, False])
def test_a_check_names_the_least_negative_value_or_else_the_greatest(
    threads: int, in_lanes: bool
) -> None:
    x, y = device("x", "s64", (30, 8), Role.INPUT), device("y", "s64", (30, 8), Role.OUTPUT)

    def section(number: int) -> Section:
        task, i = f"task{number}", f"i{number}"
        at = (add(Variable(task), 15 * number), Variable(i))
        value = Load(x, at)
        signed = Apply(opcodes.COMPARE, (value, ZERO), "pred", (("direction", "GE"),))
        below = Literal(100, "s64")
        small = Apply(opcodes.COMPARE, (value, below), "pred", (("direction", "LT"),))
        holds = Apply(opcodes.AND, (signed, small), "pred")
        body = (Check(holds, 0, value), Store(y, at, value))
        return Section(task, 15, (Loop(i, 0, 8, LANES if in_lanes else LoopKind.SERIAL, body),))

    kernel = Kernel("k", (), (x, y), (Phase((section(0), section(1))),), errors=("bad {}",))
    run = CpuKernel(compile_c(c.render([kernel]), host_device()).data, kernel).run
    given = np.arange(240).reshape(30, 8) % 100
    assert np.array_equal(run([given], threads=threads)[0], given)
    largest = 2**55 - 1  # what fits beside the number of the check
    for places, reported in (
        ({3: -5, 100: 5000, 200: -700}, -700),
        ({3: 100, 100: 7000, 239: 7001}, 7001),
        ({77: 2**62}, largest),
        ({78: -(2**63)}, -largest - 1),
    ):
        wrong = given.copy()
        wrong.reshape(-1)[list(places)] = list(places.values())
        with pytest.raises(CheckFailed, match=f"^bad {reported}$"):
            run([wrong], threads=threads)
        if abs(reported) < largest:
            with pytest.raises(CheckFailed, match=f"^bad {reported}$"):
                interpret(kernel, [wrong])


def test_forwarded_pairs_may_share_memory() -> None:
    kernel = replace(softmax(8, 64), aliases=((0, 0),))
    x = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32)
    compiled = build(kernel)
    [expected] = compiled.run([x.copy()])
    [found] = compiled.run([x], outputs=[x])
    assert found is x
    np.testing.assert_array_equal(found, expected)


def test_the_first_comment_names_the_origin() -> None:
    kernel = replace(softmax(), provenance=("layer/softmax", "x*/y"))
    assert "/* softmax: layer/softmax, x* /y */" in c.render([kernel])


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.5, "f32", "0x1.8p+0f"),
        (-0.0, "f32", "(-0x0.0p+0f)"),
        (0.1, "bf16", "0x1.9ap-4f"),
        (float("inf"), "f64", "ST_INF_F64"),
        (float("-inf"), "f16", "(-ST_INF_F32)"),
        (float("nan"), "f32", "ST_NAN_F32"),
        (1e300, "f32", "ST_INF_F32"),
        (-(2**31), "s32", "INT32_MIN"),
        (-1, "u64", "(uint64_t)18446744073709551615ull"),
        (True, "pred", "true"),
    ],
)
def test_literals(value: float, dtype: str, text: str) -> None:
    assert literal(value, dtype).replace("0x0p", "0x0.0p") == text


def test_index_text_keeps_the_tree() -> None:
    i, j = Variable("i"), Variable("j")
    assert index_text((i + j) * 4 + modulo(i, 3)) == "(i + j) * 4 + i % 3"
    assert index_text(i * (j // 2)) == "i * (j / 2)"
    assert index_text(maximum(i + -1, 0)) == "st_max(i + (-1), 0)"


def test_a_concatenation_inlined_into_its_user_becomes_one_loop_a_piece() -> None:
    lane = Variable("lane")
    a, b = device("a", "f32", (18,), Role.INPUT), device("b", "f32", (22,), Role.INPUT)
    y = device("y", "f32", (40,), Role.OUTPUT)
    left = Load(a, (maximum(minimum(lane, 17), 0),))
    right = Load(b, (maximum(minimum(lane + -18, 21), 0),))
    value = Apply(opcodes.SELECT, (InRange(lane, 0, 18), left, right), "f32")
    loop = Loop("lane", 0, 40, LANES, (Store(y, (lane,), value),))
    kernel = Kernel("k", (), (a, b, y), (Phase((Section("task", 1, (loop,)),)),))
    text = c.render([kernel])
    assert "lane < 18" in text
    assert "lane = 18" in text
    assert "st_m" not in text.split("ST_EXPORT")[0].split("ST_SECTION")[1]
    x, z = np.arange(18, dtype=np.float32), np.arange(22, dtype=np.float32)
    compiled = CpuKernel(compile_c(text, host_device()).data, kernel)
    np.testing.assert_array_equal(compiled.run([x, z])[0], np.concatenate([x, z]))
    np.testing.assert_array_equal(interpret(kernel, [x, z])[0], np.concatenate([x, z]))
