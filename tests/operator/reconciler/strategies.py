"""Pods, rows and jobs for the reconciler's tests: any that can be, and handy ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from stitch_operator.reconciler.pods import Failure, Owner, Pod
from stitch_operator.reconciler.status import Known, Replica
from stitch_operator.reports import Graph, Workload

NOW = 1_000_000.0
JOB = Owner("batch/v1", "Job", "train", "job-uid")


def pod(number: int = 0, **more: Any) -> Pod:
    """Injected and running for a minute, unless `more` says otherwise."""
    made: dict[str, Any] = {
        "namespace": "team",
        "name": f"train-{number}",
        "uid": f"pod-{number}",
        "created": NOW - 70,
        "owner": JOB,
        "asked": True,
        "phase": "Running",
        "injected": "1-a",
        "workload": "train",
        "image": "runtime:1",
        "mode": "optimize",
        "started": NOW - 60,
        "delivered": True,
    }
    return Pod(**{**made, **more})


def graph(number: int = 0, **more: Any) -> Graph:
    return Graph(graph=f"{number:064x}", **more)


def swapped(number: int = 0, ratio: float | None = 1.2, **more: Any) -> Graph:
    """Measured within a tenth; not at all where there is no ratio."""
    made: dict[str, Any] = {"phase": "ready", "key": "ab" * 32, "swap": "ok", "steps": 100}
    if ratio is not None:
        made |= {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
    return graph(number, **{**made, **more})


def row(number: int = 0, *graphs: Graph, **more: Any) -> Workload:
    made: dict[str, Any] = {
        "namespace": "team",
        "owner": "train",
        "pod": f"pod-{number}",
        "controller": "job-uid",
        "began": NOW - 50,
        "contact": NOW - 1,
        "graphs": list(graphs),
    }
    return Workload(**{**made, **more})


def known(*replicas: Replica, **more: Any) -> Known:
    return Known(replicas, **{"read": NOW, **more})


ratios = st.floats(0.5, 3.0)
times = st.one_of(st.none(), st.floats(NOW - 1000, NOW))


@st.composite
def any_graph(draw: st.DrawFn, number: int) -> Graph:
    ratio = draw(st.one_of(st.none(), ratios))
    spread = draw(st.floats(0, 0.5))
    return graph(
        number,
        phase=draw(st.sampled_from(["pending", "ready", "refused"])),
        key=draw(st.sampled_from(["", "ab" * 32])),
        reason=draw(st.sampled_from(["", "memory", "slower"])),
        swap=draw(st.sampled_from(["", "begun", "ok", "rolled-back", "crashed"])),
        steps=draw(st.integers(0, 100)),
        ratio=ratio,
        low=None if ratio is None else ratio - spread,
        high=None if ratio is None else ratio + spread,
    )


@st.composite
def any_row(draw: st.DrawFn, number: int) -> Workload:
    numbers = draw(st.lists(st.integers(0, 30), max_size=16, unique=True))
    return row(
        number,
        *(draw(any_graph(one)) for one in numbers),
        gpu=draw(st.sampled_from(["cpu", "h100"])),
        saved=draw(st.floats(0, 1e6)),
        lost=draw(st.floats(0, 1e6)),
        stepped=draw(st.booleans()),
    )


@st.composite
def any_pod(draw: st.DrawFn, number: int) -> Pod:
    started = draw(times)
    failure = st.builds(Failure, st.just(NOW - 90.0), st.floats(NOW - 89, NOW))
    return pod(
        number,
        phase=draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])),
        leaving=draw(st.booleans()),
        injected=draw(st.sampled_from(["", "1-a"])),
        skipped=draw(st.sampled_from(["", "breaker_open", "of_another_version"])),
        would=draw(st.booleans()),
        mode=draw(st.sampled_from(["observe", "optimize"])),
        started=started,
        finished=draw(st.one_of(st.none(), st.floats(started or NOW - 1000, NOW))),
        stuck=draw(st.sampled_from(["", "ImagePullBackOff"])),
        delivered=draw(st.booleans()),
        failure=draw(st.one_of(st.none(), failure)),
    )


@st.composite
def any_known(draw: st.DrawFn) -> Known:
    replicas = [
        Replica(draw(any_pod(number)), draw(st.one_of(st.none(), any_row(number))))
        for number in range(draw(st.integers(0, 4)))
    ]
    gone = [draw(any_row(number)) for number in range(10, 10 + draw(st.integers(0, 2)))]
    return Known(replicas, gone, draw(st.sampled_from([None, NOW])))
