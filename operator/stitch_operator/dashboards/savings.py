"""Savings and Jobs: what the product is installed for, and what became of each job."""

from __future__ import annotations

from stitch_operator.dashboards.panels import Dashboard, Look, Panel, Query, Row, Unit

NONE_YET = "nothing measured yet: a job saves once its steps run stitched and have an interval"
NO_PRICE = "no prices: set metrics.prices of the release"
MAKING, WAITING = '{purpose!="idle"}', '{purpose="idle"}'
NAMESPACE = '{namespace=~"$namespace"}'
CHOSEN = 'namespace=~"$namespace", team=~"$team", stitchedjob=~"$job"'
EACH = "max by (namespace, team, stitchedjob)"
NO_JOB = "no StitchedJob has figures yet, or none of those chosen above"


def _of_job(device: str, hours: str) -> Panel:
    series = f'stitch_stitchedjob_net_seconds{{{CHOSEN}, device="{device}"}}'
    return Panel(
        f"{hours} net, by job",
        "Saved less lost, of jobs that there are; what their compilations cost is no job's.",
        (Query(f"topk(15, {EACH} ({series})) / 3600", "{{namespace}}/{{stitchedjob}}"),),
        Unit.HOURS, NO_JOB, Look.BARS, 8,
    )  # fmt: skip


def _net(device: str, hours: str) -> tuple[Panel, Panel]:
    total = f"stitch:{device}_seconds_net:sum"
    means = f"{hours}: saved, less lost in jobs, less what workers used and held while they waited"
    return (
        Panel(
            f"{hours} net, in this time", f"{means}; in the time chosen above.",
            (Query(f"delta({total}[$__range]) / 3600"),),
            Unit.HOURS, "no gateway is scraped, or only just", Look.NUMBER, 6, 5,
        ),
        Panel(
            f"{hours} net, since the beginning", f"{means}; since the ledger was made.",
            (Query(f"{total} / 3600"),),
            Unit.HOURS, "no gateway is scraped", Look.NUMBER, 6, 5,
        ),
    )  # fmt: skip


def _made_of(device: str, hours: str) -> Panel:
    return Panel(
        f"What {hours} net is made of",
        "Sums since the ledger was made. Saved is gross: net is what is left of it.",
        (
            Query(f"sum(stitch:{device}_seconds_saved:total) / 3600", "saved (gross)"),
            Query(f"-sum(stitch:{device}_seconds_lost:total) / 3600", "lost in jobs"),
            Query(f"-sum(stitch:{device}_seconds_spent:total{MAKING}) / 3600",
                  "spent on compilations"),
            Query(f"-sum(stitch:{device}_seconds_spent:total{WAITING}) / 3600",
                  "spent on workers that wait"),
            Query(f"stitch:{device}_seconds_net:sum / 3600", "net"),
        ),
        Unit.HOURS, NONE_YET,
    )  # fmt: skip


