"""A check is an error of the program where its predicate is false, whoever runs the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stitchcore.codegen import cuda
from stitchcore.compiler.stages import compile_module
from stitchcore.device.host import host_device
from stitchcore.device.records import DEVICES
from stitchcore.errors import CheckFailed, Reason, Refused
from stitchcore.hlo.evaluator.evaluate import evaluate
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.symbolic.unify import unify
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import print_module
from stitchcore.hlo.transforms.expand import expand
from stitchcore.hlo.transforms.keep_checks import checks, keep
from stitchcore.loop_ir.interpreter import interpret
from stitchcore.runtime.module import run_module
from stitchcore.schedule.pipeline import schedule
from stitchcore.toolchain import nvrtc
from stitchcore.verify.inputs import arguments, integer_limit
from tests.fuzz.shrink import shrink
from tests.schedule.agree import collapsed

MESSAGE = "a label of {} outside [0, 9)"
CHECK = 'custom_call_target="stitch.check", backend_config="a label of {} outside [0, 9)"'
SUM = "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
HEAD = """  x = f32[R,C] parameter(0)
  l = s32[R] parameter(1)
  nine = s32[] constant(9)
  top = s32[R] broadcast(nine), dimensions={}
  zero = s32[] constant(0)
  yes = pred[] constant(true)
  no = pred[] constant(false)
  low = s32[R] broadcast(zero), dimensions={}
  ge = pred[R] compare(l, low), direction=GE
  lt = pred[R] compare(l, top), direction=LT
  holds = pred[R] and(ge, lt)
  checked = s32[R] custom-call(l, holds), CHECK
  factor = f32[R] convert(checked)
  spread = f32[R,C] broadcast(factor), dimensions={0}
  none = f32[] constant(0)
"""
WHOLE = "  ROOT y = f32[R,C] multiply(x, spread)\n"
SUMMED = """  y = f32[R,C] multiply(x, spread)
  s = f32[R] reduce(y, none), dimensions={1}, to_apply=sum
  ROOT out = (f32[R], f32[R,C]) tuple(s, y)
"""


def module(
    tail: str = WHOLE, rows: int = 40, columns: int = 33, holds: str = "and(ge, lt)"
) -> Module:
    text = f"HloModule m\n\n{SUM}\nENTRY main {{\n{HEAD}{tail}}}\n".replace("CHECK", CHECK)
    text = text.replace("and(ge, lt)", holds)
    return parse(text.replace("[R", f"[{rows}").replace(",C]", f",{columns}]"))


def given(columns: int = 33, **wrong: int) -> list[Any]:
    random = np.random.default_rng(1)
    labels = random.integers(0, 9, 40).astype(np.int32)
    for place, value in wrong.items():
        labels[int(place[1:])] = value
    return [random.normal(size=(40, columns)).astype(np.float32), labels]


def raises(reported: int) -> Any:
    return pytest.raises(CheckFailed, match=re.escape(MESSAGE.replace("{}", str(reported))))


def test_text_round_trips() -> None:
    checked = module()
    [check] = checks(checked)
    assert check["message"] == MESSAGE
    assert parse(print_module(checked)).entry is checked.entry
    with pytest.raises(Refused, match="parse_error"):
        parse(print_module(checked).replace("backend_config", "api_version"))


def test_sizes_unify() -> None:
    points = [({"s": n}, module(rows=n)) for n in (16, 17, 24)]
    unified = unify(points)
    assert checks(unified)[0].shape.dims == (unified.entry.parameters[1].shape.dims[0],)


@pytest.mark.parametrize("precision", ["storage", "float64"])
def test_evaluation(precision: str) -> None:
    evaluate(module(), given(), precision=precision)
    for wrong, reported in (({"_3": 9}, 9), ({"_3": 9, "_7": -1}, -1), ({"_39": 77}, 77)):
        with raises(reported):
            evaluate(module(), given(**wrong), precision=precision)


def test_only_a_check_that_always_holds_goes() -> None:
    expanded = expand(module()).module
    assert checks(expanded) and keep(module(), expanded) is expanded
    assert not checks(expand(module(holds="broadcast(yes), dimensions={}")).module)
    assert checks(expand(module(holds="broadcast(no), dimensions={}")).module)


@pytest.mark.parametrize("tail", [WHOLE, SUMMED])
@pytest.mark.parametrize("columns", [3, 33, 2000])
def test_kernels_raise_and_else_compute(tail: str, columns: int) -> None:
    compiled = compile_module(module(tail, columns=columns), host_device())
    right = given(columns)
    for ours, theirs in zip(
        run_module(compiled, right), evaluate(compiled.module, right), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)
    for wrong, reported in (({"_0": 9}, 9), ({"_39": -8, "_3": 11}, -8)):
        with raises(reported):
            run_module(compiled, given(columns, **wrong))
        for pattern, kernel in zip(compiled.plan.patterns, compiled.kernels, strict=True):
            assert kernel.kernel.errors == (MESSAGE,)
            inputs = [given(columns, **wrong)[p["number"]] for p in pattern.inputs]
            with raises(reported):
                interpret(kernel.kernel, collapsed(kernel.kernel, inputs, {}))


def test_a_twin_keeps_the_check() -> None:
    twin = shrink(module(columns=2000))
    assert len(checks(twin.module)) == 1
    pattern = compile_module(twin.module, host_device()).plan.patterns[0]
    assert schedule(pattern, twin.module, host_device(), "k", verify=True).errors == (MESSAGE,)


def test_cuda_text_compiles() -> None:
    try:
        nvrtc.nvrtc_version()
    except Refused as refused:
        pytest.skip(f"{refused}: pip install nvidia-cuda-nvrtc-cu12")
    device = next(d for d in DEVICES.values() if d.kind != "cpu")
    checked = module(SUMMED)
    pattern = compile_module(checked, host_device()).plan.patterns[0]
    text = cuda.render([schedule(pattern, checked, device, "k", verify=True)])
    assert "atomicMin(st_checks + 0" in text and "atomicMax(st_checks + 1" in text
    nvrtc.compile_cuda(text)


DEAD = "  ROOT y = f32[R,C] add(x, x)\n"
SLICED = """  part = f32[5,C] slice(spread), slice={[0:5], [0:33]}
  less = f32[5,C] slice(x), slice={[0:5], [0:33]}
  ROOT y = f32[5,C] multiply(part, less)
