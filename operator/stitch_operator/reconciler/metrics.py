"""What the reconciler counts; metrics.py of the package above defines each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stitch_operator import metrics
from stitch_operator.reconciler.records import Status
from stitch_operator.reconciler.status import ORDER
from stitch_operator.webhook.cluster import IMAGES, WORKLOADS


@dataclass(frozen=True)
class Told:
    """A StitchedJob: `name` is its workload's, `team` its namespace's label."""

    namespace: str
    team: str
    name: str
    status: Status

    def net(self, device: str) -> float:
        """Device seconds saved less lost; `gpu` or `cpu`."""
        if device == "gpu":
            return self.status.gpu_seconds_saved - self.status.gpu_seconds_lost
        return self.status.cpu_core_seconds_saved - self.status.cpu_core_seconds_lost

    @property
    def labels(self) -> list[str]:
        return [self.namespace, self.team, self.name]


def shown(jobs: Iterable[Told]) -> list[Told]:
    """Those that saved or lost most. Of one name, runs of a CronJob say, the first by that."""
    ordered = sorted(
        jobs, key=lambda one: (-max(abs(one.net("gpu")), abs(one.net("cpu"))), one.labels)
    )
    by_labels: dict[tuple[str, ...], Told] = {}
    for one in ordered:
        by_labels.setdefault(tuple(one.labels), one)
    return list(by_labels.values())[: metrics.MOST_JOBS]


class _Jobs(Collector):
    def __init__(self, told: Callable[[], Iterable[Told]]) -> None:
        self._told = told

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        ratio = metrics.gauged("stitch_stitchedjob_speedup_ratio")
        net = metrics.gauged("stitch_stitchedjob_net_seconds")
        for one in shown(self._told()):
            if one.status.speedup is not None:
                ratio.add_metric(one.labels, one.status.speedup.ratio)
            for device in ("gpu", "cpu"):
                net.add_metric([*one.labels, device], one.net(device))
        return [ratio, net]


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
    """This process's metrics, in a registry of their own. `phases` counts jobs by phase, `told`
    are those that there are."""

    def __init__(
        self,
        phases: Callable[[], Mapping[str, int]],
        version: str,
        told: Callable[[], Iterable[Told]] = tuple,
    ) -> None:
        self.registry = made = CollectorRegistry(auto_describe=False)
        self.registry.register(_Phases(phases))
        self.registry.register(_Jobs(told))
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
