"""What a job's status says, of any facts: the same whoever asks, never more than is known."""

from __future__ import annotations

from dataclasses import replace

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_operator.reconciler import conditions, objects
from stitch_operator.reconciler.conditions import MOST_EVENTS
from stitch_operator.reconciler.records import TYPES, Speedup, Status, Step
from stitch_operator.reconciler.status import (
    CONTACT_SECONDS,
    ORDER,
    Known,
    Replica,
    considered,
    due,
    speedup_of,
    status,
)
from stitch_operator.reports import Graph, Made, Workload
from tests.operator.reconciler.strategies import (
    NOW,
    any_known,
    graph,
    known,
    pod,
    row,
    swapped,
)

SCHEMA = objects.job_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def one(pod_: object = None, *graphs: Graph, **more: object) -> Status:
    """The status of a job of one pod."""
    held = row(0, *graphs, **more) if graphs or more else None
    return status(known(Replica(pod_ or pod(), held)), NOW)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=120)
@given(any_known())
def test_a_second_look_changes_nothing(facts: Known) -> None:
    first = status(facts, NOW)
    again = status(replace(facts, before=first), NOW + 5)
    assert again == first
    assert not conditions.to_tell(first.conditions, again.conditions)


@settings(max_examples=80)
@given(any_known(), st.randoms(use_true_random=False))
def test_the_order_of_pods_and_graphs_does_not_matter(facts: Known, random: object) -> None:
    mixed = list(facts.replicas)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    turned = [
        replace(r, row=msgspec.structs.replace(r.row, graphs=r.row.graphs[::-1])) if r.row else r
        for r in mixed
    ]
    assert status(replace(facts, replicas=turned), NOW) == status(facts, NOW)


@pytest.mark.slow
@settings(max_examples=80)
@given(any_known(), any_known())
def test_sums_never_fall(first: Known, second: Known) -> None:
    before = status(first, NOW)
    after = status(replace(second, before=before), NOW + 60)
    for name in ("gpu_seconds_saved", "gpu_seconds_lost", "gpu_hours_saved",
                 "cpu_core_seconds_saved", "cpu_core_seconds_lost"):  # fmt: skip
        assert getattr(after, name) >= getattr(before, name)


@settings(max_examples=80)
@given(any_known())
def test_the_speedup_is_the_slowest_replicas(facts: Known) -> None:
    found = status(facts, NOW).speedup
    counted = [one for one in considered(facts.replicas) if one.row and facts.read]
    swaps = [one for one in counted if any(graph.swap for graph in one.row.graphs)]  # type: ignore[union-attr]
    each = [speedup_of(one) for one in swaps]
    if found is None:
        assert not each or None in each
    else:
        ratios = [speedup.ratio for speedup in each if speedup is not None]
        assert len(ratios) == len(each)
        assert found.ratio == pytest.approx(min(ratios), abs=1e-3)


@pytest.mark.slow
@settings(max_examples=80)
@given(any_known())
def test_every_status_fits_the_schema_and_stays_small(facts: Known) -> None:
    made = msgspec.to_builtins(status(facts, NOW))
    jsonschema.validate({"status": made}, SCHEMA)
    assert len(msgspec.json.encode(made)) < 16_000
    assert msgspec.convert(made, Status) == status(facts, NOW)


@pytest.mark.slow
@settings(max_examples=80)
@given(any_known(), any_known())
def test_while_the_gateway_is_away_its_word_stays(first: Known, second: Known) -> None:
    before = status(replace(first, read=NOW), NOW)
    blind = [replace(one, row=None) for one in second.replicas]
    after = status(Known(blind, (), None, before), NOW)
    assert (after.speedup, after.graphs, after.refusals) == (
        *(before.speedup, before.graphs, before.refusals),
    )
    gateways = {"Compiling", "Swapped", "RolledBack", "Refused", "NoContact"}
    assert [c for c in after.conditions if c.type in gateways] == [
        c for c in before.conditions if c.type in gateways
    ]
    assert after.phase != "NoContact" or before.phase == "NoContact"


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(any_known(), max_size=30))
def test_a_job_that_goes_to_and_fro_goes_quiet(facts: list[Known]) -> None:
    before: Status | None = None
    told: dict[str, int] = dict.fromkeys(TYPES, 0)
    for at, some in enumerate(facts):
        after = status(replace(some, before=before), NOW + at)
        found = before.conditions if before is not None else []
        for event in conditions.to_tell(found, after.conditions):
            told[event.type] += 1
            assert event.transitions == told[event.type]
        before = after
    assert all(count <= MOST_EVENTS for count in told.values())


