"""Kernels of the loop IR on the emulator: rendered, compiled, given memory, launched."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stitchcore.codegen import cuda
from stitchcore.errors import CheckFailed, worse
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.launch.cuda_parameters import WordKind, words
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Buffer as KernelBuffer
from stitchcore.loop_ir.nodes import Kernel, Role
from tests.emulator.findings import Finding
from tests.emulator.launch import FORWARD, Array, Buffer, Grid, Memory, Schedule, launch
from tests.emulator.program import Program, compile_text

BLOCKS, THREADS = 3, 64
"""A small grid: every block has several tasks, and two warps that a barrier must hold together."""

BATCH = 6
"""Kernels compiled together: more take less time in all, but longer until the first one runs."""

_UNFAILED = (np.iinfo(np.int64).max, np.iinfo(np.int64).min)


@dataclass(frozen=True)
class Outcome:
    """What the kernel wrote; meaningless where findings ended the launch."""

    outputs: tuple[Array, ...]
    findings: tuple[Finding, ...]


def rendered(kernels: Sequence[Kernel], threads: int = THREADS) -> str:
    """One translation unit for blocks of `threads`, as a GPU's compiler is given it."""
    return cuda.render([replace(kernel, threads=threads) for kernel in kernels])


def with_every_load(kernels: Sequence[Kernel]) -> str:
    """Text in which every loaded value is used: g++ leaves out a load that nothing needs, as where
    lane 0 alone stores what all have loaded."""
    kept = r'\1 asm volatile("" : : "x"(\2));'
    return re.sub(r"(const (?:float|double) (v\d+) = [^;]*;)", kept, rendered(kernels))


def programs(kernels: Sequence[Kernel]) -> list[Program]:
    """The program of each kernel, in order; BATCH of them share one."""
    made: list[Program] = []
    for start in range(0, len(kernels), BATCH):
        batch = kernels[start : start + BATCH]
        made += [compile_text(rendered(batch))] * len(batch)
    return made


def run(
    kernel: Kernel,
    program: Program,
    inputs: Sequence[Array],
    bindings: Mapping[str, int] | None = None,
    schedule: Schedule = FORWARD,
    *,
    blocks: int = BLOCKS,
    share_aliases: bool = False,
    cooperative: bool = True,
    threads: int = THREADS,
) -> Outcome:
    """`kernel` on `inputs` (shapes and dtypes of its INPUT buffers), which are not changed.

    With `share_aliases` the outputs that may take over an input's memory do. Kernels of several
    phases are launched with all blocks resident, if `cooperative`. Raises CheckFailed as the
    interpreter does.
    """
    bound = dict(bindings or {})
    shared = dict(kernel.aliases) if share_aliases else {}
    given = _given(kernel, inputs, bound, frozenset(shared))
    memory, places, words = _memory(kernel, given, bound, {to: at for at, to in shared.items()})
    together = cooperative and len(kernel.phases) > 1
    shared_bytes = cuda.shared_bytes(replace(kernel, threads=threads))
    grid = Grid((blocks, 1, 1), (threads, 1, 1), shared_bytes, together)
    found = launch(program, kernel.name, grid, memory, [words], schedule)
    if not found:
        _raise_failed(kernel, memory.array(len(memory.buffers) - 1))
    outputs = places[len(kernel.with_role(Role.INPUT)) :]
    return Outcome(tuple(memory.array(place) for place in outputs), found)


# ---- the kernels' ABI: docs/contracts.md and the head of codegen/cuda.py -------------------------
def _memory(
    kernel: Kernel, given: list[Buffer], bound: Mapping[str, int], shared: Mapping[int, int]
) -> tuple[Memory, list[int], bytes]:
    """All memory of a launch; of each input and output which part of it is its own; the parameter.

    After the buffers come scratch, the barrier's word and what checks report. `shared` are outputs
    (by number) that lie where an input does.
    """
    places = list(range(len(given)))
    for number, output in enumerate(kernel.with_role(Role.OUTPUT)):
        if number in shared:
            places.append(shared[number])
        else:
            places.append(len(given))
            given.append(_empty(output, bound))
    scratch = np.empty(index.evaluate(kernel.scratch_bytes, bound), np.uint8)
    failed = np.array(_UNFAILED * len(kernel.errors), np.int64)
    memory = Memory(
        [
            *given,
            Buffer("scratch", scratch, initialised=False),
            Buffer("arrived", np.zeros(1, np.uint32)),
            Buffer("failed", failed),
        ]
    )
    outside = kernel.with_role(Role.INPUT) + kernel.with_role(Role.OUTPUT)
    at = {
        buffer.name: memory.addresses[place] for buffer, place in zip(outside, places, strict=True)
    }
    own = zip(
        (WordKind.SCRATCH, WordKind.BARRIER, WordKind.CHECKS), memory.addresses[-3:], strict=True
    )
    kept = dict(own)
    values = [
        bound[word.name] if word.kind is WordKind.SYMBOL else kept.get(word.kind) or at[word.name]
        for word in words(kernel)
    ]
    return memory, places, struct.pack(f"{len(values)}q", *values)


# ---- buffers -------------------------------------------------------------------------------------
def _given(
    kernel: Kernel, inputs: Sequence[Array], bound: Mapping[str, int], written: frozenset[int]
) -> list[Buffer]:
    made = []
    for number, (buffer, array) in enumerate(
        zip(kernel.with_role(Role.INPUT), inputs, strict=True)
    ):
        dims = tuple(index.evaluate(dim, bound) for dim in buffer.dims)
        assert np.shape(array) == dims, (buffer, np.shape(array))
        data = np.ascontiguousarray(array, DTYPES[buffer.dtype].numpy)
        made.append(Buffer(buffer.name, data.reshape(dims), read_only=number not in written))
    return made


def _empty(buffer: KernelBuffer, bound: Mapping[str, int]) -> Buffer:
    dims = [index.evaluate(dim, bound) for dim in buffer.dims]
    return Buffer(buffer.name, np.empty(dims, DTYPES[buffer.dtype].numpy), initialised=False)


def _raise_failed(kernel: Kernel, failed: Array) -> None:
    for message, (least, most) in zip(kernel.errors, failed.reshape(-1, 2).tolist(), strict=True):
        if least <= most:
            raise CheckFailed.of(message, worse(least, most))
