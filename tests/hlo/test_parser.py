"""Import and printing: every real module round-trips, and every malformed text says where."""

from __future__ import annotations

from functools import partial

import pytest

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import topological
from stitchcore.hlo.text.parser import parse
from stitchcore.hlo.text.printer import names, print_module
from stitchcore.hlo.text.tokenizer import ScanError, closing, split
from tests.calls import calls
from tests.hlo import workloads, xla

SMALL = """HloModule small, input_output_alias={ {0}: (1, {}, may-alias) }

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(f32[] %a, f32[] %b)
}

ENTRY %main (x: f32[2,3], y: f32[2]) -> (f32[2], s32[]) {
  %x = f32[2,3]{1,0} parameter(0)
  %y = f32[2]{0} parameter(1)
  %zero = f32[] constant(0)
  %r = f32[2] reduce(%x, %zero), dimensions={1}, to_apply=%sum, metadata={op_name="S"}
  %s = f32[2]{0} add(f32[2]{0} %r, f32[2]{0} %y), metadata={op_name="a \\"quoted\\" name"}
  %n = s32[] constant(-7)
  ROOT %t = (f32[2]{0}, /*index=1*/s32[]) tuple(f32[2]{0} %s, s32[] %n)
}
"""


def test_there_are_workloads() -> None:
    assert len(workloads.NAMES) >= 19


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads.NAMES)
def test_round_trip(name: str) -> None:
    module = workloads.module(name)
    again = parse(print_module(module))
    assert again.entry is module.entry
    assert again.aliases == module.aliases
    assert dict(again.provenance) == dict(module.provenance)


@pytest.mark.parametrize("name", ["mlp_train", "dien_infer", "lstm_lm_train", "asr_train"])
def test_xla_reads_what_is_printed(name: str) -> None:
    xla.client()
    from jaxlib import _hlo

    printed = print_module(workloads.module(name))
    theirs = _hlo.hlo_module_from_text(printed).to_string()
    assert parse(theirs).entry is workloads.module(name).entry


def test_small_module() -> None:
    module = parse(SMALL)
    total, number = module.outputs
    assert module.aliases == ((0, 1),)
    assert number["value"].scalar == -7
    reduce = total.operands[0]
    assert reduce.opcode == op.REDUCE and reduce["dimensions"] == (1,)
    assert module.provenance[reduce] == ("S",)
    assert names(module)[reduce] == "reduce.3"


BARE = """HloModule small

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[2,3] parameter(0)
  y = f32[2] parameter(1)
  zero = f32[] constant(0)
  r = f32[2] reduce(x, zero), dimensions={1}, to_apply=sum
  s = f32[2] add(r, y)
  n = s32[] constant(-7)
  ROOT t = (f32[2], s32[]) tuple(s, n)
}
"""


def test_dialect_of_jaxlib() -> None:
    """No percent signs, no operand shapes, no layouts, no computation signatures."""
    assert parse(BARE).entry is parse(SMALL).entry
    mixed = BARE.replace("add(r, y)", "add(f32[2]{0} r, f32[2]{0} y)")
    assert parse(mixed).entry is parse(SMALL).entry


def test_calls_are_inlined_with_their_provenance() -> None:
    text = """HloModule c
f {
  p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p), metadata={op_name="inner"}
}
ENTRY e {
  x = f32[4] parameter(0)
  a = f32[4] call(x), to_apply=f
  ROOT b = f32[4] call(a), to_apply=f
}
"""
    module = parse(text)
    assert [n.opcode for n in topological((module.entry.root,))] == [
        op.PARAMETER, op.NEGATE, op.NEGATE,
    ]  # fmt: skip
    assert module.provenance[module.entry.root] == ("inner",)


