"""Adaptive mapping: how the loops of a section are cut into tasks.

A task is about `task_elements` elements of the loop nest, so that threads balance and a task's
start-up costs nothing. Where tasks reduce parts of one value their number is a function of the
shape and the device only (never of threads), and at most about `max_splits`: the parts are combined
afterwards. Rows that are short enough are a warp's each, on devices that have warps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from stitchcore.hlo.ir.dim import Dim
from stitchcore.loop_ir import index
from stitchcore.loop_ir.index import Index
from stitchcore.loop_ir.nodes import Scope
from stitchcore.schedule.limits import WARP_LANES, Limits

Axis = int

ROW_STEPS, GROUP_STEPS = 8, 4
"""What a row costs beside its elements, and what its reductions cost further where lanes of several
warps meet: in elements a lane, which are some 20 cycles each of loads that wait for each other."""

FEW_LINES = 64
"""Cache lines that stay until each of their elements was read, even where those of a large power of
two apart share sets of the cache."""

VECTOR = 16
"""Lanes from which a loop over them is worth vectors."""

SYMBOL_SIZE = 1024
"""What a symbolic extent is taken for where only its magnitude matters."""


@dataclass(frozen=True)
class Partition:
    """Loops of a global reduction: `kept` outer axes, `reduced` outer axes, innermost `lane`. Of
    the kept ones the last `beside` lie side by side with the lanes inside of all reduced ones."""

    kept: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    lane: Axis
    lane_reduced: bool
    beside: int = 0


@dataclass(frozen=True)
class Geometry:
    """Tasks of a section: kept position x chunk of rows x block of lanes, in that order.

    `kept` axes have one position a task; `rows` are walked, `rows_per_task` at a time; where
    `lane_block` is set the lane axis `lane` is cut into blocks of that many. The lanes of a task
    are those of a group, or of a warp (`scope`). Where there are several stages each runs over
    `rows_together` rows before the next one does. With `interchanged` loops lanes are rows (or the
    `lane` axis), and what is inside is a serial loop.
    """

    kept: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    rows_per_task: Index
    chunks: Index
    lane: Axis | None
    lane_block: int | None
    lane_blocks: Index
    kept_size: Index
    scope: Scope = Scope.GROUP
    rows_together: int = 1
    interchanged: bool = False

    @property
    def tasks(self) -> Index:
        return index.multiply(index.multiply(self.kept_size, self.chunks), self.lane_blocks)


def size_of(extents: Iterable[Dim]) -> int:
    """Product of extents, symbols taken for SYMBOL_SIZE."""
    total = 1
    for extent in extents:
        total *= extent if isinstance(extent, int) else SYMBOL_SIZE
    return total


def product(extents: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for extent in extents:
        total = total * extent
    return total


def no_vector(extent: Dim) -> bool:
    """Whether rows are so short that what a row reads elsewhere may as well be read one by one."""
    return isinstance(extent, int) and extent < VECTOR


def over_rows(
    extents: Mapping[Axis, Dim],
    rows: tuple[Axis, ...],
    inner: int,
    accumulates: bool,
    limits: Limits,
    piece: int = 0,
) -> Geometry:
    """Whole rows of about `inner` elements, a chunk of them a task: of rows that lie in pieces of
    so many elements beside their neighbours' as many as there are enough tasks of."""
    count = product(extents[a] for a in rows)
    scope = Scope.GROUP
    chunk = 1
    if accumulates or limits.packs:
        chunk = _chunk(count, inner, limits, limits.max_splits if accumulates else None)
    if 0 < piece < limits.short_piece and not accumulates and isinstance(count, int):
        chunk = max(chunk, min(count // limits.enough_tasks, limits.lane_block // piece))
    if inner <= limits.warp_elements and not accumulates and _warps_pay(count, inner, limits):
        scope = Scope.WARP
        chunk = _warp_chunk(count, inner, limits)
    chunks = index.ceil_divide(index.from_dim(count), chunk)
    together = 1
    if isinstance(chunk, int):
        together = min(max(limits.row_elements // max(inner, 1), 1), max(chunk, 1))
    return Geometry((), rows, chunk, chunks, None, None, 1, 1, scope, together)


def over_turned_rows(
    extents: Mapping[Axis, Dim], rows: tuple[Axis, ...], inner: int, limits: Limits
) -> Geometry:
    """Rows that are neighbours in what they write: a task has some along the last of their axes,
    and walks them so many together as fill a cache line."""
    *kept, last = rows
    count, line = extents[last], limits.turned_lanes
    chunk = -(-_chunk(count, inner, limits) // line) * line
    chunks = index.ceil_divide(index.from_dim(count), chunk)
    size = index.from_dim(product(extents[a] for a in kept))
    return Geometry(tuple(kept), (last,), chunk, chunks, None, None, 1, size, rows_together=line)


def interchanges(outer: Dim, inner: int, limits: Limits) -> bool:
    """Whether lanes go along `outer`, for `inner` has too few to be a vector of them."""
    wide = not isinstance(outer, int) or outer >= VECTOR
    return wide and inner in limits.interchanged


def over_short_rows(
    extents: Mapping[Axis, Dim], rows: tuple[Axis, ...], inner: int, limits: Limits
) -> Geometry:
    """Rows of so few elements that lanes are rows, along the last of their axes."""
    *kept, last = rows
    chunk = _chunk(extents[last], inner, limits)
    together = min(max(limits.row_elements // (2 * inner), 1), chunk)
    chunks = index.ceil_divide(index.from_dim(extents[last]), chunk)
    size = index.from_dim(product(extents[a] for a in kept))
    return Geometry(
        tuple(kept),
        (last,),
        chunk,
        chunks,
        None,
        None,
        1,
        size,
        rows_together=together,
        interchanged=True,
    )


def over_short_elements(
    extents: Mapping[Axis, Dim], order: tuple[Axis, ...], inner: int, limits: Limits
) -> Geometry:
    """An elementwise nest over `order` and, inside its lanes, `inner` elements."""
    fewer = replace(limits, task_elements=limits.task_elements // inner)
    return replace(over_elements(extents, order, False, fewer), interchanged=True)


def over_elements(
    extents: Mapping[Axis, Dim],
    order: tuple[Axis, ...],
    combines: bool,
    limits: Limits,
    across: Axis | None = None,
) -> Geometry:
    """An elementwise nest, innermost axis last; long lanes are cut, short rows share a task.

    Where elements combine parts of reductions a task has fewer of them. Neighbours along `across`
    lie side by side in what is read: lanes are cut so that a line that one of them brought is still
    there for the next.
    """
    if across in order[:-1] and not combines:
        between = size_of(extents[a] for a in order[order.index(across) + 1 : -1])
        lines = size_of((extents[order[-1]],)) * between
        if limits.turned_lanes and lines > FEW_LINES:
            return _turned(extents, order, across, limits)
    if not order:
        return Geometry((), (), 1, 1, None, None, 1, 1)
    rows, lane = order[:-1], order[-1]
    elements = max(limits.task_elements // 16, 1) if combines else limits.task_elements
    extent = extents[lane]
    if isinstance(extent, int) and extent <= 2 * elements:
        count = product(extents[a] for a in rows)
        chunk = min(_chunk(count, extent, limits), max(2 * elements // max(extent, 1), 1))
        chunks = index.ceil_divide(index.from_dim(count), chunk)
        return Geometry((), rows, chunk, chunks, lane, None, 1, 1)
    count_index = index.from_dim(product(extents[a] for a in rows))
    blocks = index.ceil_divide(index.from_dim(extent), elements)
    return Geometry((), rows, 1, count_index, lane, elements, blocks, 1)


def _turned(
    extents: Mapping[Axis, Dim], order: tuple[Axis, ...], across: Axis, limits: Limits
) -> Geometry:
    """A cache line of lanes, and rows along `across`: what they read of it lies side by side."""
    kept, lane, block = tuple(a for a in order[:-1] if a != across), order[-1], limits.turned_lanes
    chunk = _chunk(extents[across], block, limits)
    chunks = index.ceil_divide(index.from_dim(extents[across]), chunk)
    blocks = index.ceil_divide(index.from_dim(extents[lane]), block)
    size = index.from_dim(product(extents[a] for a in kept))
    return Geometry(kept, (across,), chunk, chunks, lane, block, blocks, size)


def of_few_rows(extents: Mapping[Axis, Dim], geometry: Geometry, limits: Limits) -> Geometry:
    """`geometry` with tasks so small that buffers of all their rows stay in the first cache."""
    assert geometry.lane is not None and isinstance(geometry.rows_per_task, int)
    count = product(extents[a] for a in geometry.rows)
    fitting = max(limits.chain_elements // max(size_of((extents[geometry.lane],)), 1), 1)
    rows = min(geometry.rows_per_task, fitting)
    chunks = index.ceil_divide(index.from_dim(count), rows)
    return replace(geometry, rows_per_task=rows, chunks=chunks, rows_together=rows)


def over_partition(extents: Mapping[Axis, Dim], loops: Partition, limits: Limits) -> Geometry:
    """A global reduction that stands alone; `chunks` (or `lane_blocks`) are its parts."""
    loops = _without_short_pieces(extents, loops, limits)
    kept = product(extents[a] for a in loops.kept)
    rows = product(extents[a] for a in loops.reduced)
    lane = extents[loops.lane]
    block: int | None = None
    blocks: Index = 1
    enough = isinstance(kept, int) and kept >= limits.enough_tasks
    splits = max(limits.max_splits // max(kept if isinstance(kept, int) else 1, 1), 1)
    if loops.lane_reduced:
        short = isinstance(lane, int) and lane <= limits.task_elements
        if not loops.reduced and not enough and not short:
            part = -(-lane // splits) if isinstance(lane, int) else 0
            block = max(limits.task_elements, -(-part // 64) * 64)
    elif not isinstance(lane, int) or lane > limits.lane_block:
        block = _block(lane, limits)
    if block is not None:
        blocks = index.ceil_divide(index.from_dim(lane), block)
        if not loops.lane_reduced and isinstance(blocks, int):
            enough = enough or blocks >= limits.enough_blocks
            splits = max(splits // blocks, 1)
    width = block or size_of((lane,))
    chunk = index.from_dim(rows) if enough else _chunk(rows, width, limits, splits)
    chunks = 1 if enough else index.ceil_divide(index.from_dim(rows), chunk)
    return Geometry(
        loops.kept, loops.reduced, chunk, chunks, loops.lane, block, blocks, index.from_dim(kept)
    )


def _block(lane: Dim, limits: Limits) -> int:
    """Lanes of a block of `lane`, whose accumulators a task keeps."""
    quarter, wanted = max(limits.lane_block // 4, 1), 1
    if isinstance(lane, int):
        wanted = min(lane // (quarter * limits.enough_blocks), limits.block_quarters)
    return quarter * max(wanted, 1)


def _without_short_pieces(
    extents: Mapping[Axis, Dim], loops: Partition, limits: Limits
) -> Partition:
    """`loops` whose tasks also walk the kept axes beside their lanes, where one position of these
    would be a short piece of memory, and enough tasks remain."""
    kept, size = loops.kept, size_of((extents[loops.lane],))
    if size >= limits.short_piece or loops.lane_reduced:
        return loops
    for axis in reversed(loops.kept[len(loops.kept) - loops.beside :]):
        extent, outer = extents[axis], size_of(extents[a] for a in kept[:-1])
        if not isinstance(extent, int) or size * extent > limits.lane_block:
            break
        if outer < limits.enough_tasks:
            break
        kept, size = kept[:-1], size * extent
    return replace(loops, kept=kept)


def parts_of(geometry: Geometry, lane_reduced: bool) -> Index:
    """How many tasks each hold a part of one reduced element."""
    blocks = geometry.lane_blocks if lane_reduced else 1
    return index.multiply(geometry.chunks, blocks)


def _warps_pay(count: Dim, inner: int, limits: Limits) -> bool:
    """Whether rows take less time as a warp's each than as a group's each (FusionStitching's warp
    and block composition): waves of them, and how long one is under way."""
    if limits.warp_rows is not None:
        return limits.warp_rows
    rows, groups = size_of((count,)), limits.max_splits
    warp = -(-rows // (groups * limits.warps)) * (ROW_STEPS + inner / WARP_LANES)
    group = -(-rows // groups) * (ROW_STEPS + GROUP_STEPS + inner / (WARP_LANES * limits.warps))
    return warp <= group


def _warp_chunk(count: Dim, inner: int, limits: Limits) -> int:
    """Rows of one warp's task: as few as leave enough tasks for every warp of a wave."""
    rows = max(limits.warp_elements // max(inner, 1), 1)
    if isinstance(count, int):
        rows = min(rows, max(count // (limits.warps * limits.max_splits), 1))
    return rows


def _chunk(count: Dim, inner: int, limits: Limits, splits: int | None = None) -> int:
    """Rows of a task; of one that adds them up, where they make at most about `splits` parts."""
    rows = max(limits.task_elements // max(inner, 1), 1)
    if limits.least_tasks and isinstance(count, int):
        rows = min(rows, max(count // limits.least_tasks, 1))
    if splits is not None:
        rows = max(rows, limits.least_part_rows)
        rows = max(rows, -(-count // splits)) if isinstance(count, int) else 4 * rows
        rows = min(rows, limits.max_part_rows)
    return min(rows, count) if isinstance(count, int) and count > 0 else rows
