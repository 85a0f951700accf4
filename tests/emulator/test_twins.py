"""Workload kernels on the emulator: a sample of `python -m tests.emulator.twins`."""

from __future__ import annotations

import numpy as np
import pytest

from stitchcore.hlo.ir import opcodes as op
from stitchcore.loop_ir import index
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.loop_ir.nodes import Kernel, Role
from stitchcore.schedule.pipeline import schedule
from tests.emulator import kernels, twins
from tests.emulator.launch import Order, Schedule
from tests.emulator.program import compile_text
from tests.schedule import modules


@pytest.mark.parametrize(
    "name",
    [
        "layernorm_gelu_grad",
        "softmax_grad",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("mlp_train", "crnn_infer", "lstm_lm_train")
        ),
    ],
)
def test_workload_kernels_are_race_free_and_right(name: str) -> None:
    made = twins.twins_of(name)
    programs = kernels.programs([twin.kernel for twin in made])
    for twin, program in zip(made, programs, strict=True):
        assert not twin.differing, (name, twin.kernel.name, twin.limits)
        found = twins.emulated(twin, program)
        assert found.right, (name, twin.kernel.name, str(found.check), found.findings, found.unlike)


def test_a_wrong_kernel_is_seen() -> None:
    """Another kernel's program in a twin's place: its outputs are not the pattern's."""
    (twin,) = twins.twins_of("layernorm_gelu_grad")
    text = kernels.rendered([twin.kernel])
    changed = text.replace("0x1p+0f", "0x1.1p+0f")
    assert changed != text
    found = twins.emulated(twin, compile_text(changed), twins.RUNS[:1])
    assert not found.check.passed and not found.findings


def sizes(kernel: Kernel) -> list[list[int]]:
    """Of its inputs."""
    inputs = kernel.with_role(Role.INPUT)
    return [[index.evaluate(dim, {}) for dim in buffer.dims] for buffer in inputs]


def test_outputs_may_take_over_inputs() -> None:
    """Kernels run in place where the schedule says that they may."""
    shape = (40, 6)
    value, other = modules.parameter(0, shape), modules.parameter(1, shape)
    root = modules.apply(op.MULTIPLY, modules.apply(op.ADD, value, other), other)
    module = modules.module_of([root], [value, other])
    kernel = schedule(modules.whole(module), module, twins.DEVICE, "in_place", verify=True)
    assert kernel.aliases
    random = np.random.default_rng(0)
    given = [random.standard_normal(size).astype(np.float32) for size in sizes(kernel)]
    (program,) = kernels.programs([kernel])
    for shared in (False, True):
        made = kernels.run(
            kernel, program, given, {}, Schedule(Order.RANDOM, 1), share_aliases=shared
        )
        assert not made.findings
        assert np.array_equal(made.outputs[0], interpret(kernel, given)[0])
