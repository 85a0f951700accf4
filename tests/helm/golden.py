"""What the chart renders, kept as files, so that a change of a template shows what it changes.

    python -m tests.helm.golden        writes tests/helm/golden/, after a look at what changed

`default.yaml` has the defaults; every other set of values of ci/ is a diff against it. Of
dashboards and rules only the name stands there: they are files of the chart, compared elsewhere.
"""

from __future__ import annotations

import difflib
import functools
from pathlib import Path

import yaml

from tests.helm import charts
from tests.helm.charts import COMBINATIONS

FOLDER = Path(__file__).parent / "golden"
DEFAULT = "default"


class Blocks(yaml.SafeDumper):
    """Texts of several lines stay such."""


def _text(dumper: yaml.SafeDumper, given: str) -> yaml.ScalarNode:
    style = "|" if "\n" in given else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", given, style=style)


Blocks.add_representer(str, _text)


def text(combination: str) -> str:
    """Objects by kind and name, one key a line."""
    found = sorted(charts.of(combination), key=lambda one: (one["kind"], one["metadata"]["name"]))
    return str(yaml.dump_all([shortened(one) for one in found], Dumper=Blocks, width=1000))


def shortened(made: charts.Object) -> charts.Object:
    """Without dashboards, groups of rules, and the version that each label repeats."""
    labels = made["metadata"].get("labels", {})
    kept = {key: value for key, value in labels.items() if key != "helm.sh/chart"}
    short = {**made, "metadata": {**made["metadata"], "labels": kept}}
    if "-dashboard-" in made["metadata"]["name"]:
        short["data"] = sorted(made["data"])
    if made["kind"] == "PrometheusRule":
        short["spec"] = [group["name"] for group in made["spec"]["groups"]]
    return short


def file_of(combination: str) -> Path:
    return FOLDER / f"{combination}.{'yaml' if combination == DEFAULT else 'diff'}"


def content(combination: str) -> str:
    """What its file holds."""
    if combination == DEFAULT:
        return defaults()
    lines = difflib.unified_diff(
        defaults().splitlines(), text(combination).splitlines(), "default", combination,
        lineterm="", n=2,
    )  # fmt: skip
    return "\n".join(lines) + "\n"


@functools.cache
def defaults() -> str:
    return text(DEFAULT)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for combination in COMBINATIONS:
        file_of(combination).write_text(content(combination), encoding="utf-8")
