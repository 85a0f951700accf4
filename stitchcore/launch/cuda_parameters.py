"""The parameter of a CUDA kernel: which 8-byte words it holds, in which order.

    extern "C" __global__ void NAME(const __grid_constant__ st_words<N> st_given)

One struct by value, so that a launch is one copy of words into constant memory and no array of
pointers lies in device memory. Renderer, launch table and emulator take the order from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stitchcore.loop_ir.nodes import Kernel, Role

PARAMETER_WORDS = 512
"""Words of a parameter that every driver takes (4096 bytes). A kernel with more gets the address of
its words in device memory instead."""


class WordKind(Enum):
    """What one word is to the kernel."""

    BUFFER = "buffer"  # address of an input or output
    SYMBOL = "symbol"  # int64
    SCRATCH = "scratch"  # address of its scratch block
    BARRIER = "barrier"  # address of the stream's grid barrier
    CHECKS = "checks"  # address of the ranges its checks report: two int64 each


@dataclass(frozen=True)
class Word:
    """A word; `name` is the buffer's or the symbol's."""

    kind: WordKind
    name: str = ""


def words(kernel: Kernel) -> tuple[Word, ...]:
    """Inputs, outputs, symbols; then scratch, barrier and checks where the kernel uses them."""
    outside = kernel.with_role(Role.INPUT) + kernel.with_role(Role.OUTPUT)
    order = [Word(WordKind.BUFFER, buffer.name) for buffer in outside]
    order += [Word(WordKind.SYMBOL, name) for name in kernel.symbols]
    if kernel.with_role(Role.SCRATCH):
        order.append(Word(WordKind.SCRATCH))
    if is_cooperative(kernel):
        order.append(Word(WordKind.BARRIER))
    if kernel.errors:
        order.append(Word(WordKind.CHECKS))
    return tuple(order)


def is_cooperative(kernel: Kernel) -> bool:
    """Whether its blocks meet at grid barriers, so that all must be resident at once."""
    return len(kernel.phases) > 1
