"""Tables and a plot of comparisons: JSON for machines, markdown for people, PNG for a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import record
from stitchcore.verify.timing import Comparison, Ratio

CONTESTANTS = ("tf", "tf_fused", "xla", "hand", "generated", "bare_hand", "bare_generated")


@dataclass(frozen=True)
class Row:
    """One subgraph. `ratios` are "numerator/denominator" seconds: above 1, the second is faster."""

    name: str
    title: str
    milliseconds: dict[str, float]
    ratios: dict[str, Ratio]
    rounds: int
    notes: tuple[str, ...]


PAIRS = (
    ("tf", "generated"), ("tf_fused", "generated"), ("xla", "generated"), ("hand", "generated"),
    ("bare_hand", "bare_generated"), ("bare_generated", "generated"), ("bare_hand", "hand"),
    ("tf", "hand"), ("xla", "hand"),
)  # fmt: skip


def row(name: str, title: str, comparison: Comparison, notes: Sequence[str]) -> Row:
    present = comparison.seconds
    ratios = {f"{a}/{b}": comparison.ratio(a, b) for a, b in PAIRS if a in present and b in present}
    milliseconds = {contestant: comparison.median(contestant) * 1e3 for contestant in present}
    rounds = len(next(iter(present.values())))
    return Row(name, title, milliseconds, ratios, rounds, tuple(notes))


def geometric_mean(rows: Sequence[Row], pair: str) -> float | None:
    found = [math.log(row.ratios[pair].value) for row in rows if pair in row.ratios]
    return math.exp(sum(found) / len(found)) if found else None


def text(rows: Sequence[Row]) -> str:
    """Markdown: milliseconds of each contestant, then ratios with 95 % intervals, then notes."""
    shown = [c for c in CONTESTANTS if any(c in row.milliseconds for row in rows)]
    lines = ["| ms (median) | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for row in rows:
        cells = [f"{row.milliseconds[c]:.3f}" if c in row.milliseconds else "-" for c in shown]
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    pairs = ["/".join(p) for p in PAIRS if any("/".join(p) in row.ratios for row in rows)]
    lines += ["", "| ratio | " + " | ".join(pairs) + " |", "|---" * (len(pairs) + 1) + "|"]
    for row in rows:
        cells = [str(row.ratios[p]) if p in row.ratios else "-" for p in pairs]
        lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
    if len(rows) > 1:
        means = [geometric_mean(rows, pair) for pair in pairs]
        cells = [f"{mean:.3f}" if mean is not None else "-" for mean in means]
        lines.append("| geometric mean | " + " | ".join(cells) + " |")
    notes = [f"- {row.name}: {note}" for row in rows for note in row.notes]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


SUMMARY = (
    ("tf/generated", "against TensorFlow"),
    ("tf_fused/generated", "against its fused operation"),
    ("xla/generated", "against XLA"),
    ("hand/generated", "against hand-written"),
)
"""What the README shows of the ratios, and how it says so."""


def summary(rows: Sequence[Row]) -> str:
    """Markdown for people: our milliseconds, and how many times faster than each contestant."""
    lines = [
        f"| subgraph | stitched ms | {' | '.join(said for _, said in SUMMARY)} |",
        "|---" * (len(SUMMARY) + 2) + "|",
    ]
    for row in rows:
        ratios = [str(row.ratios.get(pair, "")) for pair, _ in SUMMARY]
        milliseconds = row.milliseconds.get("generated", math.nan)
        lines.append(f"| {row.title} | {milliseconds:.2f} | " + " | ".join(ratios) + " |")
    means = [geometric_mean(rows, pair) for pair, _ in SUMMARY]
    cells = [f"{mean:.2f}" if mean is not None else "" for mean in means]
    lines.append("| geometric mean | | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(rows: Sequence[Row], base: Path, command: str) -> None:
    """`base`.md (what the README shows); raw: .json (everything) and .png (where matplotlib is)."""
    figures = {"processor": record.processor(), "rows": [asdict(row) for row in rows]}
    record.write_figures(record.raw(base.with_suffix(".json")), figures)
    heading = "Ratios of seconds with 95 % intervals: above 1 stitched is faster.\n\n"
    record.write_table(base.with_suffix(".md"), heading + summary(rows), command)
    plot(rows, record.raw(base.with_suffix(".png")))


def plot(rows: Sequence[Row], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no plot: pip install matplotlib to get {path.name}")
        return
    present = {contestant for row in rows for contestant in row.milliseconds}
    shown = [c for c in ("tf", "xla", "hand", "generated") if c in present]
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(shown)
    for number, contestant in enumerate(shown):
        heights = [
            row.milliseconds["tf"] / row.milliseconds[contestant]
            if contestant in row.milliseconds
            else 0.0
            for row in rows
        ]
        positions = [p + (number - (len(shown) - 1) / 2) * width for p in range(len(rows))]
        axes.bar(positions, heights, width, label=contestant)
    axes.set_xticks(range(len(rows)), [row.name for row in rows], rotation=20, ha="right")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_ylabel("speed, TensorFlow = 1")
    axes.legend()
    figure.savefig(path, dpi=110)
