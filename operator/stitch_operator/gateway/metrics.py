"""Prometheus metrics (architecture.md section 11): closed labels, never a job, pod or digest.

What must survive a restart (savings, spending, counts of events) is read from the ledger when
asked for; the rest counts this process. Served on a port of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from stitch_operator import certificates
from stitch_operator.gateway.problems import Problem
from stitchcore.errors import Reason

REASONS = frozenset(reason.value for reason in Reason) | {one.reason for one in Problem}
OTHER = "other"
RATIOS = (0.8, 0.9, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)
OUTCOMES = {"swap-ok": "optimized", "rolled-back": "rolled_back", "crashed-before": "crashed"}
OPEN = frozenset({"network", "files"})
NANO = 1e9


@dataclass(frozen=True)
class Durable:
    """The ledger's totals: (namespace, gpu, saved, lost) in device-nanoseconds, (device, purpose,
    seconds), (name, label, count)."""

    totals: list[tuple[str, str, int, int]]
    spent: list[tuple[str, str, float]]
    counts: list[tuple[str, str, int]]


class _FromLedger(Collector):
    def __init__(self, read: Callable[[], Durable]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()  # so that registering does not ask the ledger

    def collect(self) -> Iterable[Metric]:
        return families(self._read())


def families(durable: Durable) -> list[Metric]:
    """The metrics of what the ledger holds."""
    gpu = {
        name: CounterMetricFamily(f"stitch_gpu_seconds_{name}", text, labels=["namespace", "gpu"])
        for name, text in (("saved", "GPU seconds saved, gross"), ("lost", "GPU seconds lost"))
    }
    cpu = {
        name: CounterMetricFamily(f"stitch_cpu_core_seconds_{name}", text, labels=["namespace"])
        for name, text in (("saved", "Core seconds saved, gross"), ("lost", "Core seconds lost"))
    }
    for namespace, device, saved, lost in durable.totals:
        for name, value in (("saved", saved), ("lost", lost)):
            if device == "cpu":
                cpu[name].add_metric([namespace], value / NANO)
            else:
                gpu[name].add_metric([namespace, device], value / NANO)
    spent = {
        "gpu": CounterMetricFamily(
            "stitch_gpu_seconds_spent", "GPU seconds that workers used", labels=["purpose"]
        ),
        "cpu": CounterMetricFamily(
            "stitch_cpu_core_seconds_spent", "Core seconds that workers used", labels=["purpose"]
        ),
    }
    for device, purpose, seconds in durable.spent:
        spent["cpu" if device == "cpu" else "gpu"].add_metric([purpose], seconds)
    return [*gpu.values(), *cpu.values(), *spent.values(), *_counted(durable.counts)]


def _counted(counts: list[tuple[str, str, int]]) -> list[Metric]:
    jobs = CounterMetricFamily("stitch_jobs", "Swaps by what became of them", labels=["outcome"])
    reports = CounterMetricFamily(
        "stitch_savings_reports", "Reports of savings: counted, implausible", labels=["result"]
    )
    regressions = CounterMetricFamily("stitch_regressions", "Swaps that were rolled back")
    aborted = CounterMetricFamily("stitch_swap_groups_aborted", "Swap groups that did not swap")
    rolled_back = groups = 0
    for name, label, count in counts:
        if name == "events" and label in OUTCOMES:
            jobs.add_metric([OUTCOMES[label]], count)
            rolled_back += count if label == "rolled-back" else 0
        elif name == "savings":
            reports.add_metric([label], count)
        elif name == "groups":
            groups += count
    regressions.add_metric([], rolled_back)
    aborted.add_metric([], groups)
    return [jobs, reports, regressions, aborted]


def known_reason(reason: str) -> str:
    """Of the closed list, or "other": what clients say is shown to others. "" stays."""
    return reason if reason in REASONS or not reason else OTHER


class Metrics:
    """This process's metrics, in a registry of their own."""

    def __init__(self, durable: Callable[[], Durable], version: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_FromLedger(durable))
        made: dict[str, Any] = {"registry": self.registry}
        self._fallbacks = Counter(
            "stitch_fallbacks", "Graphs left as they were, and failed calls", ["reason"], **made
        )
        self._cache = Counter(
            "stitch_cache_requests",
            "Graphs: ready before (hit), compiled anew, joined one under way; kernels of graphs",
            ["result"],
            **made,
        )
        self.queue_wait = Histogram(
            "stitch_queue_wait_seconds", "From enqueued to begun", buckets=SECONDS, **made
        )
        self.compile = Histogram(
            *("stitch_compile_duration_seconds", "From enqueued to answered", ["target"]),
            buckets=SECONDS,
            **made,
        )
        self.speedup = Histogram(
            "stitch_step_speedup_ratio", "Original step time over stitched", buckets=RATIOS, **made
        )
        self.requests = Histogram(
            *("stitch_gateway_request_seconds", "Answering a call", ["call", "status"]),
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
            **made,
        )
        self.pending = Gauge("stitch_gateway_pending", "Graphs that wait for an answer", **made)
        self._verification = Counter(
            "stitch_verification_failures", "Graphs refused because results differed", **made
        )
        self._open = Counter(
            "stitch_unconfined_compiles",
            "Compilations whose child could reach what it should not",
            ["what"],
            **made,
        )
        self.certificate = certificates.Metrics("gateway", self.registry)
        build = Gauge("stitch_build_info", "1, labelled with the version", ["version"], **made)
        build.labels(version).set(1)

    def fallback(self, reason: str) -> None:
        """Count a refusal or a problem; unknown reasons are "other", so that labels stay closed."""
        self._fallbacks.labels(known_reason(reason) or OTHER).inc()
        if reason == Reason.WRONG_RESULT.value:
            self._verification.inc()

    def unconfined(self, what: str) -> None:
        """Count a compilation by what was open to its child; of a worker's word, what can be."""
        if what in OPEN:
            self._open.labels(what).inc()

    def cache(self, result: str, count: int = 1) -> None:
        """Count a submission ("hit", "miss" or "join"), or kernels of one ("kernel_hit", ...)."""
        self._cache.labels(result).inc(count)
