"""Alerts and recording rules: metrics that our code has, expressions that Prometheus takes, and
what they say of series made by hand."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from stitch_operator.gateway.metrics import Durable
from stitch_operator.gateway.metrics import Metrics as OfGateway
from stitch_operator.gateway.problems import Problem
from stitch_operator.reconciler.metrics import Metrics as OfReconciler
from stitch_operator.store.app import Metrics as OfStore
from stitch_operator.webhook.metrics import Metrics as OfWebhook
from stitch_operator.webhook.reasons import Reason
from stitchcore.errors import Reason as Refusal
from tests.helm import charts
from tests.helm.charts import CHART

RULES = CHART / "files" / "rules.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
HERE = Path(__file__).parent


def names(registry: CollectorRegistry) -> Iterator[str]:
    """Names of series, as they are scraped."""
    for family in registry.collect():
        yield family.name
        if family.type == "counter":
            yield f"{family.name}_total"
        if family.type == "histogram":
            yield from (f"{family.name}_{part}" for part in ("bucket", "count", "sum"))


def known() -> set[str]:
    """Everything that our processes expose."""
    made: list[Any] = [
        OfWebhook("1"),
        OfGateway(lambda: Durable([], [], []), "1"),
        OfReconciler(dict, "1"),
        OfStore(lambda: 0),
    ]
    return {name for one in made for name in names(one.registry)}


def test_every_metric_that_a_rule_names_is_one_of_ours() -> None:
    text = RULES.read_text()
    named = set(re.findall(r"\bstitch_[a-z_]+", text))
    assert len(named) > 15
    assert named <= known(), named - known()


def test_every_label_value_that_a_rule_names_is_one_of_ours() -> None:
    reasons = {one.name.lower() for one in Reason} | {one.value for one in Refusal}
    reasons |= {one.reason for one in Problem}
    for text in re.findall(r'reason=~?"([^"]*)"', RULES.read_text()):
        assert set(text.split("|")) <= reasons


def test_what_the_issue_asks_for_is_there() -> None:
    asked = {"StitchWebhookErrors", "StitchCertificateEnds", "StitchQueueWait", "StitchFallbacks",
             "StitchRegressions", "StitchBreakerOpen", "StitchNoContact", "StitchWrongResults",
             "StitchWorkerMissing", "StitchWorkersIdle"}  # fmt: skip
    assert asked <= set(ALERTS)
    records = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}
    assert "stitch:gpu_seconds_net:sum" in records
    for group in GROUPS:
        for rule in group["rules"]:
            if "_net:sum" in rule.get("record", ""):
                assert "spent" in rule["expr"], "a headline that shows only gross"


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_says_what_is_wrong(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["annotations"]["summary"].endswith(".")


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_has_a_page_that_says_what_to_do(name: str) -> None:
    path, _, anchor = ALERTS[name]["annotations"]["runbook_url"].partition("#")
    assert anchor == name.lower()
    _, _, section = (charts.ROOT / path).read_text().partition(f"\n## {name}\n")
    section = section.partition("\n## ")[0]
    assert "Look:" in section and "To mend it:" in section


def test_pages_are_of_alerts_that_there_are_and_name_metrics_that_there_are() -> None:
    pages = "".join(page.read_text() for page in (charts.ROOT / "docs" / "runbooks").glob("*.md"))
    assert sorted(re.findall(r"^## (.*)$", pages, re.MULTILINE)) == sorted(ALERTS)
    assert (
        set(re.findall(r"\bstitch_[a-z_]*(?:total|seconds|bytes|bucket|workers)\b", pages))
        - {"stitch_operator"}
        <= known()
    )


def test_the_chart_carries_the_rules_as_they_are() -> None:
    one = charts.one(charts.of("monitoring"), "PrometheusRule", "stitch")
    *groups, prices = one["spec"]["groups"]
    text = yaml.safe_dump(GROUPS, width=1000)
    base = "https://git.example/stitchcore/docs/runbooks"
    assert groups == yaml.safe_load(text.replace("docs/runbooks", base))
    assert {(rule["labels"]["gpu"], rule["expr"]) for rule in prices["rules"]} == {
        *(("h100", "vector(2.5)"), ("l4", "vector(0.7)"), ("cpu", "vector(0.04)")),
    }
    plain = charts.one(charts.of("default"), "PrometheusRule", "stitch")
    assert plain["spec"] == {"groups": GROUPS}
    assert one["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_the_chart_carries_the_dashboards_as_they_are() -> None:
    folder = CHART / "files" / "dashboards"
    files = {path.name: path.read_text() for path in folder.glob("*.json")}
    assert len(files) == 4
    found = {
        name: one
        for one in charts.of("monitoring")
        if one["kind"] == "ConfigMap" and "-dashboard-" in one["metadata"]["name"]
        for name in one["data"]
    }
    assert {name: one["data"][name] for name, one in found.items()} == {
        name: text.rstrip("\n") for name, text in files.items()
    }
    for one in found.values():
        labels = one["metadata"]["labels"]
        assert (labels["grafana_dashboard"], labels["team"]) == ("1", "platform")
    without = charts.objects(charts.rendered("metrics: {dashboards: {enabled: false}}"))
    assert not [one for one in without if "-dashboard-" in one["metadata"]["name"]]


def test_the_gateway_is_told_how_many_namespaces_have_series() -> None:
    gateway = charts.one(charts.of("monitoring"), "Deployment", "stitch-gateway")
    (container,) = gateway["spec"]["template"]["spec"]["containers"]
    assert "--max-namespaces=50" in container["args"]


def test_the_monitor_finds_the_pods_that_have_metrics() -> None:
    found = charts.of("monitoring")
    monitor = charts.one(found, "ServiceMonitor", "stitch")
    service = charts.one(found, "Service", "stitch-metrics")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert charts.selected(wanted, service["metadata"]["labels"])
    others = [one for one in found if one["kind"] == "Service" and one is not service]
    assert not any(charts.selected(wanted, one["metadata"]["labels"]) for one in others)
    scraped = set()
    for name, metadata, spec in charts.pods(found):
        ports = {port["name"] for port in spec["containers"][0].get("ports", ())}
        assert charts.selected(service["spec"]["selector"], metadata["labels"]) == (
            "metrics" in ports
        ), name
        if "metrics" in ports:
            scraped.add(name.partition("stitch-")[2])
    assert scraped == {"webhook", "gateway", "reconciler", "store"}


def promtool(*arguments: str, folder: Path) -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    said = promtool("check", "rules", str(RULES), folder=tmp_path)
    recorded = sum("record" in rule for group in GROUPS for rule in group["rules"])
    assert f"{len(ALERTS) + recorded} rules found" in said


@pytest.mark.slow
def test_the_rules_say_what_they_should_of_series_made_by_hand(tmp_path: Path) -> None:
    """Each alert fires where it should, and not where it should not."""
    shutil.copy(RULES, tmp_path / "rules.yaml")
    tried = set()
    for name in ("rules_test.yaml", "rules_days_test.yaml"):
        shutil.copy(HERE / name, tmp_path)
        promtool("test", "rules", name, folder=tmp_path)
        for test in yaml.safe_load((HERE / name).read_text())["tests"]:
            tried |= {one["alertname"] for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert tried == set(ALERTS)
