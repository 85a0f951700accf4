"""Whole modules: what steps, places, lives and library calls make is what numpy makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stitchcore.compiler.stages import BuildOptions
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion.mechanisms import ALL, Mechanism
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.text.parser import parse
from stitchcore.launch.cuda_table import InRegion
from stitchcore.launch.place import Input, Output
from stitchcore.loop_ir.nodes import Kernel, Role
from stitchcore.loop_ir.printer import print_kernel
from stitchcore.runtime.gpu.compile_module import compile_for_gpu
from stitchcore.runtime.gpu.executor import Loaded, capture_refused, captured
from stitchcore.runtime.gpu.program import (
    Copy,
    GpuModule,
    HostCall,
    LaunchRange,
    LibraryCall,
    Loop,
    every_step,
)
from stitchcore.toolchain import cuda_compiler
from tests.hlo import workloads
from tests.launch.standin_cuda import Standin
from tests.runtime.host import HostDevice
from tests.runtime.whole import TARGET, arguments, by_interpreter, compare
from tests.schedule.test_contractions import attention

TOLERANCE = 2e-6
"""Of an output's largest value: float32 sums in another order than numpy's."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "softmax_grad",
        "layernorm_gelu_grad",
        "mlp_nodrop_train",
        "mlp_train",
        "dien_infer",
        "transformer_dec_step",
    ],
)
def test_a_workload_computes_what_numpy_does(standin: Standin, name: str) -> None:
    found = compare(workloads.module(name), standin)
    assert max(found.errors) < TOLERANCE
    telling = [np.ptp(one.astype(np.float64)) > 0 for one in found.made if one.size > 1]
    assert sum(telling) >= 0.8 * len(telling), telling
    assert found.launches == len(found.module.table.launches)


@pytest.mark.slow
def test_kernels_of_a_block_by_the_interpreter(standin: Standin) -> None:
    """The loop IR's own meaning, lanes and barriers included, under the launches of the table."""
    found = compare(workloads.module("layernorm_gelu_grad"), standin, by_interpreter)
    assert max(found.errors) < TOLERANCE


def test_a_captured_module_computes_the_same_again_and_again(standin: Standin) -> None:
    def act(one: Loaded, device: HostDevice) -> None:
        launch = captured(one)
        for _ in range(2):
            launch()
        device.synchronize()

    found = compare(workloads.module("layernorm_gelu_grad"), standin, act=act)
    assert max(found.errors) < TOLERANCE
    assert found.launches == 2 * len(found.module.table.launches)


def test_small_products_are_no_calls(standin: Standin) -> None:
    module, _ = attention()
    found = compare(module, standin)
    assert max(found.errors) < TOLERANCE and found.launches == 1
    assert not calls(found.module)
    left_out = BuildOptions(mechanisms=ALL - {Mechanism.GEMM})
    assert len(calls(compile_for_gpu(module, TARGET, left_out))) == 2


def calls(module: GpuModule) -> list[LibraryCall]:
    return [step for step in every_step(module.steps) if isinstance(step, LibraryCall)]


def test_temporaries_whose_lives_do_not_meet_share_memory() -> None:
    """That those whose lives meet do not is what the results of all other tests rest on."""
    made = compile_for_gpu(workloads.module("transformer_dec_step"), TARGET)
    regions = made.table.regions
    apart = sum(one.bytes for one in regions if isinstance(one.bytes, int))
    assert isinstance(made.table.arena, int)
    assert made.table.arena < 0.6 * apart
    offsets = [one.offset for one in regions]
    assert all(isinstance(offset, int) and offset % 256 == 0 for offset in offsets)


STATE = "(s32[], f32[4,8], f32[8], f32[4,8], f32[4,8])"
RESULT = "(f32[4,8], f32[4,8], f32[4,8], f32[8], f32[4,8])"
LOOP = """
HloModule loop

condition (state: STATE) -> pred[] {
  state = STATE parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(4)
  ROOT less = pred[] compare(i, n), direction=LT
}

body (state: STATE) -> STATE {
  state = STATE parameter(0)
  i = s32[] get-tuple-element(state), index=0
  rows = f32[4,8] get-tuple-element(state), index=1
  weight = f32[8] get-tuple-element(state), index=2
  first = f32[4,8] get-tuple-element(state), index=3
  second = f32[4,8] get-tuple-element(state), index=4
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(i, one)
  row = f32[1,8] dynamic-slice(first, i, zero), dynamic_slice_sizes={1,8}
  flat = f32[8] reshape(row)
  scaled = f32[8] multiply(flat, weight)
  power = f32[8] exponential(scaled)
  back = f32[1,8] reshape(power)
  updated = f32[4,8] dynamic-update-slice(rows, back, i, zero)
  ROOT result = STATE tuple(next, updated, weight, second, first)
}

ENTRY main (x: f32[4,8], w: f32[8], y: f32[4,8]) -> RESULT {
  x = f32[4,8] parameter(0)
  w = f32[8] parameter(1)
  y = f32[4,8] parameter(2)
  start = s32[] constant(START)
  begun = f32[4,8] negate(y)
  state = STATE tuple(start, x, w, y, begun)
  end = STATE while(state), condition=condition, body=body
  rows = f32[4,8] get-tuple-element(end), index=1
  first = f32[4,8] get-tuple-element(end), index=3
  second = f32[4,8] get-tuple-element(end), index=4
  kept = f32[8] get-tuple-element(end), index=2
  ROOT result = RESULT tuple(rows, first, second, kept, rows)
}
"""


