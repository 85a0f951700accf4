"""Which unknown sizes go together, learned by asking TensorFlow's shape inference.

Sizes are given one after another, each a prime of its own, the later ones left unknown. One that
inference refuses beside those before it is tried, in this order, as equal to another, as a small
size (as many places as a table of positions has at the most), as a multiple of a small number (a
batch that is cut in parts), as one of the numbers that the graph has for sizes (a recurrent step by
hand, whose state is made for batches of 4), with two of those before it made equal, or twice two
(rows and columns as many as those of another), as the half, double, ... of another, as one more or
one less than another (the splits of ragged rows beside a batch), as sum or difference of two, as
equal to another with two of those before it made equal, or with one of them made one more or one
less than that other. Primes keep coincidences out: no double or half of some is another, nor is any
a part of one of those numbers; sums, differences and numbers must do at other primes as well. Of a
difference the larger one becomes the sum of both others.

What is then equal is *demanded* where inference refuses 1 for the one as for the other: the step
would fail in TensorFlow too. Else (one broadcasts against the other, or the relation is no
equality) it is *assumed*: whoever relies on it checks it at run time and falls back to TensorFlow's
operations (patch.py). A size that fits nowhere stays unknown; the graph is never refused for it.

A question costs an import of the graph, and there is a bound on them. What could not be placed
within it is assumed to be as most others are, all in one question; whether equality is demanded is
asked last, and assumed where there is no question left.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir.dim import Dim

Accepts = Callable[[Mapping[str, int]], bool]
"""Whether inference accepts these sizes; a name that is not given is unknown to it."""

UNITS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16, 20, 24, 32, 40, 48, 64, 96, 120, 128, 840)
"""Numbers that a size may have to be a multiple of."""
ALL_UNITS = math.lcm(*UNITS)

RATIOS = tuple(Fraction(*pair) for pair in ((2, 1), (1, 2), (3, 1), (1, 3), (4, 1), (1, 4)))

MOST_PAIRED = 6
"""Symbols of which sums, differences and pairs to be made equal are tried."""

SMALL = (13, 11, 7, 5)
"""Sizes that a bounded one may have."""

MOST_NUMBERS = 16
"""Numbers that are tried for a size that is no relation of others."""

ONE = ""
"""What stands for the number 1 among symbols."""

Linear = Mapping[str, Fraction]
"""Symbols, or ONE, with their factors; their sum is a size."""


@dataclass(frozen=True)
class SizeConstraints:
    """`dims` gives each name as a polynomial of symbols, each called like the first name that it
    stands for, or as a number; a name that is not in it is unknown. Symbols in `assumed` rest on an
    assumption, and all numbers do. `point` is an accepted binding of the symbols: each has a prime
    that divides no other's size. Those in `bounded` may be small alone."""

    dims: Mapping[str, Dim]
    assumed: frozenset[str]
    point: Mapping[str, int]
    bounded: frozenset[str] = frozenset()

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(self.point)

    def sizes(self, point: Mapping[str, int]) -> dict[str, int]:
        """Sizes of all names whose symbols `point` binds."""
        return {
            name: dims.evaluate(dim, point)
            for name, dim in self.dims.items()
            if all(symbol in point for symbol in dims.symbols_of(dim))
        }

    def proven(self) -> dict[str, int]:
        """Sizes at `point` of the names that rest on no assumption."""
        free = {n: dim for n, dim in self.dims.items() if not isinstance(dim, int)}
        point = {name: size for name, size in self.point.items() if name not in self.assumed}
        return SizeConstraints(free, frozenset(), point).sizes(point)

    def without(self, symbol: str) -> SizeConstraints:
        """The names that depend on `symbol` are left unknown."""
        return SizeConstraints(
            {n: dim for n, dim in self.dims.items() if symbol not in dims.symbols_of(dim)},
            self.assumed - {symbol},
            {name: size for name, size in self.point.items() if name != symbol},
            self.bounded - {symbol},
        )


