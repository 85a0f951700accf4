"""The interpreter: right answers, and an error for each rule a kernel can break."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.interpreter import CheckFailed, KernelError, Race, interpret
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Accumulator,
    Allocate,
    Apply,
    Barrier,
    Buffer,
    Check,
    If,
    InRange,
    Kernel,
    LaneReduce,
    Literal,
    Load,
    Loop,
    Phase,
    Role,
    Scalar,
    Scope,
    Section,
    Statement,
    Store,
)
from tests.loop_ir.sample import (
    LANES,
    SERIAL,
    column_sum,
    device,
    looked_up,
    softmax,
    whole_sum,
)

X = device("x", "f32", (12,), Role.INPUT)
Y = device("y", "f32", (12,), Role.OUTPUT)
KEPT = Buffer("kept", "f32", (12,), Scope.GROUP, Role.LOCAL)
AT, J = Variable("i"), Variable("j")
ONES = np.arange(12, dtype=np.float32)


def kernel_of(*body: Statement, tasks: int = 1, **changes: object) -> Kernel:
    made = Kernel("k", (), (X, Y), (Phase((Section("task", tasks, body),)),))
    return replace(made, **changes)  # type: ignore[arg-type]


def lanes(variable: str, *body: Statement, end: int = 12) -> Loop:
    return Loop(variable, 0, end, LANES, body)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("seed", range(3))
def test_softmax(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((32, 96)).astype(DTYPES[dtype].numpy)
    [y] = interpret(softmax(dtype=dtype), [x], {}, rng)
    wide = np.exp(x.astype(np.float64))
    expected = wide / wide.sum(axis=1, keepdims=True)
    tolerance = {"f32": 2e-6, "bf16": 4e-3, "f16": 5e-4}[dtype]
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=tolerance)


@pytest.mark.parametrize("rows", [1, 7, 8, 33])
def test_two_phases_and_a_symbol(rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 40)).astype(np.float32)
    [y] = interpret(column_sum(), [x], {"B": rows})
    np.testing.assert_allclose(y, x.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_storage_is_rounded_at_every_apply() -> None:
    bf16 = DTYPES["bf16"].numpy
    x = device("x", "bf16", (1,), Role.INPUT)
    y = device("y", "bf16", (1,), Role.OUTPUT)
    one = Apply(op.ADD, (Load(x, (0,)), Literal(1.0, "bf16")), "bf16")
    back = Apply(op.SUBTRACT, (one, Literal(1.0, "bf16")), "bf16")
    kernel = Kernel("k", (), (x, y), (Phase((Section("task", 1, (Store(y, (0,), back),)),)),))
    [found] = interpret(kernel, [np.array([2.0**-9], bf16)])
    assert found[0] == 0  # 1 + 2^-9 is 1 in bf16, though not in float32


def reversed_copy(between: tuple[Statement, ...]) -> Kernel:
    mirror = Load(KEPT, (Variable("j") * -1 + 11,))
    return kernel_of(
        Allocate(KEPT),
        lanes("i", Store(KEPT, (AT,), Load(X, (AT,)))),
        *between,
        lanes("j", Store(Y, (J,), mirror)),
    )


def test_a_missing_barrier_is_a_race() -> None:
    with pytest.raises(Race, match="kept"):
        interpret(reversed_copy(()), [ONES])
    [y] = interpret(reversed_copy((Barrier(Scope.GROUP),)), [ONES])
    np.testing.assert_array_equal(y, ONES[::-1])


def test_the_same_lane_needs_no_barrier() -> None:
    kernel = kernel_of(
        Allocate(KEPT),
        lanes("i", Store(KEPT, (AT,), Load(X, (AT,)))),
        lanes("j", Store(Y, (J,), Load(KEPT, (J,)))),
    )
    np.testing.assert_array_equal(interpret(kernel, [ONES])[0], ONES)


def test_reading_before_rewriting_needs_a_barrier() -> None:
    """Write after read: a lane may overwrite what another has yet to read."""

    def kernel(*between: Statement) -> Kernel:
        return kernel_of(
            Allocate(KEPT),
            lanes("i", Store(KEPT, (AT,), Load(X, (AT,)))),
            Barrier(Scope.GROUP),
            lanes("j", Store(Y, (J,), Load(KEPT, (Variable("j") * -1 + 11,)))),
            *between,
            lanes("k", Store(KEPT, (Variable("k"),), Literal(0.0, "f32"))),
        )

    with pytest.raises(Race, match="read, then written"):
        interpret(kernel(), [ONES])
    interpret(kernel(Barrier(Scope.GROUP)), [ONES])


def test_a_uniform_store_is_seen_by_other_lanes_after_a_barrier() -> None:
    store = Store(KEPT, (0,), Load(X, (3,)))
    read = lanes("j", Store(Y, (J,), Load(KEPT, (0,))))
    with pytest.raises(Race):
        interpret(kernel_of(Allocate(KEPT), store, read), [ONES])
    [y] = interpret(kernel_of(Allocate(KEPT), store, Barrier(Scope.GROUP), read), [ONES])
    assert (y == 3).all()


def test_iterations_of_one_lane_loop_are_independent() -> None:
    shifted = lanes("i", Store(KEPT, (AT,), Load(X, (AT,))), Store(Y, (AT,), Load(KEPT, (AT * 0,))))
    with pytest.raises(KernelError):
        interpret(kernel_of(Allocate(KEPT), shifted), [ONES], lanes=1)
    same = lanes("i", Store(Y, (AT // 2,), Load(X, (AT,))))
    with pytest.raises(Race, match="several iterations"):
        interpret(kernel_of(same), [ONES], lanes=1)


def test_tasks_of_one_phase_are_independent() -> None:
    with pytest.raises(Race):
        interpret(kernel_of(lanes("i", Store(Y, (AT,), Load(X, (AT,)))), tasks=2), [ONES])


def test_a_missing_combine_is_an_error_and_a_missing_phase_too() -> None:
    kernel = whole_sum(100)
    section = kernel.phases[0].sections[0]
    body = tuple(s for s in section.body if not isinstance(s, LaneReduce))
    broken = replace(kernel, phases=(Phase((replace(section, body=body),)),))
    with pytest.raises(KernelError, match="before its Combine"):
        interpret(broken, [np.ones(100, np.float32)])
    two = column_sum()
    joined = Phase(tuple(s for phase in two.phases for s in phase.sections))
    with pytest.raises(KernelError):
        interpret(replace(two, phases=(joined,)), [np.ones((9, 40), np.float32)], {"B": 9})


def test_combining_twice_is_wrong_on_more_than_one_lane() -> None:
    kernel = whole_sum(100)
    section = kernel.phases[0].sections[0]
    first, loop, combine, store = section.body
    twice = replace(section, body=(first, loop, combine, combine, store))
    [y] = interpret(replace(kernel, phases=(Phase((twice,)),)), [np.ones(100, np.float32)], lanes=4)
    assert y[0] == 400


def test_memory_never_written_is_noticed() -> None:
    with pytest.raises(KernelError, match="never written"):
        interpret(kernel_of(lanes("i", Store(Y, (AT,), Load(X, (AT,))), end=11)), [ONES])
    unwritten = kernel_of(Allocate(KEPT), lanes("j", Store(Y, (J,), Load(KEPT, (J,)))))
    with pytest.raises(KernelError, match="read but never written"):
        interpret(unwritten, [ONES])


def test_an_index_outside_is_noticed() -> None:
    with pytest.raises(KernelError, match="not in"):
        interpret(kernel_of(lanes("i", Store(Y, (AT,), Load(X, (AT + 1,))))), [ONES])


@pytest.mark.parametrize("dtype", ["s8", "u8", "s32", "u32", "s64", "u64"])
def test_a_position_is_clamped(dtype: str) -> None:
    """Of 7 rows; 200 is more than an s8 holds, and would be negative in one."""
    kind = DTYPES[dtype].numpy
    limits = np.iinfo(kind)
    at = np.resize(np.array([limits.min, limits.max, 0, 3, 6, 7, 100], kind), 20)
    x = np.arange(7, dtype=np.float32)
    [y] = interpret(looked_up(dtype), [x, at])
    assert y.tolist() == [float(min(max(int(i), 0), 6)) for i in at]
    large = np.arange(200, dtype=np.float32)
    [y] = interpret(looked_up(dtype, 200), [large, at])
    assert y.tolist() == [float(min(max(int(i), 0), 199)) for i in at]


def test_a_position_without_a_place_is_an_error() -> None:
    with pytest.raises(KernelError, match="has no place"):
        interpret(looked_up(rows=0), [np.zeros(0, np.float32), np.zeros(20, np.int32)])


def test_inputs_that_do_not_fit() -> None:
    copy = kernel_of(lanes("i", Store(Y, (AT,), Load(X, (AT,)))))
    with pytest.raises(ValueError, match="must be"):
        interpret(copy, [ONES.astype(np.float64)])
    with pytest.raises(ValueError, match="1 inputs, 0 given"):
        interpret(copy, [])


def test_per_lane_if_masks_and_check_reports() -> None:
    kernel = kernel_of(
        lanes(
            "i",
            If(InRange(AT, 0, 6), (Store(Y, (AT,), Load(X, (AT,))),)),
            If(InRange(AT, 6, 12), (Store(Y, (AT,), Literal(-1.0, "f32")),)),
        )
    )
    [y] = interpret(kernel, [ONES])
    np.testing.assert_array_equal(y, np.where(ONES < 6, ONES, -1))
    checked = replace(
        kernel_of(
            lanes(
                "i",
                Check(InRange(AT, 0, 11), 1, Literal(0, "s64")),
                Store(Y, (AT,), Load(X, (AT,))),
            ),
        ),
        errors=("never", "index 11 is out of range"),
    )
    with pytest.raises(CheckFailed, match="index 11"):
        interpret(checked, [ONES])


def test_forwarded_pairs_may_share_memory_only_when_reads_come_first() -> None:
    def kernel(source: object) -> Kernel:
        return replace(
            kernel_of(lanes("i", Store(Y, (AT,), Load(X, (source,))))),  # type: ignore[arg-type]
            aliases=((0, 0),),
        )

    [y] = interpret(kernel(AT), [ONES], share_aliases=True)
    np.testing.assert_array_equal(y, ONES)
    with pytest.raises(Race):
        interpret(kernel(Variable("i") * -1 + 11), [ONES], share_aliases=True)


def test_short_reduced_axis_inside_a_lane_loop() -> None:
    x = device("x", "f32", (12, 3), Role.INPUT)
    total, serial = Scalar("total", "f32"), Variable("s")
    body = (
        Accumulator(total, op.ADD),
        Loop("s", 0, 3, SERIAL, (Accumulate(total, op.ADD, Load(x, (AT, serial))),)),
        Store(Y, (AT,), total),
    )
    kernel = Kernel("k", (), (x, Y), (Phase((Section("task", 1, (lanes("i", *body),)),)),))
    values = np.arange(36, dtype=np.float32).reshape(12, 3)
    np.testing.assert_array_equal(interpret(kernel, [values])[0], values.sum(axis=1))


def test_a_hundred_thousand_elements_in_seconds() -> None:
    x = np.random.default_rng(0).standard_normal((128, 1024)).astype(np.float32)
    [y] = interpret(softmax(128, 1024), [x])
    np.testing.assert_allclose(y.sum(axis=1), 1.0, rtol=1e-5)
