"""What the lanes of a GPU execute for a pattern, by class of instruction.

An element's instructions are its opcode's record's (`Opcode.gpu`), or follow from its type. How
often they run is not how large the value is: an elementwise value that costs little is computed
again where it is read. Read through a broadcast it is computed once for every element of what the
broadcast fills, so it counts by that factor (AStitch's power<2> -> broadcast<2,128> -> add: 128
times). What is kept counts once: reductions, scatters, outputs, and values from KEPT_COST on, which
the scheduler leaves in registers, shared memory or scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from stitchcore.device.timing import Classes
from stitchcore.fusion.contraction import FACTORS, WARP_LANES, is_contraction
from stitchcore.fusion.extents import extent
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.shape import DTYPES

KEPT_COST = 10
"""From this cost (simple operations an element) a value is kept rather than computed again."""

BLOCK_WARPS = 8
"""Of a block of the usual 256 threads."""

WARP_ROW = 1024
"""A row of at most so many elements is one warp's, a longer one a block's (schedule/limits.py)."""

WIDE = (2.0, 4.0)
"""How many float64 and integer instructions a float64 function takes for each float32 and integer
one of float32: medians over the table's functions, NVRTC 12.9, sm_90."""

NARROWED: Mapping[str, Classes] = {
    "bf16": Classes(integer=6),
    "f16": Classes(float32=2, integer=11),
    "f8e4m3fn": Classes(float32=2, integer=9),
    "f8e5m2": Classes(float32=2, integer=11),
}
"""What rounds a result to a narrow type: NVRTC 12.9, sm_90."""

QUOTIENT = Classes(integer=30, special=3)
"""An integer division or remainder; there is no such instruction."""

LOOKED_UP = Classes(integer=8, memory=1)
"""An element from a place that data says: its address, and a load of its own."""

COMBINED = Classes(integer=8, memory=2)
"""An element of a scatter's updates: its address, and what is there read and written."""

TURNED = Classes(integer=4, shared=2)
"""An element that is moved across the rows of memory: through shared memory, alone."""


@lru_cache(maxsize=262144)
def element(instruction: Instruction) -> Classes:
    """Instructions of one element: of a result's, of a reduction's input, of a scatter's update."""
    record = opcodes.record(instruction.opcode)
    if record.kind == "lookup":
        return LOOKED_UP
    if record.kind == "scatter":
        return COMBINED + _operation(record.gpu, instruction.shape.dtype)
    if record.kind == "reduce":
        return _operation(opcodes.record(reducer(instruction)).gpu, instruction.shape.dtype)
    if record.kind == "movement" and turns(instruction):
        return TURNED
    dtype = instruction.operands[0].shape.dtype if instruction.operands else instruction.shape.dtype
    return applied(instruction.opcode, dtype, instruction.shape.dtype)


def applied(opcode: str, operand: str, result: str) -> Classes:
    """Instructions of one element of an opcode that takes and makes these types."""
    if opcode in (opcodes.DIVIDE, opcodes.REMAINDER) and _is_integer(operand):
        return QUOTIENT
    record = opcodes.record(opcode)
    counts = _operation(record.gpu, operand)
    if result in NARROWED and record.kind == "elementwise" and record.flops:
        counts += NARROWED[result]
    return counts


def turns(instruction: Instruction) -> bool:
    """Whether neighbours in a transpose's result are no neighbours in its operand."""
    if instruction.opcode != opcodes.TRANSPOSE:
        return False
    order = [d for d, old in enumerate(instruction["dimensions"]) if instruction.shape.dims[d] != 1]
    old = [instruction["dimensions"][d] for d in order]
    return bool(old) and old[-1] != max(old)


def _is_integer(dtype: str) -> bool:
    return DTYPES[dtype].kind in ("signed", "unsigned")


def _operation(gpu: tuple[int, int, int], dtype: str) -> Classes:
    """A record's instructions for operands of `dtype`."""
    float32, integer, special = gpu
    if DTYPES[dtype].kind != "float":
        return Classes(integer=float32 + integer + special)
    if DTYPES[dtype].bytes < 8:
        return Classes(float32, integer, special)
    if not special and float32 < KEPT_COST:
        return Classes(float64=float32, integer=integer)
    return Classes(float64=WIDE[0] * float32, integer=WIDE[1] * integer, special=special)


