"""Kernels as C: one exported function each, one internal function per section, one lane per task.

The kernel ABI is docs/contracts.md section 2. A lane loop becomes a plain loop under
`#pragma omp simd`; a section is a function of its own because gcc keeps `restrict` best on
parameters. LaneReduce and Barrier are empty: a core has one lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from stitchcore.codegen.c_backward_rows import Flip, ahead, flip
from stitchcore.codegen.c_cache_hints import (
    at_lane,
    bytes_text,
    hinted,
    prefetch_function,
    prefetched,
    streamed,
)
from stitchcore.codegen.c_half_lanes import (
    HALF,
    LANES,
    MOST_LANES,
    HalfLanes,
    half_lanes,
    patterns,
    unrounded,
)
from stitchcore.codegen.c_lane_blocks import block_length, from_zero
from stitchcore.codegen.c_lane_quotients import quotients
from stitchcore.codegen.c_lane_tiles import (
    TOGETHER,
    cut,
    jams,
    needs_tiles,
    rows_together,
    spread,
    tile_size,
)
from stitchcore.codegen.c_row_cases import cases
from stitchcore.codegen.c_row_digits import Counted, counted
from stitchcore.codegen.c_stretches import alternatives, stretches
from stitchcore.codegen.c_strided_copies import Staged, staged
from stitchcore.codegen.c_turned_rows import SIDE, Turned, turned
from stitchcore.codegen.source import (
    MEMORY_TYPES,
    Renderer,
    argument,
    index_text,
    outside_buffers,
    provenance_comment,
    register_type,
    same_memory,
    working,
)
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir import nodes as ir
from stitchcore.loop_ir.index import Index, Variable
from stitchcore.loop_ir.layout import size_of
from stitchcore.loop_ir.visitor import (
    accesses,
    expressions,
    outer_accumulators,
    statements,
)

SUM_BLOCK = 1024
"""Iterations a rounding reduction adds in one run; the results of runs, and of rows where several
make one sum, are added in double."""


_LARGEST_EXTENT = 2**40
"""No symbol of a kernel is larger: more elements than memory holds."""

EXTREMES = (opcodes.MAXIMUM, opcodes.MINIMUM)

SHORT_LOOP = 256
"""Below so many iterations, those that fill no whole vector cost a visible share of a loop."""

VECTOR_LANES = (16, 8, 4)
"""Lanes of 4 bytes in the vectors that x86 has, widest first."""


def render(kernels: Sequence[ir.Kernel]) -> str:
    """One translation unit. Kernel names must differ. Raises KeyError for an unknown opcode."""
    renderer = _C()
    for kernel in kernels:
        renderer.kernel(kernel)
    reductions = sorted({pair for kernel in kernels for pair in _reductions(kernel)})
    head = ['#include "stitch_cpu.h"', ""]
    head += [_declare_reduction(reducer, dtype) for reducer, dtype in reductions]
    return "\n".join(head + renderer.lines) + "\n"


def _reductions(kernel: ir.Kernel) -> set[tuple[str, str]]:
    reductions = set()
    for phase in kernel.phases:
        for section in phase.sections:
            for loop in statements(section.body):
                if isinstance(loop, ir.Loop) and loop.kind is ir.LoopKind.LANES:
                    reductions |= {(a.reducer, a.scalar.dtype) for a in outer_accumulators(loop)}
    return reductions


def _reduction_name(reducer: str, dtype: str) -> str:
    return f"st_reduce_{reducer.replace('-', '_')}_{dtype}"


def _declare_reduction(reducer: str, dtype: str) -> str:
    out, other = ir.Scalar("omp_out", dtype), ir.Scalar("omp_in", dtype)
    renderer = _C()
    combined = renderer.apply(ir.Apply(reducer, (out, other), dtype))
    name, kind = _reduction_name(reducer, dtype), register_type(dtype)
    start = renderer.identity(reducer, dtype)
    return (
        f"#pragma omp declare reduction({name} : {kind} : omp_out = {combined})"
        f" initializer(omp_priv = {start})"
    )


class _C(Renderer):
    def __init__(self) -> None:
        super().__init__()
        self.kernel_name = ""
        self.streamed: frozenset[ir.Buffer] = frozenset()
        self.moved: dict[ir.Store, str] = {}
        self.shared: frozenset[ir.Buffer] = frozenset()
        self.row: ir.Loop | None = None
        self.rows = 1
        self.masks: frozenset[ir.Scalar] = frozenset()
        self.conditions: dict[ir.Scalar, ir.Expression] = {}
        self.patterns: frozenset[ir.Scalar] = frozenset()
        self.totals: dict[ir.Scalar, ir.Scalar] = {}

    # ---- functions -----------------------------------------------------------------------------
    def kernel(self, kernel: ir.Kernel) -> None:
        self.kernel_name = kernel.name
        outputs = kernel.with_role(ir.Role.OUTPUT)
        self.shared = frozenset(outputs[o] for _, o in kernel.aliases)
        self.emit("")
        self.emit(provenance_comment(kernel))
        for p, phase in enumerate(kernel.phases):
            for s, section in enumerate(phase.sections):
                self.section(kernel, section, f"{kernel.name}_{p}_{s}")
        self.entry(kernel)

    def section(self, kernel: ir.Kernel, section: ir.Section, name: str) -> None:
        used, stored = outside_buffers(kernel, section)
        arguments = [_parameter(kernel, b, b in stored) for b in used]
        arguments += [f"long {symbol}" for symbol in kernel.symbols]
        arguments += ["long task_begin", "long task_end"]
        checks = sorted({s.error for s in statements(section.body) if isinstance(s, ir.Check)})
        self.open(f"ST_SECTION int64_t {name}({', '.join(arguments)})")
        for symbol in kernel.symbols:
            self.emit(f"(void){symbol};")
        if section.copy_unless_aliased is not None:
            self.emit(f"if ({same_memory(section)}) return 0;")
        for error in checks:
            self.emit(f"int64_t low_{error} = INT64_MAX, high_{error} = INT64_MIN;")
        self.ranges = dict.fromkeys(kernel.symbols, (0, _LARGEST_EXTENT))
        self.names, self.totals = {}, {}
        self.streamed = self.stream_flags(kernel, section)
        self.open(self.loop_head(section.variable, "task_begin", "task_end"))
        self.bound(section.variable, 0, section.tasks)
        self.body(section.body)
        self.close()
        if self.streamed:
            self.emit("st_stream_end();")
        result = "0"
        for error in reversed(checks):
            failed = f"st_failed({error}, low_{error}, high_{error})"
            result = f"low_{error} <= high_{error} ? {failed} : {result}"
        self.emit(f"return {result};")
        self.close()

    def entry(self, kernel: ir.Kernel) -> None:
        self.open(
            f"ST_EXPORT int64_t {kernel.name}(void *const *buffers, const int64_t *symbols,"
            " char *scratch, int64_t phase, int64_t task_begin, int64_t task_end)"
        )
        self.emit("(void)buffers; (void)symbols; (void)scratch;")
        for position, symbol in enumerate(kernel.symbols):
            self.emit(f"const long {symbol} = symbols[{position}];")
            self.emit(f"(void){symbol};")
        self.emit("const unsigned saved = st_enter();")
        self.emit("int64_t failed = 0;")
        for p, phase in enumerate(kernel.phases):
            self.open(f"if (phase == {p})")
            self.emit("long first = 0;")
            for s, section in enumerate(phase.sections):
                self.call(kernel, section, f"{kernel.name}_{p}_{s}")
            self.emit("(void)first;")
            self.close()
        self.emit("st_leave(saved);")
        self.emit("return failed;")
        self.close()

    def call(self, kernel: ir.Kernel, section: ir.Section, name: str) -> None:
        used, _ = outside_buffers(kernel, section)
        arguments = [argument(kernel, buffer) for buffer in used] + list(kernel.symbols)
        self.open("")
        self.emit(f"const long tasks = {index_text(section.tasks)};")
        self.emit("const long begin = st_max(task_begin - first, 0);")
        self.emit("const long end = st_min(task_end - first, tasks);")
        call = f"{name}({', '.join([*arguments, 'begin', 'end'])})"
        self.emit(f"if (begin < end) failed = st_first(failed, {call});")
        self.emit("first += tasks;")
        self.close()

    def stream_flags(self, kernel: ir.Kernel, section: ir.Section) -> frozenset[ir.Buffer]:
        """Define, for each buffer stored past the caches, whether it is in this call.

        It is not where it took over the memory of an input: that lies in the caches already.
        """
        conditions = {
            s.buffer: s.streams
            for s in statements(section.body)
            if isinstance(s, ir.Store) and s.streams is not None
        }
        inputs, outputs = kernel.with_role(ir.Role.INPUT), kernel.with_role(ir.Role.OUTPUT)
        sources = {outputs[o]: inputs[i] for i, o in kernel.aliases}
        used, _ = outside_buffers(kernel, section)
        for buffer, condition in conditions.items():
            text = self.in_range(condition)
            if (source := sources.get(buffer)) in used:
                text += f" && (const void *){buffer.name} != (const void *){source.name}"
            self.emit(f"const bool {buffer.name}_streams = {text};")
        return frozenset(conditions)

    # ---- statements ----------------------------------------------------------------------------
    def lane_loop(self, loop: ir.Loop) -> None:
        """A block of lanes is a loop of its constant length, and where the last block of an axis is
        shorter, that one another loop: gcc makes scalars of a short loop of a variable length."""
        count, exact = block_length(loop, self.ranges)
        if not 0 < count <= SUM_BLOCK:
            self.lanes_of(loop)
        elif exact:
            self.lanes_of(from_zero(loop, count))
        else:
            self.open(f"if ({self.index(loop.begin)} + {count} <= {self.index(loop.end)})")
            self.lanes_of(from_zero(loop, count))
            self.close("} else {")
            self.depth += 1
            self.lanes_of(loop)
            self.close()

    def lanes_of(self, loop: ir.Loop) -> None:
        """Each stretch between the limits of pads and concatenations is a loop of its own."""
        for part in stretches(loop, self.ranges):
            self.bound(part.variable, part.begin, part.end)
            choices = alternatives(part)
            for number, (condition, case) in enumerate(choices):
                test = "" if condition is None else f"if ({self.scalar(condition)})"
                self.open(f"else {test}" if number else test)
                self.stretch(case)
                self.close()
            if not choices:
                self.by_case(part)

    def by_case(self, loop: ir.Loop) -> None:
        """The cases that most rows are have loops of their own (c_row_cases.py)."""
        found = cases(loop, self.conditions, self.ranges)
        if found is None:
            self.stretch(loop)
            return
        bits = [f"(unsigned){self.scalar(c)} << {bit}" for bit, c in enumerate(found.conditions)]
        number = f"{loop.variable}_case"
        self.open("")
        self.emit(f"const unsigned {number} = {' | '.join(bits)};")
        *tested, last = found.common
        for case in tested if found.all_rows else found.common:
            self.open(f"if ({number} == {case.number}u)")
            self.stretch(case.loop)
            self.close("} else {")
            self.depth += 1
        self.stretch(last.loop if found.all_rows else loop)
        for _ in tested if found.all_rows else found.common:
            self.close()
        self.close()

    def body(self, body: Sequence[ir.Statement]) -> None:
        if not self.in_lanes:
            self.totals |= {scalar: _wide(scalar) for scalar in _added_by_rows(body)}
        super().body(body)

    def statement(self, statement: ir.Statement) -> None:
        if isinstance(statement, ir.Accumulator) and statement.scalar in self.totals:
            total = self.totals[statement.scalar]
            self.emit(f"{self.define(total)} = {self.identity(statement.reducer, total.dtype)};")
            self.names[statement.scalar] = f"(({register_type('f32')}){total.name})"
            return
        if isinstance(statement, ir.Accumulate) and not self.in_lanes:
            total = self.totals.get(statement.scalar, statement.scalar)
            statement = replace(statement, scalar=total)
        if isinstance(statement, ir.Let):
            scalar, value = statement.scalar, statement.value
            if scalar.dtype == "pred" and not self.in_lanes:
                self.conditions[scalar] = value
            if scalar in self.patterns and isinstance(value, ir.Load):
                element = self.element(value.buffer, value.indices)
                self.emit(f"const {MEMORY_TYPES[scalar.dtype]} {scalar.name} = {element};")
                return
        super().statement(statement)

    def stretch(self, loop: ir.Loop) -> None:
        sums = outer_accumulators(loop)
        rounding = [a for a in sums if opcodes.record(a.reducer).ulp > 0]
        extent = index.add(loop.end, index.multiply(loop.begin, -1))
        whole = list(_whole_vectors(loop))
        if needs_tiles(loop):
            self.tiled(loop)
        elif (rounding or hinted(loop) or staged(loop, self.ranges)) and not (
            isinstance(extent, int) and extent <= SUM_BLOCK
        ):
            self.blocked(loop, sums)
        elif rounding:  # gcc would begin one lane with the sum so far, which is large beside it
            self.open("")
            own = {update.scalar: self.totals.get(update.scalar, update.scalar) for update in sums}
            self.run(loop, sums, own, [(self.index(b), self.index(e)) for b, e in whole])
            self.close()
        else:
            for n, (begin, end) in enumerate(whole):
                self.vector_loop(loop, sums, self.index(begin), self.index(end), rest=n > 0)

    def serial_loop(self, loop: ir.Loop) -> None:
        """Rows that read the same again are taken several at a time (c_lane_tiles.py)."""
        count = 1 if self.in_lanes else rows_together(loop, self.shared)
        if count == 1 and not self.in_lanes and (across := self.turned(loop)) is not None:
            self.squares(loop, across)
            return
        if count == 1:
            by_digits = None if self.in_lanes else counted(loop)
            if by_digits is None:
                super().serial_loop(loop)
            else:
                self.counted(by_digits)
            return
        block, last = (f"{loop.variable}_{end}" for end in ("block", "last"))
        begin, end = self.index(loop.begin), self.index(loop.end)
        self.open(self.loop_head(block, begin, end, str(count)))
        self.emit(f"const long {last} = st_min({block} + {count}, {end});")
        self.bound(loop.variable, loop.begin, loop.end)
        self.row = replace(loop, begin=Variable(block), end=Variable(last))
        self.rows = count
        self.body(loop.body)
        self.row = None
        self.close()

    def turned(self, loop: ir.Loop) -> Turned | None:
        around = dict(self.ranges)
        self.bound(loop.variable, loop.begin, loop.end)
        found, self.ranges = turned(loop, self.ranges), around
        return found

    def squares(self, loop: ir.Loop, across: Turned) -> None:
        """Rows of a transpose, SIDE at a time while there are so many, then one by one."""
        block, lanes = across.block, across.lanes
        begin, end = self.index(loop.begin), self.index(loop.end)
        self.open("")
        self.emit(f"long {block.name} = {begin};")
        whole = f"{block.name} + {SIDE} <= {end}"
        if not across.exact:
            whole += f" && {self.index(lanes.begin)} + {SIDE} <= {self.index(lanes.end)}"
        self.open(f"for (; {whole}; {block.name} += {SIDE})")
        self.bound(block.name, loop.begin, loop.end)
        for square in across.squares:
            self.allocate(square.local)
            size, first = DTYPES[square.local.dtype].bytes, self.index(square.first)
            source = f"&{square.source.name}[{first}]"
            self.emit(f"st_turn_{size}({square.local.name}, {source}, {square.stride});")
        self.rows_of(loop, block.name, f"{block.name} + {SIDE}", across.body)
        self.close()
        if across.rest:
            self.rows_of(loop, block.name, end, loop.body)
        self.close()

    def rows_of(self, loop: ir.Loop, begin: str, end: str, body: Sequence[ir.Statement]) -> None:
        """Iterations of a serial loop, each `body`."""
        self.open(self.loop_head(loop.variable, begin, end))
        self.bound(loop.variable, loop.begin, loop.end)
        self.body(body)
        self.close()

    def counted(self, rows: Counted) -> None:
        """A serial loop that counts the digits of its variable (c_row_digits.py)."""
        loop = rows.loop
        first, last = (index.bounds(end, self.ranges) for end in (loop.begin, loop.end))
        reached = (first[0], last[1] - 1) if first and last else None
        self.open("")
        for digit in rows.digits:
            self.emit(f"long {digit.variable} = {self.index(digit.of(loop.begin))};")
        groups = flip(rows)
        begin, end = self.index(loop.begin), self.index(loop.end)
        if groups is None:
            self.open(self.loop_head(loop.variable, begin, end))
        else:
            self.open(f"for (long {loop.variable} = {begin}; {loop.variable} < {end};)")
        self.bound(loop.variable, loop.begin, loop.end)
        for digit in rows.digits:
            if (span := digit.range(reached)) is not None:
                self.ranges[digit.variable] = span
        *carrying, top = rows.digits
        for later in ahead(rows) if groups is None else ():
            place = self.address(later.buffer, later.place)
            self.emit(f"st_prefetch_near({place}, {later.size});")
        steps = [f"++{digit.variable}" for digit in carrying]
        if groups is None:
            self.body(loop.body)
        else:
            steps[0] = f"({carrying[0].variable} += {self.flipped(rows, groups, end)})"
        for digit, step in zip(carrying, steps, strict=True):
            self.open(f"if ({step} == {digit.radix})")
            self.emit(f"{digit.variable} = 0;")
        self.emit(f"++{top.variable};")
        for _ in carrying:
            self.close()
        self.close()
        self.close()

    def flipped(self, rows: Counted, groups: Flip, end: str) -> str:
        """Turn the rest of a run of rows (c_backward_rows.py); the text of how many these are."""
        row, digit = rows.loop.variable, rows.digits[0]
        count, last = Variable(f"{row}_run"), Variable(f"{row}_last")
        rest = f"st_min({digit.radix} - {digit.variable}, {end} - {row})"
        self.emit(f"const long {count.name} = {rest};")
        self.emit(f"const long {last.name} = {digit.variable} + {count.name} - 1;")
        self.ranges[last.name] = self.ranges[digit.variable]
        last_row = index.add(index.add(Variable(row), count), -1)

        def at_last(buffer: ir.Buffer, place: Index) -> str:
            at = index.substitute(place, {digit.variable: last, row: last_row})
            return self.address(buffer, at)

        for later in ahead(rows):
            place = at_last(later.buffer, later.place)
            self.emit(f"st_prefetch_near({place}, {count.name} * {later.size});")
        source, target = groups.source, groups.target
        if groups.source_falls:
            ends = self.address(*target), at_last(*source)
        else:
            ends = at_last(*target), self.address(*source)
        size = DTYPES[source[0].dtype].bytes
        self.emit(f"st_flip_{size}({', '.join(ends)}, {count.name}, {groups.group});")
        self.emit(f"{row} += {count.name};")
        return count.name

    def address(self, buffer: ir.Buffer, place: Index) -> str:
        return f"&{buffer.name}[{self.index(place)}]"

    def tiled(self, loop: ir.Loop) -> None:
        """A lane loop around serial loops, turned inside out (c_lane_tiles.py)."""
        size, base = tile_size(loop.begin, loop.end), f"{loop.variable}_block"
        rows, place = 1, f"{loop.variable} - {base}"
        if self.row is not None:
            rows = self.rows
            place = f"({self.row.variable} - {self.index(self.row.begin)}) * {size} + {place}"
        last = f"{loop.variable}_last"
        begin, end = self.index(loop.begin), self.index(loop.end)
        self.open(self.loop_head(base, begin, end, str(size)))
        extent = index.add(loop.end, index.multiply(loop.begin, -1))
        whole = isinstance(extent, int) and extent % size == 0
        stop = f"{base} + {size}" if whole else f"st_min({base} + {size}, {end})"
        self.emit(f"const long {last} = {stop};")
        outer = dict(self.names)
        for scalar in sorted(spread(loop.body), key=lambda scalar: scalar.name):
            array = f"{scalar.name}_tile"
            self.emit(f"{register_type(scalar.dtype)} {array}[{rows * size}] ST_ALIGNED;")
            self.names[scalar] = f"{array}[{place}]"
        self.pieces(loop, loop.body, base, f"{base} + {size}" if whole else last)
        self.emit(f"(void){last};")
        self.names = outer
        self.close()

    def pieces(self, loop: ir.Loop, body: Sequence[ir.Statement], begin: str, end: str) -> None:
        for part in cut(body).parts:
            if isinstance(part, ir.Loop) and jams(part):
                self.jammed(loop, part, begin, end)
            elif isinstance(part, ir.Loop):
                first, stop = self.index(part.begin), self.index(part.end)
                self.open(self.loop_head(part.variable, first, stop))
                self.bound(part.variable, part.begin, part.end)
                self.pieces(loop, part.body, begin, end)
                self.close()
            else:
                self.piece(replace(loop, body=part), spread(loop.body), begin, end)

    def piece(self, loop: ir.Loop, own: frozenset[ir.Scalar], begin: str, end: str) -> None:
        """A part of the lanes' body, in each row of the tile; `own` scalars are the lanes'."""
        if self.row is not None:
            first, last = self.index(self.row.begin), self.index(self.row.end)
            self.open(self.loop_head(self.row.variable, first, last))
        sums = outer_accumulators(loop, own)
        totals = {a.scalar: self.totals.get(a.scalar, a.scalar) for a in sums}
        if self.totals.keys() & totals.keys():
            self.open("")
            self.run(loop, sums, totals, [(begin, end)])
            self.close()
        else:
            self.vector_loop(loop, sums, begin, end)
        if self.row is not None:
            self.close()

    def jammed(self, loop: ir.Loop, serial: ir.Loop, begin: str, end: str) -> None:
        """A serial loop around the lanes of a tile, TOGETHER iterations of it inside them."""
        block = Variable(f"{serial.variable}_block")
        first, stop = self.index(serial.begin), self.index(serial.end)
        extent = index.add(serial.end, index.multiply(serial.begin, -1))
        self.open("")
        self.emit(f"long {block.name} = {first};")
        for variable in (block.name, serial.variable):
            self.bound(variable, serial.begin, serial.end)
        rest = extent % TOGETHER if isinstance(extent, int) else 1
        for count in filter(None, (TOGETHER, rest)):
            self.open(f"for (; {block.name} + {count} <= {stop}; {block.name} += {count})")
            some = replace(serial, begin=block, end=index.add(block, count))
            self.piece(replace(loop, body=(some,)), spread(loop.body), begin, end)
            self.close()
        self.close()

    def blocked(self, loop: ir.Loop, sums: Sequence[ir.Accumulate]) -> None:
        """Runs of SUM_BLOCK iterations, then the rest; float32 results of runs add up in double.

        Full runs have a constant length of their own: with a variable one gcc loses the loop.
        """
        block = f"{loop.variable}_block"
        begin, end = self.index(loop.begin), self.index(loop.end)
        self.open("")
        totals = {s: self.totals.get(s, _wide(s)) for s in (update.scalar for update in sums)}
        own = {s: wide for s, wide in totals.items() if s not in self.totals}
        for scalar, wide in own.items():
            self.emit(f"{self.define(wide)} = {self.scalar(scalar)};")
        self.emit(f"long {block} = {begin};")
        self.open(f"for (; {block} + {SUM_BLOCK} <= {end}; {block} += {SUM_BLOCK})")
        self.run(loop, sums, totals, [(block, f"{block} + {SUM_BLOCK}")])
        self.close()
        extent = index.add(loop.end, index.multiply(loop.begin, -1))
        if not isinstance(extent, int) or extent % SUM_BLOCK:
            self.open("")
            self.run(loop, sums, totals, [(block, end)], rest=True)
            self.close()
        for scalar, wide in own.items():
            self.emit(f"{self.scalar(scalar)} = ({register_type(scalar.dtype)}){wide.name};")
        self.close()

    def run(
        self,
        loop: ir.Loop,
        sums: Sequence[ir.Accumulate],
        totals: Mapping[ir.Scalar, ir.Scalar],
        stretches: Sequence[tuple[str, str]],
        rest: bool = False,
    ) -> None:
        """One run, over `stretches`: partial results of its own, then added to `totals`."""
        outer = dict(self.names)
        for update in sums:
            part = ir.Scalar(f"{update.scalar.name}_part", update.scalar.dtype)
            self.emit(f"{self.define(part)} = {self.identity(update.reducer, part.dtype)};")
            self.names[update.scalar] = part.name
        for n, (begin, end) in enumerate(stretches):
            self.vector_loop(loop, sums, begin, end, rest or n > 0)
        parts = {update.scalar: self.names[update.scalar] for update in sums}
        self.names = outer
        for update in sums:
            wide = totals[update.scalar]
            part = ir.Scalar(parts[update.scalar], wide.dtype)
            total = self.apply(ir.Apply(update.reducer, (wide, part), wide.dtype))
            self.emit(f"{self.scalar(wide)} = {total};")

    def vector_loop(
        self, loop: ir.Loop, sums: Sequence[ir.Accumulate], begin: str, end: str, rest: bool = False
    ) -> None:
        clauses = [
            f" reduction({_reduction_name(a.reducer, a.scalar.dtype)} : {self.scalar(a.scalar)})"
            for a in sums
        ]
        failures = sorted({s.error for s in statements(loop.body) if isinstance(s, ir.Check)})
        for error in failures:
            clauses.append(f" reduction(min : low_{error}) reduction(max : high_{error})")
        strided = staged(loop, self.ranges)
        self.masks = _uniform_choices(loop)
        touched = accesses(loop.body)
        known = quotients(loop, (self.place(one.buffer, one.indices) for one in touched))
        if strided or hinted(loop) or self.masks or known:
            self.open("")
        for node, name in known.items():
            divided = index.renamed_parts(node, self.quotients)
            self.emit(
                f"const long {name} = ({index_text(node.right)}) ? {index_text(divided)} : 0;"
            )
            self.quotients[node] = name
        for choice in sorted(self.masks, key=lambda scalar: scalar.name):
            self.emit(f"const int64_t {choice.name}_mask = -(int64_t){self.scalar(choice)};")
        outer = dict(self.names)
        self.ahead(strided, loop, begin, end)
        loop = replace(loop, body=tuple(s for s in loop.body if s not in strided.loads))
        if hinted(loop):
            self.stream_begin(loop, begin)
        halves, count = None, _count(begin, end)
        if not any(isinstance(s, ir.Let) and s.scalar in self.names for s in loop.body):
            self.patterns = patterns(loop)
            halves = None if sums else half_lanes(loop, partial(self.contiguous, loop))
        if halves is None or (count is not None and count < MOST_LANES):
            self.simd_loop(loop, begin, end, "".join(clauses), rest)
        else:
            self.half_blocks(loop, halves, begin, end)
        self.patterns = frozenset()
        if hinted(loop):
            self.stream_end(loop, begin, end)
        self.behind(strided, loop, begin, end)
        self.names = outer
        if strided or hinted(loop) or self.masks or known:
            self.close()
        self.masks = frozenset()
        self.quotients = {}

    def simd_loop(
        self, loop: ir.Loop, begin: str, end: str, clauses: str = "", rest: bool = False
    ) -> None:
        self.emit(f"#pragma omp simd{clauses}")
        marker = f" /* lanes {self.kernel_name}.{loop.variable}{_trips(begin, end)} */"
        marker = " /* the rest */" if rest else marker
        self.emit(self.loop_head(loop.variable, begin, end) + " {" + marker)
        self.depth += 1
        self.in_lanes = True
        self.body(loop.body)
        self.in_lanes = False
        self.close()

    def contiguous(self, loop: ir.Loop, access: ir.Load | ir.Store) -> bool:
        """Whether neighbouring lanes touch neighbouring elements."""
        if access in self.moved:
            return True
        counts, _ = index.terms(self.place(access.buffer, access.indices))
        lane = Variable(loop.variable)
        return counts.pop(lane, 0) == 1 and not any(
            index.mentions(term, lane.name) for term in counts
        )

    def half_blocks(self, loop: ir.Loop, halves: HalfLanes, begin: str, end: str) -> None:
        """Blocks of lanes part by part, and the rest lane by lane (c_half_lanes.py)."""
        lane, block = loop.variable, f"{loop.variable}_half"
        self.open("")
        self.emit(f"long {block} = {begin};")
        self.open(f"for (; {block} + {LANES} <= {end}; {block} += {LANES})")
        self.emit(f"const long {lane} = {block};")
        outer = dict(self.names)
        for scalar in halves.arrays:
            kind = "int32_t" if scalar.dtype == "pred" else register_type(scalar.dtype)
            self.emit(f"{kind} {scalar.name}_lanes[{LANES}] ST_ALIGNED;")
        for scalar, load in halves.loaded.items():
            source = self.element(load.buffer, load.indices)
            function = "st_widen_lanes" if load.dtype == HALF else "st_round_lanes"
            self.emit(f"{function}({scalar.name}_lanes, &{source});")
        self.names |= {s: f"{s.name}_lanes[{lane} - {block}]" for s in halves.arrays}
        for part in halves.parts:
            if part.body:
                body = tuple(map(unrounded, part.body))
                self.simd_loop(replace(loop, body=body), block, f"{block} + {LANES}")
            for store in part.narrowed:
                assert isinstance(store.value, ir.Scalar)
                target = self.moved.get(store) or self.element(store.buffer, store.indices)
                self.emit(f"st_narrow_lanes(&{target}, {store.value.name}_lanes);")
            for let in part.rounded:
                self.emit(f"st_round_lanes({let.scalar.name}_lanes, {let.scalar.name}_lanes);")
        self.names = outer
        self.close()
        count = _count(begin, end)
        if count is None or count % MOST_LANES:
            self.simd_loop(loop, block, end, rest=True)
        self.close()

    def ahead(self, strided: Staged, loop: ir.Loop, begin: str, end: str) -> None:
        """Fill arrays with what is loaded with a stride; arrays for what is stored with one."""
        size = int(end) - int(begin) if begin.isdigit() and end.isdigit() else SUM_BLOCK
        place = f"[{loop.variable} - ({begin})]"
        for load in strided.loads:
            scalar = load.scalar
            element = self.scalar(scalar)
            if scalar not in self.names:
                pred = scalar.dtype == "pred"  # gcc makes no vectors of an array of _Bool
                kind = MEMORY_TYPES["pred"] if pred else register_type(scalar.dtype)
                element = f"{scalar.name}_tile{place}"
                self.emit(f"{kind} {scalar.name}_tile[{size}] ST_ALIGNED;")
                self.names[scalar] = f"({element} != 0)" if pred else element
            self.open(self.loop_head(loop.variable, begin, end))
            self.emit(f"{element} = {self.expression(load.value)};")
            self.close()
        for store in strided.stores:
            name = f"{store.buffer.name}_tile"
            self.emit(f"{MEMORY_TYPES[store.buffer.dtype]} {name}[{size}] ST_ALIGNED;")
            self.moved[store] = f"{name}{place}"

    def behind(self, strided: Staged, loop: ir.Loop, begin: str, end: str) -> None:
        """Empty the arrays of what is stored with a stride."""
        for store in strided.stores:
            self.open(self.loop_head(loop.variable, begin, end))
            target = self.element(store.buffer, store.indices)
            self.emit(f"{target} = {self.moved.pop(store)};")
            self.close()

    def stream_begin(self, loop: ir.Loop, begin: str) -> None:
        """Where the lanes of each streamed store go: a tile, or the buffer itself."""
        extent = index.add(loop.end, index.multiply(loop.begin, -1))
        size = min(extent, SUM_BLOCK) if isinstance(extent, int) else SUM_BLOCK
        for statement in streamed(loop):
            buffer = statement.buffer
            kind, name = MEMORY_TYPES[buffer.dtype], buffer.name
            first = self.element(buffer, at_lane(statement.indices, loop.variable, begin))
            self.emit(f"{kind} {name}_tile[{size}] ST_ALIGNED;")
            self.emit(f"{kind} *const {name}_to = {name}_streams ? {name}_tile : &{first};")
            self.moved[statement] = f"{name}_to[{loop.variable} - ({begin})]"

    def stream_end(self, loop: ir.Loop, begin: str, end: str) -> None:
        """Send the tiles on their way, and ask for what the next rows need."""
        for statement in streamed(loop):
            buffer = statement.buffer
            first = self.element(buffer, at_lane(statement.indices, loop.variable, begin))
            size = bytes_text(buffer, begin, end)
            self.emit(
                f"if ({buffer.name}_streams) st_stream(&{first}, {buffer.name}_tile, {size});"
            )
            del self.moved[statement]
        for hint in prefetched(loop):
            first = self.element(hint.buffer, at_lane(hint.indices, loop.variable, begin))
            function = prefetch_function(loop, hint.buffer)
            self.emit(f"{function}(&{first}, {bytes_text(hint.buffer, begin, end)});")

    def apply(self, node: ir.Apply) -> str:
        if not _chooses(node) or node.operands[0] not in self.masks:
            return super().apply(node)
        choice, chosen, other = map(self.expression, node.operands)
        return f"st_choose_{working(node.dtype)}({choice}_mask, {chosen}, {other})"

    def accumulated(self, statement: ir.Accumulate) -> str:
        scalar, reducer = statement.scalar, statement.reducer
        if reducer not in EXTREMES or scalar.dtype not in ("f32", "f64"):
            return super().accumulated(statement)
        value = self.expression(statement.value)
        name = f"st_accumulate_{reducer}_{scalar.dtype}"
        return f"{name}({self.scalar(scalar)}, {value})"

    def stored(self, statement: ir.Store) -> str:
        value = statement.value
        if isinstance(value, ir.Scalar) and value in self.patterns:
            return self.scalar(value)
        return super().stored(statement)

    def store(self, statement: ir.Store) -> None:
        if (target := self.moved.get(statement)) is None:
            super().store(statement)
        else:
            self.emit(f"{target} = {self.stored(statement)};")

    def lane_reduce(self, statement: ir.LaneReduce) -> None:
        """One lane: its partial is the total."""

    def barrier(self, statement: ir.Barrier) -> None:
        """One lane: nothing to order."""

    def allocate(self, buffer: ir.Buffer) -> None:
        kind = MEMORY_TYPES[buffer.dtype]
        self.emit(f"{kind} {buffer.name}[{index_text(size_of(buffer))}] ST_ALIGNED;")

    def check(self, statement: ir.Check) -> None:
        """The range of what failed; empty, so low above high, while nothing did."""
        condition, reported = map(self.expression, (statement.condition, statement.reported))
        for name, none, better in (("low", "INT64_MAX", "<"), ("high", "INT64_MIN", ">")):
            extreme = f"{name}_{statement.error}"
            self.open("")
            self.emit(f"const int64_t given = ({condition}) ? {none} : ({reported});")
            self.emit(f"{extreme} = given {better} {extreme} ? given : {extreme};")
            self.close()


def _whole_vectors(loop: ir.Loop) -> list[tuple[Index, Index]]:
    """A short loop cut where narrower vectors take over; gcc runs what remains lane by lane."""
    begin, end = loop.begin, loop.end
    if not (isinstance(begin, int) and isinstance(end, int) and 0 < end - begin < SHORT_LOOP):
        return [(begin, end)]
    cuts = [begin]
    for lanes in VECTOR_LANES:
        cuts.append(end - (end - cuts[-1]) % lanes)
    cuts = sorted({*cuts, end})
    return list(pairwise(cuts))


def _uniform_choices(loop: ir.Loop) -> frozenset[ir.Scalar]:
    """What all lanes choose alike by: gcc vectorises no choice by a bool from outside."""
    choices = (
        node.operands[0]
        for node in expressions(loop.body)
        if isinstance(node, ir.Apply) and _chooses(node)
    )
    own = {s.scalar for s in statements(loop.body) if isinstance(s, ir.Let)}
    return frozenset(c for c in choices if isinstance(c, ir.Scalar) and c not in own)


def _chooses(node: ir.Apply) -> bool:
    return node.opcode == opcodes.SELECT and DTYPES[working(node.dtype)].bytes >= 4


def _added_by_rows(body: Sequence[ir.Statement]) -> Iterator[ir.Scalar]:
    """Float32 sums that begin in `body` and to which the lanes of each row of a serial loop add: a
    total grows as the rows do, and what it loses by rounding with it (Higham 2002, 4.2)."""
    loops = [s for s in statements(body) if isinstance(s, ir.Loop)]
    rows = (s for loop in loops if loop.kind is ir.LoopKind.SERIAL for s in statements(loop.body))
    lanes = (s for s in rows if isinstance(s, ir.Loop) and s.kind is ir.LoopKind.LANES)
    added = {sum_.scalar for loop in lanes for sum_ in outer_accumulators(loop)}
    for s in body:
        if isinstance(s, ir.Accumulator) and s.scalar in added and s.scalar.dtype == "f32":
            if opcodes.record(s.reducer).ulp > 0:
                yield s.scalar


def _wide(scalar: ir.Scalar) -> ir.Scalar:
    return ir.Scalar(f"{scalar.name}_wide", "f64" if scalar.dtype == "f32" else scalar.dtype)


def _trips(begin: str, end: str) -> str:
    """How often a loop runs, for the report, where the text says it."""
    return f" {int(end) - int(begin)}" if begin.isdigit() and end.isdigit() else ""


def _count(begin: str, end: str) -> int | None:
    """How often a loop runs, where the text says it."""
    if begin.isdigit() and end.isdigit():
        return int(end) - int(begin)
    more = end.removeprefix(f"{begin} + ")
    return int(more) if more != end and more.isdigit() else None


def _parameter(kernel: ir.Kernel, buffer: ir.Buffer, stored: bool) -> str:
    """A pointer parameter; not `restrict` where a forwarded pair may share its memory."""
    inputs, outputs = kernel.with_role(ir.Role.INPUT), kernel.with_role(ir.Role.OUTPUT)
    shared = {inputs[i] for i, _ in kernel.aliases} | {outputs[o] for _, o in kernel.aliases}
    restrict = "" if buffer in shared else "restrict "
    return f"{'' if stored else 'const '}{MEMORY_TYPES[buffer.dtype]} *{restrict}{buffer.name}"
