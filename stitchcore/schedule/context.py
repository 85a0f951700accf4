"""What all sections of a kernel share, and how each is cut into tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stitchcore.device.records import Device
from stitchcore.fusion.mechanisms import ALL, Mechanisms
from stitchcore.fusion.reuse import Prices
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Instruction, reachable
from stitchcore.loop_ir.nodes import Buffer
from stitchcore.schedule import limits, tiling
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.dominants import Dominants, Home, HomeKind, Scheme, order_of
from stitchcore.schedule.limits import Limits
from stitchcore.schedule.product_rows import ProductRows
from stitchcore.schedule.sections import (
    KernelScheme,
    SectionScheme,
    Sink,
    SinkKind,
    across_lines,
    domain_of,
)
from stitchcore.schedule.space import DEFAULT, Schedule
from stitchcore.schedule.tiling import Geometry
from stitchcore.schedule.values import Names, Residence


@dataclass(frozen=True)
class SectionContext:
    """What all sections of a kernel share. `errors` are the messages of its checks. `prices` decide
    what is kept in memory and what computed again; `choices` gathers what they decided. `products`
    says how rows are dealt of which a matrix product has as many."""

    axes: Axes
    dominants: Dominants
    scheme: KernelScheme
    residences: dict[Instruction, Residence]
    parts: dict[Instruction, tuple[Buffer, tuple[Axis, ...]]]
    names: Names
    device: Device
    prices: Prices
    choices: list[tuple[Instruction, str]]
    errors: tuple[str, ...] = ()
    mechanisms: Mechanisms = ALL
    products: ProductRows | None = None
    chosen: Schedule = DEFAULT

    @property
    def limits(self) -> Limits:
        return limits.of(self.device, self.mechanisms, self.chosen)

    def residence(self, value: Instruction, phase: int) -> Residence | None:
        """Where `value` lies when `phase` begins, if it lies anywhere."""
        return self.residences.get(value) if self.scheme.stored.get(value, -1) < phase else None

    def geometry(self, section: SectionScheme) -> Geometry:
        """The tasks of a section: a function of shapes only."""
        extents = self.axes.extents
        if section.loops is not None:
            return tiling.over_partition(extents, section.loops, self.limits)
        if (dealt := self._as_products(section)) is not None:
            return dealt
        if section.rows is not None:
            inner = self._inner(section.rows, section)
            accumulates = any(sink.kind is SinkKind.PARTIAL for sink in section.sinks)
            if self._interchanges(section.rows[-1], inner, section):
                return tiling.over_short_rows(extents, section.rows, inner, self.limits)
            if self.turned(section):
                return tiling.over_turned_rows(extents, section.rows, inner, self.limits)
            piece = self._piece(section.rows)
            return tiling.over_rows(extents, section.rows, inner, accumulates, self.limits, piece)
        across = self._across(section)
        if not section.combines and len(section.order) > 1 and across in (None, section.order[-2]):
            *order, last = section.order
            inner = tiling.size_of((extents[last],))
            if self._interchanges(order[-1], inner, section):
                return tiling.over_short_elements(extents, tuple(order), inner, self.limits)
        return tiling.over_elements(extents, section.order, section.combines, self.limits, across)

    def _interchanges(self, outer: Axis, inner: int, section: SectionScheme) -> bool:
        """Whether lanes go along `outer` rather than inside its elements: what they leave is their
        own, and no vector is read from its end."""
        if not tiling.interchanges(self.axes.extents[outer], inner, self.limits):
            return False
        roots = [sink.root for sink in section.sinks]
        own = all(sink.kind is SinkKind.STORE for sink in section.sinks)
        return own and all(value.opcode != op.REVERSE for value in reachable(roots))

    def turned(self, section: SectionScheme) -> frozenset[Sink]:
        """What rows that are neighbours along the last of their axes leave in lines together."""
        rows = section.rows or ()
        parts = any(sink.kind is SinkKind.PARTIAL for sink in section.sinks)
        if not rows or parts or self._inner(rows, section) > self.limits.turned_row:
            return frozenset()
        return frozenset(
            sink
            for sink in section.sinks
            if sink.kind is SinkKind.STORE
            and across_lines(sink, rows, self.axes, self.limits)
            and self.axes.of(sink.value)[-1] == rows[-1]
        )

    def _as_products(self, section: SectionScheme) -> Geometry | None:
        """The tasks of a section with as many rows as a matrix product, where these are dealt in a
        way of their own."""
        parts = any(sink.kind in (SinkKind.PARTIAL, SinkKind.FINAL) for sink in section.sinks)
        if self.products is None or parts:
            return None
        lane = section.order[-1] if section.rows is None and section.order else None
        rows = section.order[:-1] if section.rows is None else section.rows
        count = tiling.product(self.axes.extents[axis] for axis in rows)
        if not isinstance(count, int) or count not in self.products.counts or not rows:
            return None
        if self._inner(rows, section) > self.limits.warp_elements:
            return None
        return Geometry((), rows, 1, count, lane, None, 1, 1, self.products.scope)

    def _inner(self, rows: tuple[Axis, ...], section: SectionScheme) -> int:
        """Elements of the longest row of a section."""
        domains = [domain_of(sink, self.axes) for sink in section.sinks]
        domains += [frozenset(self.axes.domain(value)) for value in self._reduced(rows)]
        return max(
            tiling.size_of(self.axes.extents[axis] for axis in domain - frozenset(rows))
            for domain in domains
        )

    def _piece(self, rows: tuple[Axis, ...]) -> int:
        """Elements of a piece of a row that is reduced, where it lies in several; else 0."""
        for value in self._reduced(rows):
            order = order_of(self.axes, self.dominants.layouts, value)
            last = max(order.index(axis) for axis in rows)
            if any(axis not in rows for axis in order[:last]):
                return tiling.size_of(self.axes.extents[axis] for axis in order[last + 1 :])
        return 0

    def _across(self, section: SectionScheme) -> Axis | None:
        """The innermost axis of what a section reads, where its lanes are another's."""
        layouts = (self.dominants.layouts[sink.root] for sink in section.sinks)
        innermost = (layout[-1] for layout in layouts if layout and layout[-1] != section.order[-1])
        return next(innermost, None)

    def _reduced(self, rows: tuple[Axis, ...]) -> Iterator[Instruction]:
        """Regional reductions that are tied to these rows."""
        home = Home(HomeKind.ROWS, frozenset(rows))
        for value, scheme in self.dominants.schemes.items():
            if scheme is Scheme.REGIONAL and self.dominants.states[value].home == home:
                yield value
