"""Every metric of the service, defined once: what its figure means, its labels, how many series.

Gateway, webhook, reconciler and store build theirs from here, so that a name, a help text and a
label exist in one place, rules and dashboards can be checked against them, and the number of series
has a bound that follows from the lists (`most_series`). Labels never name a pod or a graph, and
jobs only where `most` bounds how many (docs/service.md, Metrics). Units are seconds, bytes or
ratios.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from stitch_operator import certificates
from stitch_operator.gateway.identity import GPUS
from stitch_operator.gateway.problems import Problem
from stitch_operator.webhook.reasons import Reason as Skipped
from stitchcore.device.records import DEVICES
from stitchcore.errors import Reason

OTHER = "other"
OTHER_NAMESPACE = "_other"
"""What namespaces beyond the maximum are counted as. No namespace can have this name."""
MAX_NAMESPACES = 500
REFUSALS = frozenset(reason.value for reason in Reason)
RATIOS = (0.8, 0.9, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
MOST_AT_ONCE = 100
"""Series of one metric that are there before anything is counted; of more, those that count."""
INFINITE = "+Inf"
MICRO = 1e6
"""Sums of ratios are kept in millionths, as whole numbers."""
SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)
CALL_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30)
REVIEW_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Kind(Enum):
    """Of metric. A durable counter or histogram is read from the ledger, and goes on where it was
    after a restart; others count since their process began."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Part(Enum):
    """Whose process exposes it."""

    GATEWAY = "gateway"
    WEBHOOK = "webhook"
    RECONCILER = "reconciler"
    STORE = "store"


@dataclass(frozen=True)
class Label:
    """Its values are a closed list, or (`most`) at most so many that the part's code names."""

    name: str
    values: tuple[str, ...] = ()
    most: int = 0

    def count(self, namespaces: int) -> int:
        """Most values that it can have."""
        if self is NAMESPACE:
            return namespaces + 1
        return len(self.values) or self.most


@dataclass(frozen=True)
class Metric:
    """One metric as it is scraped; `buckets` are upper bounds, of a histogram alone. `most` bounds
    its series where labels do not."""

    name: str
    part: Part
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    durable: bool = False
    most: int = 0

    @property
    def family(self) -> str:
        """Its name without `_total`, as the client library wants it."""
        return self.name.removesuffix("_total")

    def series(self, namespaces: int) -> int:
        """Most series that one process exposes, with those of the client library (`_created`)."""
        if self.most:
            return self.most
        each = 1 if self.kind is Kind.GAUGE or self.durable else 2
        if self.kind is Kind.HISTOGRAM:
            each += len(self.buckets) + 2  # +Inf, and of sum and count one more
        for label in self.labels:
            each *= label.count(namespaces)
        return each


NAMESPACE = Label("namespace")
GPU = Label("gpu", (*GPUS, OTHER))
PURPOSE = Label("purpose", ("compile", "measure", "idle"))
OUTCOME = Label("outcome", ("optimized", "rolled_back", "crashed"))
REASON = Label("reason", (*sorted(REFUSALS), OTHER))
TARGET = Label("target", (*DEVICES, OTHER))
TENSORFLOW = Label("tensorflow", (*(f"2.{minor}" for minor in range(15, 22)), OTHER))
VERSION = Label("version", most=1)
MOST_JOBS = 200
"""StitchedJobs that have series of their own: those that saved or lost most."""
EACH_JOB = (NAMESPACE, Label("team", most=MOST_JOBS), Label("stitchedjob", most=MOST_JOBS))
"""`team` is the namespace's label `team`, `stitchedjob` its workload's name."""
GATEWAY, WEBHOOK, RECONCILER, STORE = Part
COUNTER, GAUGE, HISTOGRAM = Kind


def _certificate(part: Part) -> tuple[Metric, Metric]:
    name = f"stitch_{part.value}_certificate"
    return (
        Metric(f"{name}_expiry_seconds", part, GAUGE,
               "When the served certificate ends, in seconds since 1970"),
        Metric(f"{name}_failures_total", part, COUNTER,
               "Certificate files that could not be used; the one before is still served"),
    )  # fmt: skip


