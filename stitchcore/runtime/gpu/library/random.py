"""Random bits over an array module: Philox 4x32-10 with the counter on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.runtime.gpu.library.call import LibraryCall

Array = Any

_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF


def bit_generator_refused(node: Instruction) -> str | None:
    [state] = node.operands
    if node["algorithm"] not in ("rng_philox", "rng_default") or state.shape.size != 3:
        return f"{node['algorithm']} of {state.shape}"
    bits = node.shape.elements[1] if node.shape.elements else node.shape
    if state.shape.dtype != "u64" or DTYPES[bits.dtype].kind not in ("signed", "unsigned"):
        return f"{node['algorithm']} to {bits}"
    return None


def bit_generator(xp: Any, node: Instruction, operands: Sequence[Array]) -> tuple[Array, Array]:
    """(new state, bits). The state is [key, counter low, counter high]; a block of the counter
    makes four words of 32 bits."""
    assert node.shape.elements is not None
    shape = node.shape.elements[1]
    target = DTYPES[shape.dtype].numpy
    count = math.prod(shape.static)
    words_needed = 2 * count if target.itemsize == 8 else count
    state, blocks = operands[0], -(-words_needed // 4)
    index = xp.arange(blocks, dtype="uint64")
    low = index + state[1]
    high = (low < index).astype("uint64") + state[2]
    words = _philox(xp, state[0], low, high)[:words_needed]
    bits = (
        words[0::2] | (words[1::2] << xp.asarray(32, "uint64")) if target.itemsize == 8 else words
    )
    unsigned = bits.astype(f"uint{8 * target.itemsize}")
    after = state[1] + xp.asarray(blocks, "uint64")
    carry = (after < state[1]).astype("uint64")
    new_state = xp.stack([state[0], after, state[2] + carry])
    return new_state, unsigned.view(target.name).reshape(shape.static)


def _philox(xp: Any, key: Array, low: Array, high: Array) -> Array:
    mask, half = xp.asarray(_LOW, "uint64"), xp.asarray(32, "uint64")
    x = [low & mask, low >> half, high & mask, high >> half]
    keys = [key & mask, key >> half]
    for _ in range(_ROUNDS):
        first, second = (
            x[place] * xp.asarray(multiplier, "uint64")
            for place, multiplier in zip((0, 2), _MULTIPLIERS, strict=True)
        )
        x = [
            (second >> half) ^ x[1] ^ keys[0],
            second & mask,
            (first >> half) ^ x[3] ^ keys[1],
            first & mask,
        ]
        keys = [(k + xp.asarray(w, "uint64")) & mask for k, w in zip(keys, _WEYL, strict=True)]
    return xp.stack(x, 1).reshape(-1)


CALLS = {
    op.RNG_BIT_GENERATOR: LibraryCall(bit_generator, bit_generator_refused),
}
