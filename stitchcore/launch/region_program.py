"""How a region's kernels are launched: what the patch of a graph is made from.

A region module (parameters = region inputs, outputs = region outputs) becomes a list of launches in
a runnable order. Each output of each launch is a temporary of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.numerics import Array
from stitchcore.launch.place import Constant, Launch, Place, value_at
from stitchcore.loop_ir.nodes import Buffer


@dataclass(frozen=True)
class Fallback:
    """The framework's own operations for a launch, as a function of `arguments`. `results[k]` is
    the function's result that the kernel's output k is, -1 where it is no tensor of the graph,
    and `tolerances[k]` how far the two may lie apart (verify/tolerance.py; 0 where there is no
    other); `units` is by the kernel's inputs, what they are rounded to on their way to a result, or
    may be off by already (0: their type's own); `definition` a serialized FunctionDef of the name
    `function`."""

    function: str
    definition: bytes
    arguments: tuple[Place, ...]
    results: tuple[int, ...]
    tolerances: tuple[float, ...]
    units: tuple[float, ...]


@dataclass(frozen=True)
class RegionLaunch(Launch):
    """One StitchedFusion node.

    `key` is the kernel's content key, `library` an index into the artifact's libraries, `work`
    nanoseconds on one core at nominal sizes, `bytes_saved` what stitching avoids moving.
    """

    key: str
    library: int
    work: int
    bytes_saved: int
    fallback: Fallback | None = None


@dataclass(frozen=True)
class Result:
    """An output of a region, seen as an array of `dims`: where what is at `place` has another
    shape, the bytes are the same (a Reshape node where the framework must see it)."""

    place: Place | Constant
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class RegionProgram:
    """All launches of a region, and where each region output comes from. It may be run where none
    of `never_positive` is positive."""

    launches: tuple[RegionLaunch, ...]
    outputs: tuple[Result, ...]
    never_positive: tuple[Dim, ...] = ()

    @cached_property
    def buffers(self) -> Mapping[Place, Buffer]:
        """What launches write, as their kernels' buffers."""
        return {place: buffer for launch in self.launches for place, buffer in launch.written}

    def results(
        self, inputs: Sequence[Array], written: Mapping[Place, Array], bindings: Mapping[str, int]
    ) -> list[Array]:
        """The region's outputs, by arrays of its inputs and of what its launches have written."""
        arrays = (
            value_at(output.place, inputs, written, lambda array: array) for output in self.outputs
        )
        return [
            np.reshape(array, [dims.evaluate(dim, bindings) for dim in output.dims])
            for array, output in zip(arrays, self.outputs, strict=True)
        ]
