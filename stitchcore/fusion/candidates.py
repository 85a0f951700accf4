"""What a planner may put into patterns: the module as a graph of placed values.

Instructions fall into five roles. *Source* values exist without work of ours (parameters, array
constants, tuple members). *Opaque* instructions do work outside kernels (library calls, control
flow). *Duplicable* ones are cheaper computed again than read (scalar constants, iotas, short
chains of scalars, the products that a matrix product adds up). *Aliases* only move elements of one
operand (broadcast, reshape, slice, transpose): every pattern that needs one reads its base and
moves on the fly. What is left is *placed*: each belongs to exactly one pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from stitchcore.errors import Reason
from stitchcore.fusion.contraction import is_contraction
from stitchcore.fusion.extents import extent
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.cumulative import scan_refusal
from stitchcore.hlo.ir.instruction import Computation, Instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.query import scatter_refusal
from stitchcore.hlo.ir.shape import DTYPES, Shape
from stitchcore.hlo.text.printer import called_computations

CLOSURE_LIMIT = 24
"""Scalar chains up to this many instructions are computed in every kernel that needs them."""

VIEWS = frozenset({opcodes.RESHAPE, opcodes.BITCAST})
"""Aliases that leave the bytes where they are: outside kernels they cost nothing."""


class Role(Enum):
    """How a planner treats an instruction; see the module's text."""

    SOURCE = "source"
    OPAQUE = "opaque"
    DUPLICABLE = "duplicable"
    ALIAS = "alias"
    PLACED = "placed"


_REASONS: Mapping[str, Reason] = {
    "library": Reason.LIBRARY_CALL,
    "control": Reason.CONTROL_FLOW,
}


def reduces_rows(instruction: Instruction) -> bool:
    """Whether this is a reduction of rows, which one task each can do: over the innermost
    dimensions, with others left."""
    if opcodes.record(instruction.opcode).kind != "reduce":
        return False
    source = instruction.operands[0].shape
    first = min(instruction["dimensions"], default=source.rank)
    remaining = [axis for axis in range(source.rank) if axis not in instruction["dimensions"]]
    rows = any(extent(source.dims[axis]) > 1 for axis in remaining)
    return rows and all(axis < first for axis in remaining)


def byte_size(shape: Shape) -> int:
    """Bytes of a value at nominal extents."""
    return extent(shape.byte_size)


def refusal_of_kind(kind: opcodes.Kind) -> Reason:
    """Why kernels hold no opcode of a kind that is not stitchable."""
    return _REASONS.get(kind, Reason.UNSUPPORTED_OPCODE)


def refused(instruction: Instruction) -> tuple[Reason, str] | None:
    """None when kernels may hold this instruction, else why not; structure is never asked."""
    kind = opcodes.record(instruction.opcode).kind
    if kind not in opcodes.STITCHABLE_KINDS:
        return refusal_of_kind(kind), instruction.opcode
    for value in (instruction, *instruction.operands):
        if value.shape.dtype not in DTYPES:
            return Reason.UNSUPPORTED_TYPE, f"{instruction.opcode} on {value.shape}"
        if value.shape.bounded:
            return Reason.UNSUPPORTED_TYPE, f"bounded shape {value.shape}"
    if kind == "reduce" and _reducer(instruction) is None:
        return Reason.UNSUPPORTED_OPCODE, "a reduction whose function is not one opcode"
    if kind == "scatter" and (why := scatter_refusal(instruction)) is not None:
        return Reason.UNSUPPORTED_OPCODE, f"a scatter with {why}"
    if kind == "scan" and (why := scan_refusal(instruction)) is not None:
        return Reason.UNSUPPORTED_OPCODE, why
    return None


def _reducer(reduce: Instruction) -> str | None:
    """The opcode of a two-parameter monoid, or None."""
    if len(reduce.operands) != 2:
        return None
    function = reduce["to_apply"]
    root: Instruction = function.root
    known = root.opcode in opcodes.REDUCERS and len(function.parameters) == 2
    return root.opcode if known and set(root.operands) == set(function.parameters) else None


@dataclass(frozen=True)
class Graph:
    """A module seen by a planner; all lists are by position in `instructions` (topological).

    `reads[v]` are the bases that v reads through aliases and duplicables: placed, source or opaque
    positions, each once. `through[v]` says that readers of v look through it at its own bases: so
    for aliases and duplicables, placed or not. `demanded[v]` says that an opaque instruction, a
    tuple or the caller needs v itself in memory. `reasons` say why an instruction is opaque.
    """

    module: Module
    instructions: tuple[Instruction, ...]
    position: Mapping[Instruction, int]
    roles: tuple[Role, ...]
    reads: tuple[tuple[int, ...], ...]
    through: tuple[bool, ...]
    demanded: tuple[bool, ...]
    bytes: tuple[int, ...]
    reasons: Mapping[int, tuple[Reason, str]] = field(default_factory=dict)

    def placed(self) -> list[int]:
        """Positions of placed instructions, in order."""
        return [v for v, role in enumerate(self.roles) if role is Role.PLACED]


