"""Draws a dashboard's JSON as a browser shows it, with what a Prometheus answers: panels where
Grafana puts them, their titles, units and empty states. For the pages of docs/, without Grafana.

    draw(port, document, picture, start, end)

A page holds the JSON that Grafana imports and the series of its queries, and draws itself
(dashboard.js); headless Chromium takes its picture.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.operator.gateway.prometheus import asked, runnable

SCRIPT = Path(__file__).parent / "dashboard.js"
POINTS = 200
WIDTH, ROW = 1400, 34
"""Pixels of a page, and of a row of Grafana's grid."""
PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>
body {{ margin: 12px; font: 13px/1.35 system-ui, sans-serif; color: #1f2933; background: #f4f5f7; }}
h1 {{ font-size: 17px; margin: 0 0 8px; }}
#grid {{ display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: {row}px;
  gap: 6px; }}
.row {{ font-weight: 600; align-self: end; }}
.panel {{ background: #fff; border: 1px solid #d9dee4; border-radius: 3px; padding: 6px 10px;
  overflow: hidden; display: flex; flex-direction: column; min-height: 0; }}
.title {{ font-weight: 600; margin-bottom: 4px; }}
.body {{ flex: 1; min-height: 0; display: flex; flex-direction: column; }}
.empty {{ color: #66727f; font-style: italic; margin: auto 0; }}
.stats {{ display: flex; gap: 24px; margin: auto 0; flex-wrap: wrap; }}
.stat b {{ display: block; font-size: 26px; font-weight: 600; }}
.bar {{ display: grid; grid-template-columns: 9em 1fr 6em; gap: 8px; align-items: center;
  margin: 2px 0; }}
.bar span {{ overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }}
.bar i {{ display: block; height: 14px; background: #3e7cb1; }}
.legend {{ display: flex; flex-wrap: wrap; gap: 0 14px; font-size: 11px; }}
svg {{ flex: 1; min-height: 0; width: 100%; }}
</style>
<h1></h1><div id="grid"></div>
<script type="application/json" id="data">{data}</script><script>{script}</script>
"""
Object = dict[str, Any]


def draw(port: int, document: Object, picture: Path, start: float, end: float) -> None:
    """A picture of the dashboard from `start` to `end` (epoch seconds)."""
    text = page(document, answers(port, document, start, end), start, end)
    rows = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in document["panels"])
    size = f"--window-size={WIDTH},{rows * (ROW + 6) + 70}"
    chromium(text, size, f"--screenshot={picture.resolve()}")


def answers(port: int, document: Object, start: float, end: float) -> dict[str, list[Object]]:
    """Of each panel by its number: series with their names, and (time, value) pairs."""
    found: dict[str, list[Object]] = {}
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            expr = runnable(target["expr"], f"{end - start:.0f}s")
            if target["instant"]:
                series = [(labels, [[end, value]]) for labels, value in asked(port, expr)]
            else:
                step = max(1, round((end - start) / POINTS))
                asking = {"query": expr, "start": start, "end": end, "step": step}
                url = f"http://127.0.0.1:{port}/api/v1/query_range"
                told = httpx.get(url, params=asking, trust_env=False).json()["data"]["result"]
                series = [(one["metric"], [[t, float(v)] for t, v in one["values"]])
                          for one in told]  # fmt: skip
            found.setdefault(str(panel["id"]), []).extend(
                {"legend": target["legendFormat"], "labels": labels,
                 "values": [pair for pair in values if pair[1] == pair[1]]}  # NaN is no value
                for labels, values in series
            )  # fmt: skip
    return found


def page(document: Object, series: dict[str, list[Object]], start: float, end: float) -> str:
    """The page: nothing of it is fetched."""
    data = {"dashboard": document, "series": series, "start": start, "end": end}
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    script = SCRIPT.read_text(encoding="utf-8")
    return PAGE.format(title=document["title"], row=ROW, data=text, script=script)


def chromium(text: str, *arguments: str) -> str:
    """What headless Chromium says of a page."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--virtual-time-budget=3000", *arguments, file.as_uri()],
            check=True, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        return done.stdout
