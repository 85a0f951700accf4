"""The launch table of one StitchedFusion node: integers only (docs/contracts.md section 3).

Everything the operation needs at run time (symbols, shapes, scratch, phases, variables, guards) is
data, so no host code is generated and nothing but this list is interpreted inside a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stitchcore.loop_ir.index import Index, postfix
from stitchcore.loop_ir.nodes import Kernel, Role

TABLE_VERSION = 1
TENSOR, VARIABLE = 0, 1


@dataclass(frozen=True)
class SymbolSource:
    """symbol = (dimension `axis` of op input `op_input` - offset) / scale, exactly."""

    op_input: int
    axis: int
    scale: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Binding:
    """Where a kernel buffer comes from or goes to: a tensor position, or a variable's op input."""

    kind: int  # TENSOR | VARIABLE
    position: int


@dataclass(frozen=True)
class Guard:
    """The shape that op input `op_input` must have; else the fallback does the node's work."""

    op_input: int
    dims: tuple[Index, ...]


def launch_table(
    kernel: Kernel,
    sources: Sequence[SymbolSource],
    inputs: Sequence[Binding],
    outputs: Sequence[tuple[Binding, Sequence[Index]]],
    guards: Sequence[Guard] = (),
) -> tuple[int, ...]:
    """The table of `kernel` bound to an operation's inputs and outputs.

    `sources` has one entry per kernel symbol, `inputs` and `outputs` one per kernel buffer of that
    role, in the kernel's order. An output's dims are the tensor's: the kernel's buffer holds the
    same bytes, often with dimensions collapsed. Raises ValueError where the counts do not match.
    """
    counts = (len(sources), len(inputs), len(outputs))
    roles = (Role.INPUT, Role.OUTPUT)
    expected = (len(kernel.symbols), *(len(kernel.with_role(role)) for role in roles))
    if counts != expected:
        raise ValueError(f"{kernel.name}: (symbols, inputs, outputs) {counts}, not {expected}")
    table: list[int] = [TABLE_VERSION, len(sources)]
    for source in sources:
        table += (source.op_input, source.axis, source.scale, source.offset)
    table.append(len(inputs))
    for binding in inputs:
        table += (binding.kind, binding.position)
    table.append(len(outputs))
    for binding, dims in outputs:
        table += (binding.kind, binding.position, *_shape(dims, kernel.symbols))
    table.append(len(kernel.aliases))
    for pair in kernel.aliases:
        table += pair
    table.append(len(guards))
    for guard in guards:
        table += (guard.op_input, *_shape(guard.dims, kernel.symbols))
    table += postfix(kernel.scratch_bytes, kernel.symbols)
    table.append(len(kernel.phases))
    for phase in kernel.phases:
        tasks: Index = 0
        for section in phase.sections:
            tasks = tasks + section.tasks
        table += postfix(tasks, kernel.symbols)
    return tuple(table)


def _shape(dims: Sequence[Index], symbols: tuple[str, ...]) -> tuple[int, ...]:
    encoded = [len(dims)]
    for dim in dims:
        encoded += postfix(dim, symbols)
    return tuple(encoded)