"""
BOTH = """  y = f32[R,C] multiply(x, spread)
  part = f32[5,C] slice(spread), slice={[0:5], [0:33]}
  ROOT out = (f32[R,C], f32[5,C]) tuple(y, part)
"""
CUT = """  y = f32[R,C] multiply(x, spread)
  part = f32[5,C] slice(y), slice={[0:5], [0:33]}
  low_half = f32[R,C] subtract(x, y)
  s = f32[R] reduce(low_half, none), dimensions={1}, to_apply=sum
  p = f32[5] slice(s), slice={[0:5]}
  q = f32[5,C] broadcast(p), dimensions={0}
  ROOT z = f32[5,C] add(part, q)
"""


@pytest.mark.parametrize("tail", [SLICED, BOTH, CUT])
def test_a_check_of_which_a_part_decides_an_output_is_refused(tail: str) -> None:
    with pytest.raises(Refused) as refused:
        compile_module(module(tail), host_device())
    assert refused.value.refusal.reason is Reason.DATA_DEPENDENT_ERROR


def test_a_check_that_simplification_drops_is_refused() -> None:
    ignored = WHOLE.replace("multiply(x, spread)", "select(always, x, spread)")
    always = "  always = pred[R,C] broadcast(yes), dimensions={}\n"
    checked = module(always + ignored)
    assert checks(checked)
    with pytest.raises(Refused, match="data_dependent_error"):
        keep(checked, expand(checked).module)


def test_dead_code_has_no_check_to_keep() -> None:
    assert checks(module(DEAD)) == ()


def test_drawn_data_passes_the_checks() -> None:
    assert integer_limit(module(), {}) == 9
    assert (
        integer_limit(parse(print_module(module()).replace("constant(9)", "constant(2)")), {}) == 2
    )
    with pytest.raises(Refused, match="no drawn data"):
        integer_limit(parse(print_module(module()).replace("constant(9)", "constant(0)")), {})
    drawn: Sequence[Any] = arguments(module().entry.parameters, {}, 0, integers=9)
    assert drawn[1].max() == 8
    assert op.record(op.CHECK).kind == "check"


LABELS = """HloModule labels
ENTRY main {
  label = s32[64] parameter(0)
  zero = s32[] constant(0)
  zeros = s32[64] broadcast(zero), dimensions={}
  classes = s32[] constant(2)
  all = s32[64] broadcast(classes), dimensions={}
  low = pred[64] compare(label, zeros), direction=GE
  high = pred[64] compare(label, all), direction=LT
  known = pred[64] and(low, high)
  none = f32[] constant(0)
  nothing = f32[64] broadcast(none), dimensions={}
  unknown = f32[] constant(nan)
  nans = f32[64] broadcast(unknown), dimensions={}
  ROOT loss = f32[64] select(known, nothing, nans)
}
"""


def test_drawn_labels_make_no_row_nan() -> None:
    """As TensorFlow's lowering of sparse_softmax_cross_entropy_with_logits marks them."""
    assert integer_limit(parse(LABELS), {}) == 2
    turned = LABELS.replace("select(known, nothing, nans)", "select(known, nans, nothing)")
    assert integer_limit(parse(turned), {}) == 8, "no draw passes: what it was without"


ROWS = """HloModule rows

ENTRY main {
  table = f32[N,4] parameter(0)
  ids = s32[64,1] parameter(1)
  ROOT row = f32[64,4] gather(table, ids), offset_dims={1}, collapsed_slice_dims={0}, BREAK
}
"""


@pytest.mark.parametrize("rows", [1, 3, 500])
def test_drawn_indices_are_rows_of_the_table(rows: int) -> None:
    """TensorFlow raises an error for others; fewer would be less telling."""
    rest = "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"
    text = ROWS.replace("[N,", f"[{rows},").replace("BREAK", rest)
    assert integer_limit(parse(text), {}) == rows
