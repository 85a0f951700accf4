"""The mechanisms of the three papers that can be left out: to see what each is worth, and for tests
of what one claims (`--without`, `STITCH_WITHOUT`).

Planners and scheduler are told which they may use; nothing else of a build knows them. A plan
without one is right like any other, only slower.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Mechanism(Enum):
    """Each by the word that switches it off."""

    DOMINANT_MERGING = "dominant_merging"
    RECOMPUTE = "recompute"
    REMOTE = "remote"
    ADAPTIVE_MAPPING = "atm"
    GLOBAL = "global"
    REGIONAL = "regional"
    GEMM = "gemm"
    ALIASING = "aliasing"
    SEARCH = "search"


SUMMARIES = {
    Mechanism.DOMINANT_MERGING: "what a phase leaves over the same loops shares them, with loads "
    "and subexpressions (AStitch, dominant merging)",
    Mechanism.RECOMPUTE: "what is dearer to read than to compute is computed again, in another "
    "kernel, phase or loop",
    Mechanism.REMOTE: "kernels that no data connects become one (FusionStitching 2020, kernel "
    "packing; AStitch, remote stitching)",
    Mechanism.ADAPTIVE_MAPPING: "tasks are packed and split by rows and columns (AStitch)",
    Mechanism.GLOBAL: "what reads a reduction over tasks goes on in the same kernel, across a "
    "barrier (AStitch, global stitching)",
    Mechanism.REGIONAL: "what reads a row's reduction goes on in the same task (FusionStitching "
    "2020, block composition; AStitch, regional stitching)",
    Mechanism.GEMM: "products of small matrices are computed in kernels (FusionStitching 2019)",
    Mechanism.ALIASING: "outputs take over the memory of inputs that die",
    Mechanism.SEARCH: "schedules and launch dimensions are searched, and taken from a library of "
    "those found before (FusionStitching 2018 and 2020)",
}

Mechanisms = frozenset[Mechanism]
ALL: Mechanisms = frozenset(Mechanism)


def without(words: Iterable[str]) -> Mechanisms:
    """All but those named. Raises ValueError, which names the others, for a word that is none."""
    named = set(words)
    known = {mechanism.value for mechanism in Mechanism}
    if named - known:
        raise ValueError(
            f"{', '.join(sorted(named - known))}: no mechanism; there is {', '.join(sorted(known))}"
        )
    return frozenset(mechanism for mechanism in Mechanism if mechanism.value not in named)


def words(mechanisms: Mechanisms) -> tuple[str, ...]:
    """The words of those left out, in one order: part of keys; empty where none is."""
    return tuple(sorted(mechanism.value for mechanism in ALL - mechanisms))
