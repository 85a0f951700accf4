"""What a legal Kernel is. Run after scheduling and after parsing; every backend relies on it.

Raises IllegalKernel with the path to the statement ("k, phase 0, section t, loop j") and the rule.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import nodes as ir
from stitchcore.loop_ir.index import Binary, Index, Variable
from stitchcore.loop_ir.layout import is_own
from stitchcore.loop_ir.visitor import buffers_of

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_RESERVED = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if"
    " inline int long register restrict return short signed sizeof static struct switch typedef"
    " union"
    " unsigned void volatile while bool true false asm typeof near far"
    " buffers symbols scratch phase task_begin task_end saved failed first tasks begin end"
    " blockIdx threadIdx blockDim gridDim group_lane".split()
)
"""Words of C, CUDA and of the text around a kernel's own names."""

_OPTIONAL = frozenset({"type"})
_KEPT_HEADS = ("st_", "ST_", "failed_")
_KEPT_TAILS = ("_part", "_wide", "_block", "_last", "_tile", "_to", "_streams")


class IllegalKernel(Exception):
    """A rule of the loop IR is broken."""


@dataclass(frozen=True)
class _Place:
    """A path for messages, the indices defined, the lane loop around it, whether an If encloses,
    and whose lanes run a task."""

    path: str
    indices: frozenset[str]
    lane_loop: ir.Loop | None = None
    in_if: bool = False
    scope: ir.Scope = ir.Scope.GROUP

    @property
    def in_lanes(self) -> bool:
        return self.lane_loop is not None

    def fail(self, rule: str) -> IllegalKernel:
        return IllegalKernel(f"{self.path}: {rule}")

    def enter(self, name: str) -> _Place:
        return replace(self, path=f"{self.path}, {name}")


@dataclass
class _Names:
    """Names of the kernel (unique across kinds) and the scalars in scope at this statement."""

    used: set[str]
    buffers: set[ir.Buffer]
    symbols: frozenset[str]
    scalars: dict[ir.Scalar, str]  # how each was defined: "let", or the reducer of an accumulator

    def claim(self, name: str, place: _Place) -> None:
        if not _IDENTIFIER.match(name) or name in _RESERVED or keyword.iskeyword(name):
            raise place.fail(f"{name!r} cannot name anything in C")
        if name.startswith(_KEPT_HEADS) or name.endswith(_KEPT_TAILS):
            raise place.fail(f"{name!r} is a name that the renderers keep for themselves")
        if name in self.used:
            raise place.fail(f"{name!r} is defined twice")
        self.used.add(name)


def check(kernel: ir.Kernel) -> None:
    """Raises IllegalKernel if `kernel` breaks a rule; else returns."""
    place = _Place(kernel.name, frozenset(kernel.symbols))
    names = _Names(set(), set(), place.indices, {})
    for name in (kernel.name, *kernel.symbols):
        names.claim(name, place)
    for buffer in kernel.buffers:
        names.claim(buffer.name, place)
        _buffer(buffer, place)
        names.buffers.add(buffer)
    _order(kernel, place)
    if not kernel.phases:
        raise place.fail("no phase")
    _apart(kernel, place)
    for number, phase in enumerate(kernel.phases):
        _phase(phase, names, place.enter(f"phase {number}"))


def _order(kernel: ir.Kernel, place: _Place) -> None:
    order = [ir.Role.INPUT, ir.Role.OUTPUT, ir.Role.SCRATCH]
    roles = [order.index(b.role) for b in kernel.buffers if b.role in order]
    if len(roles) != len(kernel.buffers) or roles != sorted(roles):
        raise place.fail("buffers must be inputs, then outputs, then scratch")
    if len(kernel.scratch_offsets) != len(kernel.with_role(ir.Role.SCRATCH)):
        raise place.fail("one scratch offset for each scratch buffer")
    for extent in (*kernel.scratch_offsets, kernel.scratch_bytes):
        _index(extent, place)
    inputs, outputs = kernel.with_role(ir.Role.INPUT), kernel.with_role(ir.Role.OUTPUT)
    for source, target in kernel.aliases:
        if source >= len(inputs) or target >= len(outputs):
            raise place.fail(f"forward {source} -> {target} names no such buffer")
        if (inputs[source].dtype, inputs[source].dims) != (
            outputs[target].dtype,
            outputs[target].dims,
        ):
            raise place.fail(f"forward {source} -> {target} joins buffers of unlike type or shape")
    if len({s for s, _ in kernel.aliases}) != len(kernel.aliases) or len(
        {t for _, t in kernel.aliases}
    ) != len(kernel.aliases):
        raise place.fail("a buffer is forwarded twice")


def _apart(kernel: ir.Kernel, place: _Place) -> None:
    inputs, outputs = kernel.with_role(ir.Role.INPUT), kernel.with_role(ir.Role.OUTPUT)
    pairs = {(inputs[source], outputs[target]) for source, target in kernel.aliases}
    for section in (section for phase in kernel.phases for section in phase.sections):
        if section.copy_unless_aliased is not None and section.copy_unless_aliased not in pairs:
            raise place.fail(f"section {section.variable} is apart for what is not forwarded")


