"""Lane loops of concatenations, a loop for each operand: index-set splitting, and unswitching.

A concatenation that is read element by element is a choice between its operands for each lane. Cut
where the choice changes, each stretch of lanes has one operand and no choice, so that it is as long
as what it computes, however many operands there are. Where the operands lie one after another in
rows all lanes of a row choose alike, and the row has a loop for each choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Binary, Index, Range, Variable
from stitchcore.loop_ir.nodes import (
    Apply,
    Expression,
    InRange,
    Let,
    Literal,
    Loop,
    Scalar,
    Statement,
)
from stitchcore.loop_ir.visitor import expressions, mapped, own_scalars, statements

MOST = 256
"""Loops that one becomes; where there would be more, lanes choose."""

FEW = 3
"""Operands that lanes choose from without a branch."""


def stretches(loop: Loop, ranges: Mapping[str, Range]) -> list[Loop]:
    """Parts of a lane loop within which the InRange tests on its variable do not change, each with
    what these decide left out. The whole loop where its bounds are symbolic. `ranges` are those of
    the variables around it."""
    begin, end = loop.begin, loop.end
    if not (isinstance(begin, int) and isinstance(end, int)) or begin >= end:
        return [loop]
    cuts = {begin, end}
    for node in expressions(loop.body):
        if isinstance(node, InRange):
            offset = _offset(node.index, loop.variable)
            for limit in (node.low, node.high):
                if offset is not None and isinstance(limit, int) and begin < limit - offset < end:
                    cuts.add(limit - offset)
    if not 2 < len(cuts) <= MOST + 1:
        return [loop]
    return [
        replace(
            loop,
            begin=first,
            end=last,
            body=_decided(loop.body, {**ranges, loop.variable: (first, last - 1)}),
        )
        for first, last in itertools.pairwise(sorted(cuts))
    ]


def alternatives(loop: Loop) -> list[tuple[Scalar | None, Loop]]:
    """A lane loop for each operand that all its lanes choose alike, with the condition that holds
    where it, and none before it, is to run (None: any other). Empty where they choose between few:
    taking one of a few values costs less than a branch."""
    own = {s.scalar: s.value for s in statements(loop.body) if isinstance(s, Let)}
    chains = (_chain(node, own) for node in expressions(loop.body))
    conditions = max(chains, key=len, default=())
    if not FEW <= len(conditions) < MOST:
        return []
    cases: list[tuple[Scalar | None, Loop]] = []
    known: dict[Scalar, bool] = {}
    for condition in conditions:
        cases.append((condition, chosen(loop, {**known, condition: True})))
        known[condition] = False
    return [*cases, (None, chosen(loop, known))]


def _chain(node: Expression, own: Mapping[Scalar, Expression]) -> tuple[Scalar, ...]:
    """Conditions from outside of the loop by which one choice after another is made; `own` are what
    the loop's scalars are."""
    found: list[Scalar] = []
    while isinstance(node, Apply) and node.opcode == op.SELECT:
        condition, _, node = node.operands
        if isinstance(node, Scalar):
            node = own.get(node, node)
        if not isinstance(condition, Scalar) or condition in own:
            break
        found.append(condition)
    return tuple(found)


def chosen(loop: Loop, known: Mapping[Scalar, bool]) -> Loop:
    """A lane loop where the scalars that are `known` are so."""

    def decide(node: Expression) -> Expression:
        if isinstance(node, Scalar) and node in known:
            return Literal(known[node], "pred")
        return node

    return replace(loop, body=_decided(mapped(loop.body, expression=decide), {}))


def _offset(node: Index, variable: str) -> int | None:
    """c when `node` is variable + c."""
    if node == Variable(variable):
        return 0
    if isinstance(node, Binary) and node.operator == "+" and isinstance(node.right, int):
        return node.right if node.left == Variable(variable) else None
    return None


def _decided(body: Sequence[Statement], ranges: Mapping[str, Range]) -> tuple[Statement, ...]:
    """`body` with the tests that `ranges` decide, the choices by them, what is known then, and
    without what no choice takes any more."""
    known: dict[Scalar, Expression] = {}
    positive: set[Expression] = set()
    """Sums that are no negative zero, for one of their terms is none."""
    made: set[Expression] = set()
    decided: list[Statement] = []

    def decide(node: Expression) -> Expression:
        match node:
            case Scalar():
                return known.get(node, node)
            case InRange():
                inside = _inside(node, ranges)
                return node if inside is None else Literal(inside, "pred")
            case Apply(op.AND, (Literal(value), other), "pred") | Apply(
                op.AND, (other, Literal(value)), "pred"
            ):
                return other if value else Literal(False, "pred")
            case Apply(op.SELECT, (Literal(value), chosen, other)):
                return chosen if value else other
            case Apply(op.COMPARE, (Literal(left, dtype), Literal(right))) if _is_integer(dtype):
                attributes = dict(node.attributes)
                sides = [np.asarray(value, DTYPES[dtype].numpy) for value in (left, right)]
                return Literal(bool(op.compute(op.COMPARE, sides, "pred", attributes)), "pred")
            case Apply(op.ADD, (total, Literal(0.0))) if total in positive or _is_zero(total):
                return total
        return node

    for statement in body:
        (after,) = mapped((statement,), expression=decide)
        if isinstance(after, Let):
            made.add(after.scalar)
            if isinstance(after.value, Literal) or after.value in made:
                known[after.scalar] = after.value
            if isinstance(after.value, Apply) and after.value.opcode == op.ADD:
                if any(term in positive or _is_zero(term) for term in after.value.operands):
                    positive.add(after.scalar)
        decided.append(after)
    used: set[Scalar] = set()
    needed: list[Statement] = []
    for statement in reversed(decided):
        if isinstance(statement, Let) and statement.scalar not in used:
            continue
        used.update(scalar for inner in statements((statement,)) for scalar in own_scalars(inner))
        needed.append(statement)
    return tuple(reversed(needed))


def _is_zero(node: Expression) -> bool:
    """Whether `node` is a zero, and no negative one."""
    return isinstance(node, Literal) and node.value == 0 and math.copysign(1, node.value) > 0


def _is_integer(dtype: str) -> bool:
    return DTYPES[dtype].kind in ("signed", "unsigned")


def _inside(node: InRange, ranges: Mapping[str, Range]) -> bool | None:
    """Whether the index is in range for all values of the variables, or for none; else None."""
    at, low, high = (index.bounds(part, ranges) for part in (node.index, node.low, node.high))
    if at is None or low is None or high is None:
        return None
    if at[0] >= low[1] and at[1] < high[0]:
        return True
    return False if at[1] < low[0] or at[0] >= high[1] else None