SAVINGS = (
    Metric(
        "stitch_gpu_seconds_saved_total", GATEWAY, COUNTER,
        "GPU seconds saved, gross: (original step time - stitched step time) x stitched steps x "
        "GPUs, as measured in the job by paired blocks, of jobs whose 95 % interval is known. Net "
        "is this less lost less spent", (NAMESPACE, GPU), durable=True,
    ),
    Metric(
        "stitch_gpu_seconds_lost_total", GATEWAY, COUNTER,
        "GPU seconds lost: what that difference fell by, steps slower before a rollback, and the "
        "first steps of the blocks that measure", (NAMESPACE, GPU), durable=True,
    ),
    Metric(
        "stitch_cpu_core_seconds_saved_total", GATEWAY, COUNTER,
        "Core seconds saved, gross: as stitch_gpu_seconds_saved_total, of jobs without a GPU, x "
        "cores", (NAMESPACE,), durable=True,
    ),
    Metric(
        "stitch_cpu_core_seconds_lost_total", GATEWAY, COUNTER,
        "Core seconds lost: as stitch_gpu_seconds_lost_total, of jobs without a GPU, x cores",
        (NAMESPACE,), durable=True,
    ),
    Metric(
        "stitch_gpu_seconds_spent_total", GATEWAY, COUNTER,
        "GPU seconds that workers used for compilations for GPUs, however they ended (compile, "
        "measure), and that they held while they had no task (idle)",
        (PURPOSE,), durable=True,
    ),
    Metric(
        "stitch_cpu_core_seconds_spent_total", GATEWAY, COUNTER,
        "Core seconds that workers used for compilations for processors, however they ended "
        "(compile, measure), and that were reserved for them, or used, while they had no task "
        "(idle)", (PURPOSE,), durable=True,
    ),
    Metric(
        "stitch_savings_reports_total", GATEWAY, COUNTER,
        "Reports of savings: counted, or refused because a job cannot have saved so much "
        "(implausible). A repeated or older one is neither",
        (Label("result", ("counted", "implausible")),), durable=True,
    ),
    Metric(
        "stitch_step_speedup_ratio", GATEWAY, HISTOGRAM,
        "Original step time over stitched step time, once per job and graph, when its 95 % "
        "interval is first known", (), RATIOS, durable=True,
    ),
)  # fmt: skip
JOBS = (
    Metric(
        "stitch_jobs_total", GATEWAY, COUNTER,
        "Swaps by what became of them: optimized (steps run stitched), rolled_back (they were "
        "slower, held more memory or failed, and the original runs again), crashed (the process "
        "died within 20 stitched steps)", (OUTCOME,), durable=True,
    ),
    Metric(
        "stitch_regressions_total", GATEWAY, COUNTER,
        "Swaps that were rolled back: stitched steps were slower, held more memory, or failed",
        durable=True,
    ),
    Metric(
        "stitch_fallbacks_total", GATEWAY, COUNTER,
        "Graphs left as they were, by reason: refusals by gateway, workers or the job itself, once "
        "per namespace, graph and reason, and rolled back swaps", (REASON,), durable=True,
    ),
    Metric(
        "stitch_verification_failures_total", GATEWAY, COUNTER,
        "Graphs refused because a kernel's results differed from the original's", durable=True,
    ),
    Metric(
        "stitch_swap_groups_aborted_total", GATEWAY, COUNTER,
        "Rounds of replicas that came to nothing: no swap, or a way back that had to be asked for "
        "again", durable=True,
    ),
)  # fmt: skip
COMPILING = (
    Metric(
        "stitch_cache_requests_total", GATEWAY, COUNTER,
        "Graphs handed in: ready before (hit), to be compiled (miss), compiled already for "
        "somebody (join); and kernels of compiled graphs by where they came from (kernel_...)",
        (Label("result", ("hit", "miss", "join", "kernel_hit", "kernel_miss", "kernel_refused",
                          "kernel_failed")),),
    ),
    Metric(
        "stitch_queue_wait_seconds", GATEWAY, HISTOGRAM,
        "From a graph's place in the queue to a worker that begins with it", (), SECONDS,
    ),
    Metric(
        "stitch_compile_duration_seconds", GATEWAY, HISTOGRAM,
        "From a graph's place in the queue to its final answer", (TARGET,), SECONDS,
    ),
    Metric(
        "stitch_unconfined_compiles_total", GATEWAY, COUNTER,
        "Compilations whose child could reach what it should not: workers without user namespaces",
        (Label("what", ("network", "files")),),
    ),
    Metric(
        "stitch_queue_tasks", GATEWAY, GAUGE,
        "Graphs that are with a worker, or wait for one and may have it by their namespace's "
        "shares: what the number of workers follows", (TARGET, TENSORFLOW),
    ),
    Metric(
        "stitch_workers", GATEWAY, GAUGE,
        "Workers that answered when the gateway last asked, by what they compile for", (TARGET,),
    ),
    Metric(
        "stitch_worker_seconds_total", GATEWAY, COUNTER,
        "Seconds of workers, each counted: with a task (busy), and without one (idle)",
        (Label("state", ("busy", "idle")),),
    ),
)  # fmt: skip
CALLS = (
    Metric(
        "stitch_gateway_request_seconds", GATEWAY, HISTOGRAM, "Answering a call",
        (Label("call", ("submit", "standing", "artifact", "page", "event", "savings", "workloads")),
         Label("status", ("2xx", "3xx", "4xx", "5xx"))), CALL_SECONDS,
    ),
    Metric(
        "stitch_gateway_rejected_total", GATEWAY, COUNTER,
        "Calls that the gateway did not do, by the problem it answered with",
        (Label("reason", tuple(problem.reason for problem in Problem)),),
    ),
    Metric("stitch_gateway_pending", GATEWAY, GAUGE, "Graphs that wait for an answer"),
    Metric("stitch_build_info", GATEWAY, GAUGE, "1, labelled with the version", (VERSION,)),
    *_certificate(GATEWAY),
)  # fmt: skip
ADMISSION = (
    Metric(
        "stitch_injections_total", WEBHOOK, COUNTER,
        "Pods by what became of them, of those that reached the webhook, and why if not injected",
        (Label("result", ("injected", "already", "skipped", "dryRun", "ignored", "error")),
         Label("reason", ("", *(one.word for one in Skipped)))),
    ),
    Metric(
        "stitch_stamps_total", WEBHOOK, COUNTER, "Workloads by whether templates were stamped",
        (Label("result", ("stamped", "unchanged", "error")),),
    ),
    Metric(
        "stitch_webhook_reading_seconds", WEBHOOK, HISTOGRAM,
        "From a review's first line to its end: the API server's pace",
        (Label("hook", ("pods", "workloads")),), REVIEW_SECONDS,
    ),
    Metric(
        "stitch_webhook_duration_seconds", WEBHOOK, HISTOGRAM,
        "From a review's end to its answer", (Label("hook", ("pods", "workloads")),),
        REVIEW_SECONDS,
    ),
    Metric("stitch_webhook_malformed_total", WEBHOOK, COUNTER,
           "Requests that are no AdmissionReview"),
    Metric("stitch_webhook_watch_failures_total", WEBHOOK, COUNTER,
           "Watches that ended in an error", (Label("resource", most=8),)),
    Metric("stitch_webhook_build_info", WEBHOOK, GAUGE, "1, with the version", (VERSION,)),
    *_certificate(WEBHOOK),
)  # fmt: skip
STATUSES = (
    Metric("stitch_stitchedjobs", RECONCILER, GAUGE, "StitchedJobs that there are, by phase",
           (Label("phase", most=10),)),
    Metric("stitch_stitchedjob_speedup_ratio", RECONCILER, GAUGE,
           "Time of a step before over its time after, of StitchedJobs that there are and whose "
           "interval is known", EACH_JOB, most=MOST_JOBS),
    Metric("stitch_stitchedjob_net_seconds", RECONCILER, GAUGE,
           "Device seconds saved less lost, of StitchedJobs that there are",
           (*EACH_JOB, Label("device", ("gpu", "cpu"))), most=2 * MOST_JOBS),
    Metric("stitch_events_total", RECONCILER, COUNTER, "Events posted on workloads",
           (Label("type", most=12),)),
    Metric("stitch_missed_admissions_total", RECONCILER, COUNTER,
           "Pods that asked and were created without the webhook"),
    Metric("stitch_breakers_open", RECONCILER, GAUGE,
           "Breakers that are open: pods left alone because earlier ones did not start",
           (Label("kind", ("images", "workloads")),)),
    Metric("stitch_reconciler_writes_total", RECONCILER, COUNTER, "Calls of the API server",
           (Label("call", most=6), Label("result", ("done", "exists", "gone", "failed")))),
    Metric("stitch_reconciler_watch_failures_total", RECONCILER, COUNTER,
           "Watches that ended in an error", (Label("resource", most=24),)),
    Metric("stitch_reconciler_gateway_failures_total", RECONCILER, COUNTER,
           "Rounds of asking the gateway that failed"),
    Metric("stitch_reconciler_gateway_read_seconds", RECONCILER, GAUGE,
           "When the gateway was last heard, in seconds since 1970"),
    Metric("stitch_reconciler_waiting", RECONCILER, GAUGE, "Jobs that are to be looked at"),
    Metric("stitch_reconciler_build_info", RECONCILER, GAUGE, "1, with the version", (VERSION,)),
)  # fmt: skip
STORING = (
    Metric("stitch_store_requests_total", STORE, COUNTER,
           "Calls of the store by role, method and status",
           (Label("role", most=6), Label("method", most=4), Label("status", most=16))),
    Metric("stitch_store_free_bytes", STORE, GAUGE, "What the store's volume has left"),
    *_certificate(STORE),
)  # fmt: skip
METRICS: Mapping[str, Metric] = {
    one.name: one for one in (*SAVINGS, *JOBS, *COMPILING, *CALLS, *ADMISSION, *STATUSES, *STORING)
}