def _buffer(buffer: ir.Buffer, place: _Place) -> None:
    local = buffer.role is ir.Role.LOCAL
    if buffer.dtype not in DTYPES:
        raise place.fail(f"buffer {buffer.name}: unknown type {buffer.dtype}")
    if local == (buffer.scope is ir.Scope.DEVICE):
        raise place.fail(f"buffer {buffer.name}: {buffer.scope.value} scope, {buffer.role.value}")
    if local and not all(isinstance(extent, int) for extent in buffer.dims):
        raise place.fail(f"LOCAL buffer {buffer.name} must have static dimensions")
    for extent in buffer.dims:
        _index(extent, place)


def _phase(phase: ir.Phase, names: _Names, place: _Place) -> None:
    if not phase.sections:
        raise place.fail("no section")
    written: dict[ir.Buffer, str] = {}
    for section in phase.sections:
        names.claim(section.variable, place)
        inside = replace(place.enter(f"section {section.variable}"), scope=section.scope)
        if section.scope not in (ir.Scope.WARP, ir.Scope.GROUP):
            raise inside.fail(f"tasks of a {section.scope.value}")
        if section.elements_per_lane not in (1, 2, 4, 8, 16):
            raise inside.fail(f"runs of {section.elements_per_lane} iterations")
        _index(section.tasks, place)
        for buffer in section.copy_unless_aliased or ():
            if buffer not in names.buffers:
                raise inside.fail(f"apart: no buffer {buffer.name} of the kernel")
        of_kernel = set(names.buffers)
        indices = place.indices | {section.variable}
        _body(section.body, names, replace(inside, indices=indices))
        for buffer in buffers_of(section)[1]:
            if buffer.role is not ir.Role.LOCAL:
                written.setdefault(buffer, section.variable)
        names.buffers = of_kernel
        names.scalars = {}
    for section in phase.sections:
        for buffer in buffers_of(section)[0]:
            if written.get(buffer, section.variable) != section.variable:
                raise place.fail(
                    f"{buffer.name} is written by section {written[buffer]} and read by section"
                    f" {section.variable} of one phase"
                )


def _body(body: Sequence[ir.Statement], names: _Names, place: _Place) -> None:
    outer = dict(names.scalars)
    for statement in body:
        _statement(statement, names, place)
        if isinstance(statement, ir.GatherIndex):
            place = replace(place, indices=place.indices | {statement.variable})
    names.scalars = outer


def _statement(statement: ir.Statement, names: _Names, place: _Place) -> None:
    match statement:
        case ir.Let(scalar, value):
            _same(_expression(value, names, place), scalar.dtype, f"let {scalar.name}", place)
            names.claim(scalar.name, place)
            names.scalars[scalar] = "let"
        case ir.GatherIndex(variable, value, last):
            kind = DTYPES[_expression(value, names, place)].kind
            if kind not in ("signed", "unsigned"):
                raise place.fail(f"position {variable} from {value.dtype}")
            _index(last, place)
            names.claim(variable, place)
        case ir.Prefetch(buffer, indices):
            if not place.in_lanes:
                raise place.fail(f"prefetch of {buffer.name} outside a lane loop")
            _element(buffer, indices, names, place)
        case ir.Store(buffer, indices, value, streams):
            _element(buffer, indices, names, place)
            if streams is not None:
                symbols = replace(place, indices=names.symbols)
                _expression(streams, names, symbols)
            if buffer.role is ir.Role.INPUT:
                raise place.fail(f"input {buffer.name} is written")
            _same(_expression(value, names, place), buffer.dtype, f"store {buffer.name}", place)
        case ir.Accumulator(scalar, reducer):
            _reducer(reducer, scalar.dtype, place)
            names.claim(scalar.name, place)
            names.scalars[scalar] = reducer
        case ir.Accumulate(scalar, reducer, value):
            _reduced(scalar, reducer, names, place)
            _same(_expression(value, names, place), scalar.dtype, scalar.name, place)
        case ir.LaneReduce(scalar, reducer, scope):
            _reduced(scalar, reducer, names, place)
            if place.in_lanes or place.in_if:
                raise place.fail(f"Combine of {scalar.name} inside a lane loop or an If")
            if scope is not place.scope:
                raise place.fail(f"Combine of {scalar.name} over {scope.value}")
        case ir.Loop():
            _loop(statement, names, place)
        case ir.Allocate(buffer):
            _allocate(buffer, names, place)
        case ir.Barrier(scope):
            if scope is not place.scope:
                raise place.fail(f"Barrier of a {scope.value}")
            if place.in_lanes or place.in_if:
                raise place.fail("Barrier inside a lane loop or an If")
        case ir.If(condition, body):
            _same(_expression(condition, names, place), "pred", "if", place)
            _body(body, names, replace(place.enter("if"), in_if=True))
        case ir.Check(condition, _, reported):
            _same(_expression(condition, names, place), "pred", "check", place)
            _same(_expression(reported, names, place), "s64", "what a check reports", place)
        case _:
            assert_never(statement)


