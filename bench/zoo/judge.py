"""One judge for every program: does the stitched run do what the untouched one did?

Two right runs may differ, for sums have many orders. So each figure of the stitched run, an array
of the first steps or a printed number, may lie no farther from the untouched run's than three times
what equally right untouched runs lie apart: oneDNN on and off, one thread and two. An array is
judged at the first step at which it differs: until then both runs had one state. From there on
rounding spreads, and what the runs print is held to the bar of printed figures.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]

TIMES = 3.0
FLOOR = 1e-6
"""Of an array's largest magnitude."""
FEW, FLOOR_OF_FEW = 16, 1e-5
"""Of so few elements the largest may itself be what a sum has left of terms that cancel: a bias of
one element, whose gradient is a mean of 0.5s less another, is off by an ulp of 0.5."""
LATER = 1e-4
"""Of printed figures, and of arrays after the first step at which they differ."""
STEPS = 2.1
"""Of Adam, one to either side, and a twentieth for what decay and rounding add."""
UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""One unit in the last place of the short types: the least by which they can differ."""


@dataclass(frozen=True)
class Run:
    """What a run left: its exit code, what it printed, arrays after its first steps, and the
    seconds between one step's end and the next one's."""

    code: int
    printed: tuple[str, ...]
    steps: tuple[Arrays, ...]
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`wrong`: what the stitched run did otherwise; none: it ended as untouched. `same`: each array
    is the untouched run's bit for bit. `worst`: the largest share of its bar that an array took,
    and that array's name."""

    wrong: tuple[str, ...]
    same: bool
    worst: tuple[float, str] = (0.0, "")


def judge(plain: Run, right: Sequence[Run], stitched: Run) -> Verdict:
    """`stitched` by `plain`, and by how far `plain` and the equally `right` runs lie apart."""
    right = [run for run in right if run.code == plain.code]
    wrong = []
    if stitched.code != plain.code:
        wrong.append(f"exit code {stitched.code}, untouched {plain.code}")
    wrong += lines(plain.printed, [run.printed for run in right], stitched.printed)
    shares: dict[str, float] = {}
    found = states(plain.steps, [run.steps for run in right], stitched.steps, shares)
    same = all(map(_same_step, plain.steps, stitched.steps))
    worst = max(((share, name) for name, share in shares.items()), default=(0.0, ""))
    return Verdict((*wrong, *found), same, worst)


# ---- arrays --------------------------------------------------------------------------------------
def states(
    plain: Sequence[Arrays],
    right: Sequence[Sequence[Arrays]],
    stitched: Sequence[Arrays],
    shares: dict[str, float] | None = None,
    floor: float = 0.0,
) -> list[str]:
    """What is wrong with the arrays of the first steps. `shares` gets what part of its bar each
    array took at the first step at which it differs. No bar is below `floor`."""
    if len(plain) != len(stitched):
        return [f"{len(stitched)} steps recorded, untouched {len(plain)}"]
    comparable = [run for run in right if list(map(set, run)) == list(map(set, plain))]
    wrong: list[str] = []
    differed: set[str] = set()
    apart: dict[str, float] = {}
    turned: dict[str, tuple[Array, float]] = {}
    for number, (ours, theirs) in enumerate(zip(stitched, plain, strict=True)):
        if ours.keys() != theirs.keys():
            return [*wrong, f"step {number}: other arrays recorded"]
        bars: dict[str, float] = {}
        for name, array in theirs.items():
            pairs = itertools.combinations([array, *(run[number][name] for run in comparable)], 2)
            apart[name] = max([apart.get(name, 0.0), *(distance(*pair) for pair in pairs)])
            bars[name] = max(TIMES * apart[name], _floor(name, array, floor))
        for name, array in theirs.items():
            if (more := _turned(name, theirs, bars)) is not None:
                elements, moved = turned.get(name, (np.zeros(array.shape, bool), 0.0))
                turned[name] = elements | more[0], moved + more[1]
            off, bar = distance(ours[name], array), bars[name]
            if off == 0.0:
                continue
            if name in differed:
                bar = max(bar, LATER) if array.dtype.kind in "fc" else bar
            if bar < off < np.inf and name in turned:
                elements, moved = turned[name]
                near = np.abs(ours[name] - array) <= moved
                off = distance(np.where(elements & near, array, ours[name]), array)
            if shares is not None and name not in differed:
                shares[name] = off / bar if bar else float("inf")
            differed.add(name)
            if not off <= bar:
                wrong.append(f"step {number}: {name} is {off:.1e} off, bar {bar:.1e}")
    return wrong


