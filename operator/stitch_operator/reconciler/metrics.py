"""Prometheus metrics of the reconciler: closed labels, never a pod, job or namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stitch_operator.reconciler.status import ORDER
from stitch_operator.webhook.cluster import IMAGES, WORKLOADS


class _Phases(Collector):
    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        made = GaugeMetricFamily("stitch_stitchedjobs", "StitchedJobs by phase", labels=["phase"])
        counts = self._count()
        for phase in ORDER:
            made.add_metric([phase], counts.get(phase, 0))
        return [made]


class Metrics:
    """This process's metrics, in a registry of their own. `phases` counts jobs by phase."""

    def __init__(self, phases: Callable[[], Mapping[str, int]], version: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Phases(phases))
        made: dict[str, Any] = {"registry": self.registry}
        self.events = Counter("stitch_events", "Events posted on jobs", ["type"], **made)
        self.missed = Counter(
            "stitch_missed_admissions",
            "Pods that asked and were created without the webhook",
            **made,
        )
        self.breakers = Gauge("stitch_breakers_open", "Breakers that are open", ["kind"], **made)
        for kind in (IMAGES, WORKLOADS):
            self.breakers.labels(kind).set(0)
        self.writes = Counter(
            "stitch_reconciler_writes", "Calls of the API server", ["call", "result"], **made
        )
        self.watch_failures = Counter(
            "stitch_reconciler_watch_failures",
            "Watches that ended in an error",
            ["resource"],
            **made,
        )
        self.gateway_failures = Counter(
            "stitch_reconciler_gateway_failures", "Rounds of asking the gateway that failed", **made
        )
        self.gateway_read = Gauge(
            "stitch_reconciler_gateway_read_seconds",
            "When the gateway was last heard, in seconds since 1970",
            **made,
        )
        self.waiting = Gauge("stitch_reconciler_waiting", "Jobs that are to be looked at", **made)
        build = Gauge("stitch_reconciler_build_info", "1, with the version", ["version"], **made)
        build.labels(version).set(1)
