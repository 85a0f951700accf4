"""Emission of values: expressions of the loop IR, each once, in the outermost loop that allows it.

A Body is a stack of open blocks (task, rows, serial and lane loops). A value is a function of its
axes; an environment binds them to indices. Its statement goes to the innermost block that one of
these indices needs, so row-level values land between the lane loops and are computed once a row.
Blocks remember what they hold: asking again for a value at the same indices costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.query import reducer_of
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir import nodes as ir
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.visitor import own_indices
from stitchcore.schedule import constants, lookups, updates, views
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.constants import convert
from stitchcore.schedule.updates import conjunction

NESTED = 16
"""Choices within each other in one expression: walks over expressions recur."""

Environment = Mapping[Axis, Index]
Key = tuple[Instruction, tuple[Index, ...]]


@dataclass(frozen=True)
class Residence:
    """Where a value lies: `buffer` has one dimension for each of `order`, in that order.

    `origin` is subtracted from the index of its axis (a LOCAL buffer holds one lane block). When
    `exact` is set the value lies there only for these indices of its axes, at element `at`.
    """

    buffer: ir.Buffer
    order: tuple[Axis, ...]
    origin: tuple[tuple[Axis, Index], ...] = ()
    exact: tuple[Index, ...] | None = None
    at: tuple[Index, ...] | None = None


@dataclass
class Names:
    """Fresh names, unique within a kernel and none of its symbols."""

    reserved: frozenset[str] = frozenset()
    counts: dict[str, int] = field(default_factory=dict)

    def new(self, stem: str) -> str:
        number = self.counts.get(stem, 0)
        self.counts[stem] = number + 1
        name = f"{stem}{number}"
        return self.new(stem) if name in self.reserved else name


@dataclass
class _Block:
    statements: list[ir.Statement] = field(default_factory=list)
    values: dict[Key, ir.Expression] = field(default_factory=dict)
    gather_indices: dict[tuple[ir.Expression, Index], Variable] = field(default_factory=dict)
    conditions: dict[tuple[ir.Expression, ...], ir.Scalar] = field(default_factory=dict)


def accumulation_dtype(dtype: str) -> str:
    """Sums of narrow floats are kept in f32 and rounded once."""
    return "f32" if DTYPES[dtype].narrow else dtype


def combination_dtype(reduce: Instruction) -> str:
    """Parts of a rounding reduction are combined in f64: they are few, and stand for many rows."""
    reducer = reducer_of(reduce)
    dtype = accumulation_dtype(reduce.shape.dtype)
    rounds = reducer is not None and op.record(reducer).ulp > 0 and dtype == "f32"
    return "f64" if rounds else dtype


_names = cache(index.names)


class Body:
    """Statements of one section under construction."""

    def __init__(
        self,
        axes: Axes,
        names: Names,
        residence: Callable[[Instruction], Residence | None],
        parts: Callable[[Instruction], tuple[ir.Buffer, tuple[Axis, ...]] | None],
        errors: Sequence[str] = (),
    ) -> None:
        self.axes = axes
        self.names = names
        self.residence = residence
        self.parts = parts
        self.errors = errors
        self.local: dict[Instruction, Residence] = {}
        self.combined: dict[Instruction, Residence] = {}
        self.blocks: list[_Block] = [_Block()]
        self.depths: dict[str, int] = {}
        self.own: dict[Instruction, tuple[Axis, ...]] = {}
        self.operands: dict[tuple[Key, int], dict[Axis, Index]] = {}

    # ---- blocks --------------------------------------------------------------------------------
    def add(self, statement: ir.Statement) -> None:
        self.blocks[-1].statements.append(statement)

    @contextmanager
    def loop(self, stem: str, begin: Index, end: Index, kind: ir.LoopKind) -> Iterator[Variable]:
        name = self.names.new(stem)
        self.depths[name] = len(self.blocks)
        block = _Block()
        self.blocks.append(block)
        yield Variable(name)
        self.blocks.pop()
        self.add(ir.Loop(name, begin, end, kind, tuple(block.statements)))

    @contextmanager
    def guarded(self, condition: ir.Expression) -> Iterator[None]:
        """What is added meanwhile is done where `condition` holds."""
        block = _Block()
        self.blocks.append(block)
        yield
        self.blocks.pop()
        self.add(ir.If(condition, tuple(block.statements)))

    def let(self, value: ir.Expression, depth: int = -1) -> ir.Scalar:
        scalar = ir.Scalar(self.names.new("v"), value.dtype)
        self.blocks[depth].statements.append(ir.Let(scalar, value))
        return scalar

    def axes_of(self, value: Instruction) -> tuple[Axis, ...]:
        axes = self.own.get(value)
        if axes is None:
            axes = self.own[value] = self.axes.of(value)
        return axes

    def key(self, value: Instruction, environment: Environment) -> Key:
        return (value, tuple(environment[axis] for axis in self.axes_of(value)))

    def depth_of(self, key: Key) -> int:
        return self._depth_of(*key[1])

    def _depth_of(self, *indices: Index) -> int:
        depths = (self.depths.get(name, 0) for node in indices for name in _names(node))
        return max(depths, default=0)

    def define(self, value: Instruction, environment: Environment, scalar: ir.Expression) -> None:
        """Make known that the innermost open block holds `value` in `scalar`."""
        self.blocks[-1].values[self.key(value, environment)] = scalar

    # ---- values --------------------------------------------------------------------------------
    def value(self, value: Instruction, environment: Environment) -> ir.Expression:
        """The expression (a scalar or a literal) of `value` at `environment`."""
        stack = [(value, environment)]
        while stack:
            node, bound = stack[-1]
            key = self.key(node, bound)
            block = self.blocks[self.depth_of(key)]
            if key in block.values:
                stack.pop()
                continue
            wanted = self._dependences(node, bound, key)
            missing = [pair for pair in wanted if not self._known(*pair)]
            if missing:
                stack.extend(missing)
                continue
            block.values[key] = self._build(node, bound, key, wanted)
            stack.pop()
        return self._found(value, environment)

    def _known(self, value: Instruction, environment: Environment) -> bool:
        key = self.key(value, environment)
        return key in self.blocks[self.depth_of(key)].values

    def _found(self, value: Instruction, environment: Environment) -> ir.Expression:
        key = self.key(value, environment)
        return self.blocks[self.depth_of(key)].values[key]

    def _resident(self, value: Instruction, key: Key) -> Residence | None:
        local = self.local.get(value)
        if local is not None and (local.exact is None or local.exact == key[1]):
            return local
        return self.residence(value)

    def _dependences(
        self, value: Instruction, environment: Environment, key: Key
    ) -> list[tuple[Instruction, Environment]]:
        if self._resident(value, key) is not None:
            return []
        kind = op.record(value.opcode).kind
        if kind == "reduce":
            return [] if _is_identity(value) else [(value.operands[1], environment)]
        if kind == "lookup":
            return self._looked_up(value, environment)
        if kind == "update":
            return self._updated(value, environment)
        return [
            (operand, self._operand_environment(value, number, environment, key))
            for number, operand in enumerate(value.operands)
            if value.opcode != op.CONCATENATE or operand.shape.size != 0
        ]

    def _looked_up(
        self, value: Instruction, environment: Environment
    ) -> list[tuple[Instruction, Environment]]:
        """The starts of a lookup, and once they are known the element that they lead to."""
        starts = lookups.starts(self.axes, value, environment)
        wanted = [(value.operands[start.number], start.environment) for start in starts]
        if not all(self._known(*pair) for pair in wanted):
            return wanted
        at = {
            start.dim: self._gather_index(*pair, start.last)
            for start, pair in zip(starts, wanted, strict=True)
        }
        source = lookups.operand_environment(self.axes, value, environment, at)
        return [*wanted, (value.operands[0], source)]

    def _updated(
        self, value: Instruction, environment: Environment
    ) -> list[tuple[Instruction, Environment]]:
        """Where an update's window begins, and once that is known the elements to choose from."""
        starts = updates.starts(value).values()
        wanted: list[tuple[Instruction, Environment]] = [(start, {}) for start, _ in starts]
        if not all(self._known(*pair) for pair in wanted):
            return wanted
        at = self.window_start(value)
        source = updates.source(self.axes, value, environment, at)
        return [*wanted, (value.operands[0], environment), (value.operands[1], source)]

    def window_start(self, update: Instruction) -> dict[int, Index]:
        """By dimension along which it moves, where an update's window begins."""
        begins = {}
        for d, (start, last) in updates.starts(update).items():
            self.value(start, {})
            begins[d] = self._gather_index(start, {}, last)
        return begins

    def _gather_index(self, value: Instruction, environment: Environment, last: Index) -> Index:
        """A value that is known, as an index: beside the value, once for each `last`."""
        known = self._found(value, environment)
        if isinstance(known, ir.Literal):
            return index.minimum(max(int(known.value), 0), last)
        assert isinstance(known, ir.Scalar)
        return self.gather_index(known, last, self.depth_of(self.key(value, environment)))

    def gather_index(self, value: ir.Scalar, last: Index, depth: int | None = None) -> Index:
        """The integer `value` as an index clamped into [0, last], in the block at `depth`."""
        depth = len(self.blocks) - 1 if depth is None else depth
        block = self.blocks[depth]
        variable = block.gather_indices.get((value, last))
        if variable is None:
            variable = block.gather_indices[value, last] = Variable(self.names.new("at"))
            self.depths[variable.name] = depth
            block.statements.append(ir.GatherIndex(variable.name, value, last))
        return variable

    def _operand_environment(
        self, value: Instruction, number: int, environment: Environment, key: Key
    ) -> Environment:
        if (value, number) not in self.axes.views:
            return environment
        bound = self.operands.get((key, number))
        if bound is None:
            bound = views.operand_environment(self.axes, value, number, environment)
            self.operands[key, number] = bound
        return bound

    def _build(
        self,
        value: Instruction,
        environment: Environment,
        key: Key,
        wanted: list[tuple[Instruction, Environment]],
    ) -> ir.Expression:
        depth = self.depth_of(key)
        residence = self._resident(value, key)
        if residence is not None:
            return self.let(self.load(residence, environment), depth)
        record = op.record(value.opcode)
        if record.kind == "reduce":
            return self.serial_reduction(value, environment, depth)
        if record.kind == "constant":
            constant = constants.expression(self.axes, value, environment)
            return constant if isinstance(constant, ir.Literal) else self.let(constant, depth)
        operands = tuple(self._found(*pair) for pair in wanted)
        if record.kind == "elementwise":
            if value.opcode == op.COPY:
                return operands[0]
            attributes = tuple((k, v) for k, v in value.attributes if k in record.attributes)
            applied = ir.Apply(value.opcode, operands, value.shape.dtype, attributes)
            return self.let(applied, depth)
        if value.opcode == op.CHECK:
            self._check(value, operands, depth)
            return operands[0]
        if value.opcode in (op.PAD, op.CONCATENATE):
            return self.let(self._selected(value, environment, operands, depth), depth)
        if record.kind == "update":
            old, new = operands[-2:]
            if not (at := self.window_start(value)):
                return new
            condition = updates.inside(self.axes, value, environment, at)
            return self.let(ir.Apply(op.SELECT, (condition, new, old), value.shape.dtype), depth)
        return operands[-1] if record.kind == "lookup" else operands[0]

    def _check(self, value: Instruction, operands: tuple[ir.Expression, ...], depth: int) -> None:
        """A check is a statement beside the value, which stays what it was."""
        reported: ir.Expression = ir.Literal(0, "s64")
        if DTYPES[value.shape.dtype].kind in ("signed", "unsigned"):
            reported = convert(operands[0], "s64")
        statement = ir.Check(operands[1], self.errors.index(value["message"]), reported)
        self.blocks[depth].statements.append(statement)

    def load(self, residence: Residence, environment: Environment) -> ir.Load:
        at = residence.at
        return ir.Load(residence.buffer, indices(residence, environment) if at is None else at)

    def _selected(
        self,
        value: Instruction,
        environment: Environment,
        operands: tuple[ir.Expression, ...],
        depth: int,
    ) -> ir.Expression:
        def guarded(number: int, chosen: ir.Expression, otherwise: ir.Expression) -> ir.Expression:
            tests = views.inside(self.axes, value, number, environment)
            if not tests:
                return chosen
            condition = self._condition(tests, depth)
            return ir.Apply(op.SELECT, (condition, chosen, otherwise), value.shape.dtype)

        if value.opcode == op.PAD:
            return guarded(0, operands[0], operands[1])
        numbers = [n for n, o in enumerate(value.operands) if o.shape.size != 0]
        result = operands[-1]
        for count, (number, operand) in enumerate(
            zip(numbers[-2::-1], operands[-2::-1], strict=True), 1
        ):
            result = guarded(number, operand, result)
            if count % NESTED == 0:
                result = self.let(result, depth)
        return result

    def _condition(self, tests: Sequence[ir.InRange], depth: int) -> ir.Expression:
        """All of `tests` in the block at `depth`; those that an outer block can make are made
        there, once: a lane loop in which all lanes choose alike is vectorised, with the choice."""
        depths = [self._depth_of(*own_indices(test)) for test in tests]
        early = tuple(test for test, own in zip(tests, depths, strict=True) if own < depth)
        late: list[ir.Expression] = [test for test in tests if test not in early]
        if early:
            outer = max(own for own in depths if own < depth)
            known = self.blocks[outer].conditions
            if early not in known:
                known[early] = self.let(conjunction(early), outer)
            late.insert(0, known[early])
        return conjunction(late)

    # ---- reductions ----------------------------------------------------------------------------
    def serial_reduction(
        self, value: Instruction, environment: Environment, depth: int
    ) -> ir.Expression:
        """`value` by serial loops in the block at `depth`, or by combining its parts in order."""
        reducer = reducer_of(value)
        assert reducer is not None
        parts = self.parts(value)
        outer, self.blocks = self.blocks, self.blocks[: depth + 1]
        place = self.combined.get(value)
        if place is not None:
            result = self.finish(value, self.let(self.load(place, environment)), environment)
            self.blocks = outer
            return result
        dtype = accumulation_dtype(value.shape.dtype)
        scalar = ir.Scalar(
            self.names.new("r"), dtype if parts is None else combination_dtype(value)
        )
        self.add(ir.Accumulator(scalar, reducer))
        if parts is not None:
            buffer, order = parts
            with self.loop("step", 0, buffer.dims[0], ir.LoopKind.SERIAL) as part:
                at = (part, *(environment[axis] for axis in order))
                self.add(ir.Accumulate(scalar, reducer, convert(ir.Load(buffer, at), scalar.dtype)))
        else:
            self._nest(value, dict(environment), list(self.axes.reduced[value]), scalar, reducer)
        result = self.finish(value, scalar, environment)
        self.blocks = outer
        return result

    def _nest(
        self,
        value: Instruction,
        environment: dict[Axis, Index],
        over: list[Axis],
        scalar: ir.Scalar,
        reducer: str,
    ) -> None:
        if not over:
            operand = self.value(value.operands[0], environment)
            self.add(ir.Accumulate(scalar, reducer, convert(operand, scalar.dtype)))
            return
        extent = index.from_dim(self.axes.extents[over[0]])
        with self.loop("step", 0, extent, ir.LoopKind.SERIAL) as variable:
            environment[over[0]] = variable
            self._nest(value, environment, over[1:], scalar, reducer)

    def finish(
        self, value: Instruction, scalar: ir.Expression, environment: Environment
    ) -> ir.Expression:
        """The reduction's value from its accumulated `scalar`: rounded, with its initial value."""
        reducer = reducer_of(value)
        assert reducer is not None
        result = scalar
        if not _is_identity(value):
            start = convert(self.value(value.operands[1], environment), scalar.dtype)
            result = ir.Apply(reducer, (start, scalar), scalar.dtype)
        result = convert(result, value.shape.dtype)
        return result if isinstance(result, ir.Scalar) else self.let(result)


def indices(residence: Residence, environment: Environment) -> tuple[Index, ...]:
    """Indices of a resident value."""
    origin = dict(residence.origin)
    return tuple(
        index.add(environment[axis], index.multiply(origin.get(axis, 0), -1))
        for axis in residence.order
    )


def store(residence: Residence, environment: Environment, value: ir.Expression) -> ir.Store:
    return ir.Store(residence.buffer, indices(residence, environment), value)


def _is_identity(reduce: Instruction) -> bool:
    """Whether the initial value of a reduction is the reducer's neutral element."""
    start = reduce.operands[1]
    reducer = reducer_of(reduce)
    if start.opcode != op.CONSTANT or start.get("value") is None or reducer is None:
        return False
    neutral = op.record(reducer).identity
    return neutral is not None and bool(start["value"].scalar == neutral(start.shape.dtype))
