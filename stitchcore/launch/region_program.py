"""How a region's kernels are called: what the patch of a graph is made from.

A region module (parameters = region inputs, outputs = region outputs) becomes a list of launches in
a runnable order. Each kernel buffer is named by where its contents come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.literal import Literal
from stitchcore.loop_ir.nodes import Kernel


@dataclass(frozen=True)
class FromRegion:
    """Region input `position` (the module's parameter number)."""

    position: int


@dataclass(frozen=True)
class FromLaunch:
    """Output `output` of launch number `launch` of the same region."""

    launch: int
    output: int


@dataclass(frozen=True)
class FromConstant:
    """A constant array: becomes a Const node."""

    literal: Literal


@dataclass(frozen=True)
class Operand:
    """A value, seen as an array of `dims`: where the source's own shape differs, the bytes are the
    same and only the shape changes (a Reshape node where the framework must see it)."""

    source: FromRegion | FromLaunch | FromConstant
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class Fallback:
    """The framework's own operations for a launch, as a function of `arguments`. `results[k]` is
    the function's result that the kernel's output k is, -1 where it is no tensor of the graph;
    `definition` a serialized FunctionDef of the name `function`."""

    function: str
    definition: bytes
    arguments: tuple[FromRegion | FromLaunch, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One StitchedFusion node. `inputs` and the kernel's input buffers are in one order.

    `key` is the kernel's content key, `library` an index into the artifact's libraries, `work`
    nanoseconds on one core at nominal sizes, `bytes_saved` what stitching avoids moving.
    """

    key: str
    kernel: Kernel
    library: int
    inputs: tuple[Operand, ...]
    work: int
    bytes_saved: int
    fallback: Fallback | None = None


@dataclass(frozen=True)
class RegionProgram:
    """All launches of a region, and where each region output comes from."""

    launches: tuple[Launch, ...]
    outputs: tuple[Operand, ...]
