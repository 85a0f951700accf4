"""The sizes that scheduling decisions turn on, for a device: data, so that a test may take others.

A CPU has few cores that want long tasks out of their caches. A GPU wants as many groups of lanes as
it can hold at once (a wave), of few elements a lane, and has warps that reduce short rows without
shared memory (AStitch 3.3: horizontal packing; FusionStitching's warp and block composition).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stitchcore.device.records import Device
from stitchcore.fusion import row_values
from stitchcore.fusion.mechanisms import ALL, Mechanism, Mechanisms
from stitchcore.schedule.space import DEFAULT, Schedule

WARP_LANES = 32
THREADS_PER_UNIT = 256 * row_values.GROUPS_HELD
"""Threads that a multiprocessor holds of a kernel with a usual number of registers."""

UNIT_REGISTERS = 65536
"""32-bit registers of a multiprocessor, of every GPU here."""


def blocks_per_unit(threads: int) -> int:
    """Blocks of `threads` that a multiprocessor holds of a usual kernel: 4 of 256."""
    return max(THREADS_PER_UNIT // threads, 1)


@dataclass(frozen=True)
class Limits:
    """Elements, rows, parts and bytes.

    `task_elements`: a task is about so many. `chain_elements`: of all rows whose stages run one
    after another, and `row_elements` where stages end in reductions of rows (0: row by row).
    `max_splits`: parts of one reduction. `max_part_rows`: rows that one f32 accumulator adds up,
    because rounding errors grow with their number. `enough_tasks`: with so many, none is split.
    `least_tasks`: no rows share a task where there would be fewer (0: any). `lane_block`: largest
    lane range whose accumulators one task keeps in a LOCAL buffer; a longer one is cut into blocks
    of a quarter, or of up to `block_quarters` where there are enough of them. Pieces shorter than
    `short_piece` that lie side by side are one task's to add up. Fewer than `few_rows` rows,
    longer than `long_row`, are reduced in parts. A reduction of at most
    `inline_size` is a serial loop. `stage_depth`: operations on the longest way through one lane
    loop of an elementwise section, which is cut beyond twice that (0: never). `local_bytes`: LOCAL
    buffers of one group. A row of at most `warp_elements` is one warp's. Lanes take runs of
    neighbouring iterations where a loop has one for each of `run_lanes` (0: never). Elementwise
    rows shorter than `flat_below` are one lane loop with those beside them. What lane loops leave
    for each other stays in registers: up to `register_words` words a lane, of arrays of up to
    `register_elements` (0: never). Where lanes read across the rows of memory (a transpose) a task
    has `turned_lanes`, a cache line of what it writes (0: all); rows of up to `turned_row` elements
    that write so wait for each other in a LOCAL buffer. Where a factor of a matrix product of more
    than `strided_terms` lies across the lanes it is turned first; one that costs more than
    `factor_cost` is computed first. `packs`: short rows share a task, and a lane loop.
    `lanes` are a group's. `warp_rows`: rows of up to `warp_elements` are a warp's
    each, or a group's (None: by an estimate of waves). So many blocks of lanes beside a reduction
    are enough that its rows are not split (`enough_blocks`). Rows of as many elements as one of
    `interchanged` are walked inside a lane: compilers shuffle vectors of so many.
    """

    task_elements: int
    chain_elements: int
    row_elements: int
    max_splits: int
    least_part_rows: int
    max_part_rows: int
    enough_tasks: int
    least_tasks: int
    lane_block: int
    block_quarters: int
    short_piece: int
    few_rows: int
    long_row: int
    inline_size: int
    stage_depth: int
    local_bytes: int
    warp_elements: int
    run_lanes: int
    flat_below: int
    register_words: int
    register_elements: int
    turned_lanes: int
    turned_row: int
    strided_terms: int
    factor_cost: int
    packs: bool = True
    lanes: int = 1
    warp_rows: bool | None = None
    enough_blocks: int = 8
    interchanged: tuple[int, ...] = ()

    @property
    def warps(self) -> int:
        """Of a group; 1 where there are none."""
        return max(self.lanes // WARP_LANES, 1)


CPU = Limits(
    task_elements=16384,
    chain_elements=1024,
    row_elements=2048,  # what waits for a row's reduction does not keep the next row waiting
    max_splits=64,
    least_part_rows=16,
    max_part_rows=512,
    enough_tasks=32,
    least_tasks=0,  # calling a second thread costs more than a small task
    lane_block=4096,
    block_quarters=4,  # each row of a block begins a page, of which nothing was fetched ahead
    short_piece=1024,
    few_rows=32,
    long_row=65536,
    inline_size=8,
    # a chain of dependent operations runs at their latency, short chains of many rows overlap
    stage_depth=32,
    local_bytes=row_values.CORE_BYTES,
    warp_elements=0,
    run_lanes=0,  # a compiler vectorises the whole loop
    flat_below=0,  # it does so for rows, and not for quotients and remainders
    register_words=0,  # one lane has no registers for a row
    register_elements=0,
    turned_lanes=16,
    turned_row=2048,
    strided_terms=0,
    factor_cost=1,
    interchanged=(2, 3, 4),
)


def of(device: Device, mechanisms: Mechanisms = ALL, chosen: Schedule = DEFAULT) -> Limits:
    """The limits of `device`, with what a kernel's schedule has `chosen` otherwise. Without
    adaptive mapping each row is a task's, however short, and none is split, however few there are.
    """
    found = CPU if device.kind == "cpu" else _gpu(chosen.on(device))
    found = replace(found, **chosen.limits)
    if Mechanism.ADAPTIVE_MAPPING in mechanisms:
        return found
    return replace(found, few_rows=0, warp_elements=0, flat_below=0, packs=False, interchanged=())


def _gpu(device: Device) -> Limits:
    blocks = blocks_per_unit(device.lanes)
    wave = blocks * device.units
    timing = device.timing
    assert timing is not None, f"{device.target} is a GPU"
    return Limits(
        task_elements=8 * device.lanes,
        chain_elements=1024,
        row_elements=0,
        max_splits=wave,
        least_part_rows=16,
        max_part_rows=512,
        enough_tasks=wave // 2,
        least_tasks=wave,
        lane_block=4 * device.lanes,
        block_quarters=1,
        short_piece=0,
        few_rows=device.units,
        long_row=16384,
        inline_size=8,
        stage_depth=0,
        local_bytes=device.group_bytes // blocks,
        warp_elements=1024,
        run_lanes=device.lanes,
        flat_below=2 * device.lanes,
        # of the 255 that a thread has, and of its share of a multiprocessor's
        register_words=min(96, UNIT_REGISTERS * 3 // 8 // device.lanes),
        register_elements=32,
        turned_lanes=0,
        turned_row=0,
        # reading across takes the first cache a cycle for each, a phase of its own a grid barrier
        strided_terms=round(device.phase_seconds * timing.hertz * device.units),
        factor_cost=2,  # as a conversion from bfloat16: a phase takes longer than all lanes' own
        lanes=device.lanes,
        enough_blocks=wave // 2,
    )