def bucket(ratio: float) -> str:
    """The bucket that a step's speed-up falls into, by its upper bound."""
    return next((str(one) for one in RATIOS if ratio <= one), INFINITE)


def most_series(namespaces: int = MAX_NAMESPACES, parts: Iterable[Part] = Part) -> int:
    """Most series of one replica of each part: what a Prometheus must be able to hold, whatever
    jobs there are. `namespaces` is the gateway's --max-namespaces."""
    wanted = frozenset(parts)
    return sum(one.series(namespaces) for one in METRICS.values() if one.part in wanted)


# What a process counts itself. Every series of a short closed list is there from the start, at
# zero: Prometheus does not see the first event of a series that appears with it.


def counter(name: str, registry: CollectorRegistry) -> Counter:
    """The counter of this name, in a registry."""
    one = _of(name, COUNTER)
    made = Counter(one.family, one.help, [label.name for label in one.labels], registry=registry)
    for values in _first(one):
        made.labels(*values)
    return made


def gauge(name: str, registry: CollectorRegistry) -> Gauge:
    """The gauge of this name, in a registry."""
    one = _of(name, GAUGE)
    return Gauge(one.family, one.help, [label.name for label in one.labels], registry=registry)


def histogram(name: str, registry: CollectorRegistry) -> Histogram:
    """The histogram of this name, in a registry."""
    one = _of(name, HISTOGRAM)
    labels = [label.name for label in one.labels]
    made = Histogram(one.family, one.help, labels, buckets=one.buckets, registry=registry)
    for values in _first(one):
        made.labels(*values)
    return made


