"""What a compiled module does on a GPU, as data: steps over places in memory.

Each step has a *program point*, in the order of the program text, so that a loop's body lies
between its start and its end. A temporary's life is the points from its first use to its last;
temporaries, kernels' scratch and all else share one arena by their lives (launch/cuda_program.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stitchcore.errors import Refusal
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.literal import Literal
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.cuda_table import LaunchTable
from stitchcore.launch.place import Place
from stitchcore.loop_ir.nodes import Kernel


@dataclass(frozen=True)
class Array:
    """Dense row-major elements of HLO type `dtype` at `place`."""

    place: Place
    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.dims) * DTYPES[self.dtype].bytes


@dataclass(frozen=True)
class LaunchRange:
    """Launches `first` to `first + count - 1` of the program's table, one after another."""

    first: int
    count: int


@dataclass(frozen=True)
class LibraryCall:
    """One instruction by the device library. A result may have the place of the first operand:
    then the instruction updates it in place."""

    node: Instruction
    operands: tuple[Array, ...]
    results: tuple[Array, ...]


@dataclass(frozen=True)
class HostCall:
    """One instruction that no library of the device computes: by numpy, on the host, which waits.
    Each is among the module's refusals."""

    node: Instruction
    operands: tuple[Array, ...]
    results: tuple[Array, ...]


@dataclass(frozen=True)
class Copy:
    """The bytes of one place to another."""

    source: Array
    target: Array


@dataclass(frozen=True)
class Loop:
    """`body` while `predicate`, which `condition` makes, holds; `trips` times where that is known
    without running it, so that the host need not wait for the device."""

    condition: Block
    predicate: Array
    body: Block
    trips: int | None


@dataclass(frozen=True)
class Choice:
    """One of `branches` by `index`: a pred (true is the first), or an s32 (out of range is the
    last)."""

    index: Array
    branches: tuple[Block, ...]


Step = LaunchRange | LibraryCall | HostCall | Copy | Loop | Choice
Block = tuple[Step, ...]


@dataclass(frozen=True)
class GpuModule:
    """A module ready for a GPU of `target`'s architecture.

    `table` takes the parameters' leaves, then `constants`, as inputs. `regions[n]` is the region of
    the arena that temporary n has. `outputs` are the module's, leaf by leaf; one at a parameter's
    place is that parameter's next value. `kernel_bytes[n]` is what launch n moves: its inputs and
    outputs, each once. `refused` is what was left out of kernels, or of the device, against the
    plan: all else goes on.
    """

    module: Module
    target: str
    table: LaunchTable
    steps: Block
    parameters: tuple[Array, ...]
    constants: tuple[Literal, ...]
    outputs: tuple[Array, ...]
    regions: tuple[int, ...]
    kernels: tuple[Kernel, ...]
    kernel_bytes: tuple[int, ...]
    refused: tuple[Refusal, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether the host waits for the device within a run: then no CUDA graph can hold it."""
        return any(
            isinstance(step, (Choice, HostCall)) or (isinstance(step, Loop) and step.trips is None)
            for step in every_step(self.steps)
        )


def every_step(block: Sequence[Step]) -> Iterator[Step]:
    """The steps of `block` and of the blocks in it, each once."""
    for step in block:
        yield step
        match step:
            case Loop(condition, _, body, _):
                yield from every_step(condition)
                yield from every_step(body)
            case Choice(_, branches):
                for branch in branches:
                    yield from every_step(branch)