@pytest.mark.parametrize(
    ("graphs", "expected"),
    [
        ([graph()], ("Compiling", "")),
        ([graph(phase="ready")], ("Measuring", "")),
        ([graph(phase="refused", reason="memory")], ("Refused", "memory")),
        ([swapped(swap="begun", ratio=None)], ("Measuring", "")),
        ([swapped()], ("Optimized", "")),
        ([swapped(ratio=1.05)], ("Measuring", "")),  # its interval holds 1
        ([swapped(swap="rolled-back", reason="slower")], ("RolledBack", "slower")),
        ([swapped(swap="crashed")], ("RolledBack", "crashed_before")),
        ([swapped(), graph(1, phase="refused", reason="memory")], ("Optimized", "")),
        ([graph(), graph(1, phase="refused", reason="memory")], ("Compiling", "")),
        ([graph(phase="refused", reason="memory"), graph(1, phase="refused", reason="collective")],
         ("Refused", "collective")),
        ([], ("Observing", "")),
    ],
    ids=lambda value: None if isinstance(value, tuple) else f"{len(value)}",
)  # fmt: skip
def test_phases_while_it_runs(graphs: list[Graph], expected: tuple[str, str]) -> None:
    found = one(None, *graphs, stepped=True)
    assert (found.phase, found.reason) == expected


@pytest.mark.parametrize(
    ("graphs", "expected"),
    [
        ([graph()], ("Unchanged", "ended_before_artifact")),
        ([graph(phase="ready")], ("Unchanged", "ended_before_swap")),
        ([swapped(ratio=None)], ("Unchanged", "unmeasured")),
        ([swapped(ratio=1.05)], ("Unchanged", "no_difference")),
        ([swapped()], ("Optimized", "")),
        ([], ("Unchanged", "nothing_handed_in")),
    ],
    ids=lambda value: None if isinstance(value, tuple) else f"{len(value)}",
)
def test_phases_once_it_has_ended(graphs: list[Graph], expected: tuple[str, str]) -> None:
    found = one(pod(phase="Succeeded", finished=NOW - 5), *graphs, stepped=True)
    assert (found.phase, found.reason) == expected


def test_pods_that_were_not_injected_say_why() -> None:
    plain = {"injected": "", "started": None}
    assert one(pod(**plain, skipped="limit_range")).reason == "limit_range"
    assert one(pod(**plain, would=True)).reason == "dry_run"
    missed = one(pod(**plain))
    assert (missed.phase, missed.reason) == ("Skipped", "missed_admission")
    assert (missed.replicas.missed, missed.replicas.injected) == (1, 0)
    assert [(c.type, c.reason) for c in missed.conditions] == [("Skipped", "missed_admission")]


def test_one_missed_pod_is_told_though_the_other_runs_stitched() -> None:
    replicas = [
        Replica(pod(0), row(0, swapped())),
        Replica(pod(1, injected="", started=None)),
    ]
    found = status(known(*replicas), NOW)
    assert (found.phase, found.replicas.summary, found.replicas.missed) == ("Optimized", "1/2", 1)
    assert {c.type for c in found.conditions} == {"Injected", "Skipped", "Swapped", "Optimized"}


def test_silence_counts_from_when_the_gateway_was_heard() -> None:
    long_ago = pod(started=NOW - CONTACT_SECONDS)
    assert one(long_ago).phase == "NoContact"
    assert one(pod(started=NOW - CONTACT_SECONDS + 1)).phase == "Observing"
    stale = status(Known([Replica(long_ago)], read=NOW - 10), NOW)
    assert stale.phase == "Observing"
    short = pod(started=NOW - 900, finished=NOW - 800, phase="Succeeded")
    assert (one(short).phase, one(short).reason) == ("Unchanged", "ended_before_contact")
    assert due(Replica(long_ago)) == NOW
    assert due(Replica(long_ago, row(0))) is None


def test_in_mode_observe_it_waits_for_no_swap() -> None:
    found = one(pod(mode="observe"), graph(phase="ready"))
    assert (found.phase, found.reason) == ("Observing", "mode_observe")
    assert one(pod(mode="observe"), graph()).phase == "Compiling"


def test_what_was_refused_and_what_went_back_is_counted_by_reason() -> None:
    memory, slower = {"phase": "refused", "reason": "memory"}, {"swap": "rolled-back"}
    first = Replica(pod(0), row(0, graph(**memory), swapped(1, reason="slower", **slower)))
    second = Replica(pod(1), row(1, graph(**memory), graph(2, phase="refused"), swapped(3)))
    found = status(known(first, second), NOW).refusals
    assert [(one.reason, one.count) for one in found] == [("memory", 2), ("slower", 1)]


def test_of_many_graphs_those_that_came_furthest_are_shown() -> None:
    refused = row(0, *(graph(n, phase="refused", reason="memory") for n in range(16)))
    compiling = row(1, *(graph(n) for n in range(20, 30)))
    found = status(known(Replica(pod(0), refused), Replica(pod(1), compiling)), NOW).graphs
    assert [one.phase for one in found] == [*["Compiling"] * 10, *["Refused"] * 6]


def test_the_speedup_is_of_the_graph_with_most_steps() -> None:
    evaluation = swapped(1, ratio=3.0, steps=10)
    found = one(None, swapped(0, ratio=1.5, steps=1000), evaluation).speedup
    assert found is not None and found.ratio == 1.5