def _loop(loop: ir.Loop, names: _Names, place: _Place) -> None:
    _index(loop.begin, place)
    _index(loop.end, place)
    names.claim(loop.variable, place)
    lanes = loop.kind is ir.LoopKind.LANES
    if lanes and place.in_lanes:
        raise place.fail(f"lane loop {loop.variable} inside a lane loop")
    inside = replace(
        place.enter(f"loop {loop.variable}"),
        indices=place.indices | {loop.variable},
        lane_loop=loop if lanes else place.lane_loop,
    )
    _body(loop.body, names, inside)


def _allocate(buffer: ir.Buffer, names: _Names, place: _Place) -> None:
    if buffer.role is not ir.Role.LOCAL:
        raise place.fail(f"allocate {buffer.name}: not a LOCAL buffer")
    if place.in_lanes:
        raise place.fail(f"allocate {buffer.name} inside a lane loop")
    if buffer.scope not in (place.scope, ir.Scope.LANE):
        raise place.fail(f"allocate {buffer.name}: it is a {buffer.scope.value}'s")
    names.claim(buffer.name, place)
    _buffer(buffer, place)
    names.buffers.add(buffer)


def _reducer(reducer: str, dtype: str, place: _Place) -> None:
    if reducer not in opcodes.REDUCERS or dtype not in opcodes.record(reducer).dtypes:
        raise place.fail(f"{reducer} does not reduce {dtype}")


def _reduced(scalar: ir.Scalar, reducer: str, names: _Names, place: _Place) -> None:
    if names.scalars.get(scalar) != reducer:
        raise place.fail(f"{scalar.name} is not an accumulator of {reducer} in scope")


# ---- expressions -------------------------------------------------------------------------------
def _expression(node: ir.Expression, names: _Names, place: _Place) -> str:
    """dtype of a legal expression."""
    match node:
        case ir.Scalar():
            if node not in names.scalars:
                raise place.fail(f"scalar {node.name} is not defined here")
        case ir.Load(buffer, indices):
            _element(buffer, indices, names, place)
        case ir.FromIndex(position, dtype):
            _index(position, place)
            if dtype not in DTYPES:
                raise place.fail(f"unknown type {dtype}")
        case ir.InRange(position, low, high):
            for bound in (position, low, high):
                _index(bound, place)
        case ir.Apply():
            _apply(node, names, place)
        case ir.Literal(_, dtype):
            if dtype not in DTYPES:
                raise place.fail(f"unknown type {dtype}")
        case _:
            assert_never(node)
    return node.dtype


def _apply(node: ir.Apply, names: _Names, place: _Place) -> None:
    record = opcodes.OPCODES.get(node.opcode)
    if record is None or record.kind != "elementwise":
        raise place.fail(f"{node.opcode} is not an elementwise opcode")
    types = [_expression(operand, names, place) for operand in node.operands]
    if record.arity is not None and record.arity != len(types):
        raise place.fail(f"{node.opcode} takes {record.arity} operands, has {len(types)}")
    if types[-1] not in record.dtypes:
        raise place.fail(f"{node.opcode} does not take {types[-1]}")
    attributes = dict(node.attributes)
    missing = set(record.attributes) - set(attributes) - _OPTIONAL
    if missing:
        raise place.fail(f"{node.opcode} lacks {sorted(missing)}")
    if attributes.get("type") == "TOTALORDER":
        raise place.fail(f"{node.opcode} by total order has no text")
    if node.opcode == opcodes.SELECT:
        _same(types[0], "pred", "select", place)
        types = types[1:]
    if len(set(types)) != 1:
        raise place.fail(f"{node.opcode} of unlike types {types}")
    predicates = (opcodes.COMPARE, opcodes.IS_FINITE)
    free = (opcodes.CONVERT, opcodes.BITCAST_CONVERT)
    if node.opcode in predicates:
        _same(node.dtype, "pred", node.opcode, place)
    elif node.opcode not in free:
        _same(node.dtype, types[0], node.opcode, place)


def _element(buffer: ir.Buffer, indices: Sequence[Index], names: _Names, place: _Place) -> None:
    if buffer not in names.buffers:
        raise place.fail(f"buffer {buffer.name} is not defined here")
    if len(indices) != len(buffer.dims):
        raise place.fail(f"{buffer.name}: {len(indices)} indices for {len(buffer.dims)} dimensions")
    for i in indices:
        _index(i, place)
    loop = place.lane_loop
    if buffer.scope is ir.Scope.LANE and (loop is None or not is_own(loop, buffer, indices)):
        raise place.fail(f"{buffer.name} is a lane's: only the element of its iteration's number")


def _index(node: Index, place: _Place) -> None:
    if isinstance(node, Variable) and node.name not in place.indices:
        raise place.fail(f"index {node.name} is not defined here")
    if isinstance(node, Binary):
        _index(node.left, place)
        _index(node.right, place)


def _same(actual: str, expected: str, what: str, place: _Place) -> None:
    if actual != expected:
        raise place.fail(f"{what}: {actual} where {expected} belongs")