def certificate(part: Part, registry: CollectorRegistry) -> certificates.Metrics:
    """What a server's certificate is followed by."""
    name = f"stitch_{part.value}_certificate"
    return certificates.Metrics(
        gauge(f"{name}_expiry_seconds", registry), counter(f"{name}_failures_total", registry)
    )


# What is read when it is asked for


def counted(name: str, found: Mapping[tuple[str, ...], float]) -> CounterMetricFamily:
    """A counter of what is known elsewhere, by its labels' values."""
    one = _of(name, COUNTER)
    made = CounterMetricFamily(one.family, one.help, labels=[label.name for label in one.labels])
    for values, count in {**dict.fromkeys(_first(one), 0.0), **found}.items():
        made.add_metric(values, count)
    return made


def gauged(name: str) -> GaugeMetricFamily:
    """A gauge to be filled with what is known elsewhere."""
    one = _of(name, GAUGE)
    return GaugeMetricFamily(one.family, one.help, labels=[label.name for label in one.labels])


def distributed(name: str) -> HistogramMetricFamily:
    """A histogram to be filled with what is known elsewhere."""
    one = _of(name, HISTOGRAM)
    return HistogramMetricFamily(one.family, one.help, labels=[label.name for label in one.labels])


def _first(one: Metric) -> list[tuple[str, ...]]:
    """Labels' values of the series that are there before anything is counted."""
    if not one.labels:
        return [] if not one.durable else [()]
    if not all(label.values for label in one.labels):
        return []
    every = list(itertools.product(*(label.values for label in one.labels)))
    return every if len(every) <= MOST_AT_ONCE else []


def _of(name: str, kind: Kind) -> Metric:
    one = METRICS[name]
    if one.kind is not kind:
        raise ValueError(f"{name} is a {one.kind.value}, not a {kind.value}")
    return one
