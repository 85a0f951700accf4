"""Kernels written by hand that several tests use: a row softmax and a column sum in two phases."""

from __future__ import annotations

from stitchcore.hlo.ir import opcodes as op
from stitchcore.loop_ir.index import Variable, ceil_divide, minimum
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Accumulator,
    Allocate,
    Apply,
    Buffer,
    Expression,
    GatherIndex,
    Kernel,
    LaneReduce,
    Let,
    Literal,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scalar,
    Scope,
    Section,
    Store,
)

LANES, SERIAL = LoopKind.LANES, LoopKind.SERIAL


def device(name: str, dtype: str, dims: tuple[object, ...], role: Role) -> Buffer:
    return Buffer(name, dtype, dims, Scope.DEVICE, role)  # type: ignore[arg-type]


def convert(value: Expression, dtype: str) -> Expression:
    return value if value.dtype == dtype else Apply(op.CONVERT, (value,), dtype)


def softmax(rows: int = 32, columns: int = 96, dtype: str = "f32", rows_a_task: int = 4) -> Kernel:
    """y = softmax(x) over the rows of [rows, columns]; exponentials kept in a LOCAL buffer."""
    x = device("x", dtype, (rows, columns), Role.INPUT)
    y = device("y", dtype, (rows, columns), Role.OUTPUT)
    kept = Buffer("kept", "f32", (columns,), Scope.GROUP, Role.LOCAL)
    most, total, power = (Scalar(name, "f32") for name in ("most", "total", "power"))
    task, row, j, k, m = map(Variable, ("task", "row", "j", "k", "m"))
    shifted = Apply(op.SUBTRACT, (convert(Load(x, (row, k)), "f32"), most), "f32")
    quotient = Apply(op.DIVIDE, (Load(kept, (m,)), total), "f32")
    body = (
        Accumulator(most, op.MAXIMUM),
        Loop(
            "j",
            0,
            columns,
            LANES,
            (Accumulate(most, op.MAXIMUM, convert(Load(x, (row, j)), "f32")),),
        ),
        LaneReduce(most, op.MAXIMUM, Scope.GROUP),
        Accumulator(total, op.ADD),
        Loop(
            "k",
            0,
            columns,
            LANES,
            (
                Let(power, Apply(op.EXPONENTIAL, (shifted,), "f32")),
                Store(kept, (k,), power),
                Accumulate(total, op.ADD, power),
            ),
        ),
        LaneReduce(total, op.ADD, Scope.GROUP),
        Loop("m", 0, columns, LANES, (Store(y, (row, m), convert(quotient, dtype)),)),
    )
    rows_loop = Loop(
        "row",
        task * rows_a_task,
        minimum(task * rows_a_task + rows_a_task, rows),
        SERIAL,
        body,
    )
    section = Section("task", ceil_divide(rows, rows_a_task), (Allocate(kept), rows_loop))
    return Kernel("softmax", (), (x, y), (Phase((section,)),), provenance=("test/softmax",))


def column_sum(columns: int = 40, split: int = 8) -> Kernel:
    """y[c] = sum over b of x[b, c] for a symbolic number of rows B; `split` rows a task."""
    rows = Variable("B")
    parts = ceil_divide(rows, split)
    x = device("x", "f32", (rows, columns), Role.INPUT)
    y = device("y", "f32", (columns,), Role.OUTPUT)
    partial = device("partial", "f32", (parts, columns), Role.SCRATCH)
    sums = Buffer("sums", "f32", (columns,), Scope.GROUP, Role.LOCAL)
    total = Scalar("total", "f32")
    task, row, i, j, k, c, p = map(Variable, ("task", "row", "i", "j", "k", "c", "p"))
    first = (
        Allocate(sums),
        Loop("i", 0, columns, LANES, (Store(sums, (i,), Literal(0.0, "f32")),)),
        Loop(
            "row",
            task * split,
            minimum(task * split + split, rows),
            SERIAL,
            (
                Loop(
                    "j",
                    0,
                    columns,
                    LANES,
                    (
                        Store(
                            sums,
                            (j,),
                            Apply(op.ADD, (Load(sums, (j,)), Load(x, (row, j))), "f32"),
                        ),
                    ),
                ),
            ),
        ),
        Loop("k", 0, columns, LANES, (Store(partial, (task, k), Load(sums, (k,))),)),
    )
    second = (
        Loop(
            "c",
            0,
            columns,
            LANES,
            (
                Accumulator(total, op.ADD),
                Loop("p", 0, parts, SERIAL, (Accumulate(total, op.ADD, Load(partial, (p, c))),)),
                Store(y, (c,), total),
            ),
        ),
    )
    return Kernel(
        "column_sum",
        ("B",),
        (x, y, partial),
        (Phase((Section("task", parts, first),)), Phase((Section("final", 1, second),))),
        scratch_offsets=(0,),
        scratch_bytes=parts * (columns * 4),
        provenance=("test/sum",),
    )


def whole_sum(size: int, dtype: str = "f32") -> Kernel:
    """y[0] = sum of x[size], one lane loop."""
    x, y = device("x", dtype, (size,), Role.INPUT), device("y", dtype, (1,), Role.OUTPUT)
    total = Scalar("total", dtype)
    body = (
        Accumulator(total, op.ADD),
        Loop("i", 0, size, LANES, (Accumulate(total, op.ADD, Load(x, (Variable("i"),))),)),
        LaneReduce(total, op.ADD, Scope.GROUP),
        Store(y, (0,), total),
    )
    return Kernel("whole_sum", (), (x, y), (Phase((Section("task", 1, body),)),))


def looked_up(dtype: str = "s32", rows: int = 7, count: int = 20) -> Kernel:
    """y[i] = x[position of at[i]] from x[rows]: an address that data decides."""
    x, at = device("x", "f32", (rows,), Role.INPUT), device("at", dtype, (count,), Role.INPUT)
    y, given = device("y", "f32", (count,), Role.OUTPUT), Scalar("given", dtype)
    body = (
        Let(given, Load(at, (Variable("i"),))),
        GatherIndex("place", given, rows - 1),
        Store(y, (Variable("i"),), Load(x, (Variable("place"),))),
    )
    section = Section("task", 1, (Loop("i", 0, count, LANES, body),))
    return Kernel("looked_up", (), (x, at, y), (Phase((section,)),))
