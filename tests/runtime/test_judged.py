"""What `python -m tests.runtime.whole` says of a module, and that it says so of a wrong one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stitchcore.compiler.stages import compile_module
from stitchcore.device.records import DEVICES
from stitchcore.hlo.evaluator.evaluate import decisions, evaluate, evaluate_all
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.transforms.pad_bounded import padded
from stitchcore.runtime.gpu.lower_module import lower_module
from tests.hlo import workloads
from tests.jobs.state import REDRAWS, ulp_away
from tests.launch.standin_cuda import Standin
from tests.runtime import waiting, whole
from tests.runtime.decided import Decided, decided, numpy_step, recording, with_decisions
from tests.runtime.host import in_c
from tests.runtime.judged import verdict

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["storage", "float64"])
@pytest.mark.parametrize("name", ["mlp_train", "dien_infer"])
def test_values_that_waited_in_files_are_the_same(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: str
) -> None:
    monkeypatch.setattr(waiting, "LARGE", 64)
    monkeypatch.setattr(waiting, "FAR", 1)
    files: list[Array] = []
    real = waiting.waiting
    monkeypatch.setattr(waiting, "waiting", lambda value: files.append(real(value)) or files[-1])
    module = workloads.module(name)
    given = whole.arguments(module)
    made = waiting.outputs(module, given, precision)
    expected = evaluate(module, given, {}, precision)
    assert len(files) > 20 and sum(waiting.is_in_file(one) for one in files) > len(files) / 2
    for one, right in zip(made, expected, strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (right.dtype, right.shape, right.tobytes())


def test_what_repeats_or_is_small_takes_no_file() -> None:
    wide = np.broadcast_to(np.float32(2), (1024, 1024))
    assert waiting.waiting(wide) is wide
    small = np.ones(8)
    assert waiting.waiting(small) is small
    once = waiting.waiting(np.arange(1 << 18, dtype=np.float32).reshape(512, 512).T)
    assert waiting.is_in_file(once) and once[3, 7] == 7 * 512 + 3
    view = once[:, 1:]
    assert waiting.waiting(view) is view


CENTRED = """
HloModule centred

