"""What the reconciler counts; metrics.py of the package above defines each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stitch_operator import metrics
from stitch_operator.reconciler.status import ORDER
from stitch_operator.webhook.cluster import IMAGES, WORKLOADS


class _Phases(Collector):
    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        made = metrics.gauged("stitch_stitchedjobs")
        counts = self._count()
        for phase in ORDER:
            made.add_metric([phase], counts.get(phase, 0))
        return [made]


class Metrics:
    """This process's metrics, in a registry of their own. `phases` counts jobs by phase."""

    def __init__(self, phases: Callable[[], Mapping[str, int]], version: str) -> None:
        self.registry = made = CollectorRegistry(auto_describe=False)
        self.registry.register(_Phases(phases))
        self.events = metrics.counter("stitch_events_total", made)
        self.missed = metrics.counter("stitch_missed_admissions_total", made)
        self.breakers = metrics.gauge("stitch_breakers_open", made)
        for kind in (IMAGES, WORKLOADS):
            self.breakers.labels(kind).set(0)
        self.writes = metrics.counter("stitch_reconciler_writes_total", made)
        self.watch_failures = metrics.counter("stitch_reconciler_watch_failures_total", made)
        self.gateway_failures = metrics.counter("stitch_reconciler_gateway_failures_total", made)
        self.gateway_read = metrics.gauge("stitch_reconciler_gateway_read_seconds", made)
        self.waiting = metrics.gauge("stitch_reconciler_waiting", made)
        metrics.gauge("stitch_reconciler_build_info", made).labels(version).set(1)
