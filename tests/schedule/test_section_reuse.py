"""What several phases or sections of a kernel want of a dear value: one price says whether it is
passed on through scratch memory or computed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from stitchcore.cli.main import stitch
from stitchcore.device.records import DEVICES, Device
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir.nodes import Apply, Kernel, Let, Role
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule.pipeline import choices, schedule
from tests.emulator import kernels
from tests.emulator.program import compile_text
from tests.emulator.twins import RUNS
from tests.schedule import agree
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    whole,
)

TARGETS = ["cpu-x86-64-v3", "sm_80"]


def two_ways(count: int, dims: tuple[int, int]) -> Module:
    """`count` tanh, one after the other, added up by columns and altogether."""
    x = value = parameter(0, dims)
    for _ in range(count):
        value = apply(op.TANH, value)
    return module_of([reduce(value, (0,)), reduce(value, (0, 1))], [x])


def two_phases(dims: tuple[int, int]) -> Module:
    """Columns divided by their sums: the first phase raises what the second divides."""
    x = parameter(0, dims)
    raised = apply(op.TANH, apply(op.TANH, x))
    return module_of([apply(op.DIVIDE, raised, broadcast(reduce(raised, (0,)), dims, (1,)))], [x])


def pairs(dims: tuple[int, int, int]) -> Module:
    """Of each pair of places in the middle dimension the exponential of their difference, added up
    over the second: each place is read for all the others."""
    x = parameter(0, dims)
    dear = apply(op.TANH, apply(op.TANH, x))
    batch, places, lanes = dims
    whole = (batch, places, places, lanes)
    first, second = (broadcast(dear, whole, (0, d, 3)) for d in (1, 2))
    return module_of([reduce(apply(op.EXPONENTIAL, apply(op.SUBTRACT, first, second)), (2,))], [x])


def paying(target: str, passes: bool) -> Device:
    """A device on which memory, or arithmetic, costs nothing."""
    device = DEVICES[target]
    if passes:
        return replace(device, bytes_per_second=1e30, phase_seconds=0.0)
    timing = device.timing and replace(device.timing, hertz=1e30)
    return replace(device, flops_per_second=1e30, timing=timing)


def computed(kernel: Kernel) -> int:
    """How many tanh the kernel's text has."""
    body = [s for p in kernel.phases for section in p.sections for s in statements(section.body)]
    values = [s.value for s in body if isinstance(s, Let)]
    return sum(isinstance(v, Apply) and v.opcode == op.TANH for v in values)


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "make",
    [lambda: two_ways(2, (96, 160)), lambda: two_phases((96, 160)), lambda: pairs((3, 8, 160))],
)
def test_both_ways_are_right(make: object, target: str, passes: bool) -> None:
    assert callable(make)
    module = make()
    pattern, device = whole(module), paying(target, passes)
    kernel = agree.check(
        pattern, module, draw_inputs(pattern, 0), device=device, compiled=device.kind == "cpu"
    )
    assert computed(kernel) == (2 if passes else 4)
    chosen = choices(pattern, module, device)
    assert {text.startswith("stored to scratch") for _, text in chosen} == {passes}


def test_what_sections_pass_on_has_no_races() -> None:
    """As CUDA on the emulator: a grid barrier stands between who stores and who reads."""
    module = two_ways(2, (96, 64))
    pattern = whole(module)
    inputs = draw_inputs(pattern, 0)
    kernel = agree.check(pattern, module, inputs, device=paying("sm_80", True))
    assert computed(kernel) == 2 and len(kernel.phases) > 1
    program = compile_text(kernels.rendered([kernel]))
    shaped = agree.collapsed(kernel, inputs, {})
    for order, blocks in RUNS:
        run = kernels.run(kernel, program, shaped, {}, order, blocks=blocks)
        assert not run.findings, list(map(str, run.findings))


@pytest.mark.parametrize(
    ("target", "count", "times"),
    [
        ("cpu-x86-64-v3", 1, 2),  # 64 MiB are written and read slower than a tanh is computed
        ("cpu-x86-64-v3", 3, 1),
        ("sm_80", 3, 2),
        ("sm_80", 12, 1),
    ],
)
def test_sections_compute_again_what_is_cheaper_so(target: str, count: int, times: int) -> None:
    module = two_ways(count, (4096, 4096))
    kernel = schedule(whole(module), module, DEVICES[target], "two", verify=True)
    assert computed(kernel) == count * times
    large = [b for b in kernel.with_role(Role.SCRATCH) if b.dims == (4096, 4096)]
    assert len(large) == 2 - times


def test_what_a_broadcast_repeats_is_stored_where_loops_come_to_it_again() -> None:
    """48 places: 2 tanh an element instead of 98. What a row's lanes share is in a register."""
    device = DEVICES["cpu-x86-64-v3"]
    module = pairs((16, 48, 256))
    kernel = schedule(whole(module), module, device, "pairs", verify=True)
    assert computed(kernel) == 2 and len(kernel.phases) == 2
    x, y = parameter(0, (256, 48)), parameter(1, (256, 48, 64))
    along_lanes = broadcast(apply(op.TANH, apply(op.TANH, x)), (256, 48, 64), (0, 1))
    module = module_of([apply(op.MULTIPLY, along_lanes, y)], [x, y])
    assert len(schedule(whole(module), module, device, "lanes", verify=True).phases) == 1


def test_explain_says_what_was_chosen_and_at_what_price(tmp_path: Path) -> None:
    path = tmp_path / "two.hlo"
    path.write_text(TEXT)
    found = CliRunner().invoke(
        stitch, ["explain", "t2", "--module", str(path), "--target", "sm_80"]
    )
    assert found.exit_code == 0, found.output
    assert "kernel 0: computed again (its phase wants it again: scratch adds " in found.output


TEXT = """HloModule two

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %r = f32[] add(f32[] %a, f32[] %b)
}

ENTRY %main (x: f32[4096,4096]) -> (f32[4096], f32[]) {
  %x = f32[4096,4096] parameter(0)
  %z = f32[] constant(0)
  %t = f32[4096,4096] tanh(f32[4096,4096] %x), metadata={op_name="t"}
  %u = f32[4096,4096] tanh(f32[4096,4096] %t), metadata={op_name="t2"}
  %all = f32[] reduce(f32[4096,4096] %u, f32[] %z), dimensions={0,1}, to_apply=%sum
  %columns = f32[4096] reduce(f32[4096,4096] %u, f32[] %z), dimensions={0}, to_apply=%sum
  ROOT %both = (f32[4096], f32[]) tuple(f32[4096] %columns, f32[] %all)
}
"""