def reducer(instruction: Instruction) -> str:
    """The opcode that a reduction applies; addition where it is none alone."""
    root: Instruction = instruction["to_apply"].root
    return root.opcode if root.opcode in opcodes.REDUCERS else opcodes.ADD


def combining(row: int) -> Classes:
    """What the lanes of a row's warp or block execute, all together, to bring their parts of one
    row's reduction together."""
    warps = 1 if row <= WARP_ROW else BLOCK_WARPS
    return combined(warps).times(warps * WARP_LANES)


def combined(warps: int) -> Classes:
    """What a lane executes to bring the parts of `warps` together: five shuffles, and through
    shared memory if there are several."""
    warp = Classes(float32=5, shuffle=5)
    if warps == 1:
        return warp
    return warp + Classes(float32=warps, shared=warps + 1, barrier=2)


def counted(instruction: Instruction, crosses: Callable[[Instruction], bool]) -> Classes:
    """What all lanes execute for an instruction, each of its elements computed once; of a reduction
    over its input, of a matrix product with what its factors' loads take, of a scatter over its
    updates.

    `crosses`: a reduction whose rows no single task owns has no rows to combine by lanes.
    """
    kind = opcodes.record(instruction.opcode).kind
    counts = element(instruction)
    if kind == "reduce":
        source = extent(instruction.operands[0].shape.size)
        rows = extent(instruction.shape.size)
        if is_contraction(instruction):
            return (counts + FACTORS).times(source)
        executed = counts.times(source)
        if rows and source > rows and not crosses(instruction):
            executed += combining(source // rows).times(rows)
        return executed
    if kind == "scatter":
        return counts.times(extent(instruction.operands[2].shape.size))
    return counts.times(extent(instruction.shape.size))


def repetitions(
    instructions: Sequence[Instruction], outputs: Sequence[Instruction]
) -> Mapping[Instruction, float]:
    """How often each element of each of a pattern's instructions is computed: the product of the
    broadcast factors on the way to where it is kept, the largest if there are several ways.

    `instructions` are in topological order.
    """
    stored = _stored(instructions, outputs)
    times_of: dict[Instruction, float] = {}
    for value in reversed(instructions):
        own_times = times_of[value] = 1.0 if value in stored else times_of.get(value, 1.0)
        passes = opcodes.record(value.opcode).kind in PASSING
        for operand in value.operands:
            times = own_times if passes else 1.0
            if value.opcode == opcodes.BROADCAST:
                whole, part = extent(value.shape.size), extent(operand.shape.size)
                times *= max(whole / max(part, 1), 1.0)
            times_of[operand] = max(times_of.get(operand, 1.0), times)
    return times_of


PASSING = opcodes.POINTWISE | {"movement"}
"""Kinds that compute an operand's element as often as their own."""


def _stored(
    instructions: Sequence[Instruction], outputs: Sequence[Instruction]
) -> frozenset[Instruction]:
    """Values that are computed once for each of their elements."""
    costs = lane_costs(instructions)
    stored = set(outputs)
    for value in instructions:
        kind = opcodes.record(value.opcode).kind
        if kind in ("reduce", "scatter", "update"):
            stored.add(value)
        if is_contraction(value):
            stored.update(factor.operands[0] for factor in value.operands[0].operands)
        if value.opcode == opcodes.BROADCAST:
            stored.update(o for o in value.operands if costs.get(o, 1) >= KEPT_COST)
    return frozenset(stored)


def lane_costs(instructions: Sequence[Instruction]) -> Mapping[Instruction, int]:
    """Simple operations that one element of each value takes from what lies in memory or registers:
    inputs, reductions, and what is kept at a broadcast cost 1, as the scheduler counts."""
    costs: dict[Instruction, int] = {}
    for value in instructions:
        record = opcodes.record(value.opcode)
        if record.kind in ("reduce", "scatter"):
            costs[value] = 1
            continue
        below = 0
        for operand in value.operands:
            cost = costs.get(operand, 1)
            at_broadcast = value.opcode == opcodes.BROADCAST and cost >= KEPT_COST
            below += 1 if at_broadcast else cost
        costs[value] = min(record.flops + below, 1 << 20)
    return costs
