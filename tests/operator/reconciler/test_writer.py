"""What the reconciler sends to the API server, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from msgspec.structs import replace

from stitch_operator.reconciler import breakers
from stitch_operator.reconciler.records import PENDING, TYPES, Condition, WorkloadReference
from stitch_operator.reconciler.writer import Writer
from stitch_operator.webhook.cluster import IMAGES, WORKLOADS
from tests.operator.webhook import handmade_api, support
from tests.operator.webhook.handmade_api import Api

JOB = WorkloadReference(api_version="batch/v1", kind="Job", name="train", uid="01234567-89")
REFERENCE = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "01234567-89"}
NAME = "job-train-01234567"
JOBS = "/apis/stitchcore.io/v1alpha1/namespaces/team/stitchedjobs"


@pytest.fixture
def api() -> Iterator[Api]:
    with handmade_api.serve() as found:
        yield found


@pytest.fixture
def counted() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def writer(api: Api, counted: list[tuple[str, str]]) -> Writer:
    configuration = client.Configuration()
    configuration.host = api.url

    def count(call: str, result: str) -> None:
        counted.append((call, result))

    return Writer(client.ApiClient(configuration), support.release(), count)


def held(kind: Any = "Skipped", transitions: int = 1) -> Condition:
    return Condition(
        type=kind, status="True", reason="windows", message="windows: it runs on Windows",
        last_transition_time="2026-01-02T03:04:05Z", transitions=transitions,
    )  # fmt: skip


def test_a_stitched_job_goes_when_its_workload_does(api: Api, writer: Writer) -> None:
    writer.create("team", JOB)
    [call] = api.writes
    assert (call.method, call.path) == ("POST", JOBS)
    assert call.body["metadata"]["name"] == NAME
    assert call.body["metadata"]["ownerReferences"] == [REFERENCE]  # none that blocks a deletion
    assert "finalizers" not in call.body["metadata"]
    assert call.body["spec"] == {"workload": REFERENCE}


def test_the_whole_status_is_written(api: Api, writer: Writer) -> None:
    assert writer.write("team", NAME, PENDING)
    [call] = api.writes
    assert (call.method, call.path) == ("PATCH", f"{JOBS}/{NAME}/status")
    assert call.kind == "application/json-patch+json"
    value = {"phase": "Pending", "gpuHoursSaved": 0.0}
    assert call.body == [{"op": "add", "path": "/status", "value": value}]


@pytest.mark.parametrize("kind", TYPES)
def test_events_are_about_the_workload_and_its_stitched_job(
    api: Api, writer: Writer, kind: str
) -> None:
    assert writer.tell("team", JOB, "its-uid", held(kind))
    own = {"apiVersion": "stitchcore.io/v1alpha1", "kind": "StitchedJob", "name": NAME}
    bad = kind in ("Skipped", "RolledBack", "Refused", "NoContact")
    for call, about in zip(api.writes, (REFERENCE, {**own, "uid": "its-uid"}), strict=True):
        assert (call.method, call.path) == (
            *("POST", "/apis/events.k8s.io/v1/namespaces/team/events"),
        )
        assert call.body["regarding"] == {**about, "namespace": "team"}
        assert (call.body["reason"], call.body["note"]) == (kind, "windows: it runs on Windows")
        assert call.body["type"] == ("Warning" if bad else "Normal")


def test_a_note_is_as_long_as_the_api_server_takes(api: Api, writer: Writer) -> None:
    writer.tell("team", JOB, "u", replace(held(), message="ü" * 2000))
    assert api.writes[0].body["note"] == "ü" * 512
    writer.tell("team", JOB, "u", replace(held(), message="a" + "ü" * 2000))
    assert api.writes[2].body["note"] == "a" + "ü" * 511


def test_each_time_that_a_condition_comes_to_hold_is_an_event_of_its_own(
    api: Api, writer: Writer
) -> None:
    for one in (held(), held(), held(transitions=2), held("Injected")):
        writer.tell("team", JOB, "u", one)
    names = [call.body["metadata"]["name"] for call in api.writes]
    ends = ("skipped.1", "skipped.1", "skipped.2", "injected.1")
    assert names[::2] == [f"{NAME}.{end}" for end in ends]
    assert names[1::2] == [f"{NAME}.stitchedjob.{end}" for end in ends]


@pytest.mark.parametrize(("status", "result"), [(409, "exists"), (404, "gone")])
def test_what_is_there_or_is_no_more_is_no_failure(
    api: Api, writer: Writer, counted: list[tuple[str, str]], status: int, result: str
) -> None:
    api.refused = {"POST": status, "PATCH": status}
    assert writer.create("team", JOB) == ""
    assert not writer.tell("team", JOB, "u", held())
    assert not writer.write("team", NAME, PENDING)
    assert [call for call, _ in counted] == ["create", "event", "event", "status"]
    assert {told for _, told in counted} == {result}


def test_what_else_the_api_server_says_is_raised(
    api: Api, writer: Writer, counted: list[tuple[str, str]]
) -> None:
    api.refused = {"POST": 503}
    with pytest.raises(ApiException):
        writer.create("team", JOB)
    assert counted == [("create", "failed")]


def test_the_breakers_are_made_where_they_are_not(api: Api, writer: Writer) -> None:
    lines = {(IMAGES, "team", "runtime:1"): 5.0, (WORKLOADS, "team", "train"): 6.0}
    writer.write_breakers(lines)
    api.refused = {"PATCH": 404}
    writer.write_breakers(lines)
    here = "/api/v1/namespaces/stitch/configmaps"
    assert [(call.method, call.path) for call in api.writes] == [
        ("PATCH", f"{here}/stitch-breakers"), ("PATCH", f"{here}/stitch-breakers"), ("POST", here),
    ]  # fmt: skip
    assert all(breakers.parse(call.body["data"]) == lines for call in api.writes)
    made = api.writes[-1].body["metadata"]
    assert made["name"] == "stitch-breakers"
    assert made["labels"]["app.kubernetes.io/part-of"] == "stitchcore"
