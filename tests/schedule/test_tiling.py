"""How rows are mapped to groups and warps: AStitch's two shapes (3.3), and what lies between."""

from __future__ import annotations

import pytest

from stitchcore.device.records import DEVICES
from stitchcore.fusion.mechanisms import ALL, Mechanism, Mechanisms
from stitchcore.hlo.text.parser import parse
from stitchcore.loop_ir.nodes import Kernel, LaneReduce, Scope
from stitchcore.loop_ir.visitor import statements
from stitchcore.schedule import limits, tiling
from stitchcore.schedule.pipeline import schedule
from stitchcore.schedule.space import DEFAULT, Schedule
from tests.schedule.modules import whole

V100 = DEVICES["sm_70"]
ROWS = """
HloModule rows
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
ENTRY main {{
  x = f32[{rows},{columns}] parameter(0)
  zero = f32[] constant(0)
  ROOT sum = f32[{rows}] reduce(x, zero), dimensions={{1}}, to_apply=add
}}
"""


def row_sums(
    rows: int, columns: int, mechanisms: Mechanisms = ALL, chosen: Schedule = DEFAULT
) -> Kernel:
    module = parse(ROWS.format(rows=rows, columns=columns))
    return schedule(whole(module), module, V100, "rows", True, mechanisms, chosen)


def test_many_short_rows_are_a_warps_each() -> None:
    """<750000,32>: AStitch packs 32 rows of 32 threads into a block of 1024; a warp has several."""
    kernel = row_sums(750_000, 32)
    ((section,),) = (phase.sections for phase in kernel.phases)
    assert section.scope is Scope.WARP
    assert isinstance(section.tasks, int) and 750_000 // 64 <= section.tasks <= 750_000
    (combine,) = (s for s in statements(section.body) if isinstance(s, LaneReduce))
    assert combine.scope is Scope.WARP


def test_few_long_rows_are_split_over_blocks() -> None:
    """<64,30000>: 64 blocks leave most of the device idle; parts are added up after a barrier."""
    kernel = row_sums(64, 30_000)
    assert len(kernel.phases) == 2
    (first,) = kernel.phases[0].sections
    assert isinstance(first.tasks, int) and first.tasks >= V100.units


@pytest.mark.parametrize(("rows", "columns"), [(750_000, 32), (64, 30_000), (500, 4096)])
def test_without_adaptive_mapping_a_row_is_a_blocks(rows: int, columns: int) -> None:
    kernel = row_sums(rows, columns, ALL - {Mechanism.ADAPTIVE_MAPPING})
    ((section,),) = (phase.sections for phase in kernel.phases)
    assert (section.tasks, section.scope) == (rows, Scope.GROUP)


@pytest.mark.parametrize(("columns", "scope"), [(1024, Scope.WARP), (1025, Scope.GROUP)])
def test_a_longer_row_is_a_blocks(columns: int, scope: Scope) -> None:
    ((section,),) = (phase.sections for phase in row_sums(100_000, columns).phases)
    assert section.scope is scope


@pytest.mark.parametrize(
    ("rows", "columns", "scope"),
    [
        (128, 768, Scope.GROUP),  # 16 blocks of warps would leave most of the device idle
        (16384, 768, Scope.WARP),
        (200, 32, Scope.WARP),  # a block would have a lane in eight at work
        (320, 1024, Scope.GROUP),
        (40_000, 1024, Scope.WARP),
    ],
)
def test_few_rows_have_all_lanes_of_a_block(rows: int, columns: int, scope: Scope) -> None:
    ((section,),) = (phase.sections for phase in row_sums(rows, columns).phases)
    assert section.scope is scope


@pytest.mark.parametrize("rows", [1, 7, 640, 10_000, 1_000_000])
def test_warps_have_rows_to_share_before_one_has_many(rows: int) -> None:
    """A warp walks several rows only where every warp of a wave has one."""
    own = limits.of(V100)
    made = tiling.over_rows({0: rows}, (0,), 32, False, own)
    assert made.scope is Scope.WARP and isinstance(made.rows_per_task, int)
    wave = own.warps * own.max_splits
    assert made.rows_per_task == 1 or rows // made.rows_per_task >= wave


def test_a_cpu_has_no_warps() -> None:
    for shape in ((750_000, 32), (64, 30_000)):
        module = parse(ROWS.format(rows=shape[0], columns=shape[1]))
        kernel = schedule(whole(module), module, DEVICES["cpu-x86-64-v3"], "rows", verify=True)
        assert all(s.scope is Scope.GROUP for p in kernel.phases for s in p.sections)