plus (a: f32[], b: f32[]) -> f32[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main (x: f32[64,1024], w: f32[64]) -> (f32[64], s32[64]) {
  x = f32[64,1024] parameter(0)
  w = f32[64] parameter(1)
  zero = f32[] constant(0)
  sums = f32[64] reduce(x, zero), dimensions={1}, to_apply=plus
  made = f32[64] multiply(sums, w)
  places = s32[64] iota(), iota_dimension=0
  ROOT result = (f32[64], s32[64]) tuple(made, places)
}
"""


def centred() -> tuple[Module, list[Array]]:
    """Rows whose sums are almost nothing: what numpy makes of them is a thousandth off."""
    random = np.random.default_rng(3)
    half = random.standard_normal((64, 512)).astype(np.float32)
    x = np.concatenate([half, 2e-5 - half], 1).astype(np.float32)
    return parse(CENTRED), [x, random.uniform(0.5, 1.5, 64).astype(np.float32)]


def in_another_order(given: Sequence[Array], seed: int = 0) -> list[Array]:
    """As accurate as numpy's own result, and as far from it as both are from the exact one."""
    columns = np.random.default_rng(seed).permutation(given[0].shape[1])
    sums = np.ascontiguousarray(given[0][:, columns]).sum(1, dtype=np.float32)
    return [sums * given[1], np.arange(64, dtype=np.int32)]


def test_a_result_that_conditioning_alone_sets_apart_passes() -> None:
    module, given = centred()
    made = in_another_order(given)
    assert whole.error_of(made[0], evaluate(module, given)[0]) > 1e-5
    found = verdict(module, given, made)
    assert not found.wrong and found.informative == 2
    assert list(found.errors) == ["output 0"]
    assert 1e-5 < found.errors["output 0"].ours < 1e-3
    assert 0.3 < found.errors["output 0"].ratio < 3


@pytest.mark.parametrize("wrong", ["scaled", "one element", "an integer", "biased"])
def test_what_conditioning_does_not_explain_is_wrong(wrong: str) -> None:
    module, given = centred()
    made = in_another_order(given)
    exact = evaluate(module, given, {}, "float64")[0]
    off = float(np.abs(evaluate(module, given)[0] - exact).max())
    match wrong:
        case "scaled":
            made[0] = made[0] * np.float32(1.01)
        case "one element":
            made[0][17] += 8 * off
        case "biased":
            made[0] = (exact + 4 * off).astype(np.float32)
        case "an integer":
            made[1][3] += 1
    found = verdict(module, given, made)
    assert list(found.wrong) == ["output 1" if wrong == "an integer" else "output 0"]


def test_an_output_beyond_one_draw_is_judged_by_the_least_accurate_of_five() -> None:
    """As it is where all elements hang on one sum, and numpy's happens to be nearly exact."""
    module, given = centred()
    given[0][:] = given[0][0]
    random = np.random.default_rng(5)
    orders = (np.ascontiguousarray(given[0][:, random.permutation(1024)]) for _ in range(1000))
    given[0] = next(x for x in orders if _off(module, [x, given[1]]) < 2e-5)
    starts = [ulp_away({"x": given[0], "w": given[1]}, seed) for seed in range(REDRAWS)]
    widest = max(_off(module, list(start.values())) for start in starts)
    exact = evaluate(module, given, {}, "float64")
    assert widest > 1e-4
    for share, passes in ((1.5, True), (2.5, False)):
        made = [(exact[0] * (1 + share * widest)).astype(np.float32), exact[1]]
        found = verdict(module, given, made)
        assert (not found.wrong) == passes
        assert found.redrawn == 1 and found.draws > 1
        assert verdict(module, given, made, redraws=0).wrong


def _off(module: Module, given: Sequence[Array]) -> float:
    step = numpy_step(with_decisions(module, Decided({}, {})), given)
    return whole.error_of(step.arrays["output 0"], step.exact["output 0"])


def test_the_program_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "TABLE", tmp_path / "whole.md")
    monkeypatch.setattr(whole, "FIGURES", tmp_path / "whole.json")
    monkeypatch.setattr("sys.argv", ["whole", "softmax_grad", "layernorm_gelu_grad"])
    assert whole.main() == 0
    [layer, softmax] = json.loads((tmp_path / "whole.json").read_text()).values()
    assert (layer["outputs"], softmax["outputs"]) == (4, 2)
    assert layer["informative"] == 4 and layer["launches"] > 0 and not layer["wrong"]
    assert 0 < layer["ours"] < 1e-6 and 0 < layer["numpy"] < 1e-6
    lines = (tmp_path / "whole.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")][-2:]
    assert [row.split()[1] for row in rows] == ["layernorm_gelu_grad", "softmax_grad"]


def test_the_program_fails_for_a_wrong_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = whole.run_on

    def spoilt(*arguments: Any) -> tuple[list[Array], int]:
        made, launches = real(*arguments)
        return [made[0], made[1] * np.float32(1 + 1e-5), *made[2:]], launches

    monkeypatch.setattr(whole, "TABLE", tmp_path / "whole.md")
    monkeypatch.setattr(whole, "FIGURES", tmp_path / "whole.json")
    monkeypatch.setattr(whole, "run_on", spoilt)
    monkeypatch.setattr("sys.argv", ["whole", "layernorm_gelu_grad"])
    assert whole.main() == 1
    [found] = json.loads((tmp_path / "whole.json").read_text()).values()
    assert list(found["wrong"]) == ["output 1"] and found["judged again"] == 1


