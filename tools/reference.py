"""Writes the reference pages from the code that has what they say: commands, environment
variables, reasons, metrics, kinds of objects; and alerts from the chart's rules. The values of the
chart are tools/chart.py's.

    python -m tools.reference             rewrite the pages
    python -m tools.reference --check     exit 1 when a page is not what the code says
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from stitch_operator.metrics import METRICS, Metric, Part
from stitch_operator.reconciler.objects import job_definition
from stitch_operator.webhook.objects import policy_definition
from stitchcore import options
from stitchcore.cli.main import COMMANDS, stitch
from stitchcore.errors import Reason
from stitchcore.inject import settings
from stitchcore.report.reasons import MEANINGS, MENDS

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = "Written by `python -m tools.reference`; do not edit."
WIDTH = 96
TEMPLATE = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
"""Of Prometheus, in a summary."""
RULES = ROOT / "helm" / "stitch" / "files" / "rules.yaml"


def commands() -> str:
    """Every command's own help."""
    rows = [f"| [{name}](#stitch-{name}) | {what} |" for name, what in COMMANDS.items()]
    parts = ["# Commands", WRITTEN, "\n".join(["| command | what it does |", "|---|---|", *rows])]
    for name in COMMANDS:
        command = stitch.get_command(click.Context(stitch), name)
        assert command is not None
        parent = click.Context(stitch, **stitch.context_settings)
        context = click.Context(command, parent, f"stitch {name}", max_content_width=WIDTH)
        context.terminal_width = WIDTH
        parts.append(f"## stitch {name}\n\n```\n{command.get_help(context)}\n```")
    return "\n\n".join(parts) + "\n"


def environment() -> str:
    """The tables of the two modules that read variables, as they stand there."""
    parts = [
        ("The command line and the worker", options, "stitchcore/options.py"),
        ("Inside the job", settings, "stitchcore/inject/settings.py"),
    ]
    sections = [
        f"## {title}\n\nRead in `{source}`.\n\n{table(module.__doc__ or '')}"
        for title, module, source in parts
    ]
    return "\n\n".join(["# Environment variables", WRITTEN, *sections]) + "\n"


def table(text: str) -> str:
    """The lines of a docstring's table; a row without a name goes on with the row before."""
    rows: list[str] = []
    for line in text.splitlines():
        if line.startswith("|   |"):
            rows[-1] = f"{rows[-1].removesuffix('|')}{line.removeprefix('|   |').lstrip()}"
        elif line.startswith("|"):
            rows.append(line)
    return "\n".join(rows)


def reasons() -> str:
    """The closed list, each with a heading that other pages and commands can link to."""
    introduction = (
        "Why something was left as it was: a closed list (`stitchcore/errors.py`). The same words "
        "stand in the summary of `stitch run`, in reports, metrics and events; `stitch explain "
        "CODE` says what stands here, `stitch explain` what your last job left, the most bytes "
        "first."
    )
    entries = [
        f"### {reason.value}\n\nBecause {MEANINGS[reason]}.\n\nWhat to do: {MENDS[reason]}."
        for reason in Reason
    ]
    return "\n\n".join(["# Reasons", WRITTEN, introduction, *entries]) + "\n"


def metrics() -> str:
    """What each process of the service exposes."""
    introduction = (
        "Scraped from a port of their own. Labels have closed lists of values and never name a "
        "pod or a graph; jobs are named by two gauges, 200 of them. What *durable* ones count is "
        "in the ledger and survives a restart. Every part tells its version as 1. [How they are "
        "added up, and how many series there are](service.md#metrics)."
    )
    sections = []
    for part in Part:
        rows = [_metric(one) for one in METRICS.values() if one.part is part]
        head = "| metric | kind | meaning |\n|---|---|---|\n"
        sections.append(f"## {part.value}\n\n{head}" + "\n".join(rows))
    return "\n\n".join(["# Metrics", WRITTEN, introduction, *sections]) + "\n"


