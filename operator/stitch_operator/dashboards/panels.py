"""What a dashboard is made of, and how it becomes Grafana's JSON.

A panel has a unit, says what its figure is, and says what an empty one means: a reader must be able
to tell "nothing yet" from "broken". `Dashboard.document` is a pure function of it, so that the
files of the chart can be compared with it (tools/dashboards.py --check).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

Object = dict[str, Any]
SCHEMA_VERSION = 39
"""Of dashboards' JSON: Grafana 11 writes it, later ones read it."""
COLUMNS = 24
NAMED = '{__name__=~"stitch:(gpu|cpu_core)_seconds_saved:total"}'
OF_JOB = "stitch_stitchedjob_net_seconds"
VARIABLES = {
    "namespace": f"label_values({NAMED}, namespace)",
    "team": f"label_values({OF_JOB}, team)",
    "job": f'label_values({OF_JOB}{{namespace=~"$namespace", team=~"$team"}}, stitchedjob)',
}
"""What a reader may choose by; a job's series are the reconciler's."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Unit(Enum):
    """By Grafana's names."""

    HOURS = "h"
    SECONDS = "s"
    SHARE = "percentunit"
    COUNT = "short"
    RATE = "ops"
    BYTES = "bytes"
    RATIO = "none"


class Look(Enum):
    """How a panel shows its series; a number has one each, a line its history."""

    NUMBER = "stat"
    LINES = "timeseries"
    BARS = "bargauge"


@dataclass(frozen=True)
class Query:
    """PromQL, and what a series of it is called: text with {{label}}s."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """`empty` is shown where a query has no series. `width` in columns of COLUMNS."""

    title: str
    text: str
    queries: tuple[Query, ...]
    unit: Unit
    empty: str
    look: Look = Look.LINES
    width: int = 12
    height: int = 8


@dataclass(frozen=True)
class Row:
    """Panels under one heading, from left to right, wrapped."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """`name` is its file's and its address's; `choices` are variables that a reader may choose by,
    of VARIABLES."""

    name: str
    title: str
    text: str
    rows: tuple[Row, ...]
    choices: tuple[str, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)

    def document(self) -> Object:
        """What Grafana reads."""
        return {
            "uid": f"stitch-{self.name}",
            "title": self.title,
            "description": self.text,
            "tags": ["stitchcore"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "time": {"from": "now-7d", "to": "now"},
            "refresh": "1m",
            "templating": {"list": _variables(self.choices)},
            "links": [_link()],
            "panels": _placed(self.rows),
        }


def _variables(choices: tuple[str, ...]) -> list[Object]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource",
              "query": "prometheus", "hide": 0}  # fmt: skip
    return [source, *(_choice(name, VARIABLES[name]) for name in choices)]


def _choice(name: str, query: str) -> Object:
    return {"name": name, "label": name.capitalize(), "type": "query", "datasource": SOURCE,
            "query": {"query": query, "refId": f"{name}s"},
            "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}}  # fmt: skip


def _link() -> Object:
    return {"title": "stitchcore", "type": "dashboards", "tags": ["stitchcore"],
            "asDropdown": True, "keepTime": True, "includeVars": True}  # fmt: skip


def _placed(rows: tuple[Row, ...]) -> list[Object]:
    made: list[Object] = []
    top = 0
    for row in rows:
        heading = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        made.append({"id": len(made) + 1, "type": "row", "title": row.title, "panels": [],
                     "collapsed": False, "gridPos": heading})  # fmt: skip
        left, top, tallest = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            made.append({"id": len(made) + 1, "gridPos": place, **_panel(panel)})
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
    return made


def _panel(panel: Panel) -> Object:
    defaults: Object = {"unit": panel.unit.value, "noValue": panel.empty}
    if panel.look is not Look.LINES:
        defaults["decimals"] = 2
    return {
        "type": panel.look.value,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel.look),
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query.expr, "legendFormat": query.legend,
             "datasource": SOURCE, "instant": panel.look is not Look.LINES,
             "range": panel.look is Look.LINES}
            for number, query in enumerate(panel.queries)
        ],
    }  # fmt: skip


def _options(look: Look) -> Object:
    if look is Look.LINES:
        return {"legend": {"displayMode": "list", "placement": "bottom"},
                "tooltip": {"mode": "multi"}}  # fmt: skip
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if look is Look.NUMBER:
        return {"reduceOptions": reduce, "colorMode": "none", "textMode": "auto"}
    return {"reduceOptions": reduce, "orientation": "horizontal", "displayMode": "basic"}
