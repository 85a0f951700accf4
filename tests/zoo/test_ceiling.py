"""A ceiling's kernels have the names of the real ones, return at once, and leave no wild index."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from bench.zoo import ceiling
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Buffer, Kernel, Role, Scope
from stitchcore.runtime.cpu_kernel import load_library
from tests.zoo.mutants import changed


def buffer(name: str, dtype: str, role: Role) -> Buffer:
    return Buffer(name, dtype, (4, index.Variable("n")), Scope.DEVICE, role)


KERNEL = Kernel(
    "k00_lookup",
    ("n",),
    (
        buffer("count", "s64", Role.INPUT),
        buffer("values", "f32", Role.OUTPUT),
        buffer("rows", "s32", Role.OUTPUT),
        buffer("next", "s64", Role.OUTPUT),
        buffer("scratch", "f32", Role.SCRATCH),
    ),
    (),
    scratch_offsets=(0,),
    aliases=((0, 2),),
)


def called(module: Any, in_place: bool, begin: int = 0) -> dict[str, Any]:
    """What a call of 3 columns leaves in arrays of 4 that held sevens."""
    library = load_library(module._library(module.idle([KERNEL])))
    made = {"count": "int64", "values": "float32", "rows": "int32", "next": "int64"}
    arrays = {name: np.full((4, 4), 7, dtype) for name, dtype in made.items()}
    if in_place:
        arrays["next"] = arrays["count"]
    pointers = (ctypes.c_void_p * 4)(*(array.ctypes.data for array in arrays.values()))
    symbols = (ctypes.c_long * 1)(3)
    run = library.k00_lookup
    run.restype = ctypes.c_long
    where = (ctypes.c_void_p(None), *map(ctypes.c_long, (0, begin, begin + 1)))
    assert run(pointers, symbols, *where) == 0
    return arrays


def nothing_is_computed(module: Any) -> None:
    assert (called(module, False)["values"] == 7).all()


def integers_are_zeros(module: Any) -> None:
    left = called(module, False)
    for name in ("rows", "next"):
        flat = left[name].ravel()
        assert (flat[:12] == 0).all() and (flat[12:] == 7).all()
    assert (left["count"] == 7).all()


def what_is_updated_in_place_stays(module: Any) -> None:
    assert (called(module, True)["count"] == 7).all()


def one_task_does_it(module: Any) -> None:
    assert (called(module, False, begin=1)["rows"] == 7).all()


@pytest.mark.parametrize(
    ("claim", "old", "new"),
    [
        (nothing_is_computed, '.kind == "float"', '.kind == "complex"'),
        (integers_are_zeros, "index_text(bytes_of(output))", "4"),
        (what_is_updated_in_place_stays, "if number in sources else", "if False else"),
        (one_task_does_it, " || task_begin != 0", ""),
    ],
)
def test_a_claim_holds_of_the_ceiling_and_not_of_its_mutant(
    claim: Any, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(ceiling)
    mutant = changed(ceiling, old, new, monkeypatch)
    with pytest.raises(AssertionError):
        claim(mutant)