@pytest.mark.parametrize(("start", "trips"), [(0, 4), (1, 3), (7, 0)])
def test_a_loop_whose_state_changes_places(standin: Standin, start: int, trips: int) -> None:
    """Two members swap, one is updated in place, one stays; one result is returned twice."""
    text = LOOP.replace("START", str(start)).replace("STATE", STATE).replace("RESULT", RESULT)
    module = parse(text)
    found = compare(module, standin)
    assert max(found.errors) < TOLERANCE
    [loop] = [s for s in every_step(found.module.steps) if isinstance(s, Loop)]
    assert loop.trips == trips and not found.module.waits
    [stretch] = [step for step in loop.body if isinstance(step, LaunchRange)]
    launched = found.module.table.launches[stretch.first : stretch.first + stretch.count]
    places = [
        [word for word in one.words if isinstance(word, InRegion | Output)] for one in launched
    ]
    [update] = [found for found in places if len(set(found)) < len(found)]
    assert len(set(update)) == len(update) - 1, "no copy of the rows"
    copies = [step for step in loop.body if isinstance(step, Copy)]
    assert {step.source.dims for step in copies} <= {(4, 8), ()}, "the weight stays where it is"


PASSED_ON = """
HloModule passed_on

condition (s: (s32[], f32[4], f32[4])) -> pred[] {
  s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}

body (s: (s32[], f32[4], f32[4])) -> (s32[], f32[4], f32[4]) {
  s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[4] get-tuple-element(s), index=1
  b = f32[4] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  power = f32[4] tanh(a)
  ROOT r = (s32[], f32[4], f32[4]) tuple(next, b, power)
}

ENTRY main (a: f32[4], b: f32[4]) -> (s32[], f32[4], f32[4]) {
  a = f32[4] parameter(0)
  b = f32[4] parameter(1)
  zero = s32[] constant(0)
  s = (s32[], f32[4], f32[4]) tuple(zero, a, b)
  ROOT end = (s32[], f32[4], f32[4]) while(s), condition=condition, body=body
}
"""


def test_a_member_that_becomes_another_is_not_overwritten_before(standin: Standin) -> None:
    found = compare(parse(PASSED_ON), standin)
    assert max(found.errors) < TOLERANCE


KEPT = """
HloModule kept

condition (s: (s32[], f32[8,8], f32[8,8], f32[8,8])) -> pred[] {
  s = (s32[], f32[8,8], f32[8,8], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}

body (s: (s32[], f32[8,8], f32[8,8], f32[8,8])) -> (s32[], f32[8,8], f32[8,8], f32[8,8]) {
  s = (s32[], f32[8,8], f32[8,8], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[8,8] get-tuple-element(s), index=1
  w = f32[8,8] get-tuple-element(s), index=2
  m = f32[8,8] get-tuple-element(s), index=3
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[8,8] multiply(x, w)
  z = f32[8,8] dot(y, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  u = f32[8,8] dot(z, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (s32[], f32[8,8], f32[8,8], f32[8,8]) tuple(next, u, w, m)
}

ENTRY main (x: f32[8,8], v: f32[8,8], m: f32[8,8]) -> f32[8,8] {
  x = f32[8,8] parameter(0)
  v = f32[8,8] parameter(1)
  m = f32[8,8] parameter(2)
  w = f32[8,8] tanh(v)
  zero = s32[] constant(0)
  s = (s32[], f32[8,8], f32[8,8], f32[8,8]) tuple(zero, x, w, m)
  end = (s32[], f32[8,8], f32[8,8], f32[8,8]) while(s), condition=condition, body=body
  ROOT made = f32[8,8] get-tuple-element(end), index=1
}
"""


def test_what_a_loop_reads_first_is_still_there_in_its_next_run(standin: Standin) -> None:
    """The weight stays where it is, and nothing else of the body is put there."""
    found = compare(parse(KEPT), standin)
    assert max(found.errors) < TOLERANCE


