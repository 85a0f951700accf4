"""Metrics: each is defined once, exposed as defined, bounded in series; totals stay exact."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bench.replay import replay, truth
from stitch_operator.gateway.identity import GPUS, Identity
from stitch_operator.gateway.ledger import COUNTED, Happened, Ledger
from stitch_operator.gateway.metrics import OUTCOMES, Durable, families
from stitch_operator.gateway.metrics import Metrics as OfGateway
from stitch_operator.gateway.queue import Workers, later
from stitch_operator.gateway.savings import Report
from stitch_operator.metrics import (
    METRICS,
    MOST_JOBS,
    OTHER_NAMESPACE,
    Kind,
    Part,
    most_series,
)
from stitch_operator.reconciler.metrics import Metrics as OfReconciler
from stitch_operator.reconciler.metrics import Told
from stitch_operator.reconciler.records import TYPES, Speedup, Status
from stitch_operator.reconciler.status import ORDER
from stitch_operator.store.app import Metrics as OfStore
from stitch_operator.webhook.metrics import Metrics as OfWebhook
from tests.operator.gateway.support import unsynced

SECOND, HOUR = 10**9, 3600.0
ARCHITECTURE = (
    *("stitch_gpu_seconds_saved_total", "stitch_gpu_seconds_lost_total"),
    *("stitch_cpu_core_seconds_saved_total", "stitch_gpu_seconds_spent_total"),
    *("stitch_step_speedup_ratio", "stitch_jobs_total", "stitch_fallbacks_total"),
    *("stitch_injections_total", "stitch_compile_duration_seconds", "stitch_queue_wait_seconds"),
    *("stitch_cache_requests_total", "stitch_verification_failures_total"),
    *("stitch_regressions_total", "stitch_webhook_duration_seconds"),
)
"""What dashboards and rules of before must still find."""


def parts(durable: Durable) -> dict[Part, CollectorRegistry]:
    made: dict[Part, Any] = {
        Part.GATEWAY: OfGateway(lambda: durable, "1"),
        Part.WEBHOOK: OfWebhook("1"),
        Part.RECONCILER: OfReconciler(dict, "1"),
        Part.STORE: OfStore(lambda: 0),
    }
    return {part: one.registry for part, one in made.items()}


def exposed(registry: CollectorRegistry) -> Iterator[tuple[str, str, str]]:
    """(name, kind, help) of each metric, by the name that is scraped."""
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield name, family.type, family.documentation


def test_all_that_the_design_names_is_defined() -> None:
    assert set(ARCHITECTURE) <= set(METRICS)


def test_processes_expose_what_is_defined_and_nothing_else() -> None:
    for part, registry in parts(Durable([], [], [])).items():
        found = {name: (kind, text) for name, kind, text in exposed(registry)}
        wanted = {
            name: (one.kind.value, one.help) for name, one in METRICS.items() if one.part is part
        }
        assert found == wanted


@pytest.mark.parametrize("name", sorted(METRICS))
def test_names_follow_prometheus_and_labels_are_closed(name: str) -> None:
    one = METRICS[name]
    assert re.fullmatch(r"stitch_[a-z_]+", name)
    assert name.endswith("_total") == (one.kind is Kind.COUNTER)
    assert bool(one.buckets) == (one.kind is Kind.HISTOGRAM)
    assert len(one.help) >= 10 and not one.help.endswith(".")
    for label in one.labels:
        assert label.count(1) > 0, "neither a list nor a bound"
        assert label.name not in ("job", "pod", "workload", "graph", "digest", "key", "session")


def test_lists_that_are_told_by_their_length_are_no_longer() -> None:
    phase, kind = METRICS["stitch_stitchedjobs"].labels[0], METRICS["stitch_events_total"].labels[0]
    assert phase.most >= len(ORDER)
    assert kind.most >= len(TYPES)


def test_jobs_have_series_of_their_own_up_to_a_bound() -> None:
    """Those that saved or lost most; two runs of one name are one."""

    def told(number: int, saved: float, name: str = "") -> Told:
        status = Status(phase="Optimized", gpu_hours_saved=0.0, cpu_core_seconds_saved=saved,
                        speedup=Speedup(ratio=1.5, low=1.4, high=1.6))  # fmt: skip
        return Told("team", "research", name or f"job-{number}", status)

    lost = Status(phase="RolledBack", gpu_hours_saved=0.0, gpu_seconds_lost=1e6)
    jobs = [told(number, float(number)) for number in range(3 * MOST_JOBS)]
    jobs += [Told("other", "", "dear", lost), told(0, 5e5, "nightly"), told(0, 4e5, "nightly")]
    registry = OfReconciler(dict, "1", lambda: jobs).registry
    found = {one.name: one.samples for one in registry.collect()}
    net, ratio = (found[f"stitch_stitchedjob_{name}"] for name in ("net_seconds", "speedup_ratio"))
    assert len(net) == METRICS["stitch_stitchedjob_net_seconds"].most == 2 * MOST_JOBS
    assert len(ratio) == MOST_JOBS - 1, "one has none"
    about = {"namespace": "other", "team": "", "stitchedjob": "dear", "device": "gpu"}
    assert next(one.value for one in net if one.labels == about) == -1e6
    nightly = [one.value for one in net if one.labels["stitchedjob"] == "nightly"]
    assert sorted(nightly) == [0.0, 5e5]


def identity(namespace: str, pod: str, gpu: str = "h100", devices: float = 1.0) -> Identity:
    return Identity(namespace, "train", pod, devices, gpu, 0.0)


def report(seq: int, saved: int, lost: int = 0) -> Report:
    taken = 1000 * SECOND
    return Report(seq, 9, taken + saved, taken, lost, 1.0, True, (saved - 1, saved + 1))


def quick(path: Path, namespaces: int) -> Ledger:
    return unsynced(Ledger(path, namespaces))


def series(durable: Durable) -> list[Any]:
    return [sample for family in families(durable) for sample in family.samples]


@pytest.mark.nightly
def test_100000_jobs_in_1000_namespaces_stay_within_the_bound(tmp_path: Path) -> None:
    """On six products and a seventh that no list has; the sums are exact to the nanosecond."""
    chosen, most = random.Random(8), 200
    gpus = ("a10", "a100", "h100", "h200", "l4", "other")
    ledger, saved, lost = quick(tmp_path / "ledger.sqlite", most), 0, 0
    for job in range(100_000):
        one = identity(f"team-{chosen.randrange(1000)}", f"pod-{job}", chosen.choice(gpus))
        change = chosen.randrange(-200 * SECOND, 200 * SECOND)
        outcome = ledger.save(one, "s", "cd" * 32, report(1, change), ratio=2.0, now=HOUR)
        assert outcome == COUNTED
        saved, lost = saved + max(change, 0), lost + max(-change, 0)
    totals = ledger.totals()
    assert sum(row[2] for row in totals) == saved
    assert sum(row[3] for row in totals) == lost
    names = {row[0] for row in totals}
    assert len(names) == most + 1 and OTHER_NAMESPACE in names
    durable = Durable(totals, ledger.spent(), ledger.counts())
    ledger.close()
    found = [sample for family in parts(durable)[Part.GATEWAY].collect()
             for sample in family.samples]  # fmt: skip
    assert 2 * (most + 1) * len(gpus) <= len(found) <= most_series(most, [Part.GATEWAY])


def test_the_bound_is_what_the_page_says() -> None:
    """docs/service.md: for 500 namespaces; and what each further one adds."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "service.md").read_text()
    each = most_series(501) - most_series(500)
    assert each == 2 * (len(GPUS) + 1) + 2
    assert f"at most {most_series():,} series, {each} for each namespace" in " ".join(page.split())


