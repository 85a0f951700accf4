"""A kernel's small twin that takes the same decisions, for the interpreter (docs/decisions.md 25).

The pattern's sizes shrink (tests/fuzz/shrink.py) and so do the limits that the scheduler holds them
against: toy limits are searched until every decision of the twin is that of the kernel itself.
Interpreting the twin then runs what the kernel runs at full size, in every task, lane and phase.

`python -m tests.schedule.twins [NAME...]` does so for each kernel of the workload modules and
writes bench/results/raw/twins.json after each module.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.record import RESULTS, raw, write_figures
from stitchcore.compiler.pipeline import run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState
from stitchcore.device.host import host_device
from stitchcore.device.records import Device
from stitchcore.fusion.canonical import outlined
from stitchcore.fusion.cost import prices_of
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.text import bodies
from stitchcore.hlo.ir.instruction import Instruction, topological
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.interpreter import KernelError, Race, interpret
from stitchcore.loop_ir.nodes import (
    Accumulate,
    Accumulator,
    Allocate,
    Apply,
    Barrier,
    Expression,
    If,
    Kernel,
    LaneReduce,
    Let,
    Load,
    Loop,
    Prefetch,
    Section,
    Statement,
    Store,
)
from stitchcore.runtime.module import buffers
from stitchcore.schedule import axes as axis_analysis
from stitchcore.schedule import dominants as dominant
from stitchcore.schedule import limits as scheduling
from stitchcore.schedule import sections
from stitchcore.schedule.axes import Axes
from stitchcore.schedule.context import SectionContext
from stitchcore.schedule.pipeline import schedule
from stitchcore.schedule.tiling import Geometry
from stitchcore.schedule.values import Names
from stitchcore.verify.kernel import KernelCheck, check_kernel
from tests.fuzz.shrink import shrink
from tests.hlo import workloads

FIGURES = raw(RESULTS / "twins.json")

TOYS: Mapping[str, tuple[int, ...]] = {
    "task_elements": (256, 16, 24, 32, 48, 64, 96, 128, 192, 512, 1024, 4096, 16384),
    "inline_size": (8, 2, 4),
    "lane_block": (4096, 16, 64, 256),
    "enough_tasks": (32, 5, 12),
    "max_splits": (64, 4, 16),
    "max_part_rows": (512, 2, 8, 32),
    "chain_elements": (1024, 8, 64),
    "row_elements": (2048, 1, 32, 64, 128),
    "few_rows": (32, 3, 10),
    "long_row": (65536, 16, 256, 1024),
    "local_bytes": (262144, 128, 1024, 8192),
    "warp_elements": (8, 16, 64, 256),
    "run_lanes": (1, 2, 8, 32),
    "flat_below": (2, 4, 8, 16, 64),
    "register_elements": (1, 2, 4, 8, 16),
    "register_words": (4, 8, 16, 32),
    "strided_terms": (1, 64, 1024),
}
"""Toy values of schedule/limits.py, in the order of trying."""

PLANNING = frozenset(TOYS) - {
    "run_lanes",
    "flat_below",
    "register_elements",
    "register_words",
    "chain_elements",
    "row_elements",
    "local_bytes",
}
"""Limits that schemes, phases, homes and mappings turn on; the others, statements only."""

SIZES = ((8, 0), (16, 0), (8, 32), (8, 8), (8, 4), (48, 0), (128, 0), (1040, 0))
"""What sizes shrink to, at least, and the part of them that is left, at least (0: any): a product
of extents may need some room between two limits, and some must stay far apart."""

INTERPRETABLE = 2_000_000
"""Elements of all values together that the interpreter works through in about a minute."""

QUICK = 300_000
"""Elements of all values together of which larger sizes are taken rather than toy limits."""

LARGEST_DIFF = 100_000
"""Pairs of statements up to which a diff takes milliseconds."""

Size = tuple[int, int]
Limits = dict[str, int]
Found = tuple[Size, Limits]
"""What made a twin decide alike."""

Decisions = tuple[tuple[Any, ...], ...]
"""Of values, of sections as planned, of phases, and of each section as lowered."""


@contextmanager
def toy(limits: Limits) -> Iterator[None]:
    """The scheduler with other limits than its own."""
    own = scheduling.of
    scheduling.of = lambda *given: replace(own(*given), **limits)
    try:
        yield
    finally:
        scheduling.of = own


# ---- decisions -----------------------------------------------------------------------------------
def decisions(pattern: Pattern, module: Module, device: Device) -> tuple[Decisions, Kernel]:
    """All that was decided: what `planned` says, and the statements that each section became."""
    kernel = schedule(pattern, module, device, "twin", verify=True)
    lengths = tuple((number, len(phase.sections)) for number, phase in enumerate(kernel.phases))
    parts = [part for phase in kernel.phases for part in phase.sections]
    axes = axis_analysis.analyse(pattern)
    return (*planned(pattern, axes, device), lengths, *map(_skeleton, parts)), kernel


def planned(pattern: Pattern, axes: Axes, device: Device) -> Decisions:
    """Scheme of each reduction, phase and kind of home of each value; the sinks and mapping of
    each section."""
    dominants = dominant.find(pattern, axes, scheduling.of(device))
    plan = sections.assign(
        pattern, axes, dominants, prices_of(pattern, device), scheduling.of(device)
    )
    context = SectionContext(
        axes,
        dominants,
        plan,
        {},
        {},
        Names(frozenset()),
        device,
        prices_of(pattern, device),
        [],
    )
    states: list[Any] = []
    for number, value in enumerate(pattern.instructions):
        state = dominants.states[value]
        home = state.home.kind if state.home is not None else None
        single = value in dominants.single
        states.append((number, dominants.schemes.get(value), state.phase, home, single))
    mapped: list[Any] = []
    for section in itertools.chain(*plan.phases):
        sinks = tuple((sink.kind, sink.number) for sink in section.sinks)
        mapped.append((sinks, section.rows is None, section.loops is None, section.combines))
        mapped.append(_mapping(context.geometry(section)))
    return tuple(states), tuple(mapped)


def _mapping(geometry: Geometry) -> tuple[Any, ...]:
    """What kind of tasks: which loops are cut, not how often."""
    return (
        len(geometry.kept),
        len(geometry.rows),
        geometry.rows_per_task != 1,
        geometry.chunks != 1,
        geometry.lane is not None,
        geometry.lane_block is not None,
        geometry.lane_blocks != 1,
        geometry.scope,
    )


def _skeleton(section: Section) -> tuple[Any, ...]:
    """The statements of a section without its numbers; cache hints aside."""

    def walk(body: Sequence[Statement]) -> Iterator[Any]:
        for statement in body:
            match statement:
                case Loop():
                    yield ("loop", statement.kind, *walk(statement.body), "end")
                case If():
                    yield ("if", *walk(statement.body), "end")
                case Let(_, value):
                    yield ("let", *_shape_of(value))
                case Store(buffer, _, value):
                    yield ("store", buffer.role, buffer.dtype, *_shape_of(value))
                case Accumulator(_, reducer) | LaneReduce(_, reducer, _):
                    yield (type(statement).__name__, reducer)
                case Accumulate(_, reducer, value):
                    yield ("accumulate", reducer, *_shape_of(value))
                case Allocate(buffer):
                    yield ("allocate", buffer.dtype)
                case Barrier():
                    yield "barrier"
                case Prefetch():
                    pass
                case _:
                    yield type(statement).__name__

    tasks = ("tasks", section.tasks != 1, section.scope, section.elements_per_lane)
    return (tasks, *walk(section.body))


def _shape_of(value: Expression) -> Iterator[Any]:
    match value:
        case Load(buffer, _):
            yield ("load", buffer.role)
        case Apply(opcode, operands, dtype, _):
            yield (opcode, dtype)
            for operand in operands:
                yield from _shape_of(operand)
        case _:
            yield type(value).__name__


# ---- twins ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Twin:
    """A pattern at small sizes with the limits under which it is scheduled like the large one.

    `differing` decisions are none where the twin is one; `size` is (0, 0) where nothing shrank."""

    pattern: Pattern
    module: Module
    kernel: Kernel
    limits: Limits
    differing: tuple[Any, ...]
    size: Size = (0, 0)

    @property
    def found(self) -> Found:
        return self.size, self.limits


def alone(pattern: Pattern) -> tuple[Module, Pattern]:
    """`pattern` as a module of its own, and as a pattern of that, in the same order. What none of
    its outputs needs is left out."""
    whole, made = outlined(pattern, None)
    live = frozenset(topological((whole.entry.root,)))
    needed = tuple(node for node in pattern.instructions if made[node] in live)
    return whole, _mapped(Pattern(needed, pattern.inputs, pattern.outputs), made)


def _mapped(pattern: Pattern, made: Mapping[Instruction, Instruction]) -> Pattern:
    parts = (pattern.instructions, pattern.inputs, pattern.outputs)
    return Pattern(*(tuple(made[value] for value in part) for part in parts))


def twin_of(
    pattern: Pattern, device: Device, known: Sequence[Limits] = (), before: Found | None = None
) -> Twin:
    """The twin found `before`, if it is one still; else the smallest twin of a static pattern that
    its own limits, `known` ones (other kernels' twins have them) or else some toy limits make
    decide alike; else the pattern itself, where it can be interpreted, or the twin that came
    nearest."""
    whole, inside = alone(pattern)
    wanted, _ = decisions(inside, whole, device)
    before = before if before and before[0] in SIZES else None
    tries = [(before[0], [before[1]])] if before else []
    tries += [(size, [{}, *known]) for size in SIZES]
    small: dict[Size, tuple[Pattern, Module]] = {}
    for size, several in tries:
        shrunk = shrink(whole, *size)
        small[size] = _mapped(inside, shrunk.made), shrunk.module
        for limits in several if before or _elements(small[size][0]) <= QUICK else ():
            twin = _attempt(wanted, *small[size], device, limits)
            if not twin.differing:
                return replace(twin, size=size)
        before = None
    best: Twin | None = None
    for size in SIZES:
        twin = replace(_searched(wanted, *small[size], device), size=size)
        if best is None or len(twin.differing) < len(best.differing):
            best = twin
        if not twin.differing:
            break
    assert best is not None
    if best.differing and _elements(inside) <= INTERPRETABLE:
        return _searched(wanted, inside, whole, device)
    return best


def twins_of(
    patterns: Sequence[Pattern], device: Device, before: Sequence[Found] = ()
) -> Iterator[Twin]:
    """A twin of each, with what was learnt from those before it: limits that serve one kernel serve
    many of its module. `before` are what was found for the module another time, in order."""
    known = [dict(one) for one in dict.fromkeys(tuple(limits.items()) for _, limits in before)]
    for pattern, found in itertools.zip_longest(patterns, before[: len(patterns)]):
        twin = twin_of(pattern, device, known, found)
        if twin.limits and not twin.differing and twin.limits not in known:
            known.insert(0, twin.limits)
        yield twin


def with_other_blocks(twin: Twin, device: Device) -> Iterator[Kernel]:
    """The twin's kernel with other numbers of rows in a block and in a task, so that some block
    has one row: where rows follow each other, what orders them orders more than that."""
    wanted, tasks = _skeletons(twin.kernel), twin.limits.get("task_elements", 256)
    for size, elements in itertools.product((tasks, tasks * 3 // 2), range(16, 256, 8)):
        with toy({**twin.limits, "task_elements": size, "row_elements": elements}):
            kernel = schedule(twin.pattern, twin.module, device, "twin", verify=True)
        if kernel != twin.kernel and _skeletons(kernel) == wanted:
            yield kernel


def _skeletons(kernel: Kernel) -> list[tuple[Any, ...]]:
    return [_skeleton(section) for phase in kernel.phases for section in phase.sections]


def _elements(pattern: Pattern) -> int:
    return sum(node.shape.size for node in pattern.instructions)


def _searched(wanted: Decisions, pattern: Pattern, module: Module, device: Device) -> Twin:
    """Limits that plan alike, which is quick to see, then those that make alike statements."""

    def attempt(limits: Limits) -> Twin:
        return _attempt(wanted, pattern, module, device, limits)

    names = [name for name in TOYS if getattr(scheduling.of(device), name)]
    start = _planning(wanted[:2], pattern, device, names)
    best, before = attempt(start), -1
    while best.differing and len(best.differing) != before:
        before = len(best.differing)
        for name in names:
            for value in TOYS[name]:
                twin = attempt({**best.limits, name: value})
                if not twin.differing:
                    return twin
                if len(twin.differing) < len(best.differing):
                    best = twin
    return best


def _planning(wanted: Decisions, pattern: Pattern, device: Device, names: Sequence[str]) -> Limits:
    """The limits that plan most like it: changed one at a time, keeping what comes nearer, and two
    at a time where that ends, since a lane is cut by one limit and its row by another."""
    axes = axis_analysis.analyse(pattern)

    def apart(limits: Limits) -> int:
        with toy(limits):
            return sum(1 for _ in _unequal(wanted, planned(pattern, axes, device)))

    singles = [{name: value} for name in names if name in PLANNING for value in TOYS[name]]
    pairs = [{**a, **b} for a, b in itertools.combinations(singles, 2) if a.keys() != b.keys()]
    best: Limits = {}
    least, before = apart(best), -1
    while least and least != before:
        before = least
        for changes in (singles, pairs):
            for change in changes if least == before else ():
                found = apart({**best, **change})
                if found < least:
                    best, least = {**best, **change}, found
                if not least:
                    return best
    return best


def _attempt(
    wanted: Decisions, pattern: Pattern, module: Module, device: Device, limits: Limits
) -> Twin:
    with toy(limits):
        found, kernel = decisions(pattern, module, device)
    return Twin(pattern, module, kernel, limits, tuple(_unequal(wanted, found)))


def _unequal(wanted: Decisions, found: Decisions) -> Iterator[Any]:
    """Decisions that only one of them has, or that differ at one place; none where all are equal.

    Section by section: a diff of the whole takes seconds for kernels of a hundred sections, and
    many of them are alike."""
    for ours, theirs in itertools.zip_longest(wanted, found, fillvalue=()):
        if ours != theirs:
            yield from _apart(ours, theirs)


@functools.lru_cache(maxsize=4096)
def _apart(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> tuple[Any, ...]:
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
    same = sum(1 for _ in alike)
    ours, theirs = ours[same:], theirs[same:]
    if len(ours) * len(theirs) > LARGEST_DIFF:
        return tuple(itertools.zip_longest(ours, theirs))
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    pairs: list[Any] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            pairs += itertools.zip_longest(ours[a:b], theirs[c:d])
    return tuple(pairs)


def interpreted(twin: Twin, seed: int = 0) -> KernelCheck:
    """The twin's kernel in the interpreter, judged. Raises Race and KernelError."""
    random = np.random.default_rng(seed)

    def run(given: Sequence[Any]) -> Sequence[Any]:
        made = interpret(twin.kernel, buffers(twin.kernel, given, {}), {}, random)
        outputs = zip(made, twin.pattern.outputs, strict=True)
        return [array.reshape(value.shape.static) for array, value in outputs]

    return check_kernel(twin.pattern, twin.module, run, {})


# ---- whole modules -------------------------------------------------------------------------------
def patterns_of(name: str, device: Device) -> list[Pattern]:
    """One pattern of each distinct kernel of a workload's entry and of its loop bodies."""
    state = ModuleState(workloads.module(name), device, BuildOptions())
    state = run(PLANNED, state)
    assert state.plan is not None
    plans = [(state.plan, state.of)]
    plans += [(plan, state.inner[body]) for body, plan in bodies(state.plan).items()]
    found: dict[int, Pattern] = {}
    for plan, of in plans:
        for number, pattern in zip(of, plan.patterns, strict=True):
            found.setdefault(number, pattern)
    return list(found.values())


def figures(name: str, device: Device) -> dict[str, Any]:
    """How many kernels of a workload have a twin that decides alike, and agree on it."""
    start = time.perf_counter()
    counts = Counter({"kernels": 0, "decide alike": 0, "right": 0})
    wrong = []
    for number, twin in enumerate(twins_of(patterns_of(name, device), device)):
        counts["kernels"] += 1
        counts["decide alike"] += not twin.differing
        try:
            found = interpreted(twin)
        except (Race, KernelError) as error:
            wrong.append(f"{number}: {error}")
            continue
        counts["right"] += found.passed
        counts["informative"] += found.informative
        if not found.passed or twin.differing:
            wrong.append(f"{number}: {found} {twin.differing[:1]}"[:400])
    return {**counts, "wrong": wrong, "seconds": time.perf_counter() - start}


def main() -> None:
    for name in sys.argv[1:] or workloads.NAMES:
        found = figures(name, host_device())
        print(name, found, flush=True)
        results = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        write_figures(FIGURES, dict(sorted({**results, name: found}.items())))


if __name__ == "__main__":
    main()
