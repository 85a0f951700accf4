"""What lanes keep of rows: no load of memory twice, no shared memory, and nothing beyond bounds."""

from __future__ import annotations

from collections import Counter

import pytest

from stitchcore.codegen import cuda
from stitchcore.device.records import DEVICES
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir.nodes import Allocate, Buffer, Kernel, Load, Role, Scope, Section
from stitchcore.loop_ir.printer import parse_kernel, print_kernel
from stitchcore.loop_ir.verifier import IllegalKernel
from stitchcore.loop_ir.verifier import check as check_kernel
from stitchcore.loop_ir.visitor import expressions, statements
from stitchcore.schedule import limits, register_reuse
from tests.schedule.agree import check
from tests.schedule.modules import (
    apply,
    broadcast,
    draw_inputs,
    module_of,
    parameter,
    reduce,
    whole,
)
from tests.schedule.twins import toy

GPU = DEVICES["sm_80"]


def softmax(value: Instruction) -> Instruction:
    shape = value.shape.static
    along = tuple(range(len(shape) - 1))
    top = broadcast(reduce(value, (len(along),), op.MAXIMUM), shape, along)
    power = apply(op.EXPONENTIAL, apply(op.SUBTRACT, value, top))
    return apply(op.DIVIDE, power, broadcast(reduce(power, (len(along),)), shape, along))


def scheduled(rows: int, columns: int, **bounds: int) -> Kernel:
    """Softmax of a GPU's kernel, compared with numpy, its own gradient's way: of two operands."""
    value = parameter(0, (rows, columns))
    module = module_of([softmax(value)], [value])
    pattern = whole(module)
    with toy(bounds):
        return check(pattern, module, draw_inputs(pattern, 0), device=GPU)


def sections(kernel: Kernel) -> list[Section]:
    return [section for phase in kernel.phases for section in phase.sections]


def loads(kernel: Kernel) -> Counter[Buffer]:
    return Counter(
        node.buffer
        for section in sections(kernel)
        for node in expressions(section.body)
        if isinstance(node, Load) and node.buffer.scope is Scope.DEVICE
    )


def allocated(kernel: Kernel) -> Counter[Scope]:
    found = (s for one in sections(kernel) for s in statements(one.body))
    return Counter(s.buffer.scope for s in found if isinstance(s, Allocate))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [5, 32, 100, 768, 1500, 4096])
def test_a_row_is_read_once_and_shares_no_memory(columns: int) -> None:
    kernel = scheduled(300, columns)
    assert set(loads(kernel).values()) == {1}
    assert set(allocated(kernel)) == {Scope.LANE}
    assert cuda.shared_bytes(kernel) == 0


@pytest.mark.slow
def test_rows_that_registers_do_not_hold_stay_in_memory() -> None:
    kernel = scheduled(300, 16384)
    bounds = limits.of(GPU)
    assert bounds.register_elements * GPU.lanes < 16384
    assert Scope.LANE not in allocated(kernel)


def test_no_more_words_than_there_are() -> None:
    """16 elements a lane of each row: a block has the rows, in runs of 4."""
    assert allocated(scheduled(30, 4096, register_words=16))[Scope.LANE] == 1
    assert allocated(scheduled(30, 4096, register_words=32))[Scope.LANE] == 2
    assert allocated(scheduled(30, 4096, register_words=15))[Scope.LANE] == 0


def test_a_processor_without_lanes_keeps_nothing() -> None:
    value = parameter(0, (30, 768))
    module = module_of([softmax(value)], [value])
    pattern = whole(module)
    kernel = check(pattern, module, draw_inputs(pattern, 0))
    assert Scope.LANE not in allocated(kernel)


TEXT = """
kernel k() {{
  input in0: f32[4, 40]
  output out0: f32[4, 40]
  phase {{
    section task0 < 4 {{
      local{own} local0: f32[40]
      lanes lane0 in {begin} .. {end} {{
        local0[{store}] = in0[task0, lane0]
      }}
      lanes lane1 in {begin} .. {end} {{
        let v0: f32 = local0[{load}]
        out0[task0, lane1] = v0
      }}
    }}
  }}
}}
"""


def text(**given: str) -> str:
    usual = {"own": "", "begin": "0", "end": "40", "store": "lane0", "load": "lane1"}
    return TEXT.format(**{**usual, **given})


def kept(kernel: Kernel) -> Section:
    return register_reuse.reuse(sections(kernel)[0], limits.of(GPU), lambda stem: f"{stem}0")


@pytest.mark.parametrize(
    ("given", "whose"),
    [
        ({}, Scope.LANE),
        ({"begin": "8", "store": "lane0 + -8", "load": "lane1 + -8"}, Scope.LANE),
        ({"load": "39 + lane1 * -1"}, Scope.GROUP),
        ({"begin": "8", "store": "lane0", "load": "lane1"}, Scope.GROUP),
    ],
)
def test_a_buffer_is_the_lanes_own_where_each_has_its_iterations_number(
    given: dict[str, str], whose: Scope
) -> None:
    section = kept(parse_kernel(text(**given)))
    assert [s.buffer.scope for s in section.body if isinstance(s, Allocate)] == [whose]


@pytest.mark.parametrize("given", [{"load": "39 + lane1 * -1"}, {"store": "0"}])
def test_an_element_of_another_lane_is_against_the_rules(given: dict[str, str]) -> None:
    kernel = parse_kernel(text(own=" lane", **given))
    with pytest.raises(IllegalKernel, match="is a lane's"):
        check_kernel(kernel)


def test_whose_a_buffer_is_can_be_read_back() -> None:
    kernel = parse_kernel(text(own=" lane"))
    check_kernel(kernel)
    assert parse_kernel(print_kernel(kernel)) == kernel
    (buffer,) = (s.buffer for s in sections(kernel)[0].body if isinstance(s, Allocate))
    assert (buffer.scope, buffer.role) == (Scope.LANE, Role.LOCAL)


def test_what_is_stored_under_a_condition_is_read_from_memory() -> None:
    """Only some iterations load in the first loop: the second reads memory itself."""
    kernel = parse_kernel("""
kernel k() {
  input in0: f32[40]
  output out0: f32[40]
  output out1: f32[40]
  phase {
    section task0 < 1 {
      lanes lane0 in 0 .. 40 {
        if in_range(lane0, 0, 7) {
          let v0: f32 = in0[lane0]
          out0[lane0] = v0
        }
      }
      lanes lane1 in 0 .. 40 {
        let v1: f32 = in0[lane1]
        out1[lane1] = v1
      }
    }
  }
}
""")
    assert kept(kernel) == sections(kernel)[0]
