"""Numpy evaluation of a module: the oracle, and constant folding's arithmetic.

Two precisions. "storage" computes as HLO says, in the storage types (bf16 and f16 in float32,
rounded after each instruction). "float64" computes every float in float64 but keeps HLO's storage
rounding where the program asks for one (conversions, bf16 and f16 values), its ranges (what
overflows or underflows f32 still does) and all integer and pred arithmetic (docs/decisions.md 23).
Denormals are flushed in both, as TensorFlow's CPU kernels do (docs/decisions.md 11).

Where a decision (a comparison, a rounding to integer) falls differently in float64, rerun with
`forced` holding the other run's values of `decisions(module)`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stitchcore.errors import CheckFailed, Reason, Refused, worse
from stitchcore.hlo.evaluator import evaluate_indexed as indexed
from stitchcore.hlo.evaluator import evaluate_library as library
from stitchcore.hlo.evaluator import evaluate_movement as movement
from stitchcore.hlo.evaluator import evaluate_random as random
from stitchcore.hlo.evaluator import evaluate_reduce as reduction
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.precision import Precision, round_to_dtype, widen
from stitchcore.hlo.ir.rewrite import specialize_with_map
from stitchcore.hlo.ir.shape import DTYPES, Shape

Value = Any
"""An array, or a tuple of values."""


@dataclass(frozen=True)
class Run:
    """How this evaluation computes, and values that stand instead of computed ones."""

    precision: Precision
    forced: Mapping[Instruction, Value] = field(default_factory=dict)


def evaluate(
    module: Module,
    arguments: Sequence[Array],
    bindings: Mapping[str, int] | None = None,
    precision: str = "storage",
    forced: Mapping[Instruction, Value] | None = None,
) -> list[Array]:
    """The outputs of `module`. Floats come back as float64 when `precision` is "float64".

    `arguments` are one array per parameter, in storage types (tuples of arrays for tuples). Raises
    ValueError when one does not fit its parameter, Refused(UNSUPPORTED_OPCODE) for what numpy
    cannot compute, CheckFailed where a check does not hold.
    """
    outputs = module.outputs
    values = evaluate_all(module, arguments, bindings, precision, set(outputs), forced)
    return [values[output] for output in outputs]


def evaluate_all(
    module: Module,
    arguments: Sequence[Array],
    bindings: Mapping[str, int] | None = None,
    precision: str = "storage",
    keep: Collection[Instruction] | None = None,
    forced: Mapping[Instruction, Value] | None = None,
) -> dict[Instruction, Value]:
    """The value of every instruction of the entry, or of those in `keep` (others are freed)."""
    specialized: Mapping[Instruction, Instruction] | None = None
    static = module
    if module.symbols:
        static, specialized = specialize_with_map(module, bindings or {})
    run = Run(
        Precision(precision),
        {specialized[n] if specialized else n: v for n, v in (forced or {}).items()},
    )
    inputs = [
        _argument(run, parameter, argument)
        for parameter, argument in zip(static.entry.parameters, arguments, strict=True)
    ]
    wanted = None if keep is None else {specialized[n] if specialized else n for n in keep}
    with np.errstate(all="ignore"):
        values = _computation(run, static.entry, inputs, wanted)
    if specialized is None:
        return values
    chosen = specialized if keep is None else keep
    return {node: values[specialized[node]] for node in chosen}


def apply(node: Instruction, operands: Sequence[Value], precision: str = "storage") -> Value:
    """One instruction on given operand values (floats in float64 where `precision` is that)."""
    with np.errstate(all="ignore"):
        return _instruction(Run(Precision(precision)), node, list(operands))


def decisions(module: Module) -> list[Instruction]:
    """Instructions of the entry whose result may jump when their operands change a little."""
    deciding = []
    for node in topological((module.entry.root,)):
        if not node.operands or node.operands[0].shape.dtype not in DTYPES:
            continue
        if DTYPES[node.operands[0].shape.dtype].kind != "float":
            continue
        to_integer = node.opcode == op.CONVERT and DTYPES[node.shape.dtype].kind != "float"
        if node.opcode in op.DECISIONS or to_integer:
            deciding.append(node)
    return deciding


def _argument(run: Run, parameter: Instruction, argument: Value) -> Value:
    shape = parameter.shape
    if shape.elements is not None:
        return _members(run, shape, argument)
    array = np.asarray(argument)
    if not _fits(array.shape, shape) or array.dtype != DTYPES[shape.dtype].numpy:
        actual = f"{array.dtype}{list(array.shape)}"
        raise ValueError(f"parameter {parameter['number']} is {shape}, the argument {actual}")
    return widen(array, shape.dtype, run.precision)


def _fits(extents: tuple[int, ...], shape: Shape) -> bool:
    """Whether an array of these extents is a value of `shape`, where a bounded one may be less."""
    return len(extents) == shape.rank and all(
        extent <= dim if axis in shape.bounded else extent == dim
        for axis, (extent, dim) in enumerate(zip(extents, shape.static, strict=True))
    )


def _members(run: Run, shape: Shape, value: Value) -> Value:
    """A tuple's members, tuples among them included."""
    if shape.elements is None:
        return widen(np.asarray(value), shape.dtype, run.precision)
    return tuple(
        _members(run, element, part) for part, element in zip(value, shape.elements, strict=True)
    )