def _metric(one: Metric) -> str:
    labels = f" {{{', '.join(label.name for label in one.labels)}}}" if one.labels else ""
    kind = f"{one.kind.value}, durable" if one.durable else one.kind.value
    return f"| `{one.name}`{labels} | {kind} | {one.help} |"


def objects() -> str:
    """Fields of the kinds that the charts define, from the schemas in their definitions."""
    introduction = (
        "The definitions are the chart `stitch-crds`. How they are used: [kubernetes.md]"
        "(kubernetes.md). `kubectl explain stitchedjob.status` says the same."
    )
    sections = [_kind(one) for one in (job_definition(), policy_definition())]
    return "\n\n".join(["# Kinds of objects", WRITTEN, introduction, *sections]) + "\n"


def _kind(definition: Mapping[str, Any]) -> str:
    spec = definition["spec"]
    (version,) = spec["versions"]
    columns = [
        f"`{one['name']}` (`{one['jsonPath']}`)" + (", with `-o wide`" if "priority" in one else "")
        for one in version["additionalPrinterColumns"]
    ]
    told = (
        f"`{spec['group']}/{version['name']}`, {spec['scope'].lower()}. `kubectl get "
        f"{spec['names']['plural']}` prints: {'; '.join(columns)}."
    )
    rows = [
        f"| `{path}` | {kind} | {text} |"
        for path, kind, text in _fields(version["schema"]["openAPIV3Schema"])
    ]
    head = "| field | type | meaning |\n|---|---|---|\n"
    return f"## {spec['names']['kind']}\n\n{told}\n\n{head}" + "\n".join(rows)


def _fields(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, type, meaning) of each field, those of objects after these."""
    for name, one in schema.get("properties", {}).items():
        inner = f"{path}.{name}".lstrip(".")
        items = one.get("items", {})
        words = one.get("enum") or items.get("enum")
        kind = f"{items['type']} list" if items else one["type"]
        kind = ", ".join(f"`{word}`" for word in words) if words else kind
        # a list's items and a field of their kind are told of by the same words
        text = one.get("description") or items.get("description", "")
        yield inner, kind, text.replace("|", "\\|")
        yield from _fields(one, inner)
        yield from _fields(items, f"{inner}[]")


def alerts() -> str:
    """Every alert of the chart, and the section of the runbook that it links to."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    found = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    order = ("critical", "warning", "info")
    found.sort(key=lambda rule: (order.index(rule["labels"]["severity"]), rule["alert"]))
    rows = [_alert(**rule) for rule in found]
    introduction = (
        "A PrometheusRule of the chart has them (`metrics.prometheusRule`), and "
        "[rules.yaml](../helm/stitch/files/rules.yaml) for a Prometheus without the operator. Each "
        "links to what to look at and how to mend it."
    )
    head = "| alert | severity | what has happened |\n|---|---|---|\n"
    return "\n\n".join(["# Alerts", WRITTEN, introduction, head + "\n".join(rows)]) + "\n"


def _alert(alert: str, labels: dict[str, str], annotations: dict[str, str], **_rule: Any) -> str:
    page = annotations["runbook_url"].removeprefix("docs/")
    summary = TEMPLATE.sub(r"*\1*", annotations["summary"])
    return f"| [{alert}]({page}) | {labels['severity']} | {summary} |"


def pages() -> Mapping[Path, str]:
    """Every page with what it must say."""
    made = {
        "commands": commands(),
        "environment": environment(),
        "reasons": reasons(),
        "metrics": metrics(),
        "objects": objects(),
        "alerts": alerts(),
    }
    return {ROOT / "docs" / f"{name}.md": text for name, text in made.items()}


def stale() -> list[str]:
    """Pages that are not what the code says."""
    return [
        path.name
        for path, text in pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    if "--check" in sys.argv[1:]:
        told = stale()
        print(f"not what the code says: {', '.join(told)}" if told else "as the code says")
        return 1 if told else 0
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
