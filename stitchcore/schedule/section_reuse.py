"""Values that sections of one phase would each compute: whether they had better be passed on.

Sections of a phase are independent, and loop differently (one reduces rows, another columns). What
both are made of each computes for itself, or one stores it and the others wait for the next phase
and read it (AStitch's element-level data reuse; FusionStitching 2020, 2.5), by the price of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stitchcore.fusion.candidates import byte_size
from stitchcore.fusion.contraction import is_contraction
from stitchcore.fusion.reuse import Choice, Prices, Way, choose
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, reachable
from stitchcore.schedule.axes import Axes
from stitchcore.schedule.dominants import Dominants
from stitchcore.schedule.sections import KernelScheme, SectionScheme, SinkKind

Edge = tuple[Instruction, Instruction]
"""A value, and one that is computed from it."""

SMALL_BYTES = 16384
"""Values up to this size are computed wherever they are wanted: nothing could be saved on them."""

LOOPING = (SinkKind.STORE, SinkKind.PARTIAL, SinkKind.FINAL)


def find(
    scheme: KernelScheme,
    axes: Axes,
    dominants: Dominants,
    inputs: frozenset[Instruction],
    prices: Prices,
) -> tuple[frozenset[Edge], dict[Instruction, Choice]]:
    """Edges over which a value goes through memory to the next phase, and what was chosen for each
    value that several sections of a phase compute."""
    edges: set[Edge] = set()
    choices: dict[Instruction, Choice] = {}
    for phase, sections in enumerate(scheme.phases):
        for value, readers in _shared(phase, sections, scheme, axes, dominants, inputs):
            choices[value] = _price(value, phase, readers, scheme, inputs, prices)
            if choices[value].passes:
                edges.update((value, consumer) for _, found in readers for consumer in found)
    return frozenset(edges), choices


def _shared(
    phase: int,
    sections: Iterable[SectionScheme],
    scheme: KernelScheme,
    axes: Axes,
    dominants: Dominants,
    inputs: frozenset[Instruction],
) -> Iterator[tuple[Instruction, list[tuple[SectionScheme, list[Instruction]]]]]:
    """Values that a section computes, with the sections after it that compute them too, and what
    each of these alone computes from them."""
    found: list[tuple[SectionScheme, dict[Instruction, None]]] = []
    for section in sections:
        if any(sink.kind not in LOOPING for sink in section.sinks):
            continue
        roots = [sink.root for sink in section.sinks]
        ends = [sink.value for sink in section.sinks]
        wanted = reachable(roots, lambda v: _in_memory(v, phase, scheme, inputs))
        found.append((section, dict.fromkeys((*ends, *wanted))))
    for number, (_, computed) in enumerate(found):
        earlier = {value for _, other in found[:number] for value in other}
        for value in computed:
            if value in earlier or not _is_passed(value, phase, scheme, axes, dominants, inputs):
                continue
            readers = [
                (section, [c for c in other if value in c.operands and c not in computed])
                for section, other in found[number + 1 :]
            ]
            readers = [(section, own) for section, own in readers if own]
            consumers = [consumer for _, own in readers for consumer in own]
            if consumers and all(_may_wait(consumer) for consumer in consumers):
                yield value, readers


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
    """Whether a value is one of many elements, made of nothing that its phase reduces."""
    state = dominants.states.get(value)
    return (
        state is not None
        and state.home is None
        and op.record(value.opcode).kind == "elementwise"
        and value not in axes.constant
        and not _in_memory(value, phase, scheme, inputs)
        and byte_size(value.shape) > SMALL_BYTES
    )


def _may_wait(consumer: Instruction) -> bool:
    kind = op.record(consumer.opcode).kind
    return kind in ("elementwise", "movement", "reduce") and not is_contraction(consumer)


def _price(
    value: Instruction,
    phase: int,
    readers: list[tuple[SectionScheme, list[Instruction]]],
    scheme: KernelScheme,
    inputs: frozenset[Instruction],
    prices: Prices,
) -> Choice:
    """Of the sections that read `value`: one more phase and a transfer each, or what each computes
    and reads for it alone."""
    size = byte_size(value.shape)
    written = 0 if value in scheme.stored else 1

    def at_hand(node: Instruction) -> bool:
        return _in_memory(node, phase, scheme, inputs)

    cone = [*reachable((value,), at_hand)]
    moved = 0.0
    for section, _ in readers:
        roots = [sink.root for sink in section.sinks]
        others = {*reachable(roots, lambda node: node is value or at_hand(node))}
        missing = (byte_size(leaf.shape) for leaf in cone if at_hand(leaf) and leaf not in others)
        moved += sum(prices.transfer(min(leaf, size), leaf) for leaf in missing)
    computed = prices.arithmetic(node for node in cone if not at_hand(node))
    transfers = (written + len(readers)) * prices.transfer(size, size)
    return choose(prices, Way(transfers, waiting=prices.phase), Way(moved, len(readers) * computed))
