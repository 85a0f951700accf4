"""Kernel text with one thing fewer that keeps threads apart: the emulator must find each.

Helpers of stitch_cuda.h are changed too, so the header's text takes the place of its include.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stitchcore.toolchain.nvrtc import INCLUDE

_INCLUDE = '#include "stitch_cuda.h"'
_KERNELS = "/* ---- kernels ---- */"

REMOVED = (
    r"__syncthreads\(\);",
    r"__syncwarp\(\);",
    r"__threadfence\(\);",
    r"st_grid_barrier\(\w+\);",
)
"""Statements that are taken out."""

REPLACED = (
    (r"atomicAdd\((\w+), share\)", r"((*\1 += share) - share)"),
    (r"\*\(volatile unsigned \*\)(\w+)", r"*\1"),
    (r"if \(st_lane == 0\) \{\n(?=.*\] = )", "{\n"),
    (r"(__shfl_xor_sync\()0xffffffffu", r"\g<1>0xfffffffeu"),
    (r"(__shfl_xor_sync\()0xffffffffu", r"\g<1>0xfffdffffu"),
    (r"(__shfl_xor_sync\()0xffffffffu", r"\g<1>0x7fffffffu"),
)
"""A plain update for an atomic one, a plain read for a volatile one, a store by all lanes for one
by lane 0, and a lane that is missing from a shuffle's mask."""


@dataclass(frozen=True)
class Mutant:
    """`change` at character `begin`, in `line`, of the text before it.

    `helper`: the change is outside the kernel's own text: this kernel may not depend on it.
    """

    change: str
    line: int
    begin: int
    text: str
    helper: bool

    @property
    def what(self) -> str:
        return f"line {self.line}: {self.change}"


def whole(text: str) -> str:
    """A translation unit of emit.cuda with its header in place."""
    header = (INCLUDE / "stitch_cuda.h").read_text()
    assert _INCLUDE in text
    return text.replace(_INCLUDE, f"{header}\n{_KERNELS}", 1)


def mutants(text: str) -> Iterator[Mutant]:
    """Every single change of a translation unit; `text` as emit.cuda renders one kernel."""
    given = whole(text)
    own = given.index(_KERNELS)
    first_kernel = given.index("\n/* ", own)
    changes = [(pattern, "") for pattern in REMOVED] + list(REPLACED)
    for pattern, replacement in changes:
        for match in re.finditer(pattern, given):
            line = given[: match.start()].count("\n") + 1
            changed = given[: match.start()] + match.expand(replacement) + given[match.end() :]
            change = f"{match[0].strip()} -> {match.expand(replacement).strip()}"
            yield Mutant(change, line, match.start(), changed, match.start() < first_kernel)
