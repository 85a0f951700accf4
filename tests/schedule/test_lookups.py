"""Gathers and dynamic slices inside kernels: numpy's values, HLO's clamping, one load an index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stitchcore.codegen import c_lane_tiles, cuda, vector_access
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason
from stitchcore.fusion import candidates, planner_exhaustive
from stitchcore.fusion.candidates import Role as PlanRole
from stitchcore.fusion.cost import cost, single
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import symbol
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.shape import DTYPES, Shape
from stitchcore.hlo.transforms.simplify import simplify
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.layout import is_vector_access
from stitchcore.loop_ir.nodes import (
    Buffer,
    GatherIndex,
    Kernel,
    Let,
    Load,
    Loop,
    LoopKind,
    Role,
    Scalar,
    Scope,
    Statement,
    Store,
)
from stitchcore.loop_ir.visitor import expressions, statements
from stitchcore.schedule.pipeline import feasible, schedule
from tests.schedule.agree import DEVICE, check
from tests.schedule.modules import apply, broadcast, module_of, parameter, reduce, whole

INTEGERS = sorted(n for n, d in DTYPES.items() if d.kind in ("signed", "unsigned"))
ROWS, WIDTH = 50, 24


def embedding(table: Instruction, ids: Instruction) -> Instruction:
    """Rows of a table: what tf2xla makes of an embedding lookup."""
    rank = ids.shape.rank
    sizes = (1, *table.shape.static[1:])
    return builder.gather(
        table, ids, [0], sizes, vector_dim=rank, offset_dims=[rank], collapsed=[0]
    )


def ids_of(dtype: str, dims: tuple[int, ...] = (6, 5)) -> Any:
    """Places in the table, and the least and the greatest integers there are."""
    kind = DTYPES[dtype].numpy
    values = np.random.default_rng(2).integers(0, ROWS, dims).astype(kind).reshape(-1)
    limits = np.iinfo(kind)
    low = -1 if limits.min < 0 else limits.max
    values[:6] = [limits.min, limits.max, low, ROWS, ROWS - 1, 0]
    return values.reshape(dims)


def lane_loops(kernel: Kernel) -> list[Loop]:
    bodies = [s for phase in kernel.phases for section in phase.sections for s in section.body]
    return [s for s in statements(bodies) if isinstance(s, Loop) and s.kind is LoopKind.LANES]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_index_of_any_type_is_clamped(dtype: str) -> None:
    """Numpy's own clip, not the evaluator's: in the interpreter and as C."""
    table, ids = parameter(0, (ROWS, WIDTH)), parameter(1, (6, 5), dtype)
    module = module_of([apply(op.NEGATE, embedding(table, ids))], [table, ids])
    pattern, given = whole(module), ids_of(dtype)
    values = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
    arrays = {table: values, ids: given}
    kernel = check(pattern, module, [arrays[v] for v in pattern.inputs], compiled=True)
    wide = np.array([min(max(int(i), 0), ROWS - 1) for i in given.reshape(-1)]).reshape(6, 5)
    assert np.array_equal(evaluate(module, [values, given])[0], -values[wide]), kernel.name


@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "sm_90"])
def test_an_embedding_joins_its_layer_norm(target: str) -> None:
    """One kernel of one phase; each index is loaded once a row, outside the lane loops, or once in
    each stage that runs over several rows."""
    table, ids = parameter(0, (ROWS, WIDTH)), parameter(1, (64, 16), "s32")
    looked = embedding(table, ids)
    wide = looked.shape.dims
    mean = apply(op.MULTIPLY, reduce(looked, (2,)), broadcast(scalar_over(WIDTH), (64, 16), ()))
    out = apply(op.SUBTRACT, looked, broadcast(mean, wide, (0, 1)))
    module = module_of([out], [table, ids])
    plan = planner_exhaustive.plan(module, DEVICES[target], cost, feasible)
    (pattern,) = plan.patterns
    assert not plan.opaque and looked in pattern.instructions
    kernel = schedule(pattern, module, DEVICES[target], "kernel", verify=True)
    assert len(kernel.phases) == 1
    (section,) = kernel.phases[0].sections
    made = [s for s in statements(section.body) if isinstance(s, GatherIndex)]
    inner = [s for loop in lane_loops(kernel) for s in statements(loop.body)]
    assert len(made) == (2 if target.startswith("cpu") else 1)
    assert {one.last for one in made} == {ROWS - 1} and not any(one in inner for one in made)


def scalar_over(count: int) -> Instruction:
    return builder.constant(1.0 / count, "f32")


def test_a_producer_is_computed_where_it_is_looked_up() -> None:
    """tanh(table) of a few rows: no pass over the table, nothing of it in scratch."""
    table, ids = parameter(0, (5000, WIDTH)), parameter(1, (6,), "s32")
    module = module_of([embedding(apply(op.TANH, table), ids)], [table, ids])
    pattern = whole(module)
    values = np.random.default_rng(0).normal(size=(5000, WIDTH)).astype(np.float32)
    arrays = {table: values, ids: np.arange(6, dtype=np.int32) * 999 - 7}
    kernel = check(pattern, module, [arrays[v] for v in pattern.inputs], compiled=True)
    assert len(kernel.phases) == 1 and not kernel.with_role(Role.SCRATCH)


def test_a_reduction_that_is_looked_up_ends_a_phase() -> None:
    """Row sums, read at places that other rows' tasks wrote."""
    table, ids = parameter(0, (400, 256)), parameter(1, (300,), "s32")
    sums = reduce(table, (1,))
    looked = builder.gather(sums, ids, [0], (1,), vector_dim=1, offset_dims=[], collapsed=[0])
    module = module_of([apply(op.NEGATE, looked)], [table, ids])
    pattern = whole(module)
    random = np.random.default_rng(0)
    arrays = {table: random.normal(size=(400, 256)).astype(np.float32),
              ids: random.integers(-50, 450, 300).astype(np.int32)}  # fmt: skip
    kernel = check(pattern, module, [arrays[v] for v in pattern.inputs], compiled=True)
    assert len(kernel.phases) == 2