def test_random_instructions_stay_apart() -> None:
    line = "f32[3] rng(z, o), distribution=rng_uniform"
    text = f"""HloModule r
ENTRY e {{
  z = f32[] constant(0)
  o = f32[] constant(1)
  a = {line}
  b = {line}
  ROOT s = f32[3] subtract(a, b)
}}
"""
    module = parse(text)
    left, right = module.entry.root.operands
    assert left is not right
    assert parse(print_module(module)).entry is module.entry


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        ("%s, s32[] %n)", "%s, s32[] %m)", "f32[2]{0} %s, s32[] %m", "operand 'm' is not defined"),
        ("ENTRY", "ENTRYY", "ENTRYY", "expected a computation"),
        ("to_apply=%sum", "to_apply=%sum.2", ", dimensions={1}, to_", "'sum.2' is not defined"),
        ("={1}, ", "={1}, colour=3, ", ", dimensions={1}, colour", "no attribute 'colour'"),
        ("constant(0)", "constant(zero)", "%zero = ", "could not convert string to float"),
        ("{0} %r, f32[2]{0} %y)", "{0} %r)", "f32[2]{0} %r)", "add takes 2 operands, not 1"),
        ("= f32[] constant", "= f32 constant", "f32 constant", "expected a shape"),
        ("HloModule", "Module", "Module", "expected 'HloModule NAME'"),
        ("  ROOT %t = ", "  %t = ", None, "has no ROOT"),
    ],
)
def test_errors_say_where(old: str, new: str, at: str | None, message: str) -> None:
    assert old in SMALL
    broken = SMALL.replace(old, new)
    with pytest.raises(Refused) as caught:
        parse(broken)
    refusal = caught.value.refusal
    assert refusal.reason is Reason.PARSE_ERROR
    assert message in refusal.detail
    offset = broken.rindex("}") if at is None else broken.index(at)
    line = broken.count("\n", 0, offset) + 1
    column = offset - (broken.rfind("\n", 0, offset) + 1) + 1
    assert refusal.detail.startswith(f"line {line}, column {column}: ")


@pytest.mark.parametrize("cut", [40, 200, 420, 560, len(SMALL) - 3])
def test_truncated_text_is_an_error(cut: int) -> None:
    with pytest.raises(Refused) as caught:
        parse(SMALL[:cut])
    assert caught.value.refusal.reason is Reason.PARSE_ERROR


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("constant(0)", "constant({...})", Reason.ELIDED_CONSTANT),
        ("%x = f32[2,3]{1,0}", "%x = f32[2,3]{0,1}", Reason.UNSUPPORTED_LAYOUT),
        ("add(f32[2]{0} %r", "teleport(f32[2]{0} %r", Reason.UNKNOWN_OPCODE),
        ("%n = s32[]", "%n = f8e4m3fnuz[]", Reason.UNSUPPORTED_TYPE),
    ],
)
def test_refusals_have_their_reason(old: str, new: str, reason: Reason) -> None:
    with pytest.raises(Refused) as caught:
        parse(SMALL.replace(old, new))
    assert caught.value.refusal.reason is reason


def test_layout_of_unit_dimensions_is_harmless() -> None:
    text = "HloModule l\nENTRY e {\n  ROOT x = f32[1,5]{0,1} parameter(0)\n}\n"
    assert parse(text).entry.root.shape.dims == (1, 5)


def test_constants_read_back_to_the_same_bits() -> None:
    values = "{ { 1e-45, -0, inf }, { -inf, nan, 3.4028235e+38 } }"
    text = f"HloModule c\nENTRY e {{\n  ROOT c = f32[2,3] constant({values})\n}}\n"
    module = parse(text)
    literal = module.entry.root["value"]
    assert literal.data[:12].hex() == "01000000000000800000807f"
    assert parse(print_module(module)).entry is module.entry
    several = text.replace(" }, { ", " },\n    { ")
    assert parse(several).entry is module.entry


@pytest.mark.slow
def test_a_chain_of_thirty_thousand_instructions() -> None:
    """No recursion."""
    module = parse(chain(30_000))
    assert sum(1 for _ in topological((module.entry.root,))) == 30_001
    assert parse(print_module(module)).entry is module.entry


@pytest.mark.slow
def test_work_grows_linearly() -> None:
    """Per instruction, a chain of 8,000 takes what one of 500 takes (a quadratic parser: sixteen
    times). `python -m bench.linear` tells the seconds."""
    each = [calls(partial(parse, chain(length))) / length for length in (500, 8_000)]
    assert each[1] < 1.1 * each[0]


def chain(length: int) -> str:
    lines = ["HloModule chain", "ENTRY e {", "  v0 = f32[4] parameter(0)"]
    lines += [f"  v{i + 1} = f32[4] add(v{i}, v0)" for i in range(length)]
    lines[-1] = "  ROOT" + lines[-1][1:]
    return "\n".join([*lines, "}", ""])


def test_scanning_brackets_and_quotes() -> None:
    assert split('a, (b, c), {d, "e,\\"f"}') == ["a", " (b, c)", ' {d, "e,\\"f"}']
    assert closing('x(")")y)z', 0) == 7
    with pytest.raises(ScanError):
        closing("(()", 0)