def _computation(
    run: Run,
    body: Computation,
    arguments: Sequence[Value],
    keep: Collection[Instruction] | None,
) -> dict[Instruction, Value]:
    """Values of `body`'s instructions; with `keep`, all others die after their last use."""
    values: dict[Instruction, Value] = dict(zip(body.parameters, arguments, strict=True))
    order = list(topological((body.root,)))
    last: dict[Instruction, int] = {}
    if keep is not None:
        for position, node in enumerate(order):
            for operand in node.operands:
                last[operand] = position
        order_wanted = set(keep)
        doomed: dict[int, list[Instruction]] = {}
        for node, position in last.items():
            if node not in order_wanted and node is not body.root:
                doomed.setdefault(position, []).append(node)
    for position, node in enumerate(order):
        if node in run.forced:
            values[node] = _forced(run, node)
        elif node.opcode != op.PARAMETER:
            values[node] = _instruction(run, node, [values[o] for o in node.operands])
        if keep is not None:
            for dead in doomed.get(position, ()):
                values.pop(dead, None)
    return values


def _forced(run: Run, node: Instruction) -> Value:
    value = run.forced[node]
    if isinstance(value, tuple):
        return value
    return widen(np.asarray(value), node.shape.dtype, run.precision)


def call(run: Run, body: Computation, arguments: Sequence[Value]) -> Value:
    """The value of a called computation."""
    return _computation(run, body, arguments, (body.root,))[body.root]


def call_scalars(run: Run, body: Computation, arguments: Sequence[Array]) -> Value:
    """A computation over scalars, applied to whole arrays element by element."""
    values: dict[Instruction, Value] = dict(zip(body.parameters, arguments, strict=True))
    for node in topological((body.root,)):
        if node.opcode == op.PARAMETER:
            continue
        if op.record(node.opcode).kind not in ("elementwise", "structure", "constant"):
            raise Refused(node.opcode, Reason.UNSUPPORTED_OPCODE, "inside a scalar computation")
        values[node] = _instruction(run, node, [values[o] for o in node.operands])
    return values[body.root]


def _instruction(run: Run, node: Instruction, operands: list[Value]) -> Value:
    function = _FUNCTIONS.get(node.opcode)
    if function is not None:
        return function(run, node, operands)
    if op.record(node.opcode).kind == "elementwise":
        return _elementwise(run, node, operands)
    raise Refused(node.opcode, Reason.UNSUPPORTED_OPCODE, "numpy evaluation has no meaning for it")


def _elementwise(run: Run, node: Instruction, operands: list[Array]) -> Array:
    if node.shape.bounded:
        operands = movement.trimmed(operands)
    attributes = dict(node.attributes)
    if not run.precision.wide:
        return op.compute(node.opcode, operands, node.shape.dtype, attributes)
    return op.compute_wide(
        node.opcode, operands, [o.shape.dtype for o in node.operands], node.shape.dtype, attributes
    )


def _check(run: Run, node: Instruction, operands: list[Array]) -> Array:
    """The first operand. Raises CheckFailed where the second is false."""
    value, holds = operands
    if not np.all(holds):
        failed = value[~holds] if value.dtype.kind in "iu" else np.zeros(1, np.int64)
        raise CheckFailed.of(node["message"], worse(int(failed.min()), int(failed.max())))
    return value


def _constant(run: Run, node: Instruction, operands: list[Array]) -> Array:
    return widen(node["value"].array, node.shape.dtype, run.precision)


def _while(run: Run, node: Instruction, operands: list[Value]) -> Value:
    state = operands[0]
    while bool(call(run, node["condition"], [state])):
        state = call(run, node["body"], [state])
    return state


def branch(node: Instruction, operand: Array) -> int:
    """The branch of a conditional that `operand` chooses: 0 when a pred is true; an index out of
    range chooses the last."""
    count = len(node["branch_computations"])
    chosen = operand.item()
    if isinstance(chosen, bool):
        return 0 if chosen else 1
    return int(chosen) if 0 <= chosen < count else count - 1


