"""What is kept of a pod as the API server shows it, for pods that the webhook has had."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from stitch_operator.reconciler import cluster
from stitch_operator.reconciler.breakers import Refusal
from stitch_operator.reconciler.pods import (
    Failure,
    Pod,
    own_word,
    read_namespace,
    read_pod,
    read_workload,
)
from tests.operator.webhook import support

NONE: frozenset[str] = frozenset()
AT, LATER = "2026-01-02T03:04:05Z", "2026-01-02T03:05:05Z"
SECONDS = 1767323045.0


def document(name: str = "one_container", **status: Any) -> dict[str, Any]:
    case = support.case(name)
    made = copy.deepcopy(support.injected(case.given, case.situation, case.release))
    metadata = {"namespace": "team", "name": "p", "uid": "u", "creationTimestamp": AT}
    made["metadata"] |= metadata
    made["status"] = status
    return made


def read(name: str = "one_container", **status: Any) -> Pod:
    found = read_pod(document(name, **status), NONE)
    assert found is not None
    return found


def trains(state: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    container = support.case("one_container").given["spec"]["containers"][0]["name"]
    return [{"name": container, "state": state, **more}]


def ours(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "stitchcore-runtime", "state": state}]


def test_an_injected_pod() -> None:
    found = read()
    assert found.injected and found.reviewed and found.active
    assert (found.asked, found.mode, found.delivered) == (True, "optimize", False)
    assert found.image == support.release().image
    assert found.workload and found.created == SECONDS


def test_when_it_began_and_ended() -> None:
    begun = read(phase="Running", containerStatuses=trains({"running": {"startedAt": AT}}))
    assert (begun.started, begun.finished, begun.delivered) == (SECONDS, None, True)
    ended = {"exitCode": 1, "startedAt": AT, "finishedAt": LATER}
    failed = read(phase="Failed", containerStatuses=trains({"terminated": ended}))
    assert (failed.started, failed.finished) == (SECONDS, SECONDS + 60)
    assert failed.failure == Failure(SECONDS, SECONDS + 60)
    again = read(
        phase="Running",
        containerStatuses=trains(
            {"running": {"startedAt": LATER}}, lastState={"terminated": ended}
        ),
    )
    assert (again.started, again.failure) == (SECONDS, Failure(SECONDS, SECONDS + 60))
    well = read(
        phase="Succeeded", containerStatuses=trains({"terminated": {**ended, "exitCode": 0}})
    )
    assert well.failure is None


def test_a_container_that_does_not_train_says_nothing_of_the_job() -> None:
    ended = {"exitCode": 1, "startedAt": AT, "finishedAt": AT}
    made = document(
        phase="Running",
        containerStatuses=[
            *trains({"running": {"startedAt": LATER}}),
            {"name": "sidecar", "state": {"terminated": ended}},
        ],
    )
    made["spec"]["containers"].append({"name": "sidecar", "volumeMounts": [{"name": "own"}]})
    found = read_pod(made, NONE)
    assert found is not None
    assert (found.started, found.finished, found.failure) == (SECONDS + 60, None, None)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"waiting": {"reason": "PodInitializing"}}, ("", False)),
        ({"waiting": {"reason": "ContainerCreating"}}, ("", False)),
        ({"waiting": {}}, ("", False)),
        ({"waiting": {"reason": "ImagePullBackOff"}}, ("ImagePullBackOff", False)),
        ({"waiting": {"reason": "InvalidImageName"}}, ("InvalidImageName", False)),
        ({"waiting": {"reason": "CreateContainerConfigError"}},
         ("CreateContainerConfigError", False)),
        ({"terminated": {"exitCode": 0, "finishedAt": AT}}, ("", True)),
        ({"terminated": {"exitCode": 1, "reason": "StartError"}}, ("StartError", False)),
        ({"running": {"startedAt": AT}}, ("", False)),
    ],
)  # fmt: skip
def test_how_the_runtime_is_delivered(state: dict[str, Any], expected: tuple[str, bool]) -> None:
    found = read(phase="Pending", initContainerStatuses=ours(state))
    assert (found.stuck, found.delivered) == expected


def test_a_runtime_that_cannot_run_ends_a_pod_that_is_not_tried_again() -> None:
    ended = {"exitCode": 128, "reason": "StartError", "finishedAt": AT}
    found = read(phase="Failed", initContainerStatuses=ours({"terminated": ended}))
    assert (found.stuck, found.gave_up, found.active) == ("StartError", SECONDS, False)


def test_an_image_volume_is_told_by_its_message() -> None:
    case = support.case("image_volume")
    name = case.given["spec"]["containers"][0]["name"]

    def waits(message: str) -> Pod:
        waiting = {"reason": "ImagePullBackOff", "message": message}
        return read(
            "image_volume", containerStatuses=[{"name": name, "state": {"waiting": waiting}}]
        )

    stuck = waits(f'Back-off pulling image "{case.release.image}"')
    assert (stuck.stuck, stuck.image) == ("ImagePullBackOff", case.release.image)
    assert waits('Back-off pulling image "the.users/own"').stuck == ""


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "reason": "Evicted"},
        {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ],
)
def test_who_ends_because_of_somebody_else(status: dict[str, Any]) -> None:
    assert read(**status).leaving and not read(**status).active


def test_pods_that_are_never_injected_are_not_kept() -> None:
    assert read_pod(document(), frozenset({"team"})) is None
    own = document()
    own["metadata"]["labels"] = {"app.kubernetes.io/part-of": "stitchcore"}
    assert read_pod(own, NONE) is None
    mirror = document()
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
    assert read_pod(mirror, NONE) is None


def test_an_annotation_without_the_volume_is_no_injection() -> None:
    forged = document()
    forged["spec"].pop("volumes")
    found = read_pod(forged, NONE)
    assert found is not None and not found.injected


def test_little_is_kept_of_pods_that_are_not_ours() -> None:
    other = {
        "metadata": {"namespace": "team", "name": "web-1", "uid": "u" * 36,
                     "creationTimestamp": AT, "annotations": {"a": "b" * 4000}},
        "spec": {"containers": [{"name": "web", "image": "i" * 100}]},
        "status": {"phase": "Running"},
    }  # fmt: skip
    found = read_pod(other, NONE)
    assert found is not None and not found.reviewed
    assert len(msgspec.json.encode(found)) < 600


@pytest.mark.parametrize(
    ("annotation", "label", "expected"),
    [
        (None, None, None),
        ("true", None, True),
        (None, "true", True),
        ("true", "false", False),
        ("false", "true", False),
        ("yes", None, True),  # the webhook answers it with a reason
    ],
)
def test_an_objects_own_word(
    annotation: str | None, label: str | None, expected: bool | None
) -> None:
    name = "stitchcore.io/optimize"
    metadata = {
        "annotations": {name: annotation} if annotation else {},
        "labels": {name: label} if label else {},
    }
    assert own_word({"metadata": metadata}) is expected


def test_a_namespace_asks_since_its_label_was_put_on() -> None:
    fields = {"f:metadata": {"f:labels": {"f:stitchcore.io/optimize": {}}}}
    metadata: dict[str, Any] = {
        "name": "team",
        "creationTimestamp": AT,
        "labels": {"stitchcore.io/optimize": "true"},
        "managedFields": [{"time": LATER, "fieldsV1": fields}, {"time": AT, "fieldsV1": {}}],
    }
    assert read_namespace({"metadata": metadata}).since == SECONDS + 60
    metadata["labels"] = {"stitchcore.io/optimize": "false", "team": "research"}
    found = read_namespace({"metadata": metadata})
    assert (found.since, found.team) == (None, "research")
    metadata["labels"]["stitchcore.io/optimize"] = "true"
    assert read_namespace({"metadata": metadata}).team == "research"


def test_a_workload_from_its_metadata_alone() -> None:
    above = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "cu",
             "controller": True}  # fmt: skip
    metadata = {"namespace": "team", "name": "j", "uid": "u", "ownerReferences": [above]}
    found = read_workload({"metadata": metadata}, "batch/v1", "Job", NONE)
    assert found is not None and (found.kind, found.asked) == ("Job", None)
    assert found.owner is not None and found.owner.uid == "cu"
    assert read_workload({"metadata": metadata}, "batch/v1", "Job", frozenset({"team"})) is None


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('violates PodSecurity "restricted": (container "stitchcore-runtime" must set x)', True),
        ("exceeded quota: must specify limits.cpu for: main,stitchcore-runtime", True),
        ('pods "stitchcore-demo-x7k2p" is forbidden: exceeded quota', False),
        ("exceeded quota: compute", False),
        ("minimum cpu usage per Container is 200m, but request is 100m", True),
    ],
)
def test_refused_because_of_us(message: str, expected: bool) -> None:
    event = {"metadata": {"namespace": "team", "name": "e"}, "message": message,
             "lastTimestamp": AT}  # fmt: skip
    assert cluster.read_refusal(event) == (Refusal("team", SECONDS) if expected else None)


def test_a_refusal_that_is_repeated_is_as_young_as_its_last_time() -> None:
    event = {
        "metadata": {"namespace": "team", "name": "e", "creationTimestamp": AT},
        "message": "pods is forbidden: stitchcore-runtime",
        "eventTime": AT,
        "series": {"count": 2, "lastObservedTime": LATER},
    }
    assert cluster.read_refusal(event) == Refusal("team", SECONDS + 60)
