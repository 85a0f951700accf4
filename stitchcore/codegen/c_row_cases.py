"""Lane loops of the cases that most rows are: unswitching by what pads leave of a row.

Which elements of a window lie outside, and which of a gradient's windows end where a stride does,
is the same for all lanes of a row: each is a choice by a condition from around the loop. Every
second row may choose alike. Such a case has a loop of its own, which does not load what it does not
choose, and only the rows of no common case choose lane by lane. Where common cases load nearly all
of it choices cost less than loops do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stitchcore.codegen.c_stretches import chosen
from stitchcore.hlo.ir import opcodes as op
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Range
from stitchcore.loop_ir.nodes import Apply, Expression, InRange, Let, Literal, Loop, Scalar
from stitchcore.loop_ir.visitor import expressions, loads, statements

LEAST_CONDITIONS, MOST_CONDITIONS = 3, 32
"""Conditions of a loop: with fewer there is little to leave out, more are no number's bits."""

LEAST_SHARE, MOST_CASES = 1 / 16, 6
"""Of all rows, those that a case is worth a loop for; and how many cases."""

MOST_LOADS = 0.75
"""Of a loop's loads, those that its common cases have."""

MOST_VALUES = 2048
"""Of the variables that conditions depend on, together, and of what they decide together."""


@dataclass(frozen=True)
class Case:
    """A loop for the rows where bit i of the number is condition i."""

    number: int
    loop: Loop


@dataclass(frozen=True)
class Cases:
    """The `common` cases by these conditions; `all_rows` are of one of them or not."""

    conditions: tuple[Scalar, ...]
    common: tuple[Case, ...]
    all_rows: bool


def cases(
    loop: Loop, outside: Mapping[Scalar, Expression], ranges: Mapping[str, Range]
) -> Cases | None:
    """The common cases of a lane loop, if most rows are of one. `outside` are conditions defined
    around it, `ranges` those of the variables that they depend on."""
    own = {s.scalar for s in statements(loop.body) if isinstance(s, Let)}
    used = (node for node in expressions(loop.body) if isinstance(node, Scalar))
    conditions = tuple(dict.fromkeys(s for s in used if s in outside and s not in own))
    if not LEAST_CONDITIONS <= len(conditions) <= MOST_CONDITIONS:
        return None
    shares = _shares([outside[condition] for condition in conditions], outside, ranges)
    if shares is None:
        return None
    rows = sum(shares.values())
    common = [c for c in shares.most_common(MOST_CASES) if c[1] >= LEAST_SHARE * rows]
    covered = sum(count for _, count in common)
    if 2 * covered < rows:
        return None
    found = [
        Case(
            sum(truth << bit for bit, truth in enumerate(truths)),
            chosen(loop, dict(zip(conditions, truths, strict=True))),
        )
        for truths, _ in common
    ]
    pairs = zip(found, common, strict=True)
    loaded = sum(len([*loads(case.loop.body)]) * count for case, (_, count) in pairs)
    if loaded > MOST_LOADS * covered * len([*loads(loop.body)]):
        return None
    return Cases(conditions, tuple(found), covered == rows)


def _shares(
    conditions: Sequence[Expression],
    outside: Mapping[Scalar, Expression],
    ranges: Mapping[str, Range],
) -> Counter[tuple[bool, ...]] | None:
    """How many rows have each combination of truths; None where it is not known."""
    tests = [*dict.fromkeys(_tests(conditions, outside))]
    groups: dict[str, list[InRange]] = {}
    for test in tests:
        variables = frozenset.union(*map(index.names, (test.index, test.low, test.high)))
        if len(variables) != 1 or not variables <= ranges.keys():
            return None
        groups.setdefault(min(variables), []).append(test)
    spans = [range(ranges[v][0], ranges[v][1] + 1) for v in groups]
    if sum(map(len, spans)) > MOST_VALUES:
        return None
    decided: list[Counter[tuple[tuple[InRange, bool], ...]]] = [
        Counter(tuple((test, _holds(test, {variable: value})) for test in group) for value in span)
        for (variable, group), span in zip(groups.items(), spans, strict=True)
    ]
    count = 1
    for each in decided:
        count *= len(each)
    if count > MOST_VALUES:
        return None
    shares: Counter[tuple[bool, ...]] = Counter()
    for combination in itertools.product(*(each.items() for each in decided)):
        known = {test: truth for truths, _ in combination for test, truth in truths}
        rows = 1
        for _, times in combination:
            rows *= times
        truths = [_truth(condition, known, outside) for condition in conditions]
        if any(truth is None for truth in truths):
            return None
        shares[tuple(map(bool, truths))] += rows
    return shares


def _tests(conditions: Sequence[Expression], outside: Mapping[Scalar, Expression]) -> list[InRange]:
    found: list[InRange] = []
    for condition in conditions:
        match condition:
            case InRange():
                found.append(condition)
            case Apply():
                found += _tests(condition.operands, outside)
            case Scalar() if condition in outside:
                found += _tests([outside[condition]], outside)
    return found


def _holds(test: InRange, at: Mapping[str, int]) -> bool:
    position, low, high = (index.evaluate(i, at) for i in (test.index, test.low, test.high))
    return low <= position < high


def _truth(
    node: Expression, known: Mapping[InRange, bool], outside: Mapping[Scalar, Expression]
) -> bool | None:
    """What a condition is, None where it is made of something else."""
    match node:
        case Literal(value, "pred"):
            return bool(value)
        case InRange():
            return known[node]
        case Scalar() if node in outside:
            return _truth(outside[node], known, outside)
        case Apply(op.NOT, (inner,)):
            truth = _truth(inner, known, outside)
            return None if truth is None else not truth
        case Apply(op.AND | op.OR, (left, right)):
            both = _truth(left, known, outside), _truth(right, known, outside)
            if None in both:
                return None
            return all(both) if node.opcode == op.AND else any(both)
        case Apply(op.SELECT, (condition, first, second), "pred"):
            truth = _truth(condition, known, outside)
            if truth is None:
                return None
            return _truth(first if truth else second, known, outside)
    return None