def test_a_lookup_in_the_table_of_its_own_batch() -> None:
    """As tf2xla writes it: an index vector begins with where it is itself."""
    tables, ids = parameter(0, (6, 4, 31)), parameter(1, (6, 4, 16), "s32")
    dims = (6, 4, 16, 1)
    vectors = [
        builder.iota("s32", dims, 0),
        builder.iota("s32", dims, 1),
        builder.reshape(ids, dims),
    ]
    looked = builder.gather(
        apply(op.TANH, tables),
        builder.concatenate(vectors, 3),
        [0, 1, 2],
        (1, 1, 1),
        vector_dim=3,
        offset_dims=[],
        collapsed=[0, 1, 2],
    )
    module = simplify(module_of([apply(op.NEGATE, looked)], [tables, ids])).module
    pattern = whole(module)
    assert not {v.opcode for v in pattern.instructions} & {op.IOTA, op.CONCATENATE}
    random = np.random.default_rng(6)
    values = random.normal(size=(6, 4, 31)).astype(np.float32)
    places = random.integers(-2, 33, (6, 4, 16)).astype(np.int32)
    arrays = {tables: values, ids: places}
    check(pattern, module, [arrays[v] for v in pattern.inputs], compiled=True)
    expected = -np.take_along_axis(np.tanh(values), places.clip(0, 30), axis=2)
    np.testing.assert_allclose(evaluate(module, [values, places])[0], expected, rtol=1e-6)


def test_two_components_and_a_slice_in_the_middle() -> None:
    """Each component by its own limit: index vectors along the first dimension of the indices."""
    table, ids = parameter(0, (7, 9, 11)), parameter(1, (2, 5), "s32")
    looked = builder.gather(
        table, ids, [2, 0], (1, 9, 4), vector_dim=0, offset_dims=[0, 2], collapsed=[0]
    )
    module = module_of([apply(op.NEGATE, looked)], [table, ids])
    pattern = whole(module)
    places = np.array([[0, 3, 7, 8, -1], [6, 7, -2, 3, 99]], np.int32)
    values = np.random.default_rng(4).normal(size=(7, 9, 11)).astype(np.float32)
    arrays = {table: values, ids: places}
    check(pattern, module, [arrays[v] for v in pattern.inputs], compiled=True)
    expected = np.stack(
        [values[min(max(row, 0), 6), :, min(max(at, 0), 7) :][:, :4] for at, row in places.T], 1
    )
    assert np.array_equal(evaluate(module, [values, places])[0], -expected)


def test_an_iota_that_is_an_output() -> None:
    """By its own dimension, although both vary together."""
    module = module_of([builder.iota("s32", (4, 6), 1)], [])
    check(whole(module), module, [])


def test_a_dynamic_slice_of_a_symbolic_dimension() -> None:
    batch = symbol("B")
    table, at = parameter(0, (batch, 8)), parameter(1, (), "s64")
    zero = builder.constant(0, "s64")
    taken = builder.dynamic_slice(table, [at, zero], [3, 8])
    module = module_of([apply(op.NEGATE, taken)], [table, at], ("B",))
    pattern = whole(module)
    for rows, start in ((3, 0), (3, 7), (10, -4), (10, 5), (10, 9)):
        arrays = {table: np.arange(rows * 8, dtype=np.float32).reshape(rows, 8),
                  at: np.asarray(start, np.int64)}  # fmt: skip
        check(pattern, module, [arrays[v] for v in pattern.inputs], {"B": rows}, compiled=True)