def infer(
    names: Sequence[str], accepts: Accepts, most: int, numbers: Sequence[int] = ()
) -> SizeConstraints:
    """Relations among `names` by what inference `accepts`, with at most `most` questions. The first
    of `numbers`, known sizes of the graph, are what a name may be where it is none of these."""
    # Names keep their primes while further ones are looked for, and with these the answers.
    count = max(8, 1 << (len(names) - 1).bit_length())
    primes = _primes(3 * count, numbers)
    search = _Search(
        dict(zip(names, primes[2 * count :], strict=False)),
        dict(zip(names, primes[: 2 * count : 2], strict=False)),
        accepts,
        most - 1,
        tuple(numbers[:MOST_NUMBERS]),
    )
    if search.accepted({name: {name: Fraction(1)} for name in names}):
        search.placed = {name: {name: Fraction(1)} for name in names}
        return search.constraints()
    for name in names:
        search.place(name)
    if search.questions <= 0:
        search.questions = 1
        search.place_rest(names)
    search.judge()
    return search.constraints()


def _primes(count: int, numbers: Sequence[int]) -> list[int]:
    """So many primes, the least of them 17 (UNITS have none of them), none a divisor of `numbers`;
    the largest first: what comes later is smaller, so that it may be the difference of two
    before."""
    primes: list[int] = []
    for number in itertools.count(17, 2):
        if len(primes) == count:
            return primes[::-1]
        prime = all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))
        if prime and all(known % number for known in numbers):
            primes.append(number)
    raise AssertionError