def _turned(name: str, theirs: Arrays, bars: Mapping[str, float]) -> tuple[Array, float] | None:
    """Elements of a variable whose step under Adam may have gone the other way, and how far off
    that leaves them; None for what has no moment.

    Adam's first step is rate x g / (|g| + epsilon) (Kingma and Ba 2015, algorithm 1): where the
    moment, judged as an array of its own, is not told from zero by its bar, the step's sign is a
    matter of rounding.
    """
    path = _plain(name)
    rates = [value for key, value in theirs.items() if _plain(key).endswith("learning_rate")]
    for key, moment in theirs.items():
        slot = _plain(key)
        its = slot.endswith(f"_{path}_momentum") or slot.endswith(f"_m_{path}")
        if its and moment.shape == theirs[name].shape and len(rates) == 1:
            largest = np.max(np.abs(moment), initial=0.0)
            return np.abs(moment) <= bars[key] * largest, STEPS * float(rates[0])
    return None


def _plain(name: str) -> str:
    """A recorded array's own name, without its places among what was watched, in Keras 2 or 3."""
    return re.sub(r"\W", "_", re.sub(r"^(\d+ )*|:\d+$", "", name))


def distance(one: Array, other: Array) -> float:
    """The largest difference over the largest magnitude; infinite where shapes, types or values
    that are no numbers differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.dtype.kind not in "fciub":
        return 0.0 if np.array_equal(one, other) else float("inf")
    a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (one, other))
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return float("inf")
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    off = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
    scale = float(np.max(np.abs(b[finite]), initial=0.0))
    return off / scale if scale else (float("inf") if off else 0.0)


def _floor(name: str, array: Array, least: float) -> float:
    if array.dtype.kind not in "fc":
        return 0.0
    floor = FLOOR if array.size >= FEW else FLOOR_OF_FEW
    return max(floor, least, UNITS.get(name.rpartition(" ")[2], UNITS.get(array.dtype.name, 0.0)))


def _same_step(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(distance(one[n], other[n]) == 0.0 for n in one)


# ---- printed lines -------------------------------------------------------------------------------
def lines(
    plain: Sequence[str], right: Sequence[Sequence[str]], stitched: Sequence[str]
) -> list[str]:
    """What is wrong with the printed lines: words that differ, lines that one run lacks."""
    comparable = [run for run in right if _shape(run) == _shape(plain)]
    wrong = []
    for number, (ours, theirs) in enumerate(zip(stitched, plain, strict=False)):
        others = [run[number].split() for run in comparable]
        words, wanted = ours.split(), theirs.split()
        alike = len(words) == len(wanted) and all(
            _alike(word, want, [other[at] for other in others])
            for at, (word, want) in enumerate(zip(words, wanted, strict=True))
        )
        if not alike:
            wrong.append(f"printed {ours!r}, untouched {theirs!r}")
    wrong += [f"printed {line!r}, untouched nothing" for line in stitched[len(plain) :]]
    return wrong + [f"did not print {line!r}" for line in plain[len(stitched) :]]


def _shape(printed: Sequence[str]) -> list[int]:
    return [len(line.split()) for line in printed]


def _alike(word: str, wanted: str, others: Sequence[str]) -> bool:
    if word == wanted:
        return True
    try:
        ours, theirs = Decimal(word), Decimal(wanted)
        figures = [float(theirs), *(float(Decimal(other)) for other in others)]
    except InvalidOperation:
        return False
    if not (ours.is_finite() and theirs.is_finite() and all(map(np.isfinite, figures))):
        return False
    exponents = [int(number.as_tuple().exponent) for number in (ours, theirs)]
    unit = 10.0 ** max(exponents) if min(exponents) < 0 else 0.0  # of the last printed digit
    spread = TIMES * (max(figures) - min(figures))
    bar = max(LATER * abs(float(theirs)) if unit else 0.0, 1.001 * unit, spread)
    return abs(float(ours) - float(theirs)) <= bar