def test_namespaces_beyond_the_maximum_are_summed_up_and_nothing_ever_falls(
    tmp_path: Path,
) -> None:
    """Also when the maximum changes between two starts: it is no reason to move what was added."""
    path, net, before, first = tmp_path / "ledger.sqlite", 0, {}, 0
    chosen = random.Random(3)
    for seq, most in enumerate((2, 5, 1, 3), 1):
        ledger = quick(path, most)
        for team in range(6):
            change = chosen.randrange(-9, 9) * SECOND
            one = identity(f"team-{team}", f"pod-{team}-{seq}")
            ledger.save(one, "s", "cd" * 32, report(1, change), ratio=2.0, now=HOUR)
            net += change
            first += change if team == 0 else 0
            now = {(row[0], row[1]): row[2:] for row in ledger.totals()}
            for place, was in before.items():
                assert now[place][0] >= was[0] and now[place][1] >= was[1]
            before = now
        ledger.close()
    assert sum(saved - lost for saved, lost in before.values()) == net
    saved, lost = before["team-0", "h100"]
    assert saved - lost == first, "who has a total of its own keeps it"
    assert {name for name, _ in before} == {f"team-{n}" for n in range(5)} | {OTHER_NAMESPACE}


def test_a_refusal_is_counted_once_over_restarts(tmp_path: Path) -> None:
    for now in (1.0, 2.0, 3.0):
        ledger = quick(tmp_path / "ledger.sqlite", 9)
        ledger.refused("a", "key", "wrong_result", now)
        ledger.refused("b", "key", "wrong_result", now)
        ledger.refused("b", "key", "not_profitable", now)
        ledger.refused("b", "key", "of a later version", now)
        counts = ledger.counts()
        ledger.close()
    found = {(one.name, one.labels.get("reason", "")): one.value
             for one in series(Durable([], [], counts))}  # fmt: skip
    assert found["stitch_fallbacks_total", "wrong_result"] == 2
    assert found["stitch_fallbacks_total", "not_profitable"] == 1
    assert found["stitch_fallbacks_total", "other"] == 1
    assert found["stitch_verification_failures_total", ""] == 2


