"""Other plans of a region: the same instructions cut into kernels elsewhere.

For measuring what the estimate cannot tell (`stitch tune`) and for judging the estimate
(bench/ranking.py). A region is a module that one kernel computes whole.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from stitchcore.device.records import Device
from stitchcore.fusion import candidates
from stitchcore.fusion.canonical import pattern_text
from stitchcore.fusion.pattern import Feasibility, Pattern
from stitchcore.fusion.pattern_from_set import Extractor
from stitchcore.hlo.ir.module import Module

ALONE = 24
"""Regions of at most so many placed instructions are also cut into each alone."""

DRAWS, PARTS = 40, 6
"""Random cuts that are tried, and the most parts of one."""

Cut = tuple[Pattern, ...]


def alternatives(module: Module, device: Device, feasible: Feasibility, most: int) -> Iterator[Cut]:
    """At most `most` different cuts of `module` whose every kernel is feasible, each in a runnable
    order: one kernel, two and four where least is carried over, each instruction alone, and cuts at
    places drawn from a generator that depends on the region alone."""
    graph = candidates.build(module, {})
    extractor = Extractor(graph)
    members = tuple(graph.placed())
    draw = random.Random(pattern_text(extractor.pattern(members)))
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for parts in _partitions(members, extractor, draw):
        if parts in seen:
            continue
        seen.add(parts)
        read = {v for part in parts for v in extractor.closure(part, frozenset())[1]}
        cut = tuple(extractor.pattern(part, read=read) for part in parts)
        if all(feasible(pattern, device) is None for pattern in cut):
            yield cut
        if len(seen) == most:
            return


def _partitions(
    members: tuple[int, ...], extractor: Extractor, draw: random.Random
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """`members` are in topological order, so what is cut off never reads what follows it."""
    yield (members,)
    if len(members) < 2:
        return
    halves = extractor.halves(members)
    yield halves
    if len(members) <= ALONE:
        yield tuple((v,) for v in members)
    if all(len(half) > 1 for half in halves):
        yield tuple(part for half in halves for part in extractor.halves(half))
    for _ in range(DRAWS):
        count = draw.randint(1, min(len(members), PARTS) - 1)
        bounds = [0, *sorted(draw.sample(range(1, len(members)), count)), len(members)]
        yield tuple(members[a:b] for a, b in itertools.pairwise(bounds))