def _conditional(run: Run, node: Instruction, operands: list[Value]) -> Value:
    index = branch(node, operands[0])
    return call(run, node["branch_computations"][index], [operands[1 + index]])


def _map(run: Run, node: Instruction, operands: list[Value]) -> Value:
    shape = operands[0].shape
    return np.broadcast_to(call_scalars(run, node["to_apply"], operands), shape)


def _reduce(run: Run, node: Instruction, operands: list[Value]) -> Value:
    def combine(*arguments: Array) -> Value:
        return call_scalars(run, node["to_apply"], arguments)

    return reduction.reduce(node, operands, run.precision, combine)


def _sort(run: Run, node: Instruction, operands: list[Value]) -> Value:
    def before(*arguments: Array) -> Array:
        result: Array = call_scalars(run, node["to_apply"], arguments)
        return result

    return indexed.sort(node, operands, before)


def _scatter(run: Run, node: Instruction, operands: list[Value]) -> Value:
    def combine(*arguments: Array) -> Value:
        return call_scalars(run, node["to_apply"], arguments)

    return indexed.scatter(node, operands, run.precision, combine)


def _select_and_scatter(run: Run, node: Instruction, operands: list[Value]) -> Value:
    def choose(left: Array, right: Array) -> Array:
        result: Array = call_scalars(run, node["select"], [left, right])
        return result

    return reduction.select_and_scatter(node, operands, run.precision, choose)


def _plain(
    function: Callable[[Instruction, list[Value]], Value],
) -> Callable[[Run, Instruction, list[Value]], Value]:
    return lambda run, node, operands: function(node, operands)


def _precise(
    function: Callable[[Instruction, list[Value], Precision], Value],
) -> Callable[[Run, Instruction, list[Value]], Value]:
    return lambda run, node, operands: function(node, operands, run.precision)


def _batch_norm(run: Run, node: Instruction, operands: list[Value]) -> Value:
    result = library.batch_norm(node, operands)
    if isinstance(result, tuple):
        return tuple(round_to_dtype(part, operands_dtype(node), run.precision) for part in result)
    return round_to_dtype(result, operands_dtype(node), run.precision)


def operands_dtype(node: Instruction) -> str:
    """Element type of the first operand."""
    return node.operands[0].shape.dtype


_FUNCTIONS: Mapping[str, Callable[[Run, Instruction, list[Value]], Value]] = {
    op.CHECK: _check,
    op.CONSTANT: _constant,
    op.IOTA: _precise(movement.iota),
    op.TUPLE: lambda run, node, operands: tuple(operands),
    op.GET_TUPLE_ELEMENT: lambda run, node, operands: operands[0][node["index"]],
    op.OPTIMIZATION_BARRIER: lambda run, node, operands: operands[0],
    op.RESHAPE: _plain(movement.reshape),
    op.BITCAST: _plain(movement.reshape),
    op.BROADCAST: _plain(movement.broadcast),
    op.TRANSPOSE: _plain(movement.transpose),
    op.SLICE: _plain(movement.slice_),
    op.PAD: _plain(movement.pad),
    op.CONCATENATE: _plain(movement.concatenate),
    op.REVERSE: _plain(movement.reverse),
    op.SET_DIMENSION_SIZE: _plain(movement.set_dimension_size),
    op.GET_DIMENSION_SIZE: _plain(movement.get_dimension_size),
    op.REDUCE: _reduce,
    op.REDUCE_WINDOW: _precise(reduction.reduce_window),
    op.SELECT_AND_SCATTER: _select_and_scatter,
    op.GATHER: _plain(indexed.gather),
    op.SCATTER: _scatter,
    op.DYNAMIC_SLICE: _plain(indexed.dynamic_slice),
    op.DYNAMIC_UPDATE_SLICE: _plain(indexed.dynamic_update_slice),
    op.SORT: _sort,
    op.DOT: _precise(library.dot),
    op.CONVOLUTION: _precise(library.convolution),
    op.BATCH_NORM_TRAINING: _batch_norm,
    op.BATCH_NORM_INFERENCE: _batch_norm,
    op.BATCH_NORM_GRAD: _batch_norm,
    op.MAP: _map,
    op.CALL: lambda run, node, operands: call(run, node["to_apply"], operands),
    op.FUSION: lambda run, node, operands: call(run, node["calls"], operands),
    op.WHILE: _while,
    op.CONDITIONAL: _conditional,
    op.RNG: _precise(random.rng),
    op.RNG_BIT_GENERATOR: _plain(random.bit_generator),
}