def test_a_loop_that_only_data_ends(standin: Standin) -> None:
    """The host reads the predicate; such a module cannot be captured."""
    found = compare(parse(HALVED), standin, given=[np.array([3.0, 100.0], np.float32)])
    assert found.expected[0].tolist() == [0.75 / 32, 100 / 128]
    assert found.made[0].tolist() == found.expected[0].tolist()
    assert found.module.waits

    def capture(one: Loaded, device: HostDevice) -> None:
        with pytest.raises(ValueError, match="waits"):
            captured(one)

    compare(parse(HALVED), standin, act=capture, given=[np.ones(2, np.float32)])


HALVED = """
HloModule halved

larger (a: f32[], b: f32[]) -> f32[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] maximum(a, b)
}

condition (x: f32[2]) -> pred[] {
  x = f32[2] parameter(0)
  zero = f32[] constant(0)
  most = f32[] reduce(x, zero), dimensions={0}, to_apply=larger
  one = f32[] constant(1)
  ROOT more = pred[] compare(most, one), direction=GT
}

body (x: f32[2]) -> f32[2] {
  x = f32[2] parameter(0)
  half = f32[] constant(0.5)
  halves = f32[2] broadcast(half), dimensions={}
  ROOT less = f32[2] multiply(x, halves)
}

ENTRY main (x: f32[2]) -> f32[2] {
  x = f32[2] parameter(0)
  ROOT end = f32[2] while(x), condition=condition, body=body
}
"""

CHOICE = """
HloModule choice

grown (x: f32[4]) -> (f32[4], f32[4]) {
  x = f32[4] parameter(0)
  y = f32[4] exponential(x)
  ROOT result = (f32[4], f32[4]) tuple(x, y)
}

shrunk (x: f32[4]) -> (f32[4], f32[4]) {
  x = f32[4] parameter(0)
  y = f32[4] tanh(x)
  ROOT result = (f32[4], f32[4]) tuple(y, x)
}

ENTRY main (which: TYPE, x: f32[4]) -> (f32[4], f32[4]) {
  which = TYPE parameter(0)
  x = f32[4] parameter(1)
  ROOT chosen = (f32[4], f32[4]) conditional(which, x, x), BRANCHES
}
"""


@pytest.mark.parametrize(
    ("which", "kind", "branches"),
    [
        (np.bool_(True), "pred[]", "true_computation=grown, false_computation=shrunk"),
        (np.bool_(False), "pred[]", "true_computation=grown, false_computation=shrunk"),
        (np.int32(0), "s32[]", "branch_computations={grown, shrunk}"),
        (np.int32(-3), "s32[]", "branch_computations={grown, shrunk}"),
    ],
)
def test_a_conditional_runs_one_branch(
    standin: Standin, which: np.generic, kind: str, branches: str
) -> None:
    module = parse(CHOICE.replace("TYPE", kind).replace("BRANCHES", branches))
    found = compare(module, standin, given=[np.asarray(which), np.linspace(-1, 1, 4, dtype="f4")])
    assert max(found.errors) < TOLERANCE
    assert found.launches == 1


def test_outputs_that_are_inputs_or_constants_are_copied(standin: Standin) -> None:
    text = """
HloModule handed_on

ENTRY main (x: f32[2,3]) -> (f32[6], f32[2,3], s32[3]) {
  x = f32[2,3] parameter(0)
  flat = f32[6] reshape(x)
  three = s32[3] constant({4, 5, 6})
  ROOT result = (f32[6], f32[2,3], s32[3]) tuple(flat, x, three)
}
"""
    found = compare(parse(text), standin)
    assert found.errors == [0, 0, 0]
    assert not any(isinstance(step, LaunchRange) for step in found.module.steps)


