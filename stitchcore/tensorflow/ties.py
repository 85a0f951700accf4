"""Which unknown sizes TensorFlow itself demands to be equal.

A kernel may check at run time that two sizes agree only where TensorFlow's own step would fail
otherwise; any other check would end a step that ran before (rulings 8). Shape inference is the
witness: sizes are varied one by one, and those that it refuses to see differ are tied. Three kinds:

- free: inference accepts any size of it beside the others';
- tied: it refuses the size to differ, 1 included, until the rest of its group differs alike;
- broadcast: it refuses another size but accepts 1, because an operation broadcasts. Equality is not
  proven, so it stays a symbol of its own; what depends on the broadcast has no known size.

Most sizes meet in pairs (the batch of every feature of a recommender): those are found first, one
by one against each group with all other sizes unknown. What is then left to search is small.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stitchcore.errors import Reason, Refused

BASE, OTHER = 24, 40
MOST_TIED = 8
"""Groups that must equal others: beyond it the subsets are too many to try."""

Accepts = Callable[[Mapping[str, int]], bool]
"""Whether inference accepts these sizes; a name that is not given is unknown to it."""
Group = tuple[str, ...]


@dataclass(frozen=True)
class Ties:
    """`leader` maps each name to the first of its group; `broadcast` are leaders that may be 1 but
    not another size beside the others."""

    leader: Mapping[str, str]
    broadcast: frozenset[str]


def tie(names: Sequence[str], accepts: Accepts) -> Ties:
    """Groups of `names`, by what inference `accepts`; all equal must be accepted.

    Raises Refused(GUARD_FAILED) where the demand is none of the three kinds.
    """

    def beside(group: Sequence[str], size: int) -> bool:
        return accepts({name: size if name in group else BASE for name in names})

    leader = {name: name for name in names}
    broadcast: set[str] = set()
    bound: list[Group] = []
    for group in _met(names, accepts):
        leader |= dict.fromkeys(group, group[0])
        if beside(group, OTHER):
            continue
        if beside(group, 1):
            broadcast.add(group[0])
        else:
            bound.append(group)
    if len(bound) > MOST_TIED:
        detail = f"{len(bound)} unknown sizes depend on one another"
        raise Refused("graph", Reason.GUARD_FAILED, detail)
    while bound:
        parts = _group(bound, beside)
        group = tuple(itertools.chain.from_iterable(parts))
        leader |= dict.fromkeys(group, group[0])
        if not beside(group, OTHER):
            broadcast.add(group[0])
        bound = [part for part in bound if part not in parts]
    return Ties(leader, frozenset(broadcast))


def _met(names: Sequence[str], accepts: Accepts) -> list[Group]:
    """Groups of sizes that inference refuses to differ whatever all others are, 1 included."""
    found: list[Group] = []
    for name in names:
        for position, group in enumerate(found):
            known = dict.fromkeys(group, BASE)
            if not accepts({**known, name: OTHER}) and not accepts({**known, name: 1}):
                found[position] = (*group, name)
                break
        else:
            found.append((name,))
    return found


def _group(bound: Sequence[Group], beside: Callable[[Sequence[str], int], bool]) -> list[Group]:
    """The fewest of `bound`, its first among them, that may differ from all others together."""
    first, *rest = bound
    for count in range(1, len(bound)):
        for others in itertools.combinations(rest, count):
            parts = [first, *others]
            group = tuple(itertools.chain.from_iterable(parts))
            if beside(group, OTHER) or beside(group, 1):
                return parts
    detail = "unknown sizes depend on one another in a way that is no equality"
    raise Refused("graph", Reason.GUARD_FAILED, detail)


def points(names: Sequence[str], broadcast: frozenset[str]) -> tuple[dict[str, int], ...]:
    """Sizes at which shapes are inferred: each leader changed alone, and all changed together."""
    base = {name: BASE if name in broadcast else BASE + 6 * k for k, name in enumerate(names)}
    found = [base]
    for k, name in enumerate(names):
        found.append({**base, name: 1 if name in broadcast else OTHER + 10 * k})
    for step in (1, 2):
        size = OTHER + 16 * step
        found.append(
            {n: size if n in broadcast else size + 14 * step * k for k, n in enumerate(names)}
        )
    return tuple(found)
