"""A module: one entry computation, its symbols, and where its instructions came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction


@dataclass(frozen=True, eq=False)
class Module:
    """An entry computation with provenance.

    `provenance` maps an instruction to the names of the framework operations it came from (HLO
    metadata's op_name), in order of first appearance; it never takes part in identity. `aliases`
    are (output index, parameter number) pairs of the header's input_output_alias. `symbols` names
    the symbols of the dimensions, in order.
    """

    name: str
    entry: Computation
    symbols: tuple[str, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    provenance: Mapping[Instruction, tuple[str, ...]] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[Instruction, ...]:
        """The values the module returns: the root tuple's operands, or the root itself."""
        root = self.entry.root
        return root.operands if root.opcode == op.TUPLE else (root,)
