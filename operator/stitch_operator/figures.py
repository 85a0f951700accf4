"""The figures of savings from metrics, wherever those were read, and their plots as text. Pure.

Each series counts once, though a Prometheus may have it of two pods of the gateway: the ledger has
one writer, so the largest is the latest (the rules of the chart do the same).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stitch_operator.metrics import METRICS

DEVICES = ("gpu", "cpu_core")
NAMES = (
    *(f"stitch_{d}_seconds_{what}_total" for d in DEVICES for what in ("saved", "lost", "spent")),
    *("stitch_jobs_total", "stitch_fallbacks_total"),
)
"""Of the series that the figures are made of."""
IDLE = "idle"
"""The purpose of what workers cost that wait."""
HOUR = 3600.0
BLOCKS = " ▁▂▃▄▅▆▇█"
WIDTH = 48


@dataclass(frozen=True)
class Sample:
    """One series' value."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Sums:
    """Seconds of GPUs, or of cores; `idle`, of workers that waited, is a part of `spent`."""

    saved: float = 0.0
    lost: float = 0.0
    spent: float = 0.0
    idle: float = 0.0

    @property
    def net(self) -> float:
        """What is left: the headline."""
        return self.saved - self.lost - self.spent


@dataclass(frozen=True)
class Row:
    """Seconds of a namespace on one kind of device; `spent` is nobody's."""

    namespace: str
    device: str
    saved: float
    lost: float


@dataclass(frozen=True)
class Figures:
    """All of it: sums, rows by namespace and device, swaps by outcome, refusals by reason."""

    gpu: Sums
    cores: Sums
    namespaces: tuple[Row, ...]
    outcomes: Mapping[str, float]
    fallbacks: Mapping[str, float]


def figures(samples: Iterable[Sample]) -> Figures:
    """What the samples say."""
    found: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in NAMES}
    for one in samples:
        if one.name in found:
            labels = tuple(one.labels.get(label.name, "") for label in METRICS[one.name].labels)
            found[one.name][labels] = max(one.value, found[one.name].get(labels, one.value))

    def sums(device: str) -> Sums:
        saved, lost, spent = (sum(found[f"stitch_{device}_seconds_{what}_total"].values())
                              for what in ("saved", "lost", "spent"))  # fmt: skip
        waited = found[f"stitch_{device}_seconds_spent_total"].get((IDLE,), 0.0)
        return Sums(saved, lost, spent, waited)

    rows = []
    for device in DEVICES:
        saved, lost = (found[f"stitch_{device}_seconds_{what}_total"] for what in ("saved", "lost"))
        for where in sorted({*saved, *lost}):
            namespace, gpu = (*where, "cpu")[:2]
            rows.append(Row(namespace, gpu, saved.get(where, 0.0), lost.get(where, 0.0)))
    outcomes = {labels[0]: count for labels, count in found["stitch_jobs_total"].items()}
    fallbacks = {
        labels[0]: count for labels, count in found["stitch_fallbacks_total"].items() if count
    }
    return Figures(sums("gpu"), sums("cpu_core"), tuple(rows), outcomes, fallbacks)


def document(found: Figures) -> dict[str, Any]:
    """The figures as JSON, in seconds."""
    made = asdict(found)
    for name, one in (("gpu", found.gpu), ("cores", found.cores)):
        made[name]["net"] = one.net
    return made


# Of a Prometheus


def query(name: str) -> str:
    """PromQL of a series of NAMES, each counted once."""
    labels = ", ".join(label.name for label in METRICS[name].labels)
    return f"max by ({labels}) ({name})"


def net_query(device: str) -> str:
    """PromQL of net hours; nothing where no gateway was scraped."""
    saved, lost, spent = (
        f"(sum({query(f'stitch_{device}_seconds_{what}_total')}) or vector(0))"
        for what in ("saved", "lost", "spent")
    )
    return f"(({saved} - {lost} - {spent}) / 3600) and on () group(stitch_build_info)"


def history(
    expr: str, days: float, points: int, now: Callable[[], float] = time.time
) -> dict[str, str]:
    """Parameters of a range query."""
    end, seconds = now(), days * 24 * HOUR
    step = max(1.0, seconds / points)
    return {"query": expr, "start": f"{end - seconds:.0f}", "end": f"{end:.0f}", "step": f"{step}"}


# As text


def bars(sums: Sums, width: int = WIDTH) -> list[str]:
    """Saved, and what is taken from it, to one scale: lost in jobs, spent on making kernels
    (compile, measure) and on waiting."""
    values = [("saved", sums.saved), ("- lost", sums.lost), ("- made", sums.spent - sums.idle),
              ("- idle", sums.idle), ("= net", sums.net)]  # fmt: skip
    most = max(abs(value) for _, value in values) or 1.0
    return [
        f"{name:>8} {value / HOUR:>12.3f} h "
        f"{('█' if value >= 0 else '░') * round(abs(value) / most * width)}".rstrip()
        for name, value in values
    ]


def plot(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """A filled line over time, (time, value); the axis is named at its ends. The last value of a
    column counts, as these are sums."""
    if not points:
        return []
    first, last = points[0][0], points[-1][0]
    columns: list[float | None] = [None] * width
    for at, value in points:
        columns[min(width - 1, int((at - first) / max(last - first, 1.0) * width))] = value
    known = [value for value in columns if value is not None]
    low, high = min(0.0, *known), max(0.0, *known)
    scale = (high - low) or 1.0
    lines = []
    for row in reversed(range(height)):
        cells = "".join(
            " " if value is None else _cell((value - low) / scale * height - row)
            for value in columns
        )
        label = high if row == height - 1 else low if row == 0 else None
        lines.append(f"{'' if label is None else f'{label:.3g}':>10} ┤{cells}".rstrip())
    return [*lines, f"{'':>10} └{'─' * width}"]


def _cell(filled: float) -> str:
    return BLOCKS[round(max(0.0, min(1.0, filled)) * (len(BLOCKS) - 1))]
