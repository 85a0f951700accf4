"""Tuning keeps a cut only where it is right and quicker beyond doubt, and its plan still computes
the module."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from stitchcore.autotune import kernels
from stitchcore.cli.main import stitch
from stitchcore.compiler.module import CompiledModule
from stitchcore.compiler.pipeline import Dump, run
from stitchcore.compiler.stages import PLANNED, BuildOptions, ModuleState, compile_module
from stitchcore.device.host import host_device
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Plan
from stitchcore.fusion.text import parse_plan, plan_text
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.text.parser import parse
from stitchcore.runtime.module import run_module
from stitchcore.verify.inputs import arguments
from stitchcore.verify.kernel import KernelCheck
from stitchcore.verify.timing import Comparison

TEXT = """HloModule layers
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY e {
  x = f32[64,48] parameter(0)
  y = f32[64,48] parameter(1)
  p = f32[64,48] multiply(x, y)
  q = f32[64,48] tanh(p)
  zero = f32[] constant(0)
  s = f32[64] reduce(q, zero), dimensions={1}, to_apply=add
  b = f32[64,48] broadcast(s), dimensions={0}
  r = f32[64,48] subtract(q, b)
  t = f32[64,48] exponential(r)
  ROOT o = (f32[64,48], f32[64,48]) tuple(r, t)
}
"""
DEVICE = host_device()
Compare = Callable[..., Comparison]


def planned() -> ModuleState:
    return run(PLANNED[:3], ModuleState(parse(TEXT), DEVICE, BuildOptions()))


def plan_of(state: ModuleState) -> Plan:
    assert state.plan is not None
    return state.plan


def timed(seconds: Callable[[int], list[float]]) -> Compare:
    """`compare` with the seconds of run N as `seconds(N)` says, and nothing for calling."""

    def compare(calls: Mapping[str, Callable[[], object]], *_: object) -> Comparison:
        for call in calls.values():
            call()
        found = {}
        for name in calls:
            kind, number = name.split()
            times = seconds(int(number)) if kind == "run" else [0.0, 0.0, 0.0]
            found[name] = np.asarray(times)
        return Comparison(found)

    return compare


def tuned(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], list[float]]) -> kernels.Tuned:
    monkeypatch.setattr(kernels, "compare", timed(seconds))
    return kernels.tune(plan_of(planned()), DEVICE, BuildOptions(), kernels.Measuring())


SLOW = [1.0, 1.0, 1.0]


def test_the_quickest_cut_replaces_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(monkeypatch, lambda run: {0: SLOW, 2: [0.5] * 3}.get(run, [0.8] * 3))
    (choice,) = found.choices
    assert choice.kept == 2 and len(choice.trials[2].cut) == len(found.plan.patterns) > 1
    before, after = found.gain()
    assert before == pytest.approx(1.0, abs=1e-4) and after == pytest.approx(0.5, abs=1e-3)
    assert found.plan.planned.launches == len(found.plan.patterns)


@pytest.mark.parametrize(
    "times", [[1.01] * 3, [0.98] * 3, [0.5, 1.2, 0.9]], ids=["slower", "hardly quicker", "doubtful"]
)
def test_what_is_not_quicker_beyond_doubt_is_not_kept(
    times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tuned(monkeypatch, lambda run: times if run else SLOW)
    assert [choice.kept for choice in found.choices] == [0]
    assert found.plan.patterns == plan_of(planned()).patterns


def test_a_cut_that_is_wrong_is_not_kept_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernels.check_kernel
    spoiled: list[Any] = []

    def check(pattern: Any, module: Any, run: Any, bindings: Any) -> KernelCheck:
        def wrong(given: Any) -> Any:
            return [array * 1.5 if array.dtype.kind == "f" else array for array in run(given)]

        if not spoiled or pattern in spoiled[0]:
            spoiled.append([pattern])
            return real(pattern, module, wrong, bindings)
        return real(pattern, module, run, bindings)

    monkeypatch.setattr(kernels, "check_kernel", check)
    found = tuned(monkeypatch, lambda run: {0: SLOW, 2: [0.5] * 3, 1: [0.7] * 3}.get(run, SLOW))
    (choice,) = found.choices
    assert choice.trials[2].wrong and choice.kept in (0, 1)
    assert not choice.trials[choice.kept].wrong


def test_a_tuned_plan_computes_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is the same plan when it is read back from its text."""
    found = tuned(monkeypatch, lambda run: [0.5] * 3 if run == 1 else SLOW)
    state = planned()
    text = plan_text(found.plan)
    again = parse_plan(text, plan_of(state).module, DEVICE, cost, "02_plan.txt", "exhaustive").plan
    assert [set(p.instructions) for p in again.patterns] == [
        set(p.instructions) for p in found.plan.patterns
    ]
    made = _compiled(text)
    given = arguments(made.module.entry.parameters, {}, 3)
    exact = evaluate(made.module, given)
    for ours, expected in zip(run_module(made, given), exact, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-5)


def _compiled(text: str) -> CompiledModule:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "02_plan.txt"
        file.write_text(text)
        return compile_module(parse(TEXT), DEVICE, dump=Dump(restart=file))


@pytest.mark.slow
def test_the_command_writes_a_plan_that_compiles(tmp_path: Path) -> None:
    module = tmp_path / "module.hlo"
    module.write_text(TEXT)
    out = tmp_path / "tuned"
    done = CliRunner().invoke(stitch, ["tune", str(module), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["kernels"] == 1 and told["tuned_seconds"] <= told["seconds"]
    made = ["compile", str(module), "--from", told["plan"], "--out", str(tmp_path / "made")]
    assert CliRunner().invoke(stitch, made).exit_code == 0


@pytest.mark.parametrize("flags", [("--rounds", "0"), ("--seconds", "-1")])
def test_a_measuring_that_measures_nothing_is_refused(flags: tuple[str, str]) -> None:
    done = CliRunner().invoke(stitch, ["tune", "module.hlo", *flags])
    assert done.exit_code == 2 and "Invalid value" in done.output


def test_a_module_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(stitch, ["tune", str(tmp_path / "none.hlo")])
    assert done.exit_code == 2 and "no such file" in done.output