def test_starts_in_one_vector_are_refused() -> None:
    table, at = parameter(0, (9, 8)), parameter(1, (2,), "s32")
    taken = instruction(
        op.DYNAMIC_SLICE, Shape("f32", (3, 8)), (table, at), dynamic_slice_sizes=(3, 8)
    )
    refusal = feasible(whole(module_of([taken], [table, at])), DEVICE)
    assert refusal is not None and refusal.reason is Reason.UNSUPPORTED_OPCODE


def test_a_lookup_is_placed_and_costs_what_it_returns() -> None:
    table, ids = parameter(0, (1_000_000, 64)), parameter(1, (8,), "s32")
    looked = embedding(table, ids)
    module = module_of([apply(op.NEGATE, looked)], [table, ids])
    graph = candidates.build(module, {})
    assert graph.roles[graph.position[looked]] is PlanRole.PLACED
    assert single(looked, DEVICE).bytes == 2 * 8 * 64 * 4 + 8 * 4
    assert cost(whole(module), DEVICE).bytes == 2 * 8 * 64 * 4 + 8 * 4


def test_a_load_at_a_place_of_its_own_is_no_run() -> None:
    """On a GPU runs are moved at once where they lie side by side: not what each lane looks up."""
    table, ids = parameter(0, (4096,)), parameter(1, (1 << 16,), "s32")
    looked = builder.gather(table, ids, [0], (1,), vector_dim=1, offset_dims=[], collapsed=[0])
    module = module_of([apply(op.NEGATE, looked)], [table, ids])
    kernel = schedule(whole(module), module, DEVICES["sm_90"], "kernel", verify=True)
    (loop,) = lane_loops(kernel)
    (section,) = kernel.phases[0].sections
    looked_up = next(e for e in expressions(loop.body)
                     if isinstance(e, Load) and e.dtype == "f32")  # fmt: skip
    found = vector_access.of(loop, 4)
    assert section.elements_per_lane == 4
    assert (looked_up.buffer, looked_up.indices) not in found.loads
    assert len(found.loads) == 1 and len(found.stores) == 1
    assert "st_clamp_s64" in cuda.render([kernel])


def test_a_lookup_over_the_lanes_of_a_serial_loop() -> None:
    """Positions that lanes have of their own, used in a serial loop inside: no tiles."""
    table, ids = parameter(0, (40, 20, 30)), parameter(1, (64,), "s32")
    looked = builder.gather(
        table, ids, [2], (40, 20, 1), vector_dim=1, offset_dims=[0, 1], collapsed=[2]
    )
    module = module_of([reduce(looked, (1,))], [table, ids])
    pattern = whole(module)
    random = np.random.default_rng(0)
    arrays = {table: random.normal(size=(40, 20, 30)).astype(np.float32),
              ids: random.integers(-5, 35, 64).astype(np.int32)}  # fmt: skip
    kernel = check(pattern, module, [arrays[v] for v in pattern.inputs], compiled=True)
    assert any(isinstance(s, Store) for loop in lane_loops(kernel) for s in statements(loop.body))


def looking_loop(*inner: Statement) -> Loop:
    """for i: place = at[i], and `inner`."""
    ids = Buffer("at", "s32", (64,), Scope.DEVICE, Role.INPUT)
    given = Scalar("given", "s32")
    body = (Let(given, Load(ids, (Variable("i"),))), GatherIndex("place", given, 9), *inner)
    return Loop("i", 0, 64, LoopKind.LANES, body)


def test_neighbouring_lanes_at_places_of_their_own_are_no_run() -> None:
    """x[place, i]: side by side only as long as the place stays."""
    x = Buffer("x", "f32", (10, 64), Scope.DEVICE, Role.INPUT)
    at = (Variable("place"), Variable("i"))
    assert not is_vector_access(looking_loop(), x, at, 4)
    assert is_vector_access(replace(looking_loop(), body=()), x, at, 4)


def test_a_lane_loop_with_positions_is_not_turned_inside_out() -> None:
    """An index has no array of a tile's length."""
    inner = Loop("s", 0, 99, LoopKind.SERIAL, ())
    loop = looking_loop(inner)
    assert not c_lane_tiles.needs_tiles(loop)
    assert c_lane_tiles.needs_tiles(replace(loop, body=(inner,)))
