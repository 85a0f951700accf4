"""Stages' texts that a person edited, read back: kernels of the loop IR, and sources.

Each error is a Refused whose subject is FILE:LINE of the edited file, not of a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stitchcore.compiler.pipeline import RestartText
from stitchcore.errors import Refused
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.nodes import Buffer, Kernel, Role
from stitchcore.loop_ir.printer import TextError, parse_kernel, print_kernel
from stitchcore.loop_ir.verifier import IllegalKernel, check

KERNEL_SEPARATOR = "// ----"
UNIT_HEADER = "// ==== translation unit "
_AT_LINE = re.compile(r"line (\d+)(?:, column \d+)?: ")


def module(edited: RestartText) -> Module:
    """The module that an edited HLO text says."""
    try:
        return parse(edited.text)
    except Refused as refused:
        found = refused.refusal
        line = _AT_LINE.match(found.detail)
        if line is not None:
            detail = found.detail[line.end() :]
            raise Refused(f"{edited.file}:{line[1]}", found.reason, detail) from None
        lines = enumerate(edited.text.splitlines(), 1)
        number = next((n for n, one in lines if f"%{found.subject} = " in one), 1)
        detail = f"{found.subject}: {found.detail}"
        raise Refused(f"{edited.file}:{number}", found.reason, detail) from None


def kernels_text(kernels: Sequence[Kernel]) -> str:
    """Kernels as one text."""
    return f"\n{KERNEL_SEPARATOR}\n".join(map(print_kernel, kernels))


def kernels(edited: RestartText, expected: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels of an edited text: legal, and with the names and buffers of `expected`."""
    found = []
    for line, part in _parts(edited.text, lambda text: text.strip() == KERNEL_SEPARATOR):
        try:
            # Blank lines before the part make its line numbers the file's.
            kernel = parse_kernel("\n" * (line - 1) + part)
            check(kernel)
        except TextError as error:
            place = _AT_LINE.match(str(error))
            message = str(error)[place.end() if place else 0 :]
            raise edited.error(int(place[1]) if place else line, message) from None
        except IllegalKernel as error:
            raise edited.error(line, f"not a legal kernel: {error}") from None
        found.append((line, kernel))
    if len(found) != len(expected):
        detail = f"{len(found)} kernels, the plan has {len(expected)}"
        raise edited.error(1, detail)
    for (line, kernel), planned in zip(found, expected, strict=True):
        if kernel.name != planned.name:
            detail = f"kernel {kernel.name} where the plan has {planned.name}"
            raise edited.error(line, detail)
        if _outside(kernel) != _outside(planned):
            detail = f"inputs, outputs and symbols of {kernel.name} must stay those of the plan"
            raise edited.error(line, detail)
    return tuple(kernel for _, kernel in found)


def _outside(kernel: Kernel) -> tuple[Sequence[str], list[Buffer]]:
    roles = (Role.INPUT, Role.OUTPUT)
    return kernel.symbols, [b for role in roles for b in kernel.with_role(role)]


@dataclass(frozen=True)
class Source:
    """A translation unit. `line` is where it begins in the edited file `file`; "" if generated."""

    text: str
    file: str = ""
    line: int = 0

    def located(self, refused: Refused) -> Refused:
        """A compiler's refusal, its lines those of the edited file."""
        if not self.file:
            return refused
        found = refused.refusal

        def place(match: re.Match[str]) -> str:
            return f"{self.file}:{int(match[1]) + self.line - 1}"

        detail = re.sub(r"kernels\.cu?[:(](\d+)\)?", place, found.detail)
        return Refused(found.subject, found.reason, detail)


def sources_text(sources: Sequence[Source]) -> str:
    """Translation units as one text."""
    return "".join(f"{UNIT_HEADER}{n}\n{source.text}\n" for n, source in enumerate(sources))


def sources(edited: RestartText, units: Sequence[Sequence[Kernel]]) -> tuple[Source, ...]:
    """The translation units of an edited text; each must define its unit's kernels."""
    parts = _parts(edited.text, lambda text: text.startswith(UNIT_HEADER))
    if parts and not parts[0][1].strip():
        parts = parts[1:]
    if len(parts) != len(units):
        detail = f"{len(parts)} parts begin with {UNIT_HEADER!r}, {len(units)} are needed"
        raise edited.error(1, detail)
    for (line, part), kernels_ in zip(parts, units, strict=True):
        for kernel in kernels_:
            if f"{kernel.name}(" not in part:
                raise edited.error(line, f"the kernel {kernel.name} is not defined")
    return tuple(Source(part, edited.file, line) for line, part in parts)


def _parts(text: str, separates: Callable[[str], bool]) -> list[tuple[int, str]]:
    """(first line, text) of what stands between lines that separate."""
    found: list[tuple[int, list[str]]] = [(1, [])]
    for number, line in enumerate(text.splitlines(), 1):
        if separates(line):
            found.append((number + 1, []))
        else:
            found[-1][1].append(line)
    return [(line, "\n".join(lines) + "\n") for line, lines in found]
