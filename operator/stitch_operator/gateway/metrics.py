"""What the gateway counts; metrics.py of the package above defines each figure.

What must survive a restart (savings, spending, counts of events and refusals) is read from the
ledger when asked for, which counts each once whoever repeats it; the rest counts this process.
Served on a port of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stitch_operator import metrics
from stitch_operator.gateway.problems import Problem
from stitch_operator.gateway.queue import Workers
from stitch_operator.metrics import INFINITE, MICRO, OTHER, RATIOS, REFUSALS
from stitchcore.errors import Reason
from stitchcore.service.queues import queue_parts

REASONS = REFUSALS | {one.reason for one in Problem}
OUTCOMES = {"swap-ok": "optimized", "rolled-back": "rolled_back", "crashed-before": "crashed"}
TARGETS = frozenset(metrics.TARGET.values)
VERSIONS = frozenset(metrics.TENSORFLOW.values)
OPEN = frozenset({"network", "files"})
NANO = 1e9
Series = dict[tuple[str, ...], float]


@dataclass(frozen=True)
class Durable:
    """The ledger's totals: (namespace, gpu, saved, lost) in device-nanoseconds, (device, purpose,
    seconds), (name, label, count)."""

    totals: list[tuple[str, str, int, int]]
    spent: list[tuple[str, str, float]]
    counts: list[tuple[str, str, int]]


class _Read(Collector):
    """Families that are made when they are asked for; registering asks for none."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._read()


def families(durable: Durable) -> list[Metric]:
    """The metrics of what the ledger holds."""
    events = _named(durable.counts, "events")
    outcomes = {OUTCOMES[kind]: count for kind, count in events.items() if kind in OUTCOMES}
    aborted = sum(_named(durable.counts, "groups").values())
    wrong = _named(durable.counts, "answers").get(Reason.WRONG_RESULT.value, 0)
    return [
        *_savings(durable.totals),
        *_spent(durable.spent),
        _counted("stitch_jobs_total", outcomes),
        metrics.counted("stitch_regressions_total", {(): events.get("rolled-back", 0)}),
        _counted("stitch_savings_reports_total", _named(durable.counts, "savings")),
        metrics.counted("stitch_swap_groups_aborted_total", {(): aborted}),
        _refused(_named(durable.counts, "fallbacks")),
        metrics.counted("stitch_verification_failures_total", {(): wrong}),
        _speedup(_named(durable.counts, "speedup")),
    ]


def _savings(totals: list[tuple[str, str, int, int]]) -> list[Metric]:
    """Both of a pair have the same series, so that one can be taken from the other."""
    gpu: dict[str, Series] = {"saved": {}, "lost": {}}
    cpu: dict[str, Series] = {"saved": {}, "lost": {}}
    for namespace, device, saved, lost in totals:
        for what, value in (("saved", saved), ("lost", lost)):
            if device == "cpu":
                cpu[what][namespace,] = value / NANO
            else:
                gpu[what][namespace, device] = value / NANO
    return [
        *(metrics.counted(f"stitch_gpu_seconds_{what}_total", one) for what, one in gpu.items()),
        *(metrics.counted(f"stitch_cpu_core_seconds_{what}_total", o) for what, o in cpu.items()),
    ]


def _spent(spent: list[tuple[str, str, float]]) -> list[Metric]:
    gpu: Series = {(purpose,): seconds for device, purpose, seconds in spent if device != "cpu"}
    cpu: Series = {(purpose,): seconds for device, purpose, seconds in spent if device == "cpu"}
    return [
        metrics.counted("stitch_gpu_seconds_spent_total", gpu),
        metrics.counted("stitch_cpu_core_seconds_spent_total", cpu),
    ]


def _named(counts: list[tuple[str, str, int]], name: str) -> dict[str, int]:
    return {label: count for of, label, count in counts if of == name}


def _counted(name: str, counts: dict[str, int]) -> Metric:
    return metrics.counted(name, {(label,): count for label, count in counts.items()})


