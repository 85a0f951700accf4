"""Random bits written with integer arithmetic: each element's are a function of the state and of
the element's position, so kernels make them where they are used and nothing of them is stored.

Philox 4x32-10 and Threefry 2x32-20 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011), in the order in which XLA lays the words out (hlo/evaluator/evaluate_random.py says the
same in numpy). A Philox block makes four words and an element wants one of them: every element
computes its whole block: some hundred integer operations, 4 ns of one AVX-512 core. NVRTC does not
see that the four elements of a run share theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stitchcore.hlo.ir import builder
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.dim import Dim
from stitchcore.hlo.ir.instruction import Instruction, instruction
from stitchcore.hlo.ir.shape import DTYPES, Shape

PHILOX = ("rng_philox", "rng_default")
THREE_FRY = "rng_three_fry"

PHILOX_ROUNDS = 10
PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)
THREE_FRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
THREE_FRY_GROUPS = 5
THREE_FRY_PARITY = 0x1BD11BDA


def random_bits(node: Instruction) -> Instruction | None:
    """(new state, bits) of a `rng-bit-generator` whose algorithm and state are specified; None for
    others and for symbolic shapes, whose count the new state would need."""
    state, bits = _state_and_bits(node)
    if not _is_specified(node) or not all(isinstance(d, int) for d in bits.dims):
        return None
    words = _words(state)
    if node["algorithm"] == THREE_FRY:
        drawn, used = _three_fry(words, bits.static, _is_wide(bits))
        counter: Sequence[Instruction]
        counter = [builder.elementwise(op.ADD, words[1], builder.constant(used, "u64"))]
    else:
        drawn = _philox(words, bits.dims, _is_wide(bits))
        used = -(-math.prod(bits.static) // _per_block(_is_wide(bits)))
        counter = [*_sum128(words[1], words[2], builder.constant(used, "u64"))]
    parts = [builder.reshape(word, (1,)) for word in (words[0], *counter)]
    return builder.tuple_([builder.concatenate(parts, 0), _as_type_of(bits, drawn)])


def drawn_bits(node: Instruction) -> Instruction | None:
    """The bits alone of Philox's generator, whatever their number."""
    [generator] = node.operands
    if generator.opcode != op.RNG_BIT_GENERATOR or node["index"] != 1:
        return None
    state, bits = _state_and_bits(generator)
    if not _is_specified(generator) or generator["algorithm"] == THREE_FRY:
        return None
    return _as_type_of(bits, _philox(_words(state), bits.dims, _is_wide(bits)))


def _state_and_bits(node: Instruction) -> tuple[Instruction, Shape]:
    assert node.shape.elements is not None
    return node.operands[0], node.shape.elements[1]


def _is_specified(node: Instruction) -> bool:
    state, bits = _state_and_bits(node)
    sizes = {**dict.fromkeys(PHILOX, 3), THREE_FRY: 2}
    integral = DTYPES[bits.dtype].kind in ("signed", "unsigned")
    known = sizes.get(node["algorithm"]) == state.shape.static[0]
    return state.shape.dtype == "u64" and integral and known


def _words(state: Instruction) -> list[Instruction]:
    return [_word(state, number) for number in range(state.shape.static[0])]


def _is_wide(bits: Shape) -> bool:
    return DTYPES[bits.dtype].bytes == 8


def _as_type_of(bits: Shape, drawn: Instruction) -> Instruction:
    return _cast(builder.convert(drawn, f"u{8 * DTYPES[bits.dtype].bytes}"), bits.dtype)


# ---- Philox --------------------------------------------------------------------------------------
def _per_block(wide: bool) -> int:
    return 2 if wide else 4


def _philox(state: Sequence[Instruction], dims: tuple[Dim, ...], wide: bool) -> Instruction:
    """Bits of every element."""
    place = _places(dims)
    block = _shift(op.SHIFT_RIGHT_LOGICAL, place, _per_block(wide).bit_length() - 1)
    low, high = _sum128(_spread(state[1], dims), _spread(state[2], dims), block)
    words = [*_halves(low), *_halves(high)]
    keys = list(_halves(state[0]))
    for _ in range(PHILOX_ROUNDS):
        products = [_product(words[2 * i], PHILOX_FACTORS[i]) for i in range(2)]
        (first_high, first_low), (second_high, second_low) = products
        words = [
            _xor(_xor(second_high, words[1]), _spread(keys[0], dims)),
            second_low,
            _xor(_xor(first_high, words[3]), _spread(keys[1], dims)),
            first_low,
        ]
        keys = [
            builder.elementwise(op.ADD, key, builder.constant(step, "u32"))
            for key, step in zip(keys, PHILOX_STEPS, strict=True)
        ]
    odd = _bit(place, 0)
    if wide:
        first, second = _joined(words[0], words[1]), _joined(words[2], words[3])
        return builder.elementwise(op.SELECT, odd, second, first)
    pairs = [builder.elementwise(op.SELECT, odd, words[i + 1], words[i]) for i in (0, 2)]
    return builder.elementwise(op.SELECT, _bit(place, 1), pairs[1], pairs[0])


def _product(word: Instruction, factor: int) -> tuple[Instruction, Instruction]:
    """High and low words of a product with a constant. Each is of one width: a C compiler has
    instructions for both halves, and none that leave the others' lanes in place."""
    wide = builder.convert(word, "u64")
    product = builder.elementwise(op.MULTIPLY, wide, builder.splat(factor, wide))
    high = builder.convert(_shift(op.SHIFT_RIGHT_LOGICAL, product, 32), "u32")
    return high, builder.elementwise(op.MULTIPLY, word, builder.splat(factor, word))


