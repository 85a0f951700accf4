"""Evaluation of random bits: Philox 4x32-10 and Threefry 2x32 bit for bit as XLA expands them.

`rng` draws from a hidden state that XLA does not specify. Its value here is some uniform or normal
array, the same for the same instruction: a check forces it to what the other side drew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.numerics import Array
from stitchcore.hlo.ir.precision import Precision, round_to_dtype
from stitchcore.hlo.ir.shape import DTYPES

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def rng(node: Instruction, operands: Sequence[Array], precision: Precision) -> Array:
    generator = np.random.Generator(np.random.Philox(key=node["unique"]))
    low, high = operands
    dims = node.shape.static
    if node["distribution"] == "rng_normal":
        drawn = low.astype(np.float64) + high * generator.standard_normal(dims)
    else:
        drawn = low + (high.astype(np.float64) - low) * generator.random(dims)
        if DTYPES[node.shape.dtype].kind != "float":
            drawn = np.floor(drawn)
    return round_to_dtype(drawn, node.shape.dtype, precision)


def bit_generator(node: Instruction, operands: Sequence[Array]) -> Any:
    """(new state, bits)."""
    state, bits_shape = operands[0], node.shape.elements[1]  # type: ignore[index]
    target = DTYPES[bits_shape.dtype].numpy
    if target.kind not in "iu" or state.dtype != np.uint64:
        raise Refused(node.opcode, Reason.UNSUPPORTED_TYPE, str(node.shape))
    count = int(np.prod(bits_shape.static, dtype=np.int64))
    algorithm = node["algorithm"]
    if algorithm == "rng_three_fry" and state.size == 2:
        new_state, bits = _three_fry(state, bits_shape.static, target)
    elif algorithm in ("rng_philox", "rng_default") and state.size == 3:
        new_state, words = _philox(state, count if target.itemsize < 8 else 2 * count)
        bits = words if target.itemsize < 8 else words[0::2] | words[1::2] << _HALF
        bits = bits[:count].reshape(bits_shape.static)
    else:
        raise Refused(node.opcode, Reason.UNSUPPORTED_OPCODE, f"{algorithm} of {state.size} words")
    unsigned = np.dtype(f"u{target.itemsize}")
    return new_state, bits.astype(unsigned).view(target)


def _philox(state: Array, words: int) -> tuple[Array, Array]:
    """`state` is [key, counter low, counter high]; four words a block, the counter per block."""
    blocks = -(-words // 4)
    low = int(state[1])
    high = int(state[2]) if state.size > 2 else 0
    index = np.arange(blocks, dtype=np.uint64)
    counter_low = index + np.uint64(low)
    carry = (counter_low < index).astype(np.uint64)
    counter_high = carry + np.uint64(high)
    x = [counter_low & _LOW, counter_low >> _HALF, counter_high & _LOW, counter_high >> _HALF]
    key0, key1 = int(state[0]) & 0xFFFFFFFF, int(state[0]) >> 32
    for _ in range(10):
        first, second = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [
            (second >> _HALF) ^ x[1] ^ np.uint64(key0),
            second & _LOW,
            (first >> _HALF) ^ x[3] ^ np.uint64(key1),
            first & _LOW,
        ]
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    total = (high << 64 | low) + blocks
    parts = [int(state[0]), total & (2**64 - 1), total >> 64 & (2**64 - 1)]
    return np.array(parts[: state.size], np.uint64), np.stack(x, 1).reshape(-1)[:words]


def _three_fry(state: Array, dims: Sequence[Any], target: np.dtype[Any]) -> tuple[Array, Array]:
    """`state` is [key, counter]. 32-bit results are the two words of each block, next to each
    other along the dimension that XLA splits; 64-bit results join them."""
    count = int(np.prod(dims, dtype=np.int64))
    if target.itemsize == 8:
        first, second = _three_fry_words(state, count)
        bits = (first | second << _HALF).reshape(dims)
        advance = count
    else:
        axis = next((i for i, d in enumerate(dims) if d % 2 == 0), None)
        if axis is None:
            axis = int(np.argmax(dims)) if len(dims) else 0
        padded = [d + d % 2 if i == axis else d for i, d in enumerate(dims)] or [2]
        half = [d // 2 if i == axis else d for i, d in enumerate(padded)]
        advance = int(np.prod(half, dtype=np.int64))
        first, second = _three_fry_words(state, advance)
        pairs = np.stack([first.reshape(half), second.reshape(half)], axis + 1).reshape(padded)
        bits = pairs[tuple(slice(d) for d in dims)] if len(dims) else pairs[0]
    parts = [int(state[0]), (int(state[1]) + advance) & (2**64 - 1)]
    return np.array(parts, np.uint64), bits


def _three_fry_words(state: Array, count: int) -> tuple[Array, Array]:
    key = [int(state[0]) & 0xFFFFFFFF, int(state[0]) >> 32]
    keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
    counter = np.arange(count, dtype=np.uint64) + state[1]
    x = [(counter & _LOW) + np.uint64(keys[0]), (counter >> _HALF) + np.uint64(keys[1])]
    x = [part & _LOW for part in x]
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    for group in range(5):
        for distance in rotations[group % 2]:
            x[0] = (x[0] + x[1]) & _LOW
            rotated = x[1] << np.uint64(distance) | x[1] >> np.uint64(32 - distance)
            x[1] = (rotated & _LOW) ^ x[0]
        x[0] = (x[0] + np.uint64(keys[(group + 1) % 3])) & _LOW
        x[1] = (x[1] + np.uint64(keys[(group + 2) % 3]) + np.uint64(group + 1)) & _LOW
    return x[0], x[1]
