"""A kernel held against results of the framework's (native/shadow.cc), by kernels of the driver's
own: good ones on data that amplifies rounding pass, and each has a mutant that does not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.inject.conftest import Compile

Compared = Callable[..., tuple[str, int]]
TOLERANCE = 1e-6
KINDS = ["variance", "quotient", "gelu", "root", "decided", "floor", "rounded"]
SLICED, KIB = 1_000_000, 1024
"""The budget that cuts the large cases, of 16 MiB results, into slices."""


@pytest.fixture(scope="module")
def compared(compiled: Compile) -> Compared:
    """(case, budget) -> what is said, and the KiB that it held."""
    target = compiled("shadow_driver", ("shadow.cc",))

    def run(case: str, budget: int = 2**30) -> tuple[str, int]:
        line = f"{case} {budget} {TOLERANCE}\n"
        done = subprocess.run([target], input=line, capture_output=True, text=True, check=True)
        said, held = done.stdout.rstrip("\n").split("\t")
        return said, int(held)

    return run


@pytest.mark.parametrize("case", KINDS)
def test_what_rounding_may_do_passes(case: str, compared: Compared) -> None:
    """The variance of nearly constant data, a division by almost zero, 1 + tanh, a root of what
    cancels, a comparison and a floor at their thresholds, bfloat16 within float32; each in another
    order of operations."""
    assert compared(case)[0] == "agrees"


@pytest.mark.parametrize("case", KINDS)
def test_a_wrong_kernel_of_the_same_kind_does_not(case: str, compared: Compared) -> None:
    """A term of a sum is left out; a sign, a factor, a term, a threshold, an integer is another."""
    said = compared(f"{case}_wrong")[0]
    assert said.startswith("differs: result 0 at element ") and " instead of " in said


def test_no_number_is_near_infinity(compared: Compared) -> None:
    said = compared("infinite_wrong")[0]
    assert said.startswith("differs: result 0 at element 0: 3.00000001e+38 instead of inf"), said


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("e4m3", "agrees"),
        ("e4m3_saturated", "127: 448 instead of nan"),
        ("e4m3_flushed", "2: 0 instead of 0.00390625"),
        ("e5m2", "agrees"),
        ("e5m2_saturated", "124: 57344 instead of inf"),
        ("e5m2_nan", "124: nan instead of inf"),
    ],
)
def test_float8_is_read_as_what_it_is(case: str, said: str, compared: Compared) -> None:
    assert said in compared(case)[0]


def test_a_rounding_that_nobody_told_of_does_not(compared: Compared) -> None:
    """The mutant: x moved by float32's units alone."""
    assert compared("rounded_unsaid")[0].startswith("differs")


def test_what_a_sum_that_cancels_hands_on_may_lie_as_far_as_it_moves(compared: Compared) -> None:
    """An optimizer's update of a bias whose gradient is zero but for rounding, in a kernel of its
    own; without what the kernel before tells, and with another factor of one element."""
    assert compared("handed")[0] == "agrees"
    assert compared("handed_untold")[0].startswith("differs: result 0 at element ")
    assert compared("handed_wrong")[0].startswith("differs: result 0 at element 255: ")


@pytest.mark.parametrize("case", ["large", "phases"])
def test_large_results_are_compared_in_slices(case: str, compared: Compared) -> None:
    said, held = compared(case, SLICED)
    assert said == "agrees" and held < 2 * SLICED // KIB
    assert compared(case)[1] > 12 * KIB  # the mutant: whole, it holds all


@pytest.mark.parametrize("case", ["large_wrong", "large_left", "zero_wrong", "phases_wrong"])
def test_one_wrong_element_of_a_slice_is_found(case: str, compared: Compared) -> None:
    """The last of four million: another value, not written at all, or where zeros are right."""
    said = compared(case, SLICED)[0]
    assert said.startswith("differs: result 0 at element 4194303: ")
    assert said.endswith("; 1 beyond tolerance")


def test_a_check_that_fails_decides_nothing(compared: Compared) -> None:
    assert compared("checked")[0] == "undecided"
