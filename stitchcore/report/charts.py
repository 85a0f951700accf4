"""Charts as inline SVG: bars of bytes before and after, and what was predicted against measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stitchcore.report.markup import Markup, seconds_text, tag
from stitchcore.report.schema import NO_KERNEL
from stitchcore.report.view import Point

COLOURS, PATTERNS = 8, 4
"""Of kernels: the palette of page.css (fit for colour-blind readers), then patterns over it."""
Axis = Callable[[float], float]
SIDE, LEFT, BOTTOM, TOP = 380, 70, 52, 14
"""Of the scatter plot, in its own pixels."""


def bars(
    before: float,
    after: float,
    most: float,
    label: str,
    bounds: tuple[float, float] | None = None,
) -> Markup:
    """Two bars on one scale, of which `most` is the whole width; `bounds` is the second's 95 %
    interval."""
    scale = 100 / most if most > 0 else 0.0
    drawn = [
        tag("rect", class_="bar-before", x=0, y=0, width=f"{before * scale:.2f}", height=6),
        tag("rect", class_="bar-after", x=0, y=7, width=f"{after * scale:.2f}", height=6),
    ]
    if bounds is not None:
        low, high = (bound * scale for bound in bounds)
        across = {"x": f"{low:.2f}", "width": f"{high - low:.2f}"}
        drawn.append(tag("rect", class_="bar-bounds", y=9.25, height=1.5, **across))
    return tag(
        "svg",
        *drawn,
        class_="bars",
        viewBox="0 0 100 13",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def stacked(rows: Sequence[Sequence[float]], label: str) -> Markup:
    """Bars of the same parts on one scale, the longest as wide as there is."""
    most = max((sum(row) for row in rows), default=0.0)
    drawn = []
    for number, row in enumerate(rows):
        x = 0.0
        for part, value in enumerate(row):
            width = value / most * 100 if most > 0 else 0.0
            drawn.append(
                tag("rect", class_=f"fill-{part % COLOURS}", x=f"{x:.3f}", y=number * 13,
                    width=f"{width:.3f}", height=10)
            )  # fmt: skip
            x += width
    kind = "stacked" if len(rows) > 1 else "stacked one"
    return tag("svg", *drawn, class_=kind, viewBox=f"0 0 100 {max(1, len(rows)) * 13 - 3}",
               preserveAspectRatio="none", role="img", aria_label=label)  # fmt: skip


def plain_swatch(colour: int) -> Markup:
    """A colour of `stacked`."""
    square = tag("rect", width=16, height=16, rx=3, class_=f"fill-{colour % COLOURS}")
    return tag("svg", square, class_="swatch", viewBox="0 0 16 16", aria_hidden="true")


def swatch(kernel: int) -> Markup:
    """A kernel's colour and pattern, as in the graph."""
    colour, pattern = kernel % COLOURS, kernel // COLOURS % PATTERNS
    square = tag("rect", width=16, height=16, rx=3, class_=f"fill-{colour}")
    over = tag("rect", width=16, height=16, rx=3, fill=f"url(#pattern-{pattern})")
    return tag("svg", square, over, class_="swatch", viewBox="0 0 16 16", aria_hidden="true")


def patterns() -> Markup:
    """What `swatch` refers to: nothing, stripes, dots, lines."""
    drawn = (
        tag("path", d="M0 8L8 0", class_="ink-line"),
        tag("circle", cx=4, cy=4, r=1.6, class_="ink"),
        tag("path", d="M0 4H8", class_="ink-line"),
    )
    elements = [
        tag("pattern", path, id=f"pattern-{n}", width=8, height=8, patternUnits="userSpaceOnUse")
        for n, path in enumerate((tag("path", d="M0 0"), *drawn))
    ]
    return tag(
        "svg", tag("defs", *elements), width=0, height=0, class_="hidden", aria_hidden="true"
    )


