"""Lane loops of float16, a vector of lanes at a time: what gcc makes no vectors of, by instruction.

x86 converts a vector between float16 and float32 with one instruction, which gcc 12 writes for no
loop: what it makes vectors of is the same rounding in sixteen operations on integers. So a lane
loop that loads, stores or rounds float16 is cut at these into parts. For each block of
ST_HALF_LANES lanes a part is a loop of its own, and between two of them functions of stitch_cpu.h
convert what an array of the block holds. The compiler keeps these arrays in registers. Lanes are
independent, so this is the same computation in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir.nodes import Apply, Let, Load, Loop, Prefetch, Scalar, Store
from stitchcore.loop_ir.visitor import loads, own_scalars, statements

HALF = "f16"

LANES = "ST_HALF_LANES"
MOST_LANES = 16
"""The most that LANES stands for; the others divide it."""


@dataclass(frozen=True)
class Part:
    """Lanes compute `body`; then vectors of them are `narrowed` into memory, and `rounded`."""

    body: tuple[Let | Store, ...]
    narrowed: tuple[Store, ...]
    rounded: tuple[Let, ...]


@dataclass(frozen=True)
class HalfLanes:
    """A body in parts, after scalars that are loads of float16, `widened`, or loads of float32,
    rounded; `arrays` are all scalars that hold a value for each lane of a block."""

    loaded: Mapping[Scalar, Load]
    parts: tuple[Part, ...]
    arrays: tuple[Scalar, ...]


def patterns(loop: Loop) -> frozenset[Scalar]:
    """Narrow floats that a lane loop only moves from memory to memory: as they are there."""
    moved: dict[Scalar, str] = {}
    for statement in loop.body:
        if isinstance(statement, Let) and isinstance(statement.value, Load):
            if DTYPES[statement.value.dtype].narrow:
                moved[statement.scalar] = statement.value.dtype
    for statement in statements(loop.body):
        if isinstance(statement, Store) and isinstance(statement.value, Scalar):
            if moved.get(statement.value) == statement.buffer.dtype:
                continue
        for scalar in own_scalars(statement):
            moved.pop(scalar, None)
    return frozenset(moved)


def half_lanes(loop: Loop, contiguous: Callable[[Load | Store], bool]) -> HalfLanes | None:
    """The parts of a lane loop; None where it has no float16 to convert, or more than values and
    stores. `contiguous`: whether neighbouring lanes touch neighbouring elements."""
    body: list[Let | Store] = []
    for statement in loop.body:
        if isinstance(statement, Let | Store):
            body.append(statement)
        elif not isinstance(statement, Prefetch):
            return None
    kept = patterns(loop)
    lets = {s.scalar: s for s in body if isinstance(s, Let)}
    loaded = {
        scalar: load
        for scalar, let in lets.items()
        if scalar not in kept and (load := _load(let, lets)) is not None and contiguous(load)
    }
    rounded = {scalar for scalar, let in lets.items() if rounds(let) and scalar not in loaded}
    narrowed = [
        s
        for s in body
        if isinstance(s, Store)
        and s.buffer.dtype == HALF
        and s.value in lets
        and s.value not in kept
        and contiguous(s)
    ]
    if not (loaded or rounded or narrowed) or _reads_what_it_wrote(body):
        return None
    return _cut(body, loaded, rounded, narrowed)


def _load(let: Let, lets: Mapping[Scalar, Let]) -> Load | None:
    """The load of which the scalar is the vector that an instruction makes."""
    if isinstance(let.value, Load):
        return let.value if let.value.dtype == HALF else None
    if rounds(let) and isinstance(let.value, Apply) and let.value.opcode == op.CONVERT:
        source = let.value.operands[0]
        origin = lets[source].value if isinstance(source, Scalar) and source in lets else source
        return origin if isinstance(origin, Load) and origin.dtype == "f32" else None
    return None


def rounds(let: Let) -> bool:
    """Whether what an operation makes is rounded to float16 afterwards."""
    value = let.value
    if not (isinstance(value, Apply) and value.dtype == HALF):
        return False
    source = value.operands[0].dtype
    return op.record(value.opcode).ulp > 0 or (
        value.opcode == op.CONVERT and source not in (HALF, "pred")
    )


def unrounded(statement: Let | Store) -> Let | Store:
    """A statement without the rounding that follows it."""
    if not (isinstance(statement, Let) and rounds(statement)):
        return statement
    assert isinstance(statement.value, Apply)
    return replace(statement, value=replace(statement.value, dtype="f32"))


def _reads_what_it_wrote(body: Sequence[Let | Store]) -> bool:
    written = set()
    for statement in body:
        if any(load.buffer in written for load in loads((statement,))):
            return True
        if isinstance(statement, Store):
            written.add(statement.buffer)
    return False


def _cut(
    body: Sequence[Let | Store],
    loaded: Mapping[Scalar, Load],
    rounded: Set[Scalar],
    narrowed: Sequence[Store],
) -> HalfLanes:
    """Each statement is of the first part before which all is rounded that it reads."""
    others = [s for s in body if not (isinstance(s, Let) and s.scalar in loaded)]
    wanted = {scalar for s in others if s not in narrowed for scalar in own_scalars(s)}
    used = wanted.union(s.value for s in narrowed if isinstance(s.value, Scalar))
    ready, made = dict.fromkeys(loaded, 0), dict.fromkeys(loaded, -1)
    parts: dict[int, list[Let | Store]] = {0: []}
    stored: dict[int, list[Store]] = {}
    arrays: dict[Scalar, None] = dict.fromkeys([*loaded, *rounded])
    for statement in others:
        read = [scalar for scalar in own_scalars(statement) if scalar in made]
        if isinstance(statement, Store) and statement in narrowed:
            stored.setdefault(max(made[read[0]], 0), []).append(statement)
            arrays[read[0]] = None
            continue
        part = max((ready[scalar] for scalar in read), default=0)
        arrays.update(dict.fromkeys(scalar for scalar in read if made[scalar] != part))
        if isinstance(statement, Let):
            if statement.scalar not in used:
                continue
            made[statement.scalar] = part
            ready[statement.scalar] = part + (statement.scalar in rounded)
        parts.setdefault(part, []).append(statement)
    cut = tuple(
        Part(
            tuple(body),
            tuple(stored.get(number, ())),
            tuple(s for s in body if isinstance(s, Let) and s.scalar in rounded & wanted),
        )
        for number, body in sorted(parts.items())
    )
    return HalfLanes(loaded, cut, tuple(arrays))