def _refused(counts: dict[str, int]) -> Metric:
    closed: dict[str, int] = {}
    for reason, count in counts.items():
        label = reason if reason in REFUSALS else OTHER
        closed[label] = closed.get(label, 0) + count
    return _counted("stitch_fallbacks_total", closed)


def _speedup(counts: dict[str, int]) -> Metric:
    """Of ratios that were kept by the bucket they fell into, and their sum in millionths."""
    made = metrics.distributed("stitch_step_speedup_ratio")
    below, buckets = 0, []
    for bound in (*map(str, RATIOS), INFINITE):
        below += counts.get(bound, 0)
        buckets.append((bound, float(below)))
    made.add_metric([], buckets, counts.get("sum", 0) / MICRO)
    return made


def known_reason(reason: str) -> str:
    """Of the closed list, or "other": what clients say is shown to others. "" stays."""
    return reason if reason in REASONS or not reason else OTHER


def workers(found: Workers) -> list[Metric]:
    """What the broker's workers said of themselves."""
    live = dict.fromkeys(metrics.TARGET.values, 0)
    for target, count in found.live.items():
        live[target if target in TARGETS else OTHER] += count
    gauge = metrics.gauged("stitch_workers")
    for target, count in live.items():
        gauge.add_metric([target], count)
    seconds: Series = {("busy",): found.busy, ("idle",): found.idle}
    return [gauge, metrics.counted("stitch_worker_seconds_total", seconds)]


class Metrics:
    """This process's metrics, in a registry of their own."""

    def __init__(
        self,
        durable: Callable[[], Durable],
        version: str,
        of_workers: Callable[[], Workers] = Workers,
    ) -> None:
        self.registry = made = CollectorRegistry(auto_describe=False)
        self.registry.register(_Read(lambda: families(durable())))
        self.registry.register(_Read(lambda: workers(of_workers())))
        self._rejected = metrics.counter("stitch_gateway_rejected_total", made)
        self._cache = metrics.counter("stitch_cache_requests_total", made)
        self.queue_wait = metrics.histogram("stitch_queue_wait_seconds", made)
        self._compile = metrics.histogram("stitch_compile_duration_seconds", made)
        self.requests = metrics.histogram("stitch_gateway_request_seconds", made)
        self.pending = metrics.gauge("stitch_gateway_pending", made)
        self._tasks = metrics.gauge("stitch_queue_tasks", made)
        self._open = metrics.counter("stitch_unconfined_compiles_total", made)
        self.certificate = metrics.certificate(metrics.Part.GATEWAY, made)
        metrics.gauge("stitch_build_info", made).labels(version).set(1)

    def rejected(self, problem: Problem) -> None:
        """Count a call that was not done."""
        self._rejected.labels(problem.reason).inc()

    def compiled(self, target: str, seconds: float) -> None:
        """Observe how long a graph took from the queue to its answer."""
        self._compile.labels(target if target in TARGETS else OTHER).observe(seconds)

    def queues(self, tasks: Mapping[str, int]) -> None:
        """Tasks of each queue, by its name; those of targets and versions without a record are
        summed up."""
        counts: dict[tuple[str, str], int] = {}
        for name, count in tasks.items():
            target, minor = queue_parts(name)
            labels = (
                target if target in TARGETS else OTHER,
                minor if minor in VERSIONS else OTHER,
            )
            counts[labels] = counts.get(labels, 0) + count
        for labels, count in counts.items():
            self._tasks.labels(*labels).set(count)

    def unconfined(self, what: str) -> None:
        """Count a compilation by what was open to its child; of a worker's word, what can be."""
        if what in OPEN:
            self._open.labels(what).inc()

    def cache(self, result: str, count: int = 1) -> None:
        """Count a submission ("hit", "miss" or "join"), or kernels of one ("kernel_hit", ...)."""
        self._cache.labels(result).inc(count)
