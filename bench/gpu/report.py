"""JSON for machines, a table and a plot for people, of what was measured on a GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.gpu.entrants import CAPTURED, INDUCTOR, SINGLE, STITCHED, XLA

ORDER = (STITCHED, CAPTURED, SINGLE, XLA, INDUCTOR)


@dataclass(frozen=True)
class Figures:
    """Of one entrant on one module: median milliseconds of a whole step (the host's clock) and of
    its memory-intensive part (the device's); launches; bytes of that part, and the share of the
    copy bandwidth at which they moved. None is what was not, or could not be, measured."""

    step: float | None
    intensive: float | None
    kernels: int | None
    library: int | None
    bytes: int | None
    share: float | None


@dataclass(frozen=True)
class Row:
    """One module. `ratios` are another's time over ours (above 1: ours is faster) with the 95 %
    interval; `large` are kernels over 64 MB: name, bytes, milliseconds, share of the copy's
    bandwidth; `error` is ours against XLA's outputs, over their largest value."""

    module: str
    figures: Mapping[str, Figures]
    ratios: Mapping[str, tuple[float, float, float]]
    large: Sequence[tuple[str, int, float, float]]
    error: float | None
    notes: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class Machine:
    """What was measured on; `bytes_per_second` is a copy's, read and written counted."""

    name: str
    target: str
    driver: str
    bytes_per_second: float
    dry: bool

    def same(self, other: Machine) -> bool:
        """Whether figures of both may stand in one table."""
        return replace(self, bytes_per_second=0.0) == replace(other, bytes_per_second=0.0)


def table(machine: Machine, rows: Sequence[Row]) -> str:
    head = f"{machine.name} ({machine.target}, {machine.driver}); a copy moves "
    head += f"{machine.bytes_per_second / 1e9:.0f} GB/s. Median ms of a step on the host's clock / "
    head += (
        "of what is no contraction on the device's; launches of kernels + contractions, bytes that "
    )
    head += "our kernels move and their share of a copy's bandwidth."
    if machine.dry:
        head = f"**Dry run on {machine.name}: nothing here was measured on a GPU.**"
    shown = [name for name in ORDER if any(name in row.figures for row in rows)]
    lines = [head, "", "| module | " + " | ".join(shown) + " | XLA over ours: step | intensive |"]
    lines.append("|---" * (len(shown) + 3) + "|")
    for row in rows:
        cells = [_cell(row.figures.get(name)) for name in shown]
        cells += [_ratio(row.ratios.get(f"{XLA}: {part}")) for part in ("step", "intensive")]
        lines.append(f"| {row.module} | " + " | ".join(cells) + " |")
    means = [geometric_mean(rows, f"{XLA}: {part}") for part in ("step", "intensive")]
    if any(means):
        blank = " | ".join(" " for _ in shown)
        shares = [f"{mean:.2f}" if mean else "-" for mean in means]
        lines.append(f"| geometric mean | {blank} | " + " | ".join(shares) + " |")
    large = [
        f"- {row.module} {name}: {size / 1e6:.0f} MB in {ms:.3f} ms, {100 * share:.0f} % of a copy"
        for row in rows
        for name, size, ms, share in row.large
    ]
    notes = [f"- {row.module}: {note}" for row in rows for note in row.notes]
    for title, some in (("Kernels over 64 MB:", large), ("Not measured:", notes)):
        lines += ["", title, "", *some] if some else []
    return "\n".join(lines) + "\n"


def _cell(one: Figures | None) -> str:
    if one is None:
        return "-"
    times = [f"{ms:.3f}" if ms is not None else "-" for ms in (one.step, one.intensive)]
    share = f", {100 * one.share:.0f} %" if one.share is not None else ""
    counts = [str(count) if count is not None else "-" for count in (one.kernels, one.library)]
    moved = f", {one.bytes / 1e6:.1f} MB" if one.bytes is not None else ""
    return f"{times[0]} / {times[1]} ({counts[0]} + {counts[1]}{moved}{share})"


def _ratio(found: tuple[float, float, float] | None) -> str:
    return "-" if found is None else f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]"


def geometric_mean(rows: Sequence[Row], pair: str) -> float | None:
    logs = [math.log(row.ratios[pair][0]) for row in rows if pair in row.ratios]
    return math.exp(sum(logs) / len(logs)) if logs else None


def write(folder: Path, machine: Machine, rows: Sequence[Row]) -> None:
    """gpu.json, gpu.md and gpu.png in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "gpu.json", {"machine": asdict(machine), "rows": [asdict(r) for r in rows]})
    (folder / "gpu.md").write_text(table(machine, rows), encoding="utf-8")
    _plot(folder / "gpu.png", machine, rows)


def read(folder: Path) -> tuple[Machine, list[Row]] | None:
    """What `write` left in `folder`, or None."""
    try:
        document = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Machine(**document["machine"]), [_row(one) for one in document["rows"]]


def write_row(path: Path, machine: Machine, row: Row) -> None:
    """One module's, for `read_row`."""
    _replace(path, {"machine": asdict(machine), "row": asdict(row)})


def read_row(path: Path) -> tuple[Machine, Row] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Machine(**document["machine"]), _row(document["row"])


def _row(found: Mapping[str, Any]) -> Row:
    figures = {name: Figures(**one) for name, one in found["figures"].items()}
    ratios = {name: tuple(one) for name, one in found["ratios"].items()}
    large = [tuple(one) for one in found["large"]]
    return Row(**{**found, "figures": figures, "ratios": ratios, "large": large})


def _replace(path: Path, document: Mapping[str, Any]) -> None:
    """The file appears whole: who is cut off leaves the last one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def _plot(path: Path, machine: Machine, rows: Sequence[Row]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.2 * len(rows)), 4.0))
    shown = [name for name in ORDER if any(name in row.figures for row in rows)]
    for number, name in enumerate(shown):
        places, heights = [], []
        for place, row in enumerate(rows):
            own = row.figures.get(STITCHED)
            other = row.figures.get(name)
            if own and other and own.step and other.step:
                places.append(place + (number - len(shown) / 2) * 0.16)
                heights.append(other.step / own.step)
        axes.bar(places, heights, 0.15, label=name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [row.module for row in rows], rotation=30, ha="right")
    axes.set_ylabel("time of a step over the stitched one's")
    axes.set_title("dry run: no GPU" if machine.dry else f"{machine.name}: whole steps")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
