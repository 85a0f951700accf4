"""The ledger in any order, with duplicates and restarts: totals are right, and bounded."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stitch_operator.gateway import savings
from stitch_operator.gateway.database import LedgerHeld, LedgerVersion
from stitch_operator.gateway.groups import Acknowledgement
from stitch_operator.gateway.identity import Identity
from stitch_operator.gateway.ledger import COUNTED, OLD, Happened, Known, Ledger
from stitch_operator.gateway.savings import Bounds, Report, Row

START, SECOND = 1_000_000.0, 10**9
RUNTIME = 3600
KEY, GRAPH = "ab" * 32, "cd" * 32


def identity(namespace: str = "a", pod: str = "p1", devices: float = 2.0) -> Identity:
    return Identity(namespace, "train", pod, devices, "cpu", START)


def report(seq: int, saved: int, lost: int = 0, measured: bool = True) -> Report:
    """Totals that differ by `saved` seconds, over 1000 s of stitched steps."""
    taken = 1000 * SECOND
    return Report(seq, 100, taken + saved * SECOND, taken, lost * SECOND, 1.0, measured)


class LedgerMachine(RuleBasedStateMachine):
    """Reports of three sessions in any order, repeated, delayed and over restarts, against a model
    that keeps the last report by seq."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stitch-ledger-"))
        self.ledger = Ledger(self.folder / "ledger.sqlite")
        self.last: dict[tuple[str, str], tuple[int, int]] = {}
        self.before: dict[tuple[str, str], tuple[int, int]] = {}

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)

    @rule(
        namespace=st.sampled_from("ab"),
        session=st.sampled_from(("s1", "s2", "s3")),
        seq=st.integers(0, 12),
        saved=st.integers(-200, 200),
    )
    def post(self, namespace: str, session: str, seq: int, saved: int) -> None:
        said = report(seq, saved)
        one = identity(namespace, pod=f"{namespace}-{session}")
        now = START + RUNTIME
        outcome = self.ledger.save(one, session, GRAPH, said, ratio=1.2, now=now)
        known = self.last.get((namespace, session))
        if known is not None and seq <= known[0]:
            assert outcome == OLD
        elif outcome == COUNTED:
            self.last[namespace, session] = (seq, saved * SECOND)
        else:  # wiggles added up to more than the pod's device time
            assert outcome == "more device time than the container has had"

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.ledger = Ledger(self.folder / "ledger.sqlite")

    @rule()
    def prune_nothing_that_lives(self) -> None:
        assert self.ledger.prune(START + RUNTIME + 60) == 0

    @invariant()
    def saved_less_lost_is_the_last_difference(self) -> None:
        net: dict[str, int] = {}
        for (namespace, _), (_, saved) in self.last.items():
            net[namespace] = net.get(namespace, 0) + saved
        found = {row[0]: row[2] - row[3] for row in self.ledger.totals()}
        assert found == net

    @invariant()
    def totals_never_fall(self) -> None:
        now = {(row[0], row[1]): (row[2], row[3]) for row in self.ledger.totals()}
        for place, (saved, lost) in self.before.items():
            assert now[place][0] >= saved
            assert now[place][1] >= lost
        self.before = now


LedgerMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
TestLedger = LedgerMachine.TestCase


@given(
    reports=st.lists(
        st.tuples(
            st.integers(0, 30), st.integers(0, 2**45), st.integers(0, 2**45),
            st.integers(0, 2**45), st.floats(0, 64), st.booleans(),
        ),
        max_size=30,
    ),
    devices=st.floats(0.125, 8),
    ratio=st.sampled_from((1.0, 1.6, 3.0, 100.0)),
)  # fmt: skip
def test_no_client_adds_more_than_its_wall_time_times_its_devices(
    reports: list[tuple[int, int, int, int, float, bool]], devices: float, ratio: float
) -> None:
    """Times what a step saves beyond what it takes, where it is more than twice as fast."""
    row, runtime = Row(), 2000 * SECOND
    gain = max(1.0, savings.RATIO_SLACK * ratio - 1)
    most = (runtime + savings.CLOCK_SECONDS * SECOND) * devices
    for seq, baseline, stitched, lost, claimed, measured in reports:
        said = Report(seq, 1, baseline, stitched, lost, claimed, measured)
        if not savings.implausible(row, said, Bounds(runtime, runtime, ratio, devices)):
            row = savings.add(row, said, devices)
        assert 0 <= row.saved <= most * gain * (1 + 1e-12) + 1
        assert 0 <= row.lost <= most + 1
        assert row.saved - row.lost == row.net