GATED = """
HloModule gated

plus (a: f32[], b: f32[]) -> f32[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main (x: f32[1024,128], y: f32[1024,128], g: f32[1024,128]) -> f32[128] {
  x = f32[1024,128] parameter(0)
  y = f32[1024,128] parameter(1)
  g = f32[1024,128] parameter(2)
  zero = f32[] constant(0)
  zeros = f32[1024,128] broadcast(zero), dimensions={}
  sum = f32[1024,128] add(x, y)
  active = f32[1024,128] maximum(sum, zeros)
  on = pred[1024,128] compare(active, zeros), direction=GT
  through = f32[1024,128] select(on, g, zeros)
  ROOT gradient = f32[128] reduce(through, zero), dimensions={0}, to_apply=plus
}
"""


def gated() -> tuple[Module, list[Array], Decided]:
    """A step, and the decisions and their values of a run in which rounding turned one."""
    module = parse(GATED)
    random = np.random.default_rng(11)
    given = [random.standard_normal((1024, 128)).astype(np.float32) for _ in range(3)]
    given[0][5, 7] = -given[1][5, 7]
    given[0][5, 7] = np.nextafter(given[0][5, 7], np.float32(9))
    [decision] = decisions(module)
    on = decision.operands[0]
    values = evaluate_all(module, given, keep={decision, on})
    taken, active = values[decision].copy(), values[on].copy()
    assert taken[5, 7]
    taken[5, 7], active[5, 7] = False, 0
    return module, given, Decided({decision: taken}, {on: active})


def test_float64_takes_the_decisions_of_the_run_that_it_judges() -> None:
    module, given, ours = gated()
    made = evaluate(module, given, forced=ours.taken)
    assert verdict(module, given, made).wrong, "unforced, one element moves a column"
    found = verdict(module, given, made, decided=ours)
    assert not found.wrong
    assert (found.turned, found.decisions) == (1, 1024 * 128)
    assert list(found.states) == ["output 0", "decided on 0"]
    spoilt = [made[0] * np.float32(1 + 1e-5)]
    assert list(verdict(module, given, spoilt, decided=ours).wrong) == ["output 0"]


def test_a_decision_that_rounding_does_not_turn_is_wrong() -> None:
    """One is told by the value it was taken on, several by their number."""
    module, given, ours = gated()
    [taken], [active] = ours.taken.values(), ours.on.values()
    far = np.argwhere(active > 1)
    taken[5, 7], taken[tuple(far[0])], active[tuple(far[0])] = True, False, 0
    made = evaluate(module, given, forced=ours.taken)
    assert list(verdict(module, given, made, decided=ours).wrong) == ["decided on 0"]
    taken[tuple(far[1])], active[tuple(far[1])] = False, 0
    made = evaluate(module, given, forced=ours.taken)
    found = verdict(module, given, made, decided=ours).wrong
    assert list(found) == ["decided on 0", "decisions"]


@pytest.mark.slow
def test_decisions_are_read_from_what_kernels_wrote(standin: Standin) -> None:
    module = workloads.module("mlp_nodrop_train")
    given = whole.arguments(module)
    compiled = compile_module(padded(module), DEVICES[whole.TARGET])
    written: dict[Instruction, Array] = {}
    way = recording(compiled.plan, in_c, written)
    whole.run_on(standin, lower_module(compiled), given, way)
    found = decided(compiled.module, given, written, module)
    values = evaluate_all(module, given, keep={*found.taken, *found.on})
    assert len(found.taken) > 1 and set(found.taken) <= set(decisions(module))
    for node, array in found.taken.items():
        assert np.mean(array != values[node]) < 1e-4
    for node, array in found.on.items():
        assert whole.error_of(array, values[node]) < 1e-6
    [first, *_] = found.on
    for value, array in written.items():
        written[value] = array * np.float32(1.5)
    moved = decided(compiled.module, given, written, module)
    assert whole.error_of(moved.on[first], found.on[first] * np.float32(1.5)) < 1e-6
