"""What the webhook counts; metrics.py of the package above defines each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from stitch_operator import metrics
from stitch_operator.webhook.reasons import Reason


class Metrics:
    """This process's metrics, in a registry of their own."""

    def __init__(self, version: str) -> None:
        self.registry = made = CollectorRegistry()
        self._injections = metrics.counter("stitch_injections_total", made)
        for result in ("injected", "skipped"):
            self._injections.labels(result, "")
        self._injections.labels("error", Reason.INTERNAL.word)
        self._stamps = metrics.counter("stitch_stamps_total", made)
        self.reading = metrics.histogram("stitch_webhook_reading_seconds", made)
        self.duration = metrics.histogram("stitch_webhook_duration_seconds", made)
        self.malformed = metrics.counter("stitch_webhook_malformed_total", made)
        self.certificate = metrics.certificate(metrics.Part.WEBHOOK, made)
        self.watch_failures = metrics.counter("stitch_webhook_watch_failures_total", made)
        metrics.gauge("stitch_webhook_build_info", made).labels(version).set(1)

    def injection(self, result: str, reason: str = "") -> None:
        """Count a pod: injected, already, skipped, dryRun, ignored or error; why, if it was not."""
        self._injections.labels(result, reason).inc()

    def stamp(self, result: str) -> None:
        """Count a workload: stamped, unchanged or error."""
        self._stamps.labels(result).inc()