def test_a_rollback_is_counted_with_its_reason_once(tmp_path: Path) -> None:
    ledger = quick(tmp_path / "ledger.sqlite", 9)
    said = Happened("s", 4, "rolled-back", "cd" * 32, "ab" * 32, reason="slower")
    assert ledger.happened(identity("a", "p"), said, 5.0)
    assert not ledger.happened(identity("a", "p"), said, 6.0)
    assert ("fallbacks", "slower", 1) in ledger.counts()
    assert ("events", "rolled-back", 1) in ledger.counts()
    assert OUTCOMES["rolled-back"] == "rolled_back"
    ledger.close()


def test_a_jobs_ratio_is_counted_once_over_reports_and_restarts(tmp_path: Path) -> None:
    """1.2 falls below 1.25; cumulative buckets, as Prometheus wants them."""
    for seq in (1, 2, 3):
        ledger = quick(tmp_path / "ledger.sqlite", 9)
        one = identity("a", "p")
        ledger.save(one, "s", "cd" * 32, report(seq, (200 + seq) * SECOND), ratio=2.0, now=HOUR)
        counts = ledger.counts()
        ledger.close()
    found = {(one.name.removeprefix("stitch_step_speedup_ratio_"), one.labels.get("le")): one.value
             for one in series(Durable([], [], counts))}  # fmt: skip
    assert found["count", None] == 1
    assert found["sum", None] == pytest.approx(1.201)
    assert (found["bucket", "1.1"], found["bucket", "1.25"], found["bucket", "+Inf"]) == (0, 1, 1)


def test_a_first_event_is_seen_because_its_series_was_there_at_zero() -> None:
    """`increase` of a series that appears with its first event is zero: no alert would fire."""
    made = parts(Durable([], [], []))
    gateway, webhook = made[Part.GATEWAY], made[Part.WEBHOOK]
    for name, label, values in (
        ("stitch_jobs_total", "outcome", ("optimized", "rolled_back", "crashed")),
        ("stitch_savings_reports_total", "result", ("counted", "implausible")),
        ("stitch_fallbacks_total", "reason", ("slower", "no_worker_for_target", "other")),
        ("stitch_cpu_core_seconds_spent_total", "purpose", ("compile", "measure")),
        ("stitch_cache_requests_total", "result", ("hit", "miss", "kernel_miss")),
        ("stitch_unconfined_compiles_total", "what", ("network", "files")),
        ("stitch_compile_duration_seconds_count", "target", ("cpu-x86-64-v3", "other")),
    ):
        assert [gateway.get_sample_value(name, {label: one}) for one in values] == [0] * len(values)
    failed = {"result": "error", "reason": "internal"}
    assert webhook.get_sample_value("stitch_injections_total", failed) == 0


def test_workers_are_counted_by_what_the_broker_says() -> None:
    queues = {
        "w1@a": [{"name": "stitch.cpu-x86-64-v4.tf2.21"}],
        "w2@b": [{"name": "stitch.cpu-x86-64-v4.tf2.15"}],
        "w3@c": [{"name": "stitch.sm_90.tf2.21"}],
    }
    active = {"w2@b": [{"id": "task"}], "w1@a": []}
    stats = {"w1@a": {"pool": {"max-concurrency": 3}}}
    found = later(Workers(busy=10.0), queues, active, 5.0, stats)
    places = {"stitch.cpu-x86-64-v4.tf2.21": 3, "stitch.cpu-x86-64-v4.tf2.15": 1}
    places["stitch.sm_90.tf2.21"] = 1
    assert found == Workers({"cpu-x86-64-v4": 2, "sm_90": 1}, 15.0, 10.0, places)
    shown = OfGateway(lambda: Durable([], [], []), "1", lambda: found).registry
    assert shown.get_sample_value("stitch_workers", {"target": "sm_90"}) == 1
    assert shown.get_sample_value("stitch_workers", {"target": "sm_80"}) == 0
    assert shown.get_sample_value("stitch_worker_seconds_total", {"state": "idle"}) == 10


@pytest.mark.slow
def test_reports_replayed_over_kills_add_up_to_the_truth(tmp_path: Path) -> None:
    """A million of them: `python -m bench.replay`, bench/results/replay.md."""
    found = replay(tmp_path / "ledger.sqlite", reports=3000, kills=2, seed=5)
    assert found.found == found.true == truth(3000)
    assert found.kills == 2
