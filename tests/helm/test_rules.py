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

pytestmark = pytest.mark.cluster  # helm is built with the programs of a cluster

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
             "StitchRegressions", "StitchBreakerOpen", "StitchNoContact",
             "StitchWorkerMissing"}  # fmt: skip
    assert asked <= set(ALERTS)
    records = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}
    assert "stitch:gpu_seconds_net:sum" in records


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_says_what_is_wrong(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["annotations"]["summary"].endswith(".")


def test_the_chart_carries_the_rules_as_they_are() -> None:
    one = charts.one(charts.of("monitoring"), "PrometheusRule", "stitch")
    assert one["spec"] == {"groups": GROUPS}
    assert one["metadata"]["labels"]["release"] == "kube-prometheus-stack"


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
    assert f"{len(ALERTS) + 3} rules found" in said


def test_the_rules_say_what_they_should_of_series_made_by_hand(tmp_path: Path) -> None:
    """tests/helm/rules.yaml: each alert fires where it should, and not where it should not."""
    shutil.copy(RULES, tmp_path / "rules.yaml")
    shutil.copy(HERE / "rules_test.yaml", tmp_path)
    promtool("test", "rules", "rules_test.yaml", folder=tmp_path)
    document = yaml.safe_load((HERE / "rules_test.yaml").read_text())
    tried = {one["alertname"] for test in document["tests"] for one in test["alert_rule_test"]
             if one.get("exp_alerts")}  # fmt: skip
    assert tried == set(ALERTS)
