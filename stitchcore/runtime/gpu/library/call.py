"""What a module of this folder says of an opcode that it computes: its entry in `CALLS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stitchcore.hlo.ir.instruction import Instruction

Array = Any


@dataclass(frozen=True)
class LibraryCall:
    """`compute` takes (array module, instruction, operands) and gives the value, or one for each
    member of a tuple. `refused` says why an instruction is not computed, None where it is."""

    compute: Callable[[Any, Instruction, Sequence[Array]], Any]
    refused: Callable[[Instruction], str | None] = lambda node: None
