"""Patterns as text that depends on nothing but their meaning: equal layers compile once.

Values are numbered by first appearance, inputs first, so the text of a pattern does not change with
the module around it. It is the region text of kernel keys (artifact/keys.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.dim import Polynomial
from stitchcore.hlo.ir.instruction import Computation, Instruction, instruction, topological
from stitchcore.hlo.ir.instruction import computation as make_computation
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import Shape


def pattern_text(pattern: Pattern) -> str:
    """Canonical text: one line per instruction, then the outputs."""
    number: dict[Instruction, int] = {}
    lines = []
    for value in pattern.inputs:
        number[value] = len(number)
        lines.append(f"{number[value]} = input {value.shape}")
    for node in pattern.instructions:
        number[node] = len(number)
        operands = ", ".join(str(number[operand]) for operand in node.operands)
        lines.append(f"{number[node]} = {node.opcode} {node.shape} ({operands}){_attributes(node)}")
    lines.append("-> " + ", ".join(str(number[value]) for value in pattern.outputs))
    return "\n".join(lines)


def pattern_key(pattern: Pattern) -> str:
    """Equal for equal patterns of all modules: 64 hexadecimal digits."""
    return sha256(pattern_text(pattern).encode()).hexdigest()


def symbols_of(pattern: Pattern, module: Module) -> tuple[str, ...]:
    """Those symbols of `module` that the pattern's own sizes depend on, in the module's order: of
    equal patterns the same, whatever else is in their modules."""
    used = frozenset[str]().union(*_symbols((*pattern.inputs, *pattern.instructions)))
    return tuple(name for name in module.symbols if name in used)


def _symbols(value: object) -> Iterator[frozenset[str]]:
    match value:
        case tuple():
            for one in value:
                yield from _symbols(one)
        case Instruction():
            yield from _symbols((value.shape, *(part for _, part in value.attributes)))
        case Computation():
            yield from _symbols(tuple(topological((*value.parameters, value.root))))
        case Shape():
            yield from _symbols((value.dims, value.elements))
        case Polynomial():
            yield dims.symbols_of(value)


def pattern_module(pattern: Pattern, module: Module, name: str = "pattern") -> Module:
    """The pattern as a module of its own: inputs become parameters, outputs the root tuple."""
    return outlined(pattern, module, name)[0]


def outlined(
    pattern: Pattern, module: Module | None, name: str = "pattern"
) -> tuple[Module, dict[Instruction, Instruction]]:
    """The pattern as a module of its own, and what each of its values is there. Equal patterns
    become the same values (instructions are interned). Symbols and origins are from `module`; a
    static pattern needs none."""
    copies: dict[Instruction, Instruction] = {}
    for number, value in enumerate(pattern.inputs):
        copies[value] = instruction(opcodes.PARAMETER, value.shape, number=number)
    parameters = tuple(copies[value] for value in pattern.inputs)
    for node in pattern.instructions:
        operands = (copies[operand] for operand in node.operands)
        copies[node] = instruction(node.opcode, node.shape, operands, **dict(node.attributes))
    shape = Shape("tuple", (), tuple(value.shape for value in pattern.outputs))
    root = instruction(opcodes.TUPLE, shape, (copies[value] for value in pattern.outputs))
    entry = make_computation(parameters, root)
    if module is None:
        return Module(name, entry), copies
    provenance = {
        copies[node]: module.provenance[node]
        for node in pattern.instructions
        if node in module.provenance
    }
    return Module(name, entry, symbols_of(pattern, module), (), provenance), copies


def _attributes(node: Instruction) -> str:
    return "".join(f", {name}={_value(value)}" for name, value in node.attributes)


def _value(value: object) -> str:
    if isinstance(value, Computation):
        return "{" + "; ".join(_computation(value)) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_value, value)) + ")"
    data = getattr(value, "data", None)
    return f"{value!r}#{data.hex()}" if isinstance(data, bytes) else str(value)


def _computation(body: Computation) -> Iterator[str]:
    number: dict[Instruction, int] = {}
    for node in topological((*body.parameters, body.root)):
        number[node] = len(number)
        operands = ", ".join(str(number[operand]) for operand in node.operands)
        yield f"{node.opcode} {node.shape} ({operands}){_attributes(node)}"
