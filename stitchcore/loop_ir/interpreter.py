"""Runs a kernel in numpy: the executable meaning of the loop IR, and its race detector.

Tasks run in random order; the iterations of a lane loop are distributed to lanes as in a CUDA block
(iteration i to lane (i - begin) // elements_per_lane modulo the lane count) and run as one vector,
in random order.
Groups of lanes run one task after another in the same LOCAL memory, as a CUDA block does.
Scratch, LOCAL and output memory starts as NaN (all bits set), so a value never written shows.
Every element of writable memory remembers who wrote and read it last: two lanes, tasks or loop
iterations that touch one element, one of them writing, with no Barrier (or phase) between, raise
Race. A scalar that lanes accumulated into cannot be read before its LaneReduce.

Arithmetic is `opcodes.compute`: each Apply is rounded to its type, denormals are flushed.
Usable up to about 1e6 elements; lanes are an axis, tasks and serial loops are Python loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np

from stitchcore.errors import CheckFailed, worse
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir import nodes as ir
from stitchcore.loop_ir.interpreter_memory import (
    ALL_LANES,
    Access,
    KernelError,
    Memory,
    Race,
    allocate,
)

__all__ = ["CheckFailed", "KernelError", "Race", "interpret"]

Array = np.ndarray[Any, np.dtype[Any]]

_LANE_COUNTS = (3, 4, 8, 32)
_GROUPS = 2
_OUTSIDE = 2**62


@dataclass(frozen=True)
class _Partial:
    """A scalar that lanes accumulated into: one partial per lane, until its LaneReduce."""

    lanes: Array


@dataclass
class _Lanes:
    """A running lane loop: for each iteration its value, lane, number, and whether it is active."""

    variable: Array
    offset: Array
    lane: Array
    iteration: Array
    start: int
    active: Array | None = None
    defined: set[ir.Scalar] = field(default_factory=set)


@dataclass
class _Group:
    """Lanes that run tasks of a section one after another, in the same LOCAL memory, with no
    barrier between tasks but those of the section's body. `task` is the first that may be theirs.
    """

    task: int
    epoch: int = 0
    local: dict[ir.Buffer, Memory] = field(default_factory=dict)


@dataclass
class _Run:
    """State of one task. `counter` numbers iterations over the whole run."""

    kernel: ir.Kernel
    memories: dict[ir.Buffer, Memory]
    indices: dict[str, Any]
    rng: np.random.Generator
    lane_count: int
    elements_per_lane: int
    phase_start: int
    task: int
    counter: list[int]
    group: _Group
    values: dict[ir.Scalar, Any] = field(default_factory=dict)
    lanes: _Lanes | None = None
    failed: dict[int, int] = field(default_factory=dict)


def interpret(
    kernel: ir.Kernel,
    inputs: Sequence[Array],
    bindings: Mapping[str, int] | None = None,
    rng: np.random.Generator | None = None,
    *,
    lanes: int | None = None,
    share_aliases: bool = False,
) -> list[Array]:
    """Outputs of `kernel` for `inputs` (shapes and dtypes of its INPUT buffers).

    `lanes` fixes the lane count (random otherwise); `share_aliases` gives aliased pairs one
    memory. Raises Race, CheckFailed, KernelError (read of memory never written, index outside a
    buffer, output element left unwritten, partial read before its LaneReduce) and ValueError for
    inputs that do not fit.
    """
    rng = rng or np.random.default_rng(0)
    bound = {name: int(value) for name, value in (bindings or {}).items()}
    memories = allocate(kernel, inputs, bound, share_aliases)
    count = lanes if lanes is not None else int(rng.choice(_LANE_COUNTS))
    failed: dict[int, int] = {}
    counter, task_number = [0], 0
    copied: set[ir.Buffer] = set()
    for phase in kernel.phases:
        start = task_number + 1
        for section in phase.sections:
            if section.copy_unless_aliased is not None:
                source, target = section.copy_unless_aliased
                if memories[source] is memories[target]:
                    copied.add(target)
                    continue
            groups = [_Group(task_number + 1) for _ in range(_GROUPS)]
            for task in rng.permutation(index.evaluate(section.tasks, bound)):
                task_number += 1
                indices = {**bound, section.variable: int(task)}
                group = groups[int(rng.integers(_GROUPS))]
                run = _Run(
                    kernel,
                    dict(memories),
                    indices,
                    rng,
                    count,
                    section.elements_per_lane,
                    start,
                    task_number,
                    counter,
                    group,
                )
                _body(section.body, run)
                for error, value in run.failed.items():
                    failed[error] = worse(failed.get(error, value), value)
        if failed:
            raise CheckFailed.of(kernel.errors[min(failed)], failed[min(failed)])
    outputs = {buffer: memories[buffer] for buffer in kernel.with_role(ir.Role.OUTPUT)}
    for buffer, memory in outputs.items():
        if buffer not in copied:
            memory.check_written()
    return [memory.array() for memory in outputs.values()]


def _body(body: Sequence[ir.Statement], run: _Run) -> None:
    """Statements in order; what they define ends with them."""
    outer = set(run.values)
    for statement in body:
        _execute(statement, run)
    run.values = {scalar: value for scalar, value in run.values.items() if scalar in outer}


def _execute(statement: ir.Statement, run: _Run) -> None:
    match statement:
        case ir.Let(scalar, value):
            run.values[scalar] = _expression(value, run)
        case ir.GatherIndex():
            _gather_index(statement, run)
        case ir.Store():
            _store(statement, run)
        case ir.Accumulator(scalar, reducer):
            neutral = opcodes.record(reducer).identity
            assert neutral is not None, reducer
            run.values[scalar] = np.asarray(neutral(scalar.dtype), DTYPES[scalar.dtype].numpy)
            if run.lanes is not None:
                run.lanes.defined.add(scalar)
        case ir.Accumulate():
            _accumulate(statement, run)
        case ir.LaneReduce():
            _lane_reduce(statement, run)
        case ir.Loop():
            _loop(statement, run)
        case ir.Allocate(buffer):
            memory = Memory.local(buffer, run.group.local.get(buffer))
            run.memories[buffer] = run.group.local[buffer] = memory
        case ir.Barrier():
            run.group.epoch += 1
        case ir.Prefetch():
            pass  # a hint
        case ir.If(condition, body):
            _if(condition, body, run)
        case ir.Check():
            _check(statement, run)
        case _:
            assert_never(statement)


# ---- loops and masks ---------------------------------------------------------------------------
def _loop(loop: ir.Loop, run: _Run) -> None:
    begin, end = _index(loop.begin, run), _index(loop.end, run)
    if loop.kind is ir.LoopKind.SERIAL:
        _serial(loop, begin, end, run)
        return
    if run.lanes is not None:
        raise KernelError(f"{run.kernel.name}: lane loop {loop.variable} inside a lane loop")
    if end <= begin:
        return
    offset = run.rng.permutation(int(end - begin))
    start = run.counter[0]
    run.counter[0] += offset.size
    run.lanes = _Lanes(
        begin + offset,
        offset,
        offset // run.elements_per_lane % run.lane_count,
        start + offset,
        start,
    )
    run.indices[loop.variable] = run.lanes.variable
    _body(loop.body, run)
    run.lanes = None
    del run.indices[loop.variable]


def _serial(loop: ir.Loop, begin: Any, end: Any, run: _Run) -> None:
    uniform = np.ndim(begin) == 0 and np.ndim(end) == 0
    for i in range(int(np.min(begin)), int(np.max(end))):
        run.indices[loop.variable] = i
        if uniform:
            _body(loop.body, run)
        else:
            _masked((i >= np.asarray(begin)) & (i < np.asarray(end)), loop.body, run)
    run.indices.pop(loop.variable, None)


def _if(condition: ir.Expression, body: Sequence[ir.Statement], run: _Run) -> None:
    holds = np.asarray(_expression(condition, run))
    if holds.ndim:
        _masked(holds, body, run)
    elif holds:
        _body(body, run)


def _masked(mask: Array, body: Sequence[ir.Statement], run: _Run) -> None:
    lanes = run.lanes
    assert lanes is not None, "a condition that varies stands in a lane loop"
    before = lanes.active
    lanes.active = mask if before is None else mask & before
    if lanes.active.any():
        _body(body, run)
    lanes.active = before


def _gather_index(gather: ir.GatherIndex, run: _Run) -> None:
    last = _index(gather.last, run)
    if np.any(np.asarray(last) < 0):
        raise KernelError(f"{run.kernel.name}: position {gather.variable} has no place")
    value = _expression(gather.value, run)
    most = min(int(np.iinfo(value.dtype).max), int(np.iinfo(np.int64).max))
    ceiling = np.minimum(last, most).astype(value.dtype)
    run.indices[gather.variable] = np.clip(value, 0, ceiling).astype(np.int64)


def _check(check: ir.Check, run: _Run) -> None:
    holds = np.asarray(_expression(check.condition, run))
    if run.lanes is not None and run.lanes.active is not None:
        holds = holds | ~run.lanes.active
    if not holds.all():
        failed = np.broadcast_to(_expression(check.reported, run), holds.shape)[~holds]
        value = worse(int(failed.min()), int(failed.max()))
        run.failed[check.error] = worse(run.failed.get(check.error, value), value)


# ---- reductions --------------------------------------------------------------------------------
def _accumulate(statement: ir.Accumulate, run: _Run) -> None:
    scalar, reducer, lanes = statement.scalar, statement.reducer, run.lanes
    value = np.asarray(_expression(statement.value, run))
    current = run.values[scalar]
    if lanes is None or scalar in lanes.defined:
        if isinstance(current, _Partial):
            raise KernelError(f"{run.kernel.name}: {scalar.name} holds partials of lanes")
        updated = opcodes.compute(reducer, (current, value), scalar.dtype)
        if lanes is not None and lanes.active is not None:
            updated = np.where(lanes.active, updated, current)
        run.values[scalar] = updated
        return
    if not isinstance(current, _Partial):
        current = _everywhere(current, run.lane_count)
    partials = _by_lane(value, reducer, scalar.dtype, lanes, run)
    run.values[scalar] = _Partial(opcodes.compute(reducer, (current.lanes, partials), scalar.dtype))


def _everywhere(value: Array, count: int) -> _Partial:
    """Every lane holds its own copy of a uniform scalar, as on a GPU."""
    return _Partial(np.full(count, value, value.dtype))


def _by_lane(value: Array, reducer: str, dtype: str, lanes: _Lanes, run: _Run) -> Array:
    """The reduction of each lane's iterations, shape [lane count]."""
    count, length = run.lane_count, run.elements_per_lane
    rows = -(-lanes.offset.size // (count * length)) * length
    neutral = opcodes.record(reducer).identity
    assert neutral is not None, f"{reducer} does not reduce"
    table = np.full((rows, count), neutral(dtype), DTYPES[dtype].numpy)
    active = slice(None) if lanes.active is None else lanes.active
    offset = lanes.offset[active]
    full = np.broadcast_to(value, lanes.offset.shape)
    row = offset // (count * length) * length + offset % length
    table[row, offset // length % count] = full[active]
    return _fold(table, reducer, dtype)


def _fold(table: Array, reducer: str, dtype: str) -> Array:
    """Reduction over the first axis, as a tree."""
    while len(table) > 1:
        half = len(table) // 2
        folded = opcodes.compute(reducer, (table[:half], table[half : 2 * half]), dtype)
        table = np.concatenate([folded, table[2 * half :]])
    return np.asarray(table[0])


def _lane_reduce(statement: ir.LaneReduce, run: _Run) -> None:
    scalar, reducer = statement.scalar, statement.reducer
    if run.lanes is not None:
        raise KernelError(f"{run.kernel.name}: Combine of {scalar.name} inside a lane loop")
    value = run.values[scalar]
    partial = value if isinstance(value, _Partial) else _everywhere(value, run.lane_count)
    run.values[scalar] = _fold(run.rng.permutation(partial.lanes), reducer, scalar.dtype)
    if statement.scope is ir.Scope.GROUP:  # a warp's shuffles order no memory
        run.group.epoch += 1


# ---- expressions -------------------------------------------------------------------------------
def _index(node: index.Index, run: _Run) -> Any:
    """Value of an index: an int, or an array over the iterations of the running lane loop."""
    if isinstance(node, int):
        return node
    if isinstance(node, index.Variable):
        return run.indices[node.name]
    left, right = _index(node.left, run), _index(node.right, run)
    match node.operator:
        case "+":
            return left + right
        case "*":
            return left * right
        case "//":
            return left // right
        case "%":
            return left % right
        case "min":
            return np.minimum(left, right)
    return np.maximum(left, right)


def _expression(node: ir.Expression, run: _Run) -> Any:
    match node:
        case ir.Scalar():
            value = run.values[node]
            if isinstance(value, _Partial):
                raise KernelError(f"{run.kernel.name}: {node.name} read before its Combine")
            return value
        case ir.Literal(value, dtype):
            return np.asarray(value, DTYPES[dtype].numpy)
        case ir.Load(buffer, indices):
            return _load(buffer, indices, run)
        case ir.FromIndex(position, dtype):
            wide = np.asarray(_index(position, run), np.int64)
            return opcodes.compute(opcodes.CONVERT, (wide,), dtype)
        case ir.InRange(position, low, high):
            at = np.asarray(_index(position, run))
            return np.asarray((at >= _index(low, run)) & (at < _index(high, run)))
        case ir.Apply(opcode, operands, dtype, attributes):
            values = [_expression(operand, run) for operand in operands]
            return opcodes.compute(opcode, values, dtype, dict(attributes))
        case _:
            assert_never(node)


def _access(run: _Run, buffer: ir.Buffer, reads: bool) -> Access:
    lanes = run.lanes
    task = run.group.task if buffer.role is ir.Role.LOCAL else run.task
    if lanes is None:
        lane = ALL_LANES if reads else 0
        return Access(task, run.phase_start, run.group.epoch, lane, -1, _OUTSIDE)
    active = slice(None) if lanes.active is None else lanes.active
    return Access(
        task,
        run.phase_start,
        run.group.epoch,
        lanes.lane[active],
        lanes.iteration[active],
        lanes.start,
    )


def _positions(memory: Memory, indices: Sequence[index.Index], run: _Run) -> Array:
    """Flat positions: one number outside lane loops, else one per active iteration."""
    values = [_index(i, run) for i in indices]
    if run.lanes is None:
        return memory.positions(values)
    shape = run.lanes.variable.shape
    active = slice(None) if run.lanes.active is None else run.lanes.active
    spread = [np.broadcast_to(np.asarray(value), shape)[active] for value in values]
    return np.broadcast_to(memory.positions(spread), run.lanes.lane[active].shape)


def _load(buffer: ir.Buffer, indices: Sequence[index.Index], run: _Run) -> Array:
    memory = run.memories[buffer]
    loaded = memory.load(_positions(memory, indices, run), _access(run, buffer, reads=True))
    if run.lanes is None or run.lanes.active is None:
        return loaded
    full = np.zeros(run.lanes.variable.shape, loaded.dtype)
    full[run.lanes.active] = loaded
    return full


def _store(statement: ir.Store, run: _Run) -> None:
    memory = run.memories[statement.buffer]
    at = _positions(memory, statement.indices, run)
    value = np.asarray(_expression(statement.value, run))
    if run.lanes is not None:
        value = np.broadcast_to(value, run.lanes.variable.shape)
        value = value if run.lanes.active is None else value[run.lanes.active]
    memory.store(at, value, _access(run, statement.buffer, reads=False))
