"""Loop bodies and branches: compiled, checked, and run with numpy driving the control flow."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stitchcore.compiler.pipeline import Dump
from stitchcore.compiler.stages import compile_module
from stitchcore.device.host import host_device
from stitchcore.fusion.extents import extent
from stitchcore.fusion.pattern import Pattern
from stitchcore.fusion.text import bodies
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.cpu_kernel import CpuKernel
from stitchcore.runtime.module import captured_inputs, load, run_kernel, run_module
from stitchcore.verify.inputs import arguments
from stitchcore.verify.kernel import check_kernel

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
Array = np.ndarray[Any, np.dtype[Any]]

NESTED = """HloModule nested

%inner_less (p: (s32[], f32[64])) -> pred[] {
  %p = (s32[], f32[64]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %three), direction=LT
}

%inner (q: (s32[], f32[64])) -> (s32[], f32[64]) {
  %q = (s32[], f32[64]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %x = f32[64] get-tuple-element(%q), index=1
  %t = f32[64] tanh(%x)
  %y = f32[64] add(%t, %x)
  ROOT %both = (s32[], f32[64]) tuple(%next, %y)
}

%halve (h: f32[64]) -> f32[64] {
  %h = f32[64] parameter(0)
  %half = f32[] constant(0.5)
  %halves = f32[64] broadcast(%half), dimensions={}
  ROOT %m = f32[64] multiply(%h, %halves)
}

%negate (n: f32[64]) -> f32[64] {
  %n = f32[64] parameter(0)
  %e = f32[64] exponential(%n)
  ROOT %neg = f32[64] negate(%e)
}

%outer_less (r: (s32[], f32[64])) -> pred[] {
  %r = (s32[], f32[64]) parameter(0)
  %k = s32[] get-tuple-element(%r), index=0
  %two = s32[] constant(2)
  ROOT %lesser = pred[] compare(%k, %two), direction=LT
}

%outer (s: (s32[], f32[64])) -> (s32[], f32[64]) {
  %s = (s32[], f32[64]) parameter(0)
  %c = s32[] get-tuple-element(%s), index=0
  %v = f32[64] get-tuple-element(%s), index=1
  %zero = s32[] constant(0)
  %start = (s32[], f32[64]) tuple(%zero, %v)
  %loop = (s32[], f32[64]) while(%start), condition=%inner_less, body=%inner
  %w = f32[64] get-tuple-element(%loop), index=1
  %first = pred[] compare(%c, %zero), direction=EQ
  %chosen = f32[64] conditional(%first, %w, %w), true_computation=%halve, false_computation=%negate
  %u = s32[] constant(1)
  %d = s32[] add(%c, %u)
  ROOT %out = (s32[], f32[64]) tuple(%d, %chosen)
}

ENTRY %main (a: f32[64]) -> f32[64] {
  %a = f32[64] parameter(0)
  %begin = s32[] constant(0)
  %state = (s32[], f32[64]) tuple(%begin, %a)
  %done = (s32[], f32[64]) while(%state), condition=%outer_less, body=%outer
  %last = f32[64] get-tuple-element(%done), index=1
  ROOT %end = f32[64] add(%last, %a)
}
"""


def workload(name: str) -> Module:
    return parse(lzma.decompress((WORKLOADS / f"{name}.hlo.xz").read_bytes()).decode())


def test_loops_in_loops_and_branches_run_their_kernels() -> None:
    module = parse(NESTED)
    made = compile_module(module, host_device())
    assert len(bodies(made.plan)) == 6
    held = {value.opcode for plan, pattern in made.uses() for value in pattern.instructions}
    assert {"tanh", "exponential", "negate"} <= held
    for seed in (0, 1):
        given = arguments(module.entry.parameters, {}, seed)
        expected = evaluate(module, given, {})
        np.testing.assert_allclose(run_module(made, given)[0], expected[0], rtol=2e-6, atol=2e-6)


def test_a_loop_bodys_kernel_is_what_runs(tmp_path: Path) -> None:
    """With the source of the body's tanh changed, and nothing else, the result changes."""
    dump = tmp_path / "dump"
    right = compile_module(parse(NESTED), host_device(), dump=Dump(dump))
    source = tmp_path / "04_emit.c"
    text = (dump / "04_emit.c").read_text()
    assert "st_tanh" in text
    source.write_text(text.replace("st_tanh_f32", "st_sine_f32"))
    wrong = compile_module(parse(NESTED), host_device(), dump=Dump(restart=source))
    given = arguments(right.module.entry.parameters, {}, 0)
    assert not np.allclose(run_module(right, given)[0], run_module(wrong, given)[0])


@pytest.mark.slow
def test_a_recurrent_network_computes_what_numpy_does() -> None:
    module = workload("crnn_infer")
    made = compile_module(module, host_device())
    assert len(made.uses()) == len(made.kernels) > len(made.plan.patterns)
    given = arguments(module.entry.parameters, {}, 3, "small")
    expected = evaluate(module, given, {}, "float64")
    for got, want in zip(run_module(made, given), expected, strict=True):
        scale = float(np.sqrt(np.mean(np.square(want)))) + 1e-30
        assert np.max(np.abs(got - want)) <= 1e-4 * scale


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm_lm_train", "asr_train", "crnn_infer"])
def test_every_kernel_of_a_loop_body_is_right(name: str) -> None:
    made = compile_module(workload(name), host_device())
    loaded = load(made)
    checked = 0
    for number, (plan, pattern) in enumerate(made.uses()):
        if plan is made.plan or max(extent(v.shape.size) for v in pattern.instructions) > 4e6:
            continue

        def run(
            given: Sequence[Array], kernel: CpuKernel = loaded[number], own: Pattern = pattern
        ) -> Sequence[Array]:
            return run_kernel(kernel, own, given, {})

        check = check_kernel(pattern, plan.module, run, {})
        assert check.passed, str(check)
        checked += 1
    assert checked >= 3


def test_inputs_of_loop_bodies_are_captured() -> None:
    module = parse(NESTED)
    made = compile_module(module, host_device())
    given = arguments(module.entry.parameters, {}, 0)
    values = captured_inputs(made.plan, given, {})
    loaded = load(made)
    for number, (plan, pattern) in enumerate(made.uses()):
        own = [values[plan.module.entry][value] for value in pattern.inputs]

        def run(
            arrays: Sequence[Array], kernel: CpuKernel = loaded[number], own: Pattern = pattern
        ) -> Sequence[Array]:
            return run_kernel(kernel, own, arrays, {})

        check = check_kernel(pattern, plan.module, run, {}, own)
        assert check.data == "captured"
        assert check.passed, str(check)