def _sum128(
    low: Instruction, high: Instruction, more: Instruction
) -> tuple[Instruction, Instruction]:
    """Low and high of a counter of two u64 words after `more` are added."""
    total = builder.elementwise(op.ADD, low, more)
    carry = builder.elementwise(op.COMPARE, total, more, direction="LT")
    return total, builder.elementwise(op.ADD, high, builder.convert(carry, "u64"))


# ---- Threefry ------------------------------------------------------------------------------------
def _three_fry(
    state: Sequence[Instruction], dims: tuple[int, ...], wide: bool
) -> tuple[Instruction, int]:
    """Bits of every element, and how far the counter goes on. 32-bit words of one block lie next
    to each other along one dimension, the first even one, else the longest."""
    if wide:
        first, second = _three_fry_words(state, _places(dims), dims)
        return _joined(first, second), math.prod(dims)
    even = [axis for axis, extent in enumerate(dims) if extent % 2 == 0]
    axis = even[0] if even else max(range(len(dims)), key=lambda i: dims[i], default=0)
    half = [-(-extent // 2) if i == axis else extent for i, extent in enumerate(dims)]
    if not dims:
        return _three_fry_words(state, _places(dims), dims)[0], 1
    place: Instruction | None = None
    for i in range(len(dims)):
        along = builder.iota("u64", dims, i)
        if i == axis:
            odd = _bit(along, 0)
            along = _shift(op.SHIFT_RIGHT_LOGICAL, along, 1)
        stride = builder.splat(math.prod(half[i + 1 :]), along)
        term = builder.elementwise(op.MULTIPLY, along, stride)
        place = term if place is None else builder.elementwise(op.ADD, place, term)
    assert place is not None
    first, second = _three_fry_words(state, place, dims)
    return builder.elementwise(op.SELECT, odd, second, first), math.prod(half)


def _three_fry_words(
    state: Sequence[Instruction], place: Instruction, dims: tuple[int, ...]
) -> tuple[Instruction, Instruction]:
    keys = list(_halves(state[0]))
    parity = builder.constant(THREE_FRY_PARITY, "u32")
    keys.append(_xor(_xor(keys[0], keys[1]), parity))
    counter = builder.elementwise(op.ADD, place, _spread(state[1], dims))
    left, right = (
        builder.elementwise(op.ADD, word, _spread(key, dims))
        for word, key in zip(_halves(counter), keys, strict=False)
    )
    for group in range(THREE_FRY_GROUPS):
        for distance in THREE_FRY_ROTATIONS[group % 2]:
            left = builder.elementwise(op.ADD, left, right)
            right = _xor(_rotated(right, distance), left)
        number = builder.constant(group + 1, "u32")
        last = builder.elementwise(op.ADD, keys[(group + 2) % 3], number)
        left = builder.elementwise(op.ADD, left, _spread(keys[(group + 1) % 3], dims))
        right = builder.elementwise(op.ADD, right, _spread(last, dims))
    return left, right


def _rotated(word: Instruction, distance: int) -> Instruction:
    up = _shift(op.SHIFT_LEFT, word, distance)
    return builder.elementwise(op.OR, up, _shift(op.SHIFT_RIGHT_LOGICAL, word, 32 - distance))


# ---- words ---------------------------------------------------------------------------------------
def _word(state: Instruction, number: int) -> Instruction:
    """A scalar of the state."""
    return builder.reshape(builder.slice_(state, [(number, number + 1, 1)]), ())


def _places(dims: tuple[Dim, ...]) -> Instruction:
    """Row-major positions of all elements, u64."""
    return builder.reshape(builder.iota("u64", (Shape("u64", dims).size,), 0), dims)


def _spread(scalar: Instruction, dims: tuple[Dim, ...]) -> Instruction:
    return builder.broadcast(scalar, dims, ()) if dims else scalar


def _halves(word: Instruction) -> tuple[Instruction, Instruction]:
    """Low and high u32 of a u64."""
    high = _shift(op.SHIFT_RIGHT_LOGICAL, word, 32)
    return builder.convert(word, "u32"), builder.convert(high, "u32")


def _cast(word: Instruction, dtype: str) -> Instruction:
    """The same bits as an integer of the same width."""
    if word.shape.dtype == dtype:
        return word
    return instruction(op.BITCAST_CONVERT, Shape(dtype, word.shape.dims), (word,))


def _joined(low: Instruction, high: Instruction) -> Instruction:
    shifted = _shift(op.SHIFT_LEFT, builder.convert(high, "u64"), 32)
    return builder.elementwise(op.OR, builder.convert(low, "u64"), shifted)


def _shift(opcode: str, word: Instruction, distance: int) -> Instruction:
    return builder.elementwise(opcode, word, builder.splat(distance, word))


def _xor(left: Instruction, right: Instruction) -> Instruction:
    return builder.elementwise(op.XOR, left, right)


def _bit(word: Instruction, number: int) -> Instruction:
    """Whether a bit is set."""
    masked = builder.elementwise(op.AND, word, builder.splat(1 << number, word))
    return builder.elementwise(op.COMPARE, masked, builder.splat(0, word), direction="NE")
