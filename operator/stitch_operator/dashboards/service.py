"""Workers and Health: whether the service keeps up, and whether its parts are well."""

from __future__ import annotations

from stitch_operator.dashboards.panels import Dashboard, Look, Panel, Query, Row, Unit


def _quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    labels = f"le, {by}" if by else "le"
    return tuple(
        Query(f"histogram_quantile({share}, sum by ({labels}) "
              f"(rate({metric}_bucket[$__rate_interval])))",
              f"{name} {{{{{by}}}}}" if by else name)
        for share, name in ((0.5, "median"), (0.95, "95 %"))
    )  # fmt: skip


def _expiry(part: str) -> Query:
    return Query(f"min(stitch_{part}_certificate_expiry_seconds) - time()", part)


WORKERS = Dashboard(
    "workers", "stitchcore: Workers", "Whether graphs get their kernels in time, and at what cost.",
    (
        Row("Workers", (
            Panel(
                "Workers", "That answer, by what they compile for.",
                (Query("max by (target) (stitch_workers) > 0", "{{target}}"),),
                Unit.COUNT, "no worker answers: docs/runbooks/queue.md", Look.BARS, 8,
            ),
            Panel(
                "Busy", "Share of workers' time with a task. Idle ones hold what they reserve.",
                (Query('sum(rate(stitch_worker_seconds_total{state="busy"}[$__rate_interval])) '
                       "/ sum(rate(stitch_worker_seconds_total[$__rate_interval]))", "busy"),),
                Unit.SHARE, "no worker answers", width=8,
            ),
            Panel(
                "Graphs that wait", "Handed in, and not answered yet.",
                (Query("max(stitch_gateway_pending)", "waiting"),),
                Unit.COUNT, "no gateway is scraped", width=8,
            ),
        )),
        Row("Times", (
            Panel(
                "Wait for a worker", "From a graph's place in the queue to a worker's begin.",
                _quantiles("stitch_queue_wait_seconds"), Unit.SECONDS,
                "nothing was begun in this time",
            ),
            Panel(
                "To the answer", "From a graph's place in the queue to its final answer.",
                _quantiles("stitch_compile_duration_seconds", "target"), Unit.SECONDS,
                "nothing was answered in this time",
            ),
        )),
        Row("Work that was not needed", (
            Panel(
                "Graphs handed in",
                "Ready before (hit), to be compiled (miss), compiled already for somebody (join).",
                (Query('sum by (result) (increase(stitch_cache_requests_total'
                       '{result=~"hit|miss|join"}[$__range]))', "{{result}}"),),
                Unit.COUNT, "no graph was handed in", Look.BARS, 8,
            ),
            Panel(
                "Kernels of compiled graphs",
                "Kept before (hit), compiled (miss), not a worker's (refused), failed.",
                (Query('sum by (result) (increase(stitch_cache_requests_total'
                       '{result=~"kernel_.*"}[$__range]))', "{{result}}"),),
                Unit.COUNT, "nothing was compiled", Look.BARS, 8,
            ),
            Panel(
                "Compilations that were not confined",
                "Their child could reach this; see docs/runbooks/workers.md.",
                (Query("sum by (what) (increase(stitch_unconfined_compiles_total[$__range]))",
                       "{{what}}"),),
                Unit.COUNT, "all were confined", Look.BARS, 8,
            ),
        )),
    ),
)  # fmt: skip
HEALTH = Dashboard(
    "health", "stitchcore: Health", "Whether gateway, webhook, reconciler and store are well.",
    (
        Row("Alerts", (
            Panel(
                "Alerts", "Pending and firing; each names its page of docs/runbooks.",
                (Query('sum by (alertname, alertstate) (ALERTS{alertname=~"Stitch.*"})',
                       "{{alertname}} ({{alertstate}})"),),
                Unit.COUNT, "no alert", Look.BARS, 12,
            ),
            Panel(
                "Certificates end in", "Replaced a month before, by themselves.",
                (_expiry("gateway"), _expiry("webhook"), _expiry("store")),
                Unit.SECONDS, "no server is scraped", Look.NUMBER, 12,
            ),
        )),
        Row("Gateway", (
            Panel(
                "Calls", "Answered a second, by kind of answer.",
                (Query("sum by (status) "
                       "(rate(stitch_gateway_request_seconds_count[$__rate_interval]))",
                       "{{status}}"),),
                Unit.RATE, "nobody asks", width=8,
            ),
            Panel(
                "Time to answer", "Of calls, by call.",
                _quantiles("stitch_gateway_request_seconds", "call"), Unit.SECONDS,
                "nobody asks", width=8,
            ),
            Panel(
                "Calls that were not done", "By the problem they were answered with.",
                (Query("sum by (reason) (increase(stitch_gateway_rejected_total[$__range])) > 0",
                       "{{reason}}"),),
                Unit.COUNT, "all were done", Look.BARS, 8,
            ),
        )),
        Row("Webhook and reconciler", (
            Panel(
                "Time of the webhook", "From a whole review to its answer.",
                _quantiles("stitch_webhook_duration_seconds", "hook"), Unit.SECONDS,
                "no pod has asked", width=8,
            ),
            Panel(
                "Gateway last heard by the reconciler", "Statuses of jobs are as old as this.",
                (Query("time() - max(stitch_reconciler_gateway_read_seconds)", "ago"),),
                Unit.SECONDS, "no reconciler is scraped", width=8,
            ),
            Panel(
                "What failed", "Calls and watches of the API server, in this time.",
                (Query('sum(increase(stitch_reconciler_writes_total{result="failed"}[$__range]))',
                       "reconciler: writes"),
                 Query("sum(increase(stitch_reconciler_watch_failures_total[$__range]))",
                       "reconciler: watches"),
                 Query("sum(increase(stitch_webhook_watch_failures_total[$__range]))",
                       "webhook: watches"),
                 Query("sum(increase(stitch_missed_admissions_total[$__range]))",
                       "pods that were missed")),
                Unit.COUNT, "nothing failed", Look.BARS, 8,
            ),
        )),
        Row("Store", (
            Panel(
                "Space left", "Below 1 GiB nothing more is compiled.",
                (Query("min(stitch_store_free_bytes)", "left"),),
                Unit.BYTES, "no store is scraped: a bucket has no end", width=12,
            ),
            Panel(
                "Calls of the store", "A second, by whose they are.",
                (Query("sum by (role) (rate(stitch_store_requests_total[$__rate_interval]))",
                       "{{role}}"),),
                Unit.RATE, "no store is scraped: it is a bucket", width=12,
            ),
        )),
    ),
)  # fmt: skip
