"""Which workload a pod belongs to, whatever order objects come to be known in."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stitch_operator.reconciler.family import Family
from stitch_operator.reconciler.pods import Namespace, Owner, Pod, Workload
from stitch_operator.reports import Workload as Row
from tests.operator.reconciler.strategies import NOW, pod, row

KINDS = {("batch", "Job"), ("jobset.x-k8s.io", "JobSet"), ("batch", "CronJob")}
VERSIONS = {"Job": "batch/v1", "CronJob": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}


def owner(kind: str, uid: str) -> Owner:
    return Owner(VERSIONS.get(kind, "apps/v1"), kind, f"name-of-{uid}", uid)


def workload(kind: str, uid: str, above: Owner | None = None, asked: bool | None = None) -> Any:
    return Workload(
        api_version=VERSIONS[kind], kind=kind, namespace="team", name=f"name-of-{uid}", uid=uid,
        owner=above, asked=asked,
    )  # fmt: skip


def plain(uid: str, above: Owner | None, **more: Any) -> Pod:
    made = {"uid": uid, "name": uid, "owner": above, "asked": None, "injected": "", **more}
    return pod(0, **made)


def family(*known: Pod | Workload | Namespace | Row, shuffled: int = 0) -> Family:
    made = Family(lambda group, kind: (group, kind) in KINDS)
    ordered = list(known)
    random.Random(shuffled).shuffle(ordered)
    for one in ordered:
        if isinstance(one, Pod):
            made.put_pod(None, one)
        elif isinstance(one, Workload):
            made.put_workload(None, one)
        elif isinstance(one, Row):
            made.put_row(one)
        else:
            made.namespaces[one.name] = one
    return made


def top_of(made: Family, uid: str) -> str | None:
    found = made.top(uid)
    return found.reference.uid if found is not None else None


@pytest.mark.parametrize("shuffled", range(6))
def test_the_topmost_that_asked(shuffled: int) -> None:
    made = family(
        workload("JobSet", "set", asked=True),
        *(workload("Job", uid, owner("JobSet", "set")) for uid in ("a", "b")),
        *(plain(f"pod-{uid}", owner("Job", uid), asked=True) for uid in ("a", "b")),
        workload("JobSet", "quiet"),
        workload("Job", "c", owner("JobSet", "quiet"), asked=True),
        workload("Job", "d", owner("JobSet", "quiet")),
        workload("JobSet", "both", asked=True),
        workload("Job", "e", owner("JobSet", "both"), asked=True),
        *(plain(f"pod-{uid}", owner("Job", uid), asked=True) for uid in ("c", "d", "e")),
        shuffled=shuffled,
    )
    assert {top_of(made, f"pod-{uid}") for uid in ("a", "b")} == {"set"}
    assert top_of(made, "pod-c") == "c"
    assert top_of(made, "pod-e") == "both"
    assert top_of(made, "pod-d") == "quiet"  # only its template asks
    found = made.top("set")
    assert found is not None and found.asked
    assert {one.pod.uid for one in made.replicas(found)} == {"pod-a", "pod-b"}
    lone = made.top("quiet")
    assert lone is not None
    assert {one.pod.uid for one in made.replicas(lone)} == {"pod-d"}


def test_each_job_of_a_cron_job() -> None:
    made = family(
        workload("CronJob", "cron", asked=True),
        workload("Job", "run", owner("CronJob", "cron")),
        plain("pod", owner("Job", "run")),
    )
    assert top_of(made, "pod") == "run" and top_of(made, "cron") is None
    assert made.asked(made.pods["pod"])  # its template was not stamped: missed


def test_bare_pods_and_kinds_that_nobody_watches() -> None:
    made = family(
        plain("bare", None, asked=True), plain("web", owner("ReplicaSet", "rs"), asked=True)
    )
    bare, web = made.top("bare"), made.top("web")
    assert bare is not None and (bare.reference.kind, bare.reference.uid) == ("Pod", "bare")
    assert web is not None and (web.reference.kind, web.reference.uid) == ("ReplicaSet", "rs")
    assert web.namespace == "team" and [one.pod.uid for one in made.replicas(web)] == ["web"]


def test_what_goes_with_a_workload_that_is_no_more_has_none() -> None:
    made = family(plain("pod", owner("Job", "gone"), asked=True))
    assert made.top("pod") is None
    made.put_workload(None, workload("Job", "gone"))
    assert top_of(made, "pod") == "gone"
    made.put_workload(made.workloads["gone"], None)
    assert made.top("pod") is None


def test_a_loop_of_owners_ends() -> None:
    made = family(
        workload("Job", "a", owner("Job", "b")),
        workload("Job", "b", owner("Job", "a")),
        plain("pod", owner("Job", "a")),
    )
    found = made.top("pod")
    assert found is not None
    assert len(made.replicas(found)) <= 600


@pytest.mark.parametrize(
    ("own", "job", "since", "expected"),
    [
        (True, False, None, True),
        (False, True, NOW - 1000, False),
        (None, True, None, True),
        (None, False, NOW - 1000, False),
        (None, None, NOW - 1000, True),
        (None, None, NOW - 70, False),  # the label came when the pod was there
        (None, None, None, False),
    ],
)
def test_who_asked(own: bool | None, job: bool | None, since: float | None, expected: bool) -> None:
    made = family(
        Namespace("team", since),
        workload("Job", "j", asked=job),
        plain("p", owner("Job", "j"), asked=own),
    )
    assert made.asked(made.pods["p"]) is expected


def test_rows_of_pods_that_are_no_more_stay_with_their_job() -> None:
    job = owner("Job", "job-uid")
    made = family(
        workload("Job", "job-uid"), plain("pod-0", job, injected="1"), row(0), row(1),
        row(2, controller="another"),
    )  # fmt: skip
    found = made.top("job-uid")
    assert found is not None
    assert [one.pod for one in made.gone(found)] == ["pod-1"]
    made.put_pod(made.pods["pod-0"], None)
    assert [one.pod for one in made.gone(found)] == ["pod-0", "pod-1"]
    assert made.forget_rows(NOW) == 1 and set(made.rows) == {"pod-0", "pod-1"}
    made.put_workload(made.workloads["job-uid"], None)
    assert made.forget_rows(NOW) == 2 and not made._rows_of and not made._children


def test_rows_of_a_job_below_count_for_the_job_above() -> None:
    made = family(
        workload("JobSet", "set", asked=True), workload("Job", "job-uid", owner("JobSet", "set")),
        row(0),
    )  # fmt: skip
    found = made.top("set")
    assert found is not None and [one.pod for one in made.gone(found)] == ["pod-0"]


def test_rows_of_a_pod_that_is_there_stay_however_long_it_is_silent() -> None:
    made = family(plain("bare", None, asked=True), row(0, pod="bare", controller=""))
    assert made.forget_rows(NOW) == 0 and set(made.rows) == {"bare"}