def test_it_says_what_stitch_run_says() -> None:
    """Of the slowest replica's step, by the same formatters; an Event says it once."""
    made = Made(kernels_before=57, kernels_after=5, bytes_saved=19 << 20, bytes_saveable=20 << 20,
                left={"library_call": 5, "region_too_small": 9})  # fmt: skip
    times = {"seconds_before": 670e-6, "seconds_after": 400e-6, "made": made}
    slow = Replica(pod(0), row(0, swapped(0, ratio=1.675, **times)))
    fast = Replica(pod(1), row(1, swapped(0, ratio=2.0, seconds_before=1.0, seconds_after=0.5)))
    found = status(known(fast, slow), NOW)
    assert found.speedup is not None and found.speedup.summary == "1.675 [1.575, 1.775]"
    assert found.step == Step(
        graph=f"{0:064x}",
        time="670 µs → 400 µs",
        kernels="57 → 5",
        bytes_saved="19 MiB (95.0% of what could be saved)",
        left="9 x region_too_small, 5 x library_call",
    )
    [told] = [one for one in found.conditions if one.type == "Optimized"]
    assert told.message == (
        "step 670 µs → 400 µs, speed-up 1.675 [1.575, 1.775], kernels 57 → 5, bytes saved per "
        "step 19 MiB (95.0% of what could be saved), left to TensorFlow: 9 x region_too_small, "
        "5 x library_call"
    )
    later = status(known(fast, Replica(pod(0), row(0, swapped(0, ratio=1.7, **times))),
                         before=found), NOW + 30)  # fmt: skip
    assert not conditions.to_tell(found.conditions, later.conditions)
    assert "1.700" in next(one.message for one in later.conditions if one.type == "Optimized")


def test_a_refusal_says_what_it_means_and_what_to_do() -> None:
    [told] = [c for c in one(None, graph(phase="refused", reason="memory")).conditions
              if c.type == "Refused"]  # fmt: skip
    assert told.message.startswith("memory: its graphs are left as they are, because a step would")
    assert "; what to do: " in told.message and told.message.endswith("(docs/reasons.md#memory)")


def test_while_the_gateway_is_away_what_was_swapped_is() -> None:
    before = one(None, swapped())
    after = status(Known([Replica(pod())], (), None, before), NOW)
    assert (after.phase, after.replicas.swapped, after.replicas.summary) == ("Optimized", 1, "1/1")


def test_another_reason_is_told_anew_and_the_most_frequent_one() -> None:
    plain = {"injected": "", "started": None}
    before = one(pod(**plain, skipped="limit_range"))
    pods = [pod(n, **plain, skipped=why) for n, why in enumerate(("windows", "architecture"))]
    more = [Replica(one) for one in (*pods, pod(2, **plain, skipped="windows"))]
    after = status(known(*more, before=before), NOW + 5)
    [event] = conditions.to_tell(before.conditions, after.conditions)
    assert (event.type, event.reason, event.transitions) == ("Skipped", "windows", 2)
    assert event.message.startswith("windows: it runs on Windows; to mend it: ")
    assert event.last_transition_time != before.conditions[0].last_transition_time


def test_silent_parameter_servers_do_not_speak_for_the_job() -> None:
    server = Replica(pod(0, started=NOW - 900))
    assert status(known(server, Replica(pod(1), row(1, swapped()))), NOW).phase == "Optimized"


def test_a_replica_that_went_back_makes_the_job_no_faster() -> None:
    back = Replica(pod(0), row(0, swapped(swap="rolled-back", reason="slower")))
    fast = Replica(pod(1), row(1, swapped(ratio=1.5)))
    found = status(known(back, fast), NOW)
    assert found.speedup == Speedup(ratio=1.0, low=1.0, high=1.0, summary="1.000 [1.000, 1.000]")
    unmeasured = Replica(pod(2), row(2, swapped(ratio=None)))
    assert status(known(fast, unmeasured), NOW).speedup is None


def test_sums_are_over_all_pods_there_were() -> None:
    gone: list[Workload] = [row(7, saved=5.0, lost=1.0, gpu="h100")]
    first = Replica(pod(0, phase="Failed"), row(0, saved=10.0, gpu="h100"))
    second = Replica(pod(1), row(1, saved=3600.0, gpu="h100"))
    found = status(known(first, second, gone=gone), NOW)
    assert (found.gpu_seconds_saved, found.gpu_seconds_lost) == (3615.0, 1.0)
    assert found.gpu_hours_saved == pytest.approx(1.0042)
    assert (found.replicas.total, found.cpu_core_seconds_saved) == (1, 0.0)
    nothing_left = status(Known([], [], NOW, found), NOW)
    assert nothing_left == found


def test_every_phase_has_its_place() -> None:
    phases = SCHEMA["properties"]["status"]["properties"]["phase"]["enum"]
    assert sorted(ORDER) == sorted(phases)
