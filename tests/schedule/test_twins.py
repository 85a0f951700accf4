"""Twins of the workloads' kernels decide as the kernels do, agree with numpy, and miss every phase
boundary that is taken away."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from stitchcore.device.host import host_device
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.runtime.module import buffers
from stitchcore.verify.reference import telling
from tests.schedule import barriers, twins
from tests.schedule.twins import Twin

NAMES = ("layernorm_gelu_grad", "softmax_grad", "mlp_train", "crnn_infer")


@functools.cache
def twins_of(name: str) -> tuple[Twin, ...]:
    device = host_device()
    return tuple(twins.twins_of(twins.patterns_of(name, device), device))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, pytest.param("dien_infer", marks=pytest.mark.nightly)])
def test_twins_decide_alike_and_agree_with_numpy(name: str) -> None:
    for number, twin in enumerate(twins_of(name)):
        assert not twin.differing, (name, number, twin.limits)
        found = twins.interpreted(twin)
        assert found.passed, (name, number, str(found))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, pytest.param("dien_infer", marks=pytest.mark.nightly)])
def test_each_boundary_of_a_kernel_matters(name: str) -> None:
    for number, twin in enumerate(twins_of(name)):
        removed = list(barriers.mutants(twin.kernel))
        if not removed:
            continue
        _, arrays, _ = telling(twin.module, {}, 0)
        given = buffers(twin.kernel, arrays, {})
        interpret(twin.kernel, given, {}, np.random.default_rng(0))
        for what, mutant in removed:
            others = twins.with_other_blocks(twin, host_device())
            without = (dict(barriers.mutants(other))[what] for other in others)
            noticed = any(
                barriers.objects(one, given) for one in itertools.chain([mutant], without)
            )
            assert noticed, f"{name} {number}: {what} can be left out"


@pytest.mark.nightly
def test_some_kernels_have_boundaries() -> None:
    kernels = [twin.kernel for name in (*NAMES, "mlp_nodrop_train") for twin in twins_of(name)]
    found = [what for kernel in kernels for what, _ in barriers.mutants(kernel)]
    assert sum(what.startswith("end of phase") for what in found) >= 2, found
    assert sum(what.startswith("barrier") for what in found) >= 2, found


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("inline_size", 4096),  # every reduction inside a lane
        ("long_row", 1),  # rows are reduced in parts
        ("task_elements", 17),  # more tasks
    ],
)
def test_a_twin_that_decides_otherwise_is_seen(limit: str, value: int) -> None:
    """With another limit the same small module decides differently, and the comparison says so."""
    device = host_device()
    pattern = twins.patterns_of("layernorm_gelu_grad", device)[0]
    whole, inside = twins.alone(pattern)
    wanted, _ = twins.decisions(inside, whole, device)
    twin = twins.twin_of(pattern, device)
    with twins.toy(twin.limits):
        same, _ = twins.decisions(twin.pattern, twin.module, device)
    with twins.toy({**twin.limits, limit: value}):
        other, _ = twins.decisions(twin.pattern, twin.module, device)
    assert same == wanted and other != wanted
