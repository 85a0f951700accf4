"""Each kernel against the instructions it replaces, on captured or drawn inputs.

The reference is the pattern evaluated in float64 by numpy; the allowance is twice the error of the
same evaluation in storage precision plus the composed tolerance (accuracy.py, tolerance.py,
reference.py), and where that fails what the operations' own rounding may move (rounding.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from stitchcore.fusion.canonical import pattern_module
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir.module import Module
from stitchcore.verify.accuracy import Judgement, judge
from stitchcore.verify.reference import judge_all, telling
from stitchcore.verify.rounding import movement
from stitchcore.verify.tolerance import tolerances

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True)
class KernelCheck:
    """One judgement per output, and the kind of data: "captured" or a family of inputs.py."""

    judgements: tuple[Judgement, ...]
    data: str

    @property
    def passed(self) -> bool:
        return all(judgement.passed for judgement in self.judgements)

    @property
    def informative(self) -> bool:
        """Whether every output could have shown an error."""
        return all(judgement.informative for judgement in self.judgements)

    def __str__(self) -> str:
        return f"on {self.data} data: " + "; ".join(map(str, self.judgements))


def check_kernel(
    pattern: Pattern,
    module: Module,
    run: Run,
    bindings: Mapping[str, int],
    captured: Sequence[Array] | None = None,
    seed: int = 0,
) -> KernelCheck:
    """Judge `run` (the kernel: storage arrays in, storage arrays out) as `pattern` of `module`,
    on `captured` inputs or else on the most telling family of drawn data."""
    alone = pattern_module(pattern, module)
    if captured is None:
        data, inputs, exact = telling(alone, bindings, seed, outside=True)
    else:
        data, inputs = "captured", list(captured)
        exact = evaluate(alone, inputs, bindings, "float64")
    theirs = evaluate(alone, inputs, bindings)
    limits = list(tolerances(pattern).values())
    ours = run(inputs)
    judgements = judge_all(alone, ours, exact, theirs, limits, inputs, bindings)
    if not all(judgement.passed for judgement in judgements):
        moved = movement(alone, inputs, bindings, exact)
        again = map(judge, ours, exact, theirs, limits, repeat(None), moved)
        judgements = tuple(a if a.passed else f for f, a in zip(judgements, again, strict=True))
    return KernelCheck(judgements, data)