@dataclass
class _Search:
    """`questions` are left to ask; a symbol's size is its prime times its unit. At `others`, primes
    with other gaps, it is asked whether what was found is more than a coincidence."""

    primes: Mapping[str, int]
    others: Mapping[str, int]
    accepts: Accepts
    questions: int
    numbers: Sequence[int] = ()
    placed: dict[str, Linear] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)
    assumed: set[str] = field(default_factory=set)
    equal: list[tuple[str, str, Mapping[str, Linear]]] = field(default_factory=list)
    """A name, the symbol that it is equal to, and what was placed before."""
    known: dict[str, int] = field(default_factory=dict)
    """Names that are numbers."""
    bounded: set[str] = field(default_factory=set)
    """Names that have a prime of SMALL."""

    def symbols(self) -> list[str]:
        """In order of appearance."""
        every = dict.fromkeys(symbol for linear in self.placed.values() for symbol in linear)
        return [symbol for symbol in every if symbol != ONE]

    def accepted(
        self,
        relations: Mapping[str, Linear],
        units: Mapping[str, int] | None = None,
        ones: Mapping[str, int] | None = None,
        primes: Mapping[str, int] | None = None,
    ) -> bool:
        """One question; no answer is a refusal, and so is a size that is no positive integer. With
        `ones`, sizes of symbols instead of their own, such a size is not told."""
        factors = {**self.units, **(units or {})}
        primes = self.primes if primes is None else primes
        sizes = {name: prime * factors.get(name, 1) for name, prime in primes.items()}
        sizes |= {ONE: 1, **(ones or {})}
        totals = {
            name: sum(factor * sizes[symbol] for symbol, factor in linear.items())
            for name, linear in relations.items()
        }
        valid = {name: int(size) for name, size in totals.items() if size > 0 and size == int(size)}
        if self.questions <= 0 or (len(valid) < len(totals) and not ones):
            return False
        self.questions -= 1
        return self.accepts({**self.known, **valid})

    def holds(self, relations: Mapping[str, Linear], units: Mapping[str, int]) -> bool:
        """Two questions: whether it is accepted at other primes too. A difference of two may be a
        number of the graph."""
        accepted = self.accepted(relations, units)
        return accepted and self.accepted(relations, units, primes=self.others)

    def place(self, name: str) -> None:
        """Find a relation for `name`; none leaves it unknown."""
        itself = {name: Fraction(1)}
        for unit in (1, *sorted({*self.units.values()} - {1})):
            if self.accepted({**self.placed, name: itself}, {name: unit}):
                self._keep(name, itself, {name: unit})
                return
        known = self._most_used()
        for symbol in known:
            if self.accepted({**self.placed, name: {symbol: Fraction(1)}}):
                self.equal.append((name, symbol, dict(self.placed)))
                self._keep(name, {symbol: Fraction(1)})
                return
        if self._place_as_bounded(name):
            return
        if self.accepted({**self.placed, name: itself}, {name: ALL_UNITS}):
            for unit in (*UNITS, ALL_UNITS):
                if self.accepted({**self.placed, name: itself}, {name: unit}):
                    self._keep(name, itself, {name: unit})
                    self.assumed.add(name)
                    return
        if self._place_as_number(name):
            return
        pairs = list(itertools.combinations(self.symbols()[:MOST_PAIRED], 2))
        apart, as_they_are = self._if_all_were_equal(name, known)
        twice = itertools.chain.from_iterable(itertools.combinations(pairs, n) for n in (1, 2))
        if apart and any(self._place_beside_equals(name, name, *equal) for equal in twice):
            return
        for linear, units in self._relations(known):
            if self.holds({**self.placed, name: linear}, units):
                self._keep(name, linear, units)
                self.assumed.update(linear)
                self._turn_difference(name)
                return
        for pair in pairs if as_they_are else ():
            others = [symbol for symbol in known if symbol not in pair]
            if any(self._place_beside_equals(name, own, pair) for own in (*others, pair[0])):
                return
        self._place_beside_next(name, known[:MOST_PAIRED])

    def _place_as_bounded(self, name: str) -> bool:
        """Whether `name` can be itself where it is small: places in a table of positions. What goes
        with others, or with numbers, may have one of two such sizes by chance, and not both."""
        free = [
            size for size in SMALL if size not in {*self.primes.values(), *self.others.values()}
        ]
        itself = {**self.placed, name: {name: Fraction(1)}}
        if len(free) < 2:
            return False
        primes, others = {**self.primes, name: free[0]}, {**self.others, name: free[1]}
        if not all(self.accepted(itself, primes=sizes) for sizes in (primes, others)):
            return False
        self.primes, self.others = primes, others
        self.bounded.add(name)
        self._keep(name, {name: Fraction(1)})
        return True

    def _if_all_were_equal(self, name: str, known: Sequence[str]) -> tuple[bool, bool]:
        """Whether `name` could be itself, and what all others are, if these were all equal: else
        there is no use in making two of them so."""
        if len(known) < 2:
            return False, False
        one = known[0]
        equal = {
            other: {
                one: sum((of for symbol, of in linear.items() if symbol != ONE), Fraction(0)),
                ONE: linear.get(ONE, Fraction(0)),
            }
            for other, linear in self.placed.items()
        }
        units = {one: math.lcm(*(self.units.get(symbol, 1) for symbol in known))}
        itself, same = ({own: Fraction(1)} for own in (name, one))
        return (
            self.accepted({**equal, name: itself}, units),
            self.accepted({**equal, name: same}, units),
        )

    def _place_beside_equals(self, name: str, own: str, *equal: tuple[str, str]) -> bool:
        """Whether `name` can be as `own` is once pairs of symbols before it are equal: inference
        may see that these meet only where `name` is known."""
        merged, units = dict(self.placed), dict(self.units)
        for first, second in equal:
            one = {first: Fraction(1)}
            merged = {other: _replaced(linear, second, one) for other, linear in merged.items()}
            units[first] = math.lcm(units.get(first, 1), units.get(second, 1))
        merged[name] = {own: Fraction(1)}
        accepted = self.accepted(merged, units)
        if accepted:
            self.placed, self.units = merged, units
            self.assumed |= {own, *(first for first, _ in equal)} - {name}
        return accepted

    def _place_beside_next(self, name: str, known: Sequence[str]) -> None:
        """Whether `name` can be as another once a third is one more, or less: of ragged rows their
        splits, where `name` is what they are as a tensor, and the other a batch."""
        for own in known:
            itself = {own: Fraction(1)}
            alone = {other: linear for other, linear in self.placed.items() if linear == itself}
            if not self.accepted({**alone, name: itself}):
                continue
            for third, one in itertools.product(known, (1, -1)):
                if third == own or self.units.get(third, 1) != 1:
                    continue
                beside = {own: Fraction(1), ONE: Fraction(one)}
                merged = {n: _replaced(linear, third, beside) for n, linear in self.placed.items()}
                if self.holds({**merged, name: itself}, {}):
                    self.placed = {**merged, name: itself}
                    self.assumed.add(own)
                    return

    def _place_as_number(self, name: str) -> bool:
        """Whether `name` can be a number, which what goes with symbols is at no two of their sizes,
        so that it is asked before all that these may be. What others were found to be is tried
        first; one of which a multiple would do as well is a unit."""
        known, itself = self.known, {name: Fraction(1)}
        for number in dict.fromkeys((*known.values(), *self.numbers)):
            self.known = {**known, name: number}
            if self.holds(self.placed, {}):
                self.known = known
                if self.accepted({**self.placed, name: itself}, {name: number}):
                    self._keep(name, itself, {name: number})
                    self.assumed.add(name)
                else:
                    self.known = {**known, name: number}
                return True
        self.known = known
        return False

    def _turn_difference(self, name: str) -> None:
        """What `name` takes from, if it is a difference of two, is from here on the sum of both:
        at other sizes the difference may be negative, and is no size."""
        first, second = (*self.placed[name], "", "")[:2]
        less = {first: Fraction(1), second: Fraction(-1)}
        if self.placed[name] == less and second != ONE and self.units.get(first, 1) == 1:
            both = {name: Fraction(1), second: Fraction(1)}
            self.placed = {n: _replaced(linear, first, both) for n, linear in self.placed.items()}
            self.assumed.add(name)

    def _keep(self, name: str, linear: Linear, units: Mapping[str, int] | None = None) -> None:
        self.placed[name] = linear
        self.units |= units or {}

    def place_rest(self, names: Sequence[str]) -> None:
        """Assume that all names that are left are as most others are."""
        symbol = next(iter(self._most_used()), names[0])
        left = [name for name in names if name not in self.placed and name not in self.known]
        rest = {name: {symbol: Fraction(1)} for name in left}
        if self.accepted({**self.placed, **rest}):
            self.placed |= rest
            self.assumed.add(symbol)

    def judge(self) -> None:
        """Whether each equality is demanded: inference refuses 1 for the name beside the symbol's
        own size, and the reverse, with what was known when the name was placed."""
        for name, symbol, before in self.equal:
            apart = {**before, name: {name: Fraction(1)}}
            if symbol not in self.assumed and (
                self.questions < 2
                or self.accepted(apart, ones={name: 1})
                or self.accepted(apart, ones={symbol: 1})
            ):
                self.assumed.add(symbol)

    def _most_used(self) -> list[str]:
        used = Counter(symbol for linear in self.placed.values() for symbol in linear)
        return [symbol for symbol, _ in used.most_common() if symbol != ONE]

    def _relations(self, known: Sequence[str]) -> Iterator[tuple[Linear, dict[str, int]]]:
        """Multiples, parts, sums and differences of symbols, and the units that make them whole."""
        for symbol in known:
            for ratio in RATIOS:
                unit = math.lcm(self.units.get(symbol, 1), ratio.denominator)
                yield {symbol: ratio}, {symbol: unit}
        for symbol, one in itertools.product(known[:MOST_PAIRED], (1, -1)):
            yield {symbol: Fraction(1), ONE: Fraction(one)}, {}
        for first, second in itertools.permutations(known[:MOST_PAIRED], 2):
            if first < second:
                yield {first: Fraction(1), second: Fraction(1)}, {}
            yield {first: Fraction(1), second: Fraction(-1)}, {}

    def constraints(self) -> SizeConstraints:
        sizes: dict[str, Dim] = {**self.known}
        for name, linear in self.placed.items():
            total: Dim = 0
            for symbol, factor in linear.items():
                whole = int(factor * self.units.get(symbol, 1))
                total = total + (whole if symbol == ONE else dims.symbol(symbol) * whole)
            sizes[name] = total
        point = {symbol: self.primes[symbol] for symbol in self.symbols()}
        assumed, bounded = (frozenset(names & {*point}) for names in (self.assumed, self.bounded))
        return SizeConstraints(sizes, assumed, point, bounded)


def _replaced(linear: Linear, old: str, new: Linear) -> Linear:
    factors: dict[str, Fraction] = {}
    for symbol, factor in linear.items():
        for own, share in (new if symbol == old else {symbol: Fraction(1)}).items():
            factors[own] = factors.get(own, Fraction(0)) + factor * share
    return {own: factor for own, factor in factors.items() if factor}
