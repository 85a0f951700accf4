"""`stitch savings`: what was saved, lost and spent, and what is left of it: the figures of the
dashboard Savings, in a terminal.

From the gateway's metrics page (default: that of `stitch serve` on this machine), or from a
Prometheus that scrapes it, which has the history too. Exit code 2: neither answered.
"""

from __future__ import annotations

from typing import Any

import click
import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from stitch_operator.figures import (
    NAMES,
    Figures,
    Sample,
    bars,
    document,
    figures,
    history,
    net_query,
    plot,
    query,
)
from stitchcore.cli.common import Output, fail, show_table

PAGE = "http://127.0.0.1:9464/metrics"
SECONDS = 10.0
POINTS, HEIGHT = 72, 8


@click.command(help=__doc__)
@click.option("--metrics", default=PAGE, show_default=True, help="the gateway's metrics page")
@click.option("--prometheus", help="URL of a Prometheus, instead of the page: shows the history")
@click.option("--days", default=7.0, show_default=True, type=click.FloatRange(min=0.001),
              help="of history")  # fmt: skip
@click.option("--top", default=10, show_default=True, help="namespaces that are shown")
@click.option("--json", "as_json", is_flag=True)
def command(metrics: str, prometheus: str | None, days: float, top: int, as_json: bool) -> None:
    output = Output(as_json)
    points: dict[str, list[tuple[float, float]]] = {}
    with httpx.Client(timeout=SECONDS, trust_env=False) as client:
        if prometheus is None:
            found = figures(_of_page(client, metrics, output))
        else:
            found = figures(_of_prometheus(client, prometheus, output))
            for device in ("gpu", "cpu_core"):
                points[device] = _past(client, prometheus, device, days, output)
    if as_json:
        output.document({**document(found), **({"history": points} if points else {})})
        return
    _show(output.console, found, top)
    for device, name in (("gpu", "GPU-hours"), ("cpu_core", "core-hours")):
        if any(value for _, value in points.get(device, [])):
            output.console.print(f"\n{name} net, last {days:g} days", style="bold")
            output.console.print("\n".join(plot(points[device], POINTS, HEIGHT)))


def _of_page(client: httpx.Client, url: str, output: Output) -> list[Sample]:
    mend = "`stitch serve` prints the page; or give --metrics URL, or --prometheus URL"
    try:
        answer = client.get(url).raise_for_status()
        return [
            Sample(sample.name, dict(sample.labels), sample.value)
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
            if sample.name in NAMES
        ]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        fail(output, url, f"{type(error).__name__}: {error}", mend)


def _of_prometheus(client: httpx.Client, url: str, output: Output) -> list[Sample]:
    return [
        Sample(name, one["metric"], float(one["value"][1]))
        for name in NAMES
        for one in _asked(client, url, "query", {"query": query(name)}, output)
    ]


def _past(
    client: httpx.Client, url: str, device: str, days: float, output: Output
) -> list[tuple[float, float]]:
    """(epoch seconds, hours)."""
    asked = history(net_query(device), days, POINTS)
    found = _asked(client, url, "query_range", asked, output)
    return [(float(at), float(value)) for one in found for at, value in one["values"]]


def _asked(
    client: httpx.Client, url: str, call: str, asked: dict[str, str], output: Output
) -> list[Any]:
    try:
        answer = client.get(f"{url.rstrip('/')}/api/v1/{call}", params=asked).json()
        if answer["status"] != "success":
            raise ValueError(answer["error"])
        return list(answer["data"]["result"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        mend = "the address of Prometheus itself, http://prometheus:9090 say"
        fail(output, url, f"{type(error).__name__}: {error}", mend)


def _show(console: Console, found: Figures, top: int) -> None:
    rows = [
        (
            name,
            *(
                f"{seconds / 3600:.3f}"
                for seconds in (one.saved, one.lost, one.spent, one.idle, one.net)
            ),
        )
        for name, one in (("GPU-hours", found.gpu), ("core-hours", found.cores))
    ]
    show_table("Savings", ("", "saved>", "lost>", "spent>", "(idle)>", "net>"), rows, console)
    for name, one in (("GPU-hours", found.gpu), ("core-hours", found.cores)):
        if one.saved or one.lost or one.spent:
            console.print(f"\n{name}", style="bold")
            console.print("\n".join(bars(one)))
    if found.namespaces:
        shown = sorted(found.namespaces, key=lambda row: row.lost - row.saved)[:top]
        lines = [
            (row.namespace, row.device, *(f"{value / 3600:.3f}" for value in (
                row.saved, row.lost, row.saved - row.lost)))
            for row in shown
        ]  # fmt: skip
        columns = ("namespace", "device", "saved h>", "lost h>", "saved - lost h>")
        console.print()
        show_table("By namespace", columns, lines, console)
    counted = [*found.outcomes.items(), ("left as they were", sum(found.fallbacks.values()))]
    console.print()
    show_table("Swaps and graphs", ("", "count>"), [(n, f"{c:g}") for n, c in counted], console)
    if not found.namespaces:
        console.print("\nNothing measured yet: a job saves once its steps run stitched.")
