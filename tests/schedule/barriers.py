"""Kernels with one boundary fewer: each must be missed (docs/decisions.md 30)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stitchcore.loop_ir.interpreter import KernelError, Race, interpret
from stitchcore.loop_ir.nodes import Barrier, If, Kernel, Loop, Phase, Statement
from stitchcore.loop_ir.visitor import statements

SEEDS = 8
"""Orders of tasks and lanes that are tried before a mutant counts as unnoticed."""


def mutants(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """`kernel` without one of its phase boundaries or barriers, each in turn, and what is gone."""
    phases = kernel.phases
    for n in range(len(phases) - 1):
        joined = Phase(phases[n].sections + phases[n + 1].sections)
        yield f"end of phase {n}", replace(kernel, phases=(*phases[:n], joined, *phases[n + 2 :]))
    for n, phase in enumerate(phases):
        for m, section in enumerate(phase.sections):
            for number in range(barriers(section.body)):
                less = replace(section, body=_without(section.body, number)[0])
                changed = Phase((*phase.sections[:m], less, *phase.sections[m + 1 :]))
                name = f"barrier {number} of section {n}.{m}"
                yield name, replace(kernel, phases=(*phases[:n], changed, *phases[n + 1 :]))


def barriers(body: Sequence[Statement]) -> int:
    return sum(isinstance(statement, Barrier) for statement in statements(body))


def _without(body: Sequence[Statement], number: int) -> tuple[tuple[Statement, ...], int]:
    """`body` without barrier `number` in text order, and the number counted on."""
    kept: list[Statement] = []
    for statement in body:
        if isinstance(statement, Barrier):
            number -= 1
            if number == -1:
                continue
        elif isinstance(statement, Loop | If):
            inner, number = _without(statement.body, number)
            statement = replace(statement, body=inner)
        kept.append(statement)
    return tuple(kept), number


def objects(kernel: Kernel, given: Sequence[Any]) -> bool:
    """Whether the interpreter finds a race or a value that is not there yet, in some order."""
    for seed in range(SEEDS):
        try:
            interpret(kernel, given, {}, np.random.default_rng(seed))
        except (Race, KernelError):
            return True
    return False