SAVINGS = Dashboard(
    "savings", "stitchcore: Savings",
    "Net is saved, less lost, less spent. Definitions: docs/service.md, Metrics.",
    (
        Row("Net", (*_net("gpu", "GPU-hours"), *_net("cpu_core", "Core-hours"))),
        Row("Of what", (_made_of("gpu", "GPU-hours"), _made_of("cpu_core", "core-hours"))),
        Row("Whose", (
            Panel(
                "GPU-hours by namespace",
                "Saved less lost. A compilation serves whoever asks later: it is no namespace's.",
                (Query(f"topk(15, sum by (namespace) (stitch:gpu_seconds_net:by_namespace_gpu"
                       f"{NAMESPACE})) / 3600", "{{namespace}}"),),
                Unit.HOURS, NONE_YET, Look.BARS, 8,
            ),
            Panel(
                "GPU-hours by product", "Saved less lost, by the GPU that jobs run on.",
                (Query(f"sum by (gpu) (stitch:gpu_seconds_net:by_namespace_gpu{NAMESPACE}) / 3600",
                       "{{gpu}}"),),
                Unit.HOURS, NONE_YET, Look.BARS, 8,
            ),
            Panel(
                "Core-hours by namespace", "Saved less lost, of jobs without a GPU.",
                (Query(f"topk(15, stitch:cpu_core_seconds_net:by_namespace{NAMESPACE}) / 3600",
                       "{{namespace}}"),),
                Unit.HOURS, NONE_YET, Look.BARS, 8,
            ),
        )),
        Row("Money", (
            Panel(
                "Net, since the beginning",
                "At today's prices; of GPUs without a price nothing is in it.",
                (Query("stitch:money_net:sum"),), Unit.COUNT, NO_PRICE, Look.NUMBER, 6,
            ),
            Panel(
                "By namespace", "Saved less lost, at today's prices.",
                (Query(f"topk(15, sum by (namespace) (stitch:money_net:by_namespace_gpu"
                       f"{NAMESPACE}))", "{{namespace}}"),),
                Unit.COUNT, NO_PRICE, Look.BARS, 9,
            ),
            Panel(
                "GPU-hours without a price", "Net, by product; in no sum of money.",
                (Query("stitch:gpu_seconds_unpriced:by_gpu / 3600", "{{gpu}}"),),
                Unit.HOURS, "all that was saved has a price", Look.BARS, 9,
            ),
        )),
        Row("What it cost", (
            Panel(
                "Money spent, since the beginning",
                "What compilations used and what workers held while they waited, at today's "
                "prices; each second of a GPU counts as the dearest one's.",
                (Query("stitch:money_spent:sum"),), Unit.COUNT, NO_PRICE, Look.NUMBER, 6,
            ),
            Panel(
                "Lost in jobs",
                "Steps that were slower before they were rolled back, and the switches between "
                "both kinds.",
                (Query("sum(stitch:gpu_seconds_lost:total) / 3600", "GPU-hours"),
                 Query("sum(stitch:cpu_core_seconds_lost:total) / 3600", "core-hours")),
                Unit.HOURS, NONE_YET, Look.NUMBER, 6,
            ),
            Panel(
                "Spent by workers",
                "What compilations used, and what was held while workers waited; over time below.",
                (Query("sum(stitch:gpu_seconds_spent:total) / 3600", "GPU-hours"),
                 Query("sum(stitch:cpu_core_seconds_spent:total) / 3600", "core-hours")),
                Unit.HOURS, "no worker has used anything", Look.NUMBER, 12,
            ),
            Panel(
                "GPU-hours spent",
                "What compilations for GPUs used (compile, measure), and what workers held while "
                "they had no task (idle).",
                (Query("stitch:gpu_seconds_spent:total / 3600", "{{purpose}}"),),
                Unit.HOURS, "no worker has used or held a GPU",
            ),
            Panel(
                "Core-hours spent",
                "What compilations for processors used (compile, measure), and what was reserved "
                "for workers, or used by them, while they had no task (idle).",
                (Query("stitch:cpu_core_seconds_spent:total / 3600", "{{purpose}}"),),
                Unit.HOURS, "no worker has used anything",
            ),
        )),
    ),
    choices=("namespace",),
)  # fmt: skip
JOBS = Dashboard(
    "jobs", "stitchcore: Jobs", "What became of jobs and of their graphs.",
    (
        Row("Now", (
            Panel(
                "StitchedJobs by phase", "What `kubectl get stitchedjobs -A` lists.",
                (Query("max by (phase) (stitch_stitchedjobs)", "{{phase}}"),),
                Unit.COUNT, "no reconciler is scraped", Look.BARS,
            ),
            Panel(
                "Pods at admission", "Pods that asked, by what the webhook did, in this time.",
                (Query("sum by (result) (increase(stitch_injections_total[$__range]))",
                       "{{result}}"),),
                Unit.COUNT, "no pod has asked", Look.BARS,
            ),
        )),
        Row("Each job", (
            Panel(
                "Speed-up, by job",
                "Time of a step before over its time after, of jobs that there are: the slowest "
                "replica's.",
                (Query(f"topk(15, {EACH} (stitch_stitchedjob_speedup_ratio{{{CHOSEN}}}))",
                       "{{namespace}}/{{stitchedjob}}"),),
                Unit.RATIO, NO_JOB, Look.BARS, 8,
            ),
            _of_job("gpu", "GPU-hours"), _of_job("cpu", "Core-hours"),
        )),
        Row("Swaps", (
            Panel(
                "Swaps by outcome", "Since the ledger was made: optimized, rolled back, crashed.",
                (Query("max by (outcome) (stitch_jobs_total)", "{{outcome}}"),),
                Unit.COUNT, "no job was swapped yet", Look.BARS, 8,
            ),
            Panel(
                "Speed-up of steps",
                "Original step time over stitched, once per job and graph: quantiles of all.",
                tuple(
                    Query(f"histogram_quantile({share}, max by (le) "
                          "(stitch_step_speedup_ratio_bucket))", name)
                    for share, name in ((0.1, "slowest tenth"), (0.5, "median"),
                                        (0.9, "fastest tenth"))
                ),
                Unit.RATIO, NONE_YET, Look.NUMBER, 8,
            ),
            Panel(
                "Slower, or wrong",
                "Swaps rolled back by the job, and graphs whose kernels the worker found wrong.",
                (Query("max(stitch_regressions_total)", "rolled back"),
                 Query("max(stitch_verification_failures_total)", "refused: wrong results")),
                Unit.COUNT, "no gateway is scraped", Look.NUMBER, 8,
            ),
        )),
        Row("Left as they were", (
            Panel(
                "Graphs left as they were, by reason",
                "Each graph once per namespace and reason. Reasons: docs/runbooks/fallbacks.md.",
                (Query("topk(15, max by (reason) (stitch_fallbacks_total) > 0)", "{{reason}}"),),
                Unit.COUNT, "every graph was taken", Look.BARS,
            ),
            Panel(
                "Reports of savings",
                "Counted; or implausible: more than a job can have saved, and not counted.",
                (Query("max by (result) (stitch_savings_reports_total)", "{{result}}"),),
                Unit.COUNT, "no job has reported", Look.BARS,
            ),
        )),
    ),
    choices=("namespace", "team", "job"),
)  # fmt: skip