def scatter(points: Sequence[Point], of: str) -> Markup:
    """Measured over predicted seconds, both on logarithmic axes; on the diagonal they agree."""
    ends = [end for point in points for end in (point.predicted, point.measured)]
    low, high = math.floor(math.log10(min(ends))), math.ceil(math.log10(max(ends)))
    high = max(high, low + 1)

    def x(seconds: float) -> float:
        return LEFT + (math.log10(seconds) - low) / (high - low) * SIDE

    def y(seconds: float) -> float:
        return TOP + SIDE - (math.log10(seconds) - low) / (high - low) * SIDE

    first, last = 10.0**low, 10.0**high
    label = f"Measured against predicted time of {len(points)} {of}s; the tables have the figures"
    return tag(
        "svg",
        *_axes([10.0**power for power in range(low, high + 1)], x, y),
        tag("line", class_="diagonal", x1=x(first), y1=y(first), x2=x(last), y2=y(last)),
        *(_point(point, x(point.predicted), y(point.measured)) for point in points),
        tag("text", "predicted time of one call", x=LEFT + SIDE / 2, y=TOP + SIDE + 46,
            class_="axis", text_anchor="middle"),
        tag("text", "measured time of one call", transform=f"translate(14 {TOP + SIDE / 2}) "
            "rotate(-90)", class_="axis", text_anchor="middle"),
        class_="scatter",
        viewBox=f"0 0 {LEFT + SIDE + 24} {TOP + SIDE + BOTTOM}",
        role="img",
        aria_label=label,
    )  # fmt: skip


def _axes(ticks: Sequence[float], x: Axis, y: Axis) -> list[Markup]:
    lines = []
    first, last = ticks[0], ticks[-1]
    for tick in ticks:
        lines += [
            tag("line", class_="grid", x1=x(tick), y1=y(first), x2=x(tick), y2=y(last)),
            tag("line", class_="grid", x1=x(first), y1=y(tick), x2=x(last), y2=y(tick)),
            tag("text", seconds_text(tick * (1 + 1e-9)), x=x(tick), y=y(first) + 20,
                class_="tick", text_anchor="middle"),
            tag("text", seconds_text(tick * (1 + 1e-9)), x=LEFT - 8, y=y(tick) + 4,
                class_="tick", text_anchor="end"),
        ]  # fmt: skip
    return lines


def _point(point: Point, x: float, y: float) -> Markup:
    label = (
        f"{point.name}: {seconds_text(point.predicted)} predicted, "
        f"{seconds_text(point.measured)} measured"
    )
    known = point.kernel != NO_KERNEL
    return tag(
        "circle",
        tag("title", label),
        class_=f"point fill-{point.kernel % COLOURS}" if known else "point",
        cx=f"{x:.1f}",
        cy=f"{y:.1f}",
        r=5,
        data_kernel=point.kernel if known else None,
    )


BAR, GAP, NAMES, WIDTH = 14, 12, 170, 420
"""Of grouped bars, in their own pixels: height of one, distance of groups, width of their names and
of the longest bar."""
INKS = ("#9aa8b6", "#0f8a76", "#56b4e9", "#e69f00")


def grouped_bars(
    title: str, series: Sequence[str], groups: Sequence[tuple[str, Sequence[float | None]]]
) -> Markup:
    """A picture of its own: for each group a bar of each series, on one scale from zero, with its
    value; a value that is not known has no bar."""
    most = max((value for _, values in groups for value in values if value), default=1.0)
    drawn = [tag("text", title, x=0, y=16, font_weight="bold")]
    for number, name in enumerate(series):
        y = 30 + number * (BAR + 4)
        drawn.append(tag("rect", x=NAMES, y=y, width=BAR, height=BAR, fill=INKS[number]))
        drawn.append(tag("text", name, x=NAMES + BAR + 6, y=y + BAR - 3))
    y = 30 + len(series) * (BAR + 4) + GAP
    for label, values in groups:
        middle = y + len(values) * BAR / 2 + 4
        drawn.append(tag("text", label, x=NAMES - 8, y=f"{middle:.1f}", text_anchor="end"))
        for number, value in enumerate(values):
            length = 0.0 if value is None else value / most * WIDTH
            ink = INKS[number]
            drawn.append(tag("rect", x=NAMES, y=y, width=f"{length:.1f}", height=BAR - 2, fill=ink))
            text = "not known" if value is None else f"{value:.2f}"
            drawn.append(tag("text", text, x=f"{NAMES + length + 6:.1f}", y=y + BAR - 4))
            y += BAR
        y += GAP
    return tag(
        "svg",
        tag("rect", width="100%", height="100%", fill="#ffffff"),
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"-8 0 {NAMES + WIDTH + 90} {y}",
        font_family="system-ui, sans-serif",
        font_size=12,
        role="img",
        aria_label=title,
    )