def bodies(graph: Graph) -> list[Module]:
    """The computations that control-flow instructions of `graph` call, each once, as modules."""
    modules: dict[Computation, Module] = {}
    for instruction in graph.instructions:
        if opcodes.record(instruction.opcode).kind != "control":
            continue
        for body in called_computations(instruction):
            name = f"{graph.module.name}_body"
            modules.setdefault(body, Module(name, body, graph.module.symbols))
    return list(modules.values())


def build(module: Module, excluded: Mapping[Instruction, tuple[Reason, str]]) -> Graph:
    """The graph of `module`; `excluded` instructions are opaque for the reason given."""
    instructions = tuple(topological([module.entry.root]))
    position = {instruction: v for v, instruction in enumerate(instructions)}
    products = {node.operands[0] for node in instructions if is_contraction(node)}
    roles: list[Role] = []
    reasons: dict[int, tuple[Reason, str]] = {}
    closures: list[int] = []
    for v, instruction in enumerate(instructions):
        operands = [position[operand] for operand in instruction.operands]
        reason = None
        if opcodes.record(instruction.opcode).kind != "structure":
            reason = excluded.get(instruction) or refused(instruction)
        closure = 1 + sum(closures[u] for u in set(operands))
        role = _role(instruction, reason, [roles[u] for u in operands], closure)
        if role is Role.PLACED and instruction in products:
            role, closure = Role.DUPLICABLE, CLOSURE_LIMIT + 1
        roles.append(role)
        closures.append(closure if role is Role.DUPLICABLE else 0)
        if reason is not None:
            reasons[v] = reason
    through = tuple(role in (Role.ALIAS, Role.DUPLICABLE) for role in roles)
    demanded = tuple(_demands(module, instructions, position, roles))
    reads = _reads(instructions, position, through)
    sizes = tuple(byte_size(instruction.shape) for instruction in instructions)
    return Graph(
        module, instructions, position, tuple(roles), reads, through, demanded, sizes, reasons
    )


def _role(
    instruction: Instruction,
    reason: tuple[Reason, str] | None,
    operand_roles: list[Role],
    closure: int,
) -> Role:
    if reason is not None:
        return Role.OPAQUE
    record = opcodes.record(instruction.opcode)
    if record.kind == "structure":
        return Role.SOURCE
    if record.kind == "constant":
        dense = instruction.opcode == opcodes.CONSTANT and instruction.shape.size != 1
        return Role.SOURCE if dense else Role.DUPLICABLE
    duplicable = all(role is Role.DUPLICABLE for role in operand_roles)
    if duplicable and record.kind != "reduce" and closure <= CLOSURE_LIMIT:
        small = instruction.shape.size == 1 or instruction.opcode == opcodes.BROADCAST
        if small or not record.expensive and closure <= CLOSURE_LIMIT // 4:
            return Role.DUPLICABLE
    scalar = instruction.shape.size == 1 and all(o.shape.size == 1 for o in instruction.operands)
    free = all(role in (Role.DUPLICABLE, Role.SOURCE) for role in operand_roles)
    if scalar and free and record.kind != "reduce" and closure <= CLOSURE_LIMIT:
        return Role.DUPLICABLE
    if record.kind == "movement" and record.arity == 1:
        return Role.ALIAS
    return Role.PLACED


def _demands(
    module: Module,
    instructions: tuple[Instruction, ...],
    position: Mapping[Instruction, int],
    roles: list[Role],
) -> list[bool]:
    """Which values must be in memory. What is demanded but had no place becomes placed, unless it
    is a constant (the framework has it) or a view of something else (free outside kernels); an
    output that only looks at an input differently is the framework's too."""
    demanded = [False] * len(instructions)
    outputs = set(module.outputs)
    root = module.entry.root
    for v in range(len(instructions) - 1, -1, -1):
        instruction = instructions[v]
        needed = demanded[v] or instruction in outputs
        if needed and roles[v] in (Role.ALIAS, Role.DUPLICABLE):
            view = instruction.opcode in VIEWS
            view = view and (instruction not in outputs or _passes_through(instruction))
            if not view and opcodes.record(instruction.opcode).kind != "constant":
                roles[v] = Role.PLACED
        demanded[v] = needed
        outside = roles[v] is Role.OPAQUE or (roles[v] is Role.SOURCE and instruction is not root)
        if outside or (needed and roles[v] is Role.ALIAS):
            for operand in instruction.operands:
                demanded[position[operand]] = True
    return demanded


def _passes_through(value: Instruction) -> bool:
    while value.opcode in VIEWS:
        value = value.operands[0]
    return value.opcode == opcodes.PARAMETER


def _reads(
    instructions: tuple[Instruction, ...],
    position: Mapping[Instruction, int],
    through: tuple[bool, ...],
) -> tuple[tuple[int, ...], ...]:
    """Bases of every instruction."""
    bases: list[tuple[int, ...]] = []
    for instruction in instructions:
        bases_of_operands: dict[int, None] = {}
        for operand in instruction.operands:
            u = position[operand]
            for base in bases[u] if through[u] else (u,):
                bases_of_operands[base] = None
        bases.append(tuple(bases_of_operands))
    return tuple(bases)
