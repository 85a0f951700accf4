"""What fuzzed modules are drawn with: the options, and the values that there are so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES

EXTENTS = (1, 2, 3, 4, 5, 8, 16, 17)


@dataclass(frozen=True)
class FuzzOptions:
    """What to draw. `weights` favour kinds of opcodes; a kind left out is not drawn."""

    instructions: int = 12
    parameters: int = 3
    outputs: int = 2
    dtypes: tuple[str, ...] = ("f32",)
    extents: tuple[int, ...] = EXTENTS
    rank: int = 3
    weights: tuple[tuple[str, float], ...] = (
        ("elementwise", 6.0),
        ("broadcast", 2.0),
        ("reduce", 2.0),
        ("reshape", 1.0),
        ("transpose", 1.0),
        ("slice", 0.7),
        ("gather", 0.5),
        ("dynamic_slice", 0.4),
        ("dynamic_update", 0.4),
        ("scatter", 0.4),
        ("scan", 0.6),
        ("pad", 0.5),
        ("concatenate", 0.5),
        ("reverse", 0.3),
        ("iota", 0.3),
        ("compare_select", 0.7),
        ("convert", 0.7),
    )


@dataclass
class Draw:
    """One module being drawn: the generator, the options, the values so far."""

    rng: np.random.Generator
    options: FuzzOptions
    pool: list[Instruction] = field(default_factory=list)

    def value(self, accept: Callable[[Instruction], bool] = lambda _: True) -> Instruction | None:
        """A random value; later ones are likelier, so that graphs grow deep."""
        fitting = [v for v in self.pool if accept(v)]
        if not fitting:
            return None
        return fitting[
            max(int(self.rng.integers(len(fitting))), int(self.rng.integers(len(fitting))))
        ]

    def choice(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def dims(self) -> tuple[int, ...]:
        rank = int(self.rng.integers(0, self.options.rank + 1))
        return tuple(int(self.choice(self.options.extents)) for _ in range(rank))


def numeric(node: Instruction) -> bool:
    return node.shape.dtype != "pred"


def is_float(node: Instruction) -> bool:
    return DTYPES[node.shape.dtype].kind == "float"
