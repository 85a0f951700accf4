"""Prometheus metrics of the webhook: closed labels, never a pod, job or namespace."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stitch_operator import certificates

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Metrics:
    """This process's metrics, in a registry of their own."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry}
        self._injections = Counter(
            "stitch_injections",
            "Pods by what became of them, of those that reached the webhook",
            ["result", "reason"],
            **made,
        )
        self._stamps = Counter(
            "stitch_stamps", "Workloads by whether templates were stamped", ["result"], **made
        )
        self.reading = Histogram(
            *("stitch_webhook_reading_seconds", "From a review's first line to its end", ["hook"]),
            buckets=SECONDS,
            **made,
        )
        self.duration = Histogram(
            *("stitch_webhook_duration_seconds", "From a review's end to its answer", ["hook"]),
            buckets=SECONDS,
            **made,
        )
        self.malformed = Counter(
            "stitch_webhook_malformed", "Requests that are no AdmissionReview", **made
        )
        self.certificate = certificates.Metrics("webhook", self.registry)
        self.watch_failures = Counter(
            "stitch_webhook_watch_failures", "Watches that ended in an error", ["resource"], **made
        )
        build = Gauge("stitch_webhook_build_info", "1, with the version", ["version"], **made)
        build.labels(version).set(1)

    def injection(self, result: str, reason: str = "") -> None:
        """Count a pod: injected, already, skipped, dryRun, ignored or error; why, if it was not."""
        self._injections.labels(result, reason).inc()

    def stamp(self, result: str) -> None:
        """Count a workload: stamped, unchanged or error."""
        self._stamps.labels(result).inc()