@pytest.mark.parametrize(
    ("said", "ratio", "why"),
    [
        (Report(1, 9, 4000 * SECOND, 3700 * SECOND, 0, 1, True), 2.0, "more time"),
        (Report(1, 9, 100 * SECOND, 50 * SECOND, 4000 * SECOND, 1, True), 2.0, "more time"),
        (Report(1, 9, 100 * SECOND, 0, 0, 1, True), 2.0, "no time"),
        (Report(1, 9, 126 * SECOND, 100 * SECOND, 0, 1, True), 1.0, "quarter"),
        (Report(1, 9, 251 * SECOND, 100 * SECOND, 0, 1, True), 2.0, "quarter"),
        (Report(1, 9, 250 * SECOND, 100 * SECOND, 0, 1, True), 2.0, ""),
        (Report(1, 9, 125 * SECOND, 100 * SECOND, 0, 1, True), 0.5, ""),
    ],
)
def test_reports_beyond_their_bounds_are_implausible(said: Report, ratio: float, why: str) -> None:
    found = savings.implausible(Row(), said, Bounds(3600 * SECOND, 3600 * SECOND, ratio, 2.0))
    assert (why in found) if why else found == ""


def test_steps_four_times_as_fast_save_more_than_they_take(place: Path | str) -> None:
    """A training step and a slower one of the same session, in the hour that its container ran."""
    ledger = Ledger(place)
    one = identity(devices=2.0)
    most = RUNTIME * SECOND
    fast = Report(1, 1, 3 * most, 3 * most // 4, 0, 2.0, True)
    assert ledger.save(one, "s", GRAPH, fast, ratio=4.0, now=START + RUNTIME) == COUNTED
    slow = Report(2, 1, most // 4, most // 5, 0, 2.0, True)
    assert ledger.save(one, "s", "b" * 64, slow, ratio=1.2, now=START + RUNTIME) == COUNTED
    [(_, _, saved, _)] = ledger.totals()
    assert saved == 2 * (3 * most - 3 * most // 4 + most // 4 - most // 5)
    again = Report(3, 1, 3 * most, 3 * most // 4, 0, 2.0, True)
    wrong = ledger.save(one, "s", "c" * 64, again, ratio=4.0, now=START + RUNTIME)
    assert "more device time than the container" in wrong
    ledger.close()


def test_another_report_of_the_same_number_changes_nothing() -> None:
    row = savings.add(Row(), report(3, 50), 2.0)
    assert savings.add(row, report(3, 90), 2.0) == row
    assert savings.add(row, report(2, 90), 2.0) == row
    assert savings.add(row, report(4, 90), 2.0) != row


def test_sessions_of_one_pod_share_its_device_time(place: Path | str) -> None:
    ledger = Ledger(place)
    one = identity(devices=1.0)
    said = Report(1, 1, 7000 * SECOND, 3500 * SECOND, 0, 1.0, True)
    outcomes = [
        ledger.save(one, f"s{number}", GRAPH, said, ratio=2.0, now=START + RUNTIME)
        for number in range(3)
    ]
    assert outcomes[0] == COUNTED
    assert all("more device time" in outcome for outcome in outcomes[1:])
    assert ledger.totals() == [("a", "cpu", 3500 * SECOND, 0)]
    assert ("savings", "implausible", 2) in ledger.counts()
    ledger.close()


def test_a_restarted_container_leaves_its_pod_what_it_had(place: Path | str) -> None:
    """A pod has saved, and lost, two of its first ten hours when its container begins anew. What
    the new one does counts from its first report: a session gets no more than its container's time,
    and all of them no more than the pod's."""
    ledger, hour = Ledger(place), 3600 * SECOND

    def said(
        name: str, saved: float, lost: float = 0.0, graph: str = GRAPH, began: int = 10
    ) -> str:
        now = START + (10 if began == 0 else 11) * 3600
        who = Identity("a", "train", "p1", 1.0, "cpu", START + began * 3600, 1, START)
        taken = int(saved * hour)
        claim = Report(1, 1, 2 * taken, taken, int(lost * hour), 1.0, True)
        return ledger.save(who, name, graph, claim, 4.0, now)

    assert said("first", 2, began=0) == said("worse", 0, 2, began=0) == COUNTED
    assert said("second", 0.75) == said("third", 0, 0.75) == COUNTED
    ((*_, saved, lost),) = ledger.totals()
    assert saved == lost == pytest.approx(2.75 * hour, abs=10)
    beyond = said("second", 0.75, graph="ef" * 32)
    assert beyond == "more device time than the container has had"
    assert said("fourth", 1.25) == "more time than the container has run"
    outcomes = [said(f"invented-{number}", 0.75) for number in range(20)]
    assert outcomes == [COUNTED] * 11 + ["more device time than the pod has had"] * 9
    assert ledger.totals()[0][2] <= 11 * hour
    ledger.close()


@pytest.mark.slow
@settings(max_examples=30)
@given(
    sessions=st.lists(st.floats(0, 100), min_size=1, max_size=6),
    posts=st.lists(
        st.tuples(st.integers(0, 5), st.floats(0, 60), st.integers(-200, 200)), max_size=25
    ),
    devices=st.sampled_from([0.5, 1.0, 4.0]),
)
def test_whoever_holds_a_shared_token_adds_no_more_than_one_machine_can(
    sessions: list[float], posts: list[tuple[int, float, int]], devices: float
) -> None:
    """However many sessions it invents, begun whenever, reporting in any order: since any moment
    at which one began, all that began later have saved no more than the time x the devices."""
    who = Identity("local", "local", "", devices, "cpu")
    now = START + 100
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.sqlite")
        for number, begun in enumerate(sessions):
            known = Known("r", GRAPH, "cpu", "2.21", None, 0, None, None)
            ledger.submitted(who, f"s{number}", known, START + begun)
        claimed: dict[int, tuple[int, int]] = {}
        for seq, (number, pause, saved) in enumerate(posts):
            number, now = number % len(sessions), now + pause
            taken = int((now - START - sessions[number]) * SECOND)
            said = Report(seq, 1, max(0, taken + saved * SECOND), taken, 0, 64.0, True)
            before = ledger.totals()
            ledger.save(who, f"s{number}", GRAPH, said, 1e6, now)
            old, new = (rows[0][2:] if rows else (0, 0) for rows in (before, ledger.totals()))
            had = claimed.get(number, (0, 0))
            claimed[number] = (had[0] + new[0] - old[0], had[1] + new[1] - old[1])
            for since in sessions:
                most = (now - START - since) * devices * SECOND + 1000
                later = [c for n, c in claimed.items() if sessions[n] >= since]
                assert sum(c[0] for c in later) <= most
                assert sum(c[1] for c in later) <= most
        ledger.close()


def test_a_pod_does_not_claim_again_what_was_forgotten(place: Path | str) -> None:
    """A session that went silent is kept for as long as another of its pod reports."""
    ledger = Ledger(place)
    day = 86400
    said = Report(1, 1, 60 * day * SECOND, 30 * day * SECOND, 0, 1.0, True)
    one = identity(devices=1.0)
    assert ledger.save(one, "first", GRAPH, said, 2.0, START + 30 * day) == COUNTED
    small = Report(1, 1, 2 * day * SECOND, day * SECOND, 0, 1.0, True)
    assert ledger.save(one, "second", GRAPH, small, 2.0, START + 59 * day) == COUNTED
    assert ledger.prune(START + 61 * day) == 0
    again = Report(2, 1, 120 * day * SECOND, 60 * day * SECOND, 0, 1.0, True)
    assert "more device time" in ledger.save(one, "second", GRAPH, again, 2.0, START + 61 * day)
    assert ledger.prune(START + 120 * day) == 2
    ledger.close()


def test_devices_are_at_most_the_pods(place: Path | str) -> None:
    ledger = Ledger(place)
    said = Report(1, 1, 110 * SECOND, 100 * SECOND, 0, 64.0, True)
    ledger.save(identity(devices=2.0), "s", GRAPH, said, ratio=2.0, now=START + RUNTIME)
    assert ledger.totals() == [("a", "cpu", 20 * SECOND, 0)]
    ledger.close()


def test_what_was_not_measured_counts_nothing(place: Path | str) -> None:
    ledger = Ledger(place)
    said = report(1, 200, measured=False)
    assert ledger.save(identity(), "s", GRAPH, said, 2.0, START + RUNTIME) == COUNTED
    assert ledger.totals() == [("a", "cpu", 0, 0)]
    ledger.close()


def test_forgotten_jobs_do_not_lower_totals(place: Path | str) -> None:
    ledger = Ledger(place)
    ledger.save(identity(), "s", GRAPH, report(1, 50), 2.0, START + RUNTIME)
    before = ledger.totals()
    assert ledger.prune(START + 90 * 86400) == 1
    assert ledger.totals() == before == [("a", "cpu", 50 * SECOND, 0)]
    ledger.close()


def test_a_ledger_has_one_writer(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerHeld):
        Ledger(tmp_path / "ledger.sqlite")
    ledger.close()
    Ledger(tmp_path / "ledger.sqlite").close()


def test_a_ledger_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerVersion, match="version 99"):
        Ledger(path)


def handed_in(ledger: Ledger, one: Identity, session: str = "s1") -> None:
    known = Known("11" * 32, GRAPH, "cpu-x86-64-v3", "2.21", None, 0, None, None)
    ledger.submitted(one, session, known, START)
    ledger.finished(known.request, KEY, 2.0, {"compile": 1.5}, "cpu", 7)


@pytest.mark.parametrize(
    ("types", "code", "open_"),
    [
        (("swap-begin", "crashed-before"), 139, True),
        (("swap-begin", "crashed-before"), None, True),
        (("swap-begin", "crashed-before"), 1, False),
        (("swap-begin", "crashed-before"), 137, False),
        (("swap-begin", "swap-ok"), 139, False),
        (("swap-begin", "rolled-back"), 139, False),
    ],
)
def test_a_crash_after_a_swap_opens_the_breaker(
    place: Path | str, types: tuple[str, ...], code: int | None, open_: bool
) -> None:
    ledger, one = Ledger(place), identity()
    handed_in(ledger, one)
    for seq, kind in enumerate(types):
        exit_code = code if kind == "crashed-before" else None
        assert ledger.happened(one, Happened("s1", seq, kind, GRAPH, KEY, exit_code), START)
    assert ledger.breaker(one, KEY, "cpu-x86-64-v3") is open_
    assert not ledger.breaker(identity("b"), KEY, "cpu-x86-64-v3")
    assert not ledger.breaker(one, "00" * 32, "cpu-x86-64-v3")
    assert not ledger.breaker(one, KEY, "cpu-x86-64-v4")
    assert not ledger.breaker(replace(one, owner="another"), KEY, "cpu-x86-64-v3")
    ledger.close()


@pytest.mark.parametrize(("said", "seen", "open_"), [(139, 1, False), (1, 139, True)])
def test_how_the_container_ended_is_the_api_servers_word(
    place: Path | str, said: int, seen: int, open_: bool
) -> None:
    ledger, one = Ledger(place), identity()
    handed_in(ledger, one)
    after = replace(one, last_exit_code=seen)
    ledger.happened(one, Happened("s1", 1, "swap-begin", GRAPH, KEY), START)
    ledger.happened(after, Happened("s1", 2, "crashed-before", GRAPH, KEY, said), START)
    assert ledger.breaker(one, KEY, "cpu-x86-64-v3") is open_
    ledger.close()


def test_a_group_that_came_to_nothing_counts_once(place: Path | str) -> None:
    ledger, one = Ledger(place), identity()
    for size in (2, 3, 2, 3):  # they do not fit together
        word = Acknowledgement("s1", KEY, size, 0, 5, None)
        ledger.acknowledge(one, "g", 1, word, START)
    assert ("groups", "aborted", 1) in ledger.counts()
    ledger.close()


@pytest.mark.parametrize(("code", "settled", "open_"),
                         [(139, False, True), (139, True, False), (1, False, False)])  # fmt: skip
def test_a_restarted_pod_that_crashed_between_begin_and_ok_opens_it_too(
    place: Path | str, code: int, settled: bool, open_: bool
) -> None:
    ledger, one = Ledger(place), identity()
    handed_in(ledger, one)
    ledger.happened(one, Happened("s1", 1, "swap-begin", GRAPH, KEY), START)
    if settled:
        ledger.happened(one, Happened("s1", 2, "swap-ok", GRAPH, KEY), START)
    after = Identity("a", "train", "p1", 2.0, "cpu", START, last_exit_code=code)
    handed_in(ledger, after, "s2")
    assert ledger.breaker(one, KEY, "cpu-x86-64-v3") is open_
    ledger.close()


def test_requests_are_forgotten_when_nobody_hands_them_in_or_reports(place: Path | str) -> None:
    ledger, one, day = Ledger(place), identity(), 86400.0
    handed_in(ledger, one)
    abandoned = Known("22" * 32, "ef" * 32, "cpu-x86-64-v3", "2.21", None, 0, None, None)
    ledger.submitted(identity("b"), None, abandoned, START)
    assert ledger.save(one, "s1", GRAPH, report(1, 50), 2.0, START + 20 * day) == COUNTED
    ledger.prune(START + 40 * day)
    assert ledger.find("b", abandoned.request) is ledger.request(abandoned.request) is None
    known = ledger.find("a", KEY)
    assert known is not None, "a job that was handed in long ago still reports"
    ledger.submitted(one, None, known, START + 45 * day)
    ledger.prune(START + 70 * day)
    assert ledger.find("a", KEY) == known, "it was handed in again"
    ledger.prune(START + 80 * day)
    assert ledger.request(known.request) is None
    assert ledger.spent() == [("cpu", "compile", 1.5)]
    ledger.close()


def test_the_latest_request_of_a_digest_is_the_one_handed_in_last(place: Path | str) -> None:
    ledger, one = Ledger(place), identity()
    for moment, request in enumerate(("11" * 32, "22" * 32, "11" * 32)):
        known = Known(request, GRAPH, "cpu-x86-64-v3", "2.21", None, 0, None, None)
        ledger.submitted(one, None, known, START + moment)
        assert ledger.latest("a", GRAPH) == request
    ledger.close()


def test_repeated_events_and_costs_count_once(place: Path | str) -> None:
    ledger, one = Ledger(place), identity()
    for _ in range(3):
        handed_in(ledger, one)
    event = Happened("s1", 1, "swap-begin", GRAPH, KEY)
    assert [ledger.happened(one, event, START) for _ in range(3)] == [True, False, False]
    assert ("events", "swap-begin", 1) in ledger.counts()
    assert not ledger.finished("11" * 32, KEY, 2.0, {"compile": 0.5}, "cpu", 7)  # an older answer
    assert ledger.spent() == [("cpu", "compile", 1.5)]
    ledger.close()
