"""A ceiling's kernels compute no floats, and every integer that the rest of a step goes by."""

from __future__ import annotations

from typing import Any

import pytest

from bench.zoo import ceiling
from stitchcore.loop_ir.index import Variable
from stitchcore.loop_ir.nodes import Buffer, Kernel, Load, Phase, Role, Section, Store
from tests.loop_ir.sample import device
from tests.zoo.mutants import changed

COUNT, X = device("count", "s64", (4,), Role.INPUT), device("x", "f32", (4,), Role.INPUT)
NEXT, LESS = device("next", "s64", (4,), Role.OUTPUT), device("less", "pred", (4,), Role.OUTPUT)
Y = device("y", "f32", (4,), Role.OUTPUT)
WHOLE, PART = (
    device(name, kind, (4,), Role.SCRATCH) for name, kind in (("w", "s64"), ("p", "f32"))
)


def copy(name: str, source: Buffer, target: Buffer) -> Section:
    at = (Variable(name),)
    return Section(name, 4, (Store(target, at, Load(source, at)),))


KERNEL = Kernel(
    "k_step",
    (),
    (COUNT, X, NEXT, LESS, Y, WHOLE, PART),
    (
        Phase((copy("part", X, PART), copy("whole", COUNT, WHOLE))),
        Phase((copy("floats", PART, Y), copy("counts", WHOLE, NEXT))),
        Phase((copy("decides", COUNT, LESS),)),
    ),
    scratch_offsets=(0, 32),
    scratch_bytes=48,
)
FLOATS = Kernel("k_floats", (), (X, Y), (Phase((copy("floats", X, Y),)),))


def kept(module: Any, kernel: Kernel) -> list[list[str]]:
    made = module.idle(kernel)
    assert (made.name, made.buffers) == (kernel.name, kernel.buffers)
    return [[section.variable for section in phase.sections] for phase in made.phases]


def nothing_is_left_of_floats(module: Any) -> None:
    assert kept(module, FLOATS) == [[]]


def integers_and_truth_values_stay(module: Any) -> None:
    assert kept(module, KERNEL)[1:] == [["counts"], ["decides"]]


def what_they_are_made_of_stays(module: Any) -> None:
    assert kept(module, KERNEL)[0] == ["whole"]


@pytest.mark.parametrize(
    ("claim", "old", "new"),
    [
        (nothing_is_left_of_floats, '.kind != "float"', '.kind != "complex"'),
        (integers_and_truth_values_stay, '.kind != "float"', '.kind == "pred"'),
        (what_they_are_made_of_stays, "reversed(kernel.phases)", "list(kernel.phases)"),
        (what_they_are_made_of_stays, "for buffer in buffers_of(section)[0])", "for buffer in ())"),
    ],
)
def test_a_claim_holds_of_the_ceiling_and_not_of_its_mutant(
    claim: Any, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(ceiling)
    mutant = changed(ceiling, old, new, monkeypatch)
    with pytest.raises(AssertionError):
        claim(mutant)
