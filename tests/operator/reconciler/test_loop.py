"""The loop with watches and an API server of plain data: what is written, when, and how often."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from kubernetes.client.exceptions import ApiException

from stitch_operator.reconciler import loop as loops
from stitch_operator.reconciler.breakers import Lines, Refusal
from stitch_operator.reconciler.cluster import Existing
from stitch_operator.reconciler.loop import Loop
from stitch_operator.reconciler.metrics import Metrics
from stitch_operator.reconciler.pace import Pace
from stitch_operator.reconciler.pods import Namespace, Workload
from stitch_operator.reconciler.records import Condition, Spec, Status, StitchedJob, name_of
from tests.operator.reconciler.strategies import NOW, graph, pod, row, swapped
from tests.waiting import wait_for


@dataclass
class Held:
    """Objects of one kind."""

    items: dict[Any, Any] = field(default_factory=dict)

    def get(self, *key: str) -> Any:
        return self.items.get(key)

    def values(self) -> list[Any]:
        return list(self.items.values())


UID = "stitched-job-uid"


class Api:
    """Watches and writer in one: what is written is there, and is told."""

    def __init__(self) -> None:
        self.jobs, self.breakers, self.namespaces = Held(), Held(), Held()
        self.events: list[str] = []
        self.written: list[Status] = []
        self.refusals: list[Refusal] = []
        self.down = self.silent = False
        self.listed = True
        self._names: set[str] = set()
        self.loop: Loop

    def ready(self) -> bool:
        return self.listed

    def knows(self, group: str, kind: str) -> bool:
        return kind == "Job"

    def refused(self) -> list[Refusal]:
        return self.refusals

    def create(self, namespace: str, workload: Any) -> str:
        self._may()
        key = (namespace, name_of(workload))
        if key in self.jobs.items:
            return ""
        job = StitchedJob(spec=Spec(workload=workload))
        self.jobs.items[key] = Existing(*key, workload, job, UID)
        return UID

    def write(self, namespace: str, name: str, status: Status) -> bool:
        self._may()
        before = self.jobs.get(namespace, name)
        if before is None:
            return False
        self.written.append(status)
        job = StitchedJob(spec=before.job.spec, status=status)
        self.jobs.items[namespace, name] = Existing(namespace, name, before.workload, job, UID)
        if not self.silent:
            self.loop.put(before, self.jobs.get(namespace, name))
        return True

    def tell(self, namespace: str, workload: Any, uid: str, held: Condition) -> bool:
        assert uid == UID, "an Event about nothing"
        self._may()
        name = f"{name_of(workload)}.{held.type}.{held.transitions}"
        if name in self._names:
            return False
        self._names.add(name)
        self.events.append(held.type)
        return True

    def write_breakers(self, lines: Lines) -> None:
        self._may()
        self.breakers.items["one"] = dict(lines)

    def _may(self) -> None:
        if self.down:
            raise ApiException(status=503, reason="Service Unavailable")


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


JOB = Workload(
    api_version="batch/v1", kind="Job", namespace="team", name="train", uid="job-uid", asked=True
)


def made(api: Api | None = None) -> tuple[Loop, Api, Clock]:
    """A loop that knows what `api` holds, as after a start."""
    held, clock = api or Api(), Clock()
    loop = Loop("runtime:1", clock)
    loop.metrics = Metrics(loop.phases, "test")
    loop.watches = loop.writer = held  # type: ignore[assignment]
    held.loop = loop
    return loop, held, clock


def turns(loop: Loop, count: int = 3) -> None:
    for _ in range(count):
        loop.turn(0.001)


def status_of(api: Api) -> Status:
    [job] = api.jobs.values()
    return job.job.status  # type: ignore[no-any-return]


def test_nothing_is_written_twice() -> None:
    loop, api, _ = made()
    loop.put(None, JOB)
    loop.put(None, pod())
    loop.rows([row(0, graph())], NOW)
    turns(loop)
    assert status_of(api).phase == "Compiling"
    assert api.events == ["Injected", "Compiling"] and len(api.written) == 1
    loop.put(pod(), pod(created=NOW))
    loop.rows([row(0, graph(), contact=NOW)], NOW)
    turns(loop)
    assert len(api.written) == 1 and not loop._written


def test_a_new_reconciler_goes_on_where_the_old_one_was() -> None:
    loop, api, _ = made()
    for one in (JOB, pod()):
        loop.put(None, one)
    loop.rows([row(0, swapped(), saved=7.0)], NOW)
    turns(loop)
    again, _, _ = made(api)
    for one in (JOB, pod()):
        again.put(None, one)
    turns(again)
    assert (status_of(api).phase, len(api.written)) == ("Optimized", 1)  # the gateway is not heard
    again.rows([row(0, swapped(), saved=9.0)], NOW)
    turns(again)
    assert status_of(api).cpu_core_seconds_saved == 9.0
    assert api.events == ["Injected", "Swapped", "Optimized"]


def test_jobs_are_told_with_their_team_and_figures() -> None:
    loop, api, _ = made()
    for one in (JOB, pod()):
        loop.put(None, one)
    assert loop.told() == []
    loop.rows([row(0, swapped(), saved=7.0, lost=2.0)], NOW)
    turns(loop)
    api.namespaces.items["team"] = Namespace("team", team="research")
    [told] = loop.told()
    assert told.labels == ["team", "research", "train"]
    assert (told.net("cpu"), told.net("gpu")) == (5.0, 0.0)


def test_killed_between_event_and_status_it_is_told_once() -> None:
    loop, api, _ = made()
    for one in (JOB, pod()):
        loop.put(None, one)
    api.write = lambda *_: (_ for _ in ()).throw(ApiException(status=500))  # type: ignore[method-assign]
    turns(loop)
    assert api.events == ["Injected"] and status_of(api) is None
    del api.write  # type: ignore[attr-defined]
    again, _, _ = made(api)
    for one in (JOB, pod()):
        again.put(None, one)
    turns(again)
    assert api.events == ["Injected"] and status_of(api).phase == "Observing"


def test_while_the_api_server_is_away_it_tries_again() -> None:
    loop, api, clock = made()
    api.down = True
    for one in (JOB, pod()):
        loop.put(None, one)
    turns(loop)
    assert api.jobs.values() == []
    api.down = False
    turns(loop)
    assert api.jobs.values() == []  # not before a while
    clock.now += loops.FIRST_RETRY
    turns(loop)
    assert status_of(api).phase == "Observing"


def test_silence_is_seen_without_any_change() -> None:
    loop, api, clock = made()
    for one in (JOB, pod()):
        loop.put(None, one)
    loop.rows([], NOW)
    turns(loop)
    assert status_of(api).phase == "Observing"
    clock.now += 300
    loop.rows([], clock.now)
    turns(loop)
    assert status_of(api).phase == "NoContact" and api.events == ["Injected", "NoContact"]


def test_a_stitched_job_that_somebody_deletes_comes_back() -> None:
    loop, api, _ = made()
    for one in (JOB, pod()):
        loop.put(None, one)
    turns(loop)
    [(key, gone)] = api.jobs.items.items()
    del api.jobs.items[key]
    loop.put(gone, None)
    turns(loop)
    assert status_of(api).phase == "Observing" and api.events == ["Injected"]


def test_one_that_was_deleted_before_its_watch_had_told_of_it_comes_back() -> None:
    loop, api, clock = made()
    api.silent = True
    for one in (JOB, pod()):
        loop.put(None, one)
    turns(loop)
    api.jobs.items.clear()
    loop.rows([row(0, graph())], NOW)
    turns(loop)
    assert api.jobs.values() == []
    clock.now += loops.FIRST_RETRY
    turns(loop)
    assert status_of(api).phase == "Compiling"


def test_a_job_that_nobody_can_make_sense_of_stops_no_other() -> None:
    loop, api, clock = made()
    wrong = msgspec.structs.replace(JOB, name="wrong", uid="uid-wrong")
    found = api.jobs.get
    key = ("team", "job-wrong-uid-wron")
    api.jobs.get = lambda *asked: found(*asked) if asked != key else int("x")  # type: ignore[method-assign]
    for one in (wrong, JOB, pod()):
        loop.put(None, one)
    turns(loop)
    assert [name for _, name in api.jobs.items] == ["job-train-job-uid"]
    del api.jobs.get  # type: ignore[attr-defined]
    clock.now += loops.FIRST_RETRY
    turns(loop)
    assert {name for _, name in api.jobs.items} == {"job-train-job-uid", key[1]}


def test_a_missed_pod_is_counted_once() -> None:
    loop, api, _ = made()
    missed = pod(injected="", started=None)
    for one in (JOB, missed, pod(1)):
        loop.put(None, one)
    turns(loop)
    loop.put(pod(1), pod(1, phase="Succeeded", finished=NOW))
    loop.rows([row(1, swapped())], NOW)
    turns(loop)
    assert len(api.written) > 1 and status_of(api).replicas.missed == 1
    assert loop.metrics.registry.get_sample_value("stitch_missed_admissions_total") == 1


def test_who_did_not_ask_and_has_no_pod_that_did_has_none() -> None:
    loop, api, _ = made()
    loop.put(None, msgspec.structs.replace(JOB, asked=None))
    loop.put(None, pod(asked=None, injected="", started=None))
    turns(loop)
    assert api.jobs.values() == []
    loop.put(None, msgspec.structs.replace(JOB, uid="another"))  # it asks, and waits for its pods
    turns(loop)
    assert status_of(api).phase == "Pending"


def test_what_fails_is_tried_again_ever_later() -> None:
    waits = loops.Queue()
    for _ in range(9):
        waits.failed("job", NOW)
    assert sorted(when - NOW for when, _ in waits.heap) == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_figures_alone_are_written_at_a_measured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FIGURES", (0.001, 1.0))
    loop, api, _ = made()
    for one in (JOB, pod()):
        loop.put(None, one)
    loop.rows([row(0, swapped(), saved=1.0)], NOW)
    turns(loop)
    for number in range(5):
        loop.rows([row(0, swapped(), saved=10.0 + number)], NOW)
        turns(loop)
    assert len(api.written) == 2 and status_of(api).cpu_core_seconds_saved == 10.0
    loop.rows([row(0, swapped(swap="rolled-back", reason="slower"), saved=20.0)], NOW)
    turns(loop)
    assert (status_of(api).phase, status_of(api).cpu_core_seconds_saved) == ("RolledBack", 20.0)


def test_a_status_does_not_wait_for_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "EVENTS", (0.2, 2.0))
    loop, api, clock = made()
    for one in (JOB, pod()):
        loop.put(None, one)
    turns(loop)
    assert api.events == ["Injected"]
    loop.rows([row(0, graph())], NOW)
    turns(loop)
    assert status_of(api).phase == "Compiling" and api.events == ["Injected"]
    assert [one.type for one in status_of(api).conditions] == ["Injected"]
    written = len(api.written)
    turns(loop)
    assert len(api.written) == written
    clock.now += 10
    turns(loop)
    assert api.events == ["Injected", "Compiling"]
    assert [one.type for one in status_of(api).conditions] == ["Injected", "Compiling"]


def test_each_waits_for_one_turn() -> None:
    pace = Pace(10.0, 5.0)
    waits = {f"job-{n}": pace.wait(f"job-{n}", 1, NOW) for n in range(25)}
    assert sum(wait == 0 for wait in waits.values()) == 5
    assert max(waits.values()) == pytest.approx(2.0)
    assert all(pace.wait(who, 1, NOW) == wait for who, wait in waits.items() if wait)
    assert all(pace.wait(who, 1, NOW + 2) == 0 for who, wait in waits.items() if wait)
    assert not pace._turns
    pace.wait("gone", 1, NOW + 2)
    pace.forget("gone")
    assert not pace._turns


def test_breakers_survive_a_restart() -> None:
    loop, api, _ = made()
    stuck = pod(phase="Pending", stuck="ErrImagePull", started=None, delivered=False)
    loop.put(None, stuck)
    turns(loop)
    assert api.breakers.items["one"] == {("images", "team", "runtime:1"): NOW}
    again, _, later = made(api)
    later.now += 60
    turns(again)  # the pod is gone
    assert api.breakers.items["one"] == {("images", "team", "runtime:1"): NOW}
    later.now += 600
    turns(again)
    assert api.breakers.items["one"] == {}


def test_nothing_is_written_before_everything_has_been_listed() -> None:
    loop, api, _ = made()
    api.listed = False
    for one in (JOB, pod()):
        loop.put(None, one)
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    time.sleep(0.3)
    assert api.jobs.values() == [] and not api.events
    api.listed = True
    wait_for(lambda: api.written, "a status")
    stop.set()
    thread.join()
    assert status_of(api).phase == "Observing"


def test_it_ends_when_it_is_told_to() -> None:
    loop, api, _ = made()
    api.listed = False
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
