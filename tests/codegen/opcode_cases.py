"""One small kernel per (elementwise opcode, type, attribute), and inputs that reach every edge.

Everything follows from the opcode table, so a new opcode is tested without a new line here.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.index import Variable, minimum
from stitchcore.loop_ir.nodes import (
    Apply,
    Buffer,
    Kernel,
    Load,
    Loop,
    LoopKind,
    Phase,
    Role,
    Scope,
    Section,
    Store,
)

Array = np.ndarray[Any, np.dtype[Any]]

ATTRIBUTES: Mapping[str, tuple[Hashable, ...]] = {
    "direction": tuple(opcodes.COMPARE_OPERATORS),
    "exponent_bits": (8, 5),
    "mantissa_bits": (7, 10),
}
"""Values that tests give to attributes of elementwise opcodes."""


@dataclass(frozen=True)
class Case:
    """An opcode applied to `sources` giving `target`."""

    opcode: str
    sources: tuple[str, ...]
    target: str
    attributes: tuple[tuple[str, Hashable], ...]

    @property
    def name(self) -> str:
        values = "_".join(str(value) for _, value in self.attributes)
        text = f"k_{self.opcode}_{self.sources[-1]}_{self.target}_{values}"
        return text.replace("-", "_").rstrip("_")

    def kernel(self, size: int) -> Kernel:
        """out[i] = opcode(in0[i], ...) over `size` elements, in two tasks."""
        half = -(-size // 2)
        task, lane = Variable("task"), Variable("lane")
        inputs = [
            Buffer(f"in{i}", dtype, (size,), Scope.DEVICE, Role.INPUT)
            for i, dtype in enumerate(self.sources)
        ]
        out = Buffer("out", self.target, (size,), Scope.DEVICE, Role.OUTPUT)
        value = Apply(
            self.opcode,
            tuple(Load(buffer, (lane,)) for buffer in inputs),
            self.target,
            self.attributes,
        )
        loop = Loop(
            "lane",
            task * half,
            minimum(task * half + half, size),
            LoopKind.LANES,
            (Store(out, (lane,), value),),
        )
        section = Section("task", 2, (loop,))
        return Kernel(self.name, (), (*inputs, out), (Phase((section,)),))


def cases() -> Iterator[Case]:
    """Every elementwise opcode at every type it takes."""
    for record in opcodes.OPCODES.values():
        if record.kind != "elementwise":
            continue
        names = [name for name in record.attributes if name in ATTRIBUTES]
        attributes = [
            tuple(zip(names, values, strict=True))
            for values in itertools.product(*(ATTRIBUTES[name] for name in names))
        ]
        for dtype, extra in itertools.product(sorted(record.dtypes), attributes):
            for target in _targets(record.name, dtype):
                count = record.arity or 1
                sources = (dtype,) * count
                if record.name == opcodes.SELECT:
                    sources = ("pred", dtype, dtype)
                yield Case(record.name, sources, target, extra)


def _targets(name: str, dtype: str) -> list[str]:
    if name == opcodes.CONVERT:
        return sorted(DTYPES)
    if name == opcodes.BITCAST_CONVERT:
        same = DTYPES[dtype].bytes
        pred = dtype == "pred"
        return sorted(t for t, d in DTYPES.items() if d.bytes == same and (t == "pred") == pred)
    if name in (opcodes.COMPARE, opcodes.IS_FINITE):
        return ["pred"]
    return [dtype]


def inputs(case: Case, rng: np.random.Generator) -> list[Array]:
    """Operands: all pairs (or triples) of edge values, then ordinary ones of the domain."""
    edges = [edge_values(dtype) for dtype in case.sources]
    if len(edges) == 3:
        edges = [values[: 12 if i else 2] for i, values in enumerate(edges)]
    grids = np.meshgrid(*(np.arange(len(values)) for values in edges), indexing="ij")
    corners = [values[grid.ravel()] for values, grid in zip(edges, grids, strict=True)]
    low, high = opcodes.record(case.opcode).domain
    found = []
    for dtype, corner in zip(case.sources, corners, strict=True):
        found.append(np.concatenate([corner, ordinary(dtype, low, high, 500, rng)]))
    return found


def ordinary(dtype: str, low: float, high: float, count: int, rng: np.random.Generator) -> Array:
    """Random values: floats in [low, high), integers over their whole range and small."""
    target = DTYPES[dtype]
    if target.kind == "pred":
        return rng.integers(0, 2, count).astype(np.bool_)
    if target.kind == "float":
        return rng.uniform(low, high, count).astype(target.numpy)
    limits = np.iinfo(target.numpy)
    wide = rng.integers(limits.min, limits.max, count, dtype=target.numpy, endpoint=True)
    small = rng.integers(0, 20, count).astype(target.numpy)
    return np.where(rng.random(count) < 0.5, wide, small).astype(target.numpy)


def edge_values(dtype: str) -> Array:
    """0, -0, ones, inf, NaN, denormals, extremes, and values around conversions' limits."""
    target = DTYPES[dtype]
    if target.kind == "pred":
        return np.array([False, True])
    if target.kind != "float":
        limits = np.iinfo(target.numpy)
        bits = target.bytes * 8
        chosen = [0, 1, 2, 3, 7, bits - 1, bits, limits.max, limits.max - 1, limits.max // 2]
        if limits.min < 0:
            chosen += [-1, -2, -3, limits.min, limits.min + 1]
        return np.array(chosen, target.numpy)
    numbers = ml_dtypes.finfo(target.numpy)  # type: ignore[no-untyped-call]
    tiny, largest = float(numbers.tiny), float(numbers.max)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny, tiny / 4, largest]
    special += [-largest, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -2.0, 100.0, -100.0, 1e-3, 255.0, 256.0]
    special += [-3.0, 300.0, 32768.0, -32769.0, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63)]
    special += [2.0**64, 1e20]
    with np.errstate(over="ignore"):
        return np.array(special, np.float64).astype(target.numpy)
