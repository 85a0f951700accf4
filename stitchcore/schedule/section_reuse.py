"""Values that a phase would compute several times: whether they had better be passed on.

Sections of a phase are independent, and loop differently (one reduces rows, another columns). What
both are made of each computes for itself, or one stores it and the others wait for the next phase
and read it (AStitch's element-level data reuse; FusionStitching 2020, 2.5), by the price of both.
So it is with a dear value that one section broadcasts along loops around its own (AStitch's
power<2> -> broadcast<2,128> -> add): each turn of these would compute all of it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from stitchcore.fusion.candidates import byte_size
from stitchcore.fusion.contraction import is_contraction
from stitchcore.fusion.reuse import Choice, Prices, Way, choose
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, reachable
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.dominants import EXPENSIVE, Dominants
from stitchcore.schedule.sections import KernelScheme, SectionScheme, SinkKind
from stitchcore.schedule.tiling import size_of

Edge = tuple[Instruction, Instruction]
"""A value, and one that is computed from it."""

SMALL_BYTES = 16384
"""Values up to this size are computed in each section that wants them: nothing could be saved."""

LOOPING = (SinkKind.STORE, SinkKind.PARTIAL, SinkKind.FINAL)


@dataclass(frozen=True)
class Reader:
    """A section that computes a value for `consumers`, each element of it so many `times`: in the
    section that would store it, beside the once that is needed anyway."""

    section: SectionScheme
    consumers: tuple[Instruction, ...]
    times: int = 1


def find(
    scheme: KernelScheme,
    axes: Axes,
    dominants: Dominants,
    inputs: frozenset[Instruction],
    prices: Prices,
) -> tuple[frozenset[Edge], dict[Instruction, Choice]]:
    """Edges over which a value goes through memory to the next phase, and what was chosen for each
    value that a phase computes several times."""
    edges: set[Edge] = set()
    choices: dict[Instruction, Choice] = {}
    for phase, sections in enumerate(scheme.phases):
        for value, readers in _shared(phase, sections, scheme, axes, dominants, inputs):
            choices[value] = _price(value, phase, readers, scheme, inputs, prices)
            if choices[value].passes:
                edges.update((value, c) for reader in readers for c in reader.consumers)
    return frozenset(edges), choices


def _shared(
    phase: int,
    sections: Iterable[SectionScheme],
    scheme: KernelScheme,
    axes: Axes,
    dominants: Dominants,
    inputs: frozenset[Instruction],
) -> Iterator[tuple[Instruction, list[Reader]]]:
    """Values that a section computes, with what each section after it alone computes from them, and
    with what repeats them in that section."""

    def at_hand(value: Instruction) -> bool:
        return _in_memory(value, phase, scheme, inputs)

    found: list[tuple[SectionScheme, dict[Instruction, None]]] = []
    for section in sections:
        if any(sink.kind not in LOOPING for sink in section.sinks):
            continue
        ends = [sink.value for sink in section.sinks]
        wanted = reachable(_roots(section), at_hand)
        found.append((section, dict.fromkeys((*ends, *wanted))))
    repeated = [_repeated(section, at_hand, axes) for section, _ in found]
    for number, (first, computed) in enumerate(found):
        earlier = {value for _, other in found[:number] for value in other}
        for value in computed:
            if value in earlier or not _is_passed(value, phase, scheme, axes, dominants, inputs):
                continue
            dear = dominants.costs[value] >= EXPENSIVE
            times = [of.get(value, Repetition()) if dear else Repetition() for of in repeated]
            readers = []
            if times[number].turns > 1:
                again = times[number]
                readers.append(Reader(first, again.consumers, again.turns - 1))
            if byte_size(value.shape) > SMALL_BYTES:
                for later, (section, other) in enumerate(found[number + 1 :], number + 1):
                    own = tuple(c for c in other if value in c.operands and c not in computed)
                    if own:
                        readers.append(Reader(section, own, max(times[later].turns, 1)))
            if readers and all(_may_wait(c) for reader in readers for c in reader.consumers):
                yield value, readers


@dataclass(frozen=True)
class Repetition:
    """The broadcasts for which a section computes an element of a value more than once; how often
    it does for all of them."""

    consumers: tuple[Instruction, ...] = ()
    turns: int = 0


def _repeated(
    section: SectionScheme, at_hand: Callable[[Instruction], bool], axes: Axes
) -> dict[Instruction, Repetition]:
    """What `section` broadcasts along loops around those of its elements."""
    found: dict[Instruction, Repetition] = {}
    for value, uses in _uses(section, at_hand, axes).items():
        turns = sum(count for loops in uses if (count := _turns(loops, section, axes)) > 1)
        if value.opcode == op.BROADCAST and turns:
            before = found.get(value.operands[0], Repetition())
            both = (*before.consumers, value)
            found[value.operands[0]] = Repetition(both, before.turns + turns)
    return found


Loops = frozenset[Axis]


def _uses(
    section: SectionScheme, at_hand: Callable[[Instruction], bool], axes: Axes
) -> dict[Instruction, set[Loops]]:
    """By value that `section` computes, the loops that its elements depend on in each of its uses.
    Behind other index maps than that of x + x^T nothing is said."""
    uses: dict[Instruction, set[Loops]] = {}
    stack = [(root, tuple(frozenset((a,)) for a in axes.of(root))) for root in _roots(section)]
    seen = set(stack)
    while stack:
        value, own = stack.pop()
        uses.setdefault(value, set()).add(frozenset[Axis]().union(*own))
        loops = dict(zip(axes.of(value), own, strict=True))
        for number, operand in enumerate(() if at_hand(value) else value.operands):
            if (value, number) not in axes.views:
                there = tuple(loops.get(a, frozenset((a,))) for a in axes.of(operand))
            elif op.record(value.opcode).kind in op.POINTWISE:
                rows = zip(axes.dims[operand], axes.dims[value], strict=True)
                there = tuple(
                    frozenset[Axis]().union(*(loops[a] for a in ours or ()))
                    for theirs, ours in rows
                    for _ in theirs or ()
                )
            else:
                continue
            if (operand, there) not in seen:
                seen.add((operand, there))
                stack.append((operand, there))
    return uses


def _turns(loops: Loops, section: SectionScheme, axes: Axes) -> int:
    """How often the loops of `section` come to an element that depends on `loops` of them: the
    turns of others around the innermost of these. Inside them it is kept anyway; so is in rows what
    is the same for all of them (row_stages.py)."""
    order = section.order
    if section.rows is not None and loops.isdisjoint(section.rows):
        return 1
    last = len(order)
    if loops.issubset(order):
        last = max((n for n, axis in enumerate(order) if axis in loops), default=0)
    return size_of(axes.extents[axis] for axis in order[:last] if axis not in loops)


def _roots(section: SectionScheme) -> list[Instruction]:
    return [sink.root for sink in section.sinks]


def _in_memory(
    value: Instruction, phase: int, scheme: KernelScheme, inputs: frozenset[Instruction]
) -> bool:
    return value in inputs or scheme.stored.get(value, phase) < phase or value in scheme.partial


def _is_passed(
    value: Instruction,
    phase: int,
    scheme: KernelScheme,
    axes: Axes,
    dominants: Dominants,
    inputs: frozenset[Instruction],
) -> bool:
    """Whether a value is made of nothing that its phase reduces, and not there anyway."""
    state = dominants.states.get(value)
    return (
        state is not None
        and state.home is None
        and op.record(value.opcode).kind == "elementwise"
        and value not in axes.constant
        and not _in_memory(value, phase, scheme, inputs)
    )


def _may_wait(consumer: Instruction) -> bool:
    kind = op.record(consumer.opcode).kind
    return kind in ("elementwise", "movement", "reduce") and not is_contraction(consumer)


def _price(
    value: Instruction,
    phase: int,
    readers: Sequence[Reader],
    scheme: KernelScheme,
    inputs: frozenset[Instruction],
    prices: Prices,
) -> Choice:
    """Of the sections that read `value`: one more phase and a transfer each, or what each computes
    and reads for it alone. What one reads again it finds in a cache."""
    size = byte_size(value.shape)
    written = 0 if value in scheme.stored else 1

    def at_hand(node: Instruction) -> bool:
        return _in_memory(node, phase, scheme, inputs)

    cone = [*reachable((value,), at_hand)]
    moved = 0.0
    for reader in readers:
        others = {*reachable(_roots(reader.section), lambda node: node is value or at_hand(node))}
        missing = (byte_size(leaf.shape) for leaf in cone if at_hand(leaf) and leaf not in others)
        moved += sum(prices.transfer(min(leaf, size), leaf) for leaf in missing)
    computed = prices.arithmetic(node for node in cone if not at_hand(node))
    transfers = (written + len(readers)) * prices.transfer(size, size)
    again = sum(reader.times for reader in readers) * computed
    return choose(prices, Way(transfers, waiting=prices.phase), Way(moved, again))
