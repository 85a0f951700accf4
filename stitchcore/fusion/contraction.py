"""Matrix products inside kernels (FusionStitching 2019): what they are, and which of them pay.

A product joins a kernel as the sum of the products of two broadcasts (hlo/transforms/expand_dot.py)
where the library call that it would be takes longer: a call costs its launch, and what is read and
written between it and the kernels around it; a kernel's loops are no library's. Both are prices of
the device record (`Gemm`). On a GPU the launch is left out on both sides, so that a product that
nothing joins is no slower either. Such a sum is added up by the lane that wants it, whatever its
length up to LONGEST: neighbouring lanes take neighbouring columns, so that one row of the right
factor serves them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from stitchcore.device.records import Device
from stitchcore.device.timing import Classes, Timing
from stitchcore.fusion.extents import extent
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.query import factors_of
from stitchcore.hlo.ir.shape import DTYPES

LONGEST = 512
"""Products that one float32 accumulator adds up, because rounding errors grow with their number."""

WORD_BYTES, WARP_LANES = 4, 32

FACTORS = Classes(shared=2)
"""What a lane of a GPU loads for one of the terms that it adds up. Factors lie in shared memory, or
are found in the first cache, which is the same unit: neighbours read the same row, or one after the
other the same column."""

UNDER_WAY = 4
"""Terms of which the factors are loaded while earlier ones are added up, at least: NVRTC unrolls
such loops by four or more."""


def term_cycles(timing: Timing) -> float:
    """Cycles until a lane of a GPU has added one more term, where nothing hides what it waits for:
    a multiplication, an addition, and its share of the loads."""
    return timing.chain(Classes(float32=2)) + timing.chain(FACTORS) / UNDER_WAY


@lru_cache(maxsize=65536)
def is_contraction(instruction: Instruction) -> bool:
    """Whether `instruction` is a matrix product written out, with more results than each has
    products: then lanes of their own are worth it."""
    factors = factors_of(instruction)
    if factors is None:
        return False
    source = instruction.operands[0].shape
    contracted = [source.dims[axis] for axis in instruction["dimensions"]]
    if not all(isinstance(size, int) for size in contracted):
        return False
    results = extent(instruction.shape.size)
    return results > 0 and math.prod(map(extent, contracted)) <= min(LONGEST, results)


@dataclass(frozen=True)
class Product:
    """Elements of a product of matrices, products that each adds up, elements of its rows, whether
    it is of many pairs of matrices, whether how many rows or pairs there are is known, and the
    bytes of what is added up."""

    results: int
    contracted: int
    columns: int
    batched: bool
    known: bool = True
    width: int = WORD_BYTES


def product_of(dot: Instruction) -> Product | None:
    """The sizes of a dot of floats, of rows and pairs that are symbolic the nominal ones; None for
    others, and where a symbolic size would be a loop of each lane, or of neighbouring ones: it may
    be large."""
    left, right = (operand.shape for operand in dot.operands)
    for shape in (dot.shape, left, right):
        if DTYPES[shape.dtype].kind != "float" or not extent(shape.size):
            return None
    pairs = dot.get("rhs_batch_dims", ())
    contracted = [left.dims[d] for d in dot["lhs_contracting_dims"]]
    taken = (*pairs, *dot["rhs_contracting_dims"])
    columns = [size for d, size in enumerate(right.dims) if d not in taken]
    if not all(isinstance(size, int) for size in (*contracted, *columns)):
        return None
    return Product(
        extent(dot.shape.size),
        math.prod(map(extent, contracted)),
        math.prod(map(extent, columns)),
        batched=math.prod(extent(right.dims[d]) for d in pairs) > 1,
        known=isinstance(dot.shape.size, int),
        width=max(WORD_BYTES, *(DTYPES[side.dtype].bytes for side in (dot.shape, left, right))),
    )


def fits(product: Product) -> bool:
    """Whether a lane may add up a result of `product`."""
    return product.contracted <= min(LONGEST, product.results)


def pays(product: Product, device: Device) -> bool:
    """Whether a kernel computes `product` no slower than the device's library, which takes a call
    for it. Of one pair with an unknown number of rows it may not: with many of them a library has
    the better rate. What is twice as wide takes a CPU twice as long, in kernel and call; a GPU has
    prices of float32 alone."""
    gemm, timing = device.gemm, device.timing
    if gemm is None or not fits(product) or not (product.known or product.batched):
        return False
    if timing is not None and product.width > WORD_BYTES:
        return False
    lanes = device.vector_bytes // product.width if timing is None else WARP_LANES
    flops = 2 * product.results * product.contracted * product.width / WORD_BYTES
    whole = flops * (-(-product.columns // lanes) * lanes) / product.columns
    own = whole / gemm.kernel_flops_per_second
    if timing is not None:
        own = max(own, product.contracted * term_cycles(timing) / timing.hertz)
    call = gemm.batched if product.batched else gemm.call
    return own <= call.seconds + flops / call.flops_per_second