def test_a_kernel_that_the_compiler_refuses_is_planned_again_in_parts(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it takes no kernel with two phases or more than one output, and no exponential at all:
    that one instruction is the host's, and all is told."""
    real = cuda_compiler.compile_kernels

    def picky(kernels: Sequence[Kernel], *rest: Any) -> Any:
        taken = [one for one in kernels if not refuses(one)]
        units, refused = real(taken, *rest)
        left = [one for one in kernels if one not in taken]
        why = (Reason.COMPILE_FAILED, "cut after 1 s of a processor")
        return units, (*refused, *(Refusal(one.name, *why) for one in left))

    def refuses(kernel: Kernel) -> bool:
        text = print_kernel(kernel)
        large = len(kernel.phases) > 1 or len(kernel.with_role(Role.OUTPUT)) > 1
        return large or op.EXPONENTIAL in text

    monkeypatch.setattr(cuda_compiler, "compile_kernels", picky)
    found = compare(workloads.module("softmax_grad"), standin)
    assert max(found.errors) < TOLERANCE
    assert not any(map(refuses, found.module.kernels)) and len(found.module.kernels) > 1
    hosts = [step for step in found.module.steps if isinstance(step, HostCall)]
    assert {step.node.opcode for step in hosts} == {op.EXPONENTIAL}
    reasons = [refusal.reason for refusal in found.module.refused]
    assert set(reasons) == {Reason.COMPILE_FAILED, Reason.UNSUPPORTED_OPCODE}


ODD = """
HloModule odd

farther (a: f32[], b: f32[]) -> pred[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  first = f32[] abs(a)
  second = f32[] abs(b)
  ROOT larger = pred[] compare(first, second), direction=GT
}

ENTRY main (x: f32[6]) -> f32[6] {
  x = f32[6] parameter(0)
  y = f32[6] exponential(x)
  z = f32[6] subtract(x, y)
  sorted = f32[6] sort(z), dimensions={0}, to_apply=farther
  ROOT result = f32[6] tanh(sorted)
}
"""


def test_what_no_library_computes_is_the_hosts_and_told(standin: Standin) -> None:
    """The kernels beside it go on; no graph can hold such a module."""
    found = compare(parse(ODD), standin)
    assert max(found.errors) < TOLERANCE and found.launches == 2
    [refusal] = found.module.refused
    assert (refusal.subject, refusal.reason) == (op.SORT, Reason.UNSUPPORTED_OPCODE)
    assert [step.node.opcode for step in found.module.steps if isinstance(step, HostCall)] == [
        op.SORT
    ]
    assert found.module.waits and "numpy" in capture_refused(found.module)


def test_a_value_that_no_memory_holds_refuses_the_module() -> None:
    text = "ENTRY main (x: f32[3]) -> c64[3] {\n  x = f32[3] parameter(0)\n"
    text += "  ROOT y = c64[3] convert(x)\n}\n"
    with pytest.raises(Refused) as refused:
        compile_for_gpu(parse("HloModule m\n\n" + text), TARGET)
    assert refused.value.refusal.reason is Reason.UNSUPPORTED_TYPE


@pytest.mark.slow
def test_one_kernel_an_instruction_computes_the_same(standin: Standin) -> None:
    """What stitching is measured against: the same runtime, the planner "single"."""
    module = workloads.module("layernorm_gelu_grad")
    found = compare(module, standin, planner="single")
    assert max(found.errors) < TOLERANCE
    assert found.launches > 10


STEP = """
HloModule step, input_output_alias={ {1}: (0, {}, may-alias), {2}: (1, {}, may-alias), {3}: (2, {}, may-alias), {4}: (3, {}, may-alias) }

ENTRY main (w: f32[64], m: f32[64], x: f32[8], y: f32[8], g: f32[64]) -> (f32[64], f32[64], f32[64], f32[8], f32[8]) {
  w = f32[64] parameter(0)
  m = f32[64] parameter(1)
  x = f32[8] parameter(2)
  y = f32[8] parameter(3)
  g = f32[64] parameter(4)
  before = f32[64] exponential(w)
  moment = f32[64] add(m, g)
  weight = f32[64] subtract(w, moment)
  ROOT r = (f32[64], f32[64], f32[64], f32[8], f32[8]) tuple(before, weight, moment, y, x)
}
"""  # noqa: E501


def test_a_step_goes_on_from_what_it_made(standin: Standin) -> None:
    """Weights and moments are updated where they are; two parameters change places."""
    module = parse(STEP)

    def twice(one: Loaded, _: HostDevice) -> None:
        one.run()
        one.run()

    given = arguments(module)
    found = compare(module, standin, act=twice, given=given, updates=True)
    once = evaluate(module, given)
    right = evaluate(module, [*once[1:], given[4]])
    for made, expected in zip(found.made, right, strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-5)
    assert [one.place for one in found.module.outputs][1:] == [Input(n) for n in range(4)]
    copies = [step for step in found.module.steps if isinstance(step, Copy)]
    assert {step.source.dims for step in copies} == {(8,)}, "the weights are not copied"


@pytest.mark.slow
def test_a_training_step_copies_next_to_nothing(standin: Standin) -> None:
    """An optimizer's kernels may write where they read: their `aliases` say so."""
    found = compare(workloads.module("mlp_train"), standin, updates=True)
    assert max(found.errors) < TOLERANCE
    copied = sum(step.source.bytes for step in found.module.steps if isinstance(step, Copy))
    state = sum(one.bytes for one in found.module.outputs if isinstance(one.place, Input))
    assert copied < 0.01 * state
