"""Draws a dashboard as a Prometheus answers it: what Grafana would show, without Grafana.

For the README, and to look at panels' places, units and empty states. Axes stand where the
dashboard's panels stand.
"""

from __future__ import annotations

import datetime
import math
import re
import textwrap
from pathlib import Path
from typing import Any

import httpx
import matplotlib.dates
import matplotlib.pyplot as plt

from stitch_operator.dashboards.panels import COLUMNS, Dashboard, Look, Panel, Query, Unit
from tests.operator.gateway.prometheus import asked, runnable

POINTS = 200
CELL = 0.38
"""Inches of a row of the grid."""
INK, FAINT, BAR = "#1f2933", "#9aa5b1", "#3e7cb1"


def draw(port: int, dashboard: Dashboard, path: Path, start: float, end: float) -> None:
    """A picture of the dashboard from `start` to `end` (epoch seconds)."""
    document = dashboard.document()["panels"]
    rows = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in document)
    figure = plt.figure(figsize=(15, rows * CELL))
    figure.suptitle(dashboard.title, x=0.01, ha="left", weight="bold", color=INK)
    panels = iter(dashboard.panels)
    top = 1 - 1.2 / rows
    for one in document:
        place = one["gridPos"]
        left, width = place["x"] / COLUMNS, place["w"] / COLUMNS
        bottom = top * (1 - (place["y"] + place["h"]) / rows)
        height = top * place["h"] / rows
        if one["type"] == "row":
            figure.text(0.01, bottom + height / 3, one["title"], weight="bold", color=INK)
            continue
        box = (left + 0.05, bottom + 0.24 * height, width - 0.065, 0.58 * height)
        axes = figure.add_axes(box)
        _panel(axes, port, next(panels), start, end)
    figure.savefig(path, dpi=90, facecolor="white")
    plt.close(figure)


def _panel(axes: Any, port: int, panel: Panel, start: float, end: float) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
    axes.tick_params(labelsize=7, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    shown = {Look.LINES: _lines, Look.BARS: _bars, Look.NUMBER: _numbers}
    if not shown[panel.look](axes, port, panel, start, end):
        axes.axis("off")
        text = textwrap.fill(panel.empty, 38)
        about = {"fontsize": 8, "color": FAINT, "style": "italic", "va": "center"}
        axes.text(0, 0.5, text, transform=axes.transAxes, **about)


def _lines(axes: Any, port: int, panel: Panel, start: float, end: float) -> bool:
    drawn = False
    for query in panel.queries:
        asking = {"query": runnable(query.expr, f"{end - start:.0f}s"), "start": f"{start:.0f}",
                  "end": f"{end:.0f}", "step": f"{max(1, (end - start) / POINTS):.0f}"}  # fmt: skip
        url = f"http://127.0.0.1:{port}/api/v1/query_range"
        answer = httpx.get(url, params=asking, trust_env=False).json()
        for series in answer["data"]["result"]:
            times = [datetime.datetime.fromtimestamp(at) for at, _ in series["values"]]
            values = [float(value) for _, value in series["values"]]
            if all(math.isnan(value) for value in values):
                continue
            axes.plot(times, values, label=_name(query, series["metric"]), linewidth=1.2)
            drawn = True
    if drawn:
        axes.legend(fontsize=6, frameon=False, ncols=4, loc="upper left",
                    bbox_to_anchor=(0, -0.2))  # fmt: skip
        axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M:%S"))
        axes.xaxis.set_major_locator(matplotlib.dates.AutoDateLocator(minticks=2, maxticks=6))
        axes.set_ylabel(_unit(panel), fontsize=7, color=INK)
    return drawn


def _values(port: int, panel: Panel, seconds: float) -> list[tuple[str, float]]:
    return [
        (_name(query, labels), value)
        for query in panel.queries
        for labels, value in asked(port, runnable(query.expr, f"{seconds:.0f}s"))
    ]


def _bars(axes: Any, port: int, panel: Panel, start: float, end: float) -> bool:
    found = _values(port, panel, end - start)
    found.sort(key=lambda one: one[1])
    if not found:
        return False
    names, values = zip(*found, strict=True)
    axes.barh(range(len(found)), values, tick_label=names, color=BAR, height=0.6)
    axes.set_ylim(len(found) - max(4, len(found)) - 0.5, len(found) - 0.5)
    axes.set_xlabel(_unit(panel), fontsize=7, color=INK)
    return True


def _numbers(axes: Any, port: int, panel: Panel, start: float, end: float) -> bool:
    found = _values(port, panel, end - start)
    axes.axis("off")
    for number, (name, value) in enumerate(found):
        left = number / max(1, len(found))
        axes.text(left, 0.45, f"{value:.4g} {_unit(panel)}", fontsize=15, color=INK)
        axes.text(left, 0.1, name, fontsize=7, color=FAINT)
    return bool(found)


def _name(query: Query, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), query.legend)


def _unit(panel: Panel) -> str:
    words = {Unit.SHARE: "share", Unit.COUNT: "", Unit.RATE: "a second", Unit.RATIO: ""}
    return words.get(panel.unit, panel.unit.value)
