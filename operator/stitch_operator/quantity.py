"""Kubernetes' quantities, exactly: "100m", "1.5Gi", "12e6", 2. No floats, so nothing is rounded."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

NOTATION = re.compile(
    r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE])([+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]?))$"
)
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
LONGEST = 64
LARGEST_EXPONENT = 100


def parse(quantity: Any) -> Fraction:
    """The number a quantity stands for. Raises ValueError for what is none."""
    text = str(quantity)
    found = NOTATION.match(text) if len(text) <= LONGEST else None
    if found is None or isinstance(quantity, bool):
        raise ValueError(f"{text[:LONGEST]!r} is not a quantity")
    number, _, exponent, suffix = found.groups()
    if suffix in BINARY:
        return Fraction(number) * (1 << 10 * BINARY[suffix])
    power = DECIMAL[suffix] if exponent is None else int(exponent)
    power = max(-LARGEST_EXPONENT, min(LARGEST_EXPONENT, power))
    scale = Fraction(10 ** abs(power))
    return Fraction(number) * scale if power >= 0 else Fraction(number) / scale


def cores(value: Fraction) -> str:
    """A quantity of at most `value` cores, in whole thousandths, as the API server keeps them."""
    thousandths = math.floor(value * 1000)
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def whole(value: Fraction) -> str:
    """A quantity of at most `value` bytes, in the largest binary unit that is exact."""
    number = math.floor(value)
    for suffix in ("Gi", "Mi", "Ki"):
        size = 1 << 10 * BINARY[suffix]
        if number and number % size == 0:
            return f"{number // size}{suffix}"
    return str(number)
