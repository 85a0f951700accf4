"""What all sections of a kernel share, and how each is cut into tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stitchcore.device.records import Device
from stitchcore.fusion.mechanisms import ALL, Mechanisms
from stitchcore.fusion.reuse import Prices
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.loop_ir.nodes import Buffer
from stitchcore.schedule import limits, tiling
from stitchcore.schedule.axes import Axes, Axis
from stitchcore.schedule.dominants import Dominants, Home, HomeKind, Scheme
from stitchcore.schedule.limits import Limits
from stitchcore.schedule.sections import KernelScheme, SectionScheme, SinkKind, domain_of
from stitchcore.schedule.tiling import Geometry
from stitchcore.schedule.values import Names, Residence


@dataclass(frozen=True)
class SectionContext:
    """What all sections of a kernel share. `errors` are the messages of its checks. `prices` decide
    what is kept in memory and what computed again; `choices` gathers what they decided."""

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

    @property
    def limits(self) -> Limits:
        return limits.of(self.device, self.mechanisms)

    def residence(self, value: Instruction, phase: int) -> Residence | None:
        """Where `value` lies when `phase` begins, if it lies anywhere."""
        return self.residences.get(value) if self.scheme.stored.get(value, -1) < phase else None

    def geometry(self, section: SectionScheme) -> Geometry:
        """The tasks of a section: a function of shapes only."""
        extents = self.axes.extents
        if section.loops is not None:
            return tiling.over_partition(extents, section.loops, self.limits)
        if section.rows is not None:
            domains = [domain_of(sink, self.axes) for sink in section.sinks]
            domains += [frozenset(self.axes.domain(value)) for value in self._reduced(section.rows)]
            rows = frozenset(section.rows)
            inner = max(tiling.size_of(extents[a] for a in domain - rows) for domain in domains)
            accumulates = any(sink.kind is SinkKind.PARTIAL for sink in section.sinks)
            return tiling.over_rows(extents, section.rows, inner, accumulates, self.limits)
        across = self._across(section)
        return tiling.over_elements(extents, section.order, section.combines, self.limits, across)

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
