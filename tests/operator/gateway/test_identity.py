"""Who a client is: shared tokens, and TokenReview against a server that speaks the API's HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from stitch_operator.gateway import identity
from stitch_operator.gateway.identity import (
    CACHE_SECONDS,
    DENIALS,
    DENIED_SECONDS,
    Cached,
    Identity,
    SharedToken,
    product,
)
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.gateway.tokenreview import AUDIENCE, POD_NAME, POD_UID, TokenReview
from tests.operator.gateway.pods import answering

UID = "11111111-2222-3333-4444-555555555555"
STARTED, POD_STARTED = "2026-01-02T03:04:05Z", "2026-01-02T01:04:05Z"


class Api:
    """What the API server holds, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.status = 0
        self.extra = {POD_NAME: ["train-0"], POD_UID: [UID]}
        self.audiences = [AUDIENCE]
        self.user = "system:serviceaccount:team-a:default"
        self.pod: dict[str, Any] = {
            "metadata": {
                "name": "train-0",
                "namespace": "team-a",
                "uid": UID,
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": "nightly-29384756",
                     "uid": "x", "controller": True}
                ],
            },
            "spec": {
                "nodeName": "node-1",
                "containers": [
                    {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "8"}}},
                    {"name": "b", "resources": {"requests": {"cpu": "500m"}}},
                ],
            },
            "status": {
                "startTime": POD_STARTED,
                "containerStatuses": [
                    {"name": "a", "image": "i", "imageID": "i", "ready": True, "restartCount": 1,
                     "state": {"running": {"startedAt": STARTED}},
                     "lastState": {"terminated": {"exitCode": 139}}}
                ]
            },
        }  # fmt: skip
        self.labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append((path, body))
        if self.status:
            return self.status, {"kind": "Status", "code": self.status}
        if path.endswith("/tokenreviews"):
            known = body["spec"]["token"] == "good" and AUDIENCE in body["spec"]["audiences"]
            user = {"username": self.user, "extra": self.extra}
            status = {"authenticated": known, "audiences": self.audiences, "user": user}
            return 201, {**body, "status": status if known else {"authenticated": False}}
        if path == "/api/v1/namespaces/team-a/pods/train-0":
            return 200, self.pod
        if path == "/api/v1/nodes/node-1":
            return 200, {"metadata": {"name": "node-1", "labels": self.labels}}
        return 404, {"kind": "Status", "code": 404}


@pytest.fixture
def api() -> Iterator[tuple[Api, TokenReview]]:
    held = Api()
    with answering(held.answer) as url:
        configuration = client.Configuration(host=url)
        configuration.retries = False
        yield held, TokenReview(client.ApiClient(configuration))


def denied(review: TokenReview, token: str = "good") -> Problem:
    with pytest.raises(Rejected) as caught:
        review.identify(token)
    return caught.value.problem


@pytest.mark.slow
def test_identity_comes_from_the_pod_and_nothing_else(api: tuple[Api, TokenReview]) -> None:
    _, review = api
    found = review.identify("good")
    began = 1767323045.0
    times = (began, 139, began - 7200)
    assert found == Identity("team-a", "nightly", UID, 2.0, "h100", *times, "x", "default")


def test_processor_jobs_and_slices(api: tuple[Api, TokenReview]) -> None:
    held, review = api
    containers = held.pod["spec"]["containers"]
    containers[0]["resources"] = {"limits": {"cpu": "1500m"}}
    found = review.identify("good")
    assert (found.devices, found.gpu) == (2.0, "cpu")
    containers[0]["resources"] = {"limits": {"nvidia.com/mig-3g.20gb": "2"}}
    assert review.identify("good").devices == pytest.approx(6 / 7)
    held.pod["metadata"]["annotations"] = {"stitchcore.io/workload": "stamped"}
    assert review.identify("good").owner == "stamped"


@pytest.mark.parametrize("state", [{}, {"waiting": {}}, {"terminated": {"exitCode": 0}}], ids=str)
def test_a_pod_that_does_not_run_is_known_as_such_and_asked_about_again_soon(
    api: tuple[Api, TokenReview], state: dict[str, Any]
) -> None:
    held, review = api
    assert review.identify("good").runs
    held.pod["status"]["containerStatuses"][0]["state"] = state
    now = [0.0]
    cached = Cached(review, lambda: now[0], lambda found: found.kept_seconds)
    assert not cached.identify("good").runs
    held.pod["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": STARTED}}
    now[0] = DENIED_SECONDS
    assert cached.identify("good").runs
    held.pod["status"]["containerStatuses"][0]["state"] = state
    now[0] += CACHE_SECONDS - 1
    assert cached.identify("good").runs


def test_tokens_of_another_audience_kind_or_pod_are_denied(api: tuple[Api, TokenReview]) -> None:
    held, review = api
    assert denied(review, "bad") is Problem.UNAUTHORIZED
    held.audiences = ["https://kubernetes.default.svc"]
    assert denied(review) is Problem.UNAUTHORIZED
    held.audiences = [AUDIENCE]
    held.extra = {POD_NAME: ["train-0"]}
    assert denied(review) is Problem.FORBIDDEN  # no pod-uid claim
    held.extra = {POD_NAME: ["train-0"], POD_UID: ["another"]}
    assert denied(review) is Problem.FORBIDDEN  # the name was given to a new pod
    held.extra = {POD_NAME: ["gone"], POD_UID: [UID]}
    assert denied(review) is Problem.FORBIDDEN
    held.user = "admin"
    assert denied(review) is Problem.FORBIDDEN


def test_an_api_server_that_fails_is_no_denial(api: tuple[Api, TokenReview]) -> None:
    held, review = api
    for held.status in (500, 429, 403):
        assert denied(review) is Problem.UNAVAILABLE
    down = client.Configuration(host="http://127.0.0.1:1")
    down.retries = False
    assert denied(TokenReview(client.ApiClient(down))) is Problem.UNAVAILABLE


def test_results_are_cached_by_hash_and_expire(api: tuple[Api, TokenReview]) -> None:
    held, review = api
    now = 0.0
    cached = Cached(review, lambda: now)
    for _ in range(3):
        assert cached.identify("good").namespace == "team-a"
        with pytest.raises(Rejected):
            cached.identify("bad")
    reviews = [path for path, _ in held.asked if path.endswith("tokenreviews")]
    assert len(reviews) == 2
    assert b"good" not in repr(cached._known).encode()
    now = DENIED_SECONDS + 1
    with pytest.raises(Rejected):
        cached.identify("bad")
    cached.identify("good")
    assert len([path for path, _ in held.asked if path.endswith("tokenreviews")]) == 3
    now = 61.0
    held.status = 500  # nothing is believed longer because the API server is away
    with pytest.raises(Rejected):
        cached.identify("good")


def reviews(held: Api) -> int:
    return sum(path.endswith("tokenreviews") for path, _ in held.asked)


def test_tokens_that_are_made_up_are_asked_about_so_often(api: tuple[Api, TokenReview]) -> None:
    """A thousand of them were a thousand questions to the API server, and pushed out who is
    known."""
    held, review = api
    now = 0.0
    cached = Cached(review, lambda: now)
    cached.identify("good", "10.0.0.1")
    problems = set()
    for number in range(1000):
        with pytest.raises(Rejected) as caught:
            cached.identify(f"made-up-{number}", "10.0.0.9")
        problems.add(caught.value.problem)
    assert problems == {Problem.UNAUTHORIZED, Problem.RATE_LIMITED}
    assert reviews(held) == 1 + DENIALS.burst
    assert cached.remembered("good") is not None
    with pytest.raises(Rejected) as caught:
        cached.identify("made-up", "10.0.0.8")
    assert caught.value.problem is Problem.UNAUTHORIZED, "another address is nobody's fault"


def test_denials_push_no_identity_out(
    api: tuple[Api, TokenReview], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, review = api
    monkeypatch.setattr(identity, "MOST_TOKENS", 3)
    cached = Cached(review)
    cached.identify("good")
    for number in range(9):
        with pytest.raises(Rejected):
            cached.identify(f"made-up-{number}")
    assert cached.remembered("good") is not None


def test_who_is_known_pays_nothing(api: tuple[Api, TokenReview]) -> None:
    """Tokens are renewed, and a node's pods may have one address."""
    held, review = api
    now = 0.0
    cached = Cached(review, lambda: now)
    for _ in range(100):
        cached.identify("good", "10.0.0.1")
        now += 61.0 if now < 3000 else 0.0
    assert reviews(held) > 2 * DENIALS.burst


@pytest.mark.parametrize(
    ("resources", "cores"),
    [
        ({"limits": {"cpu": "1Ki"}}, 1024.0),
        ({"limits": {"cpu": "1e1"}}, 10.0),
        ({"limits": {"cpu": "250000u"}}, 0.25),
        ({"limits": {"cpu": "64"}, "requests": {"cpu": "500m"}}, 0.5),
    ],
)
def test_cores_are_those_that_the_scheduler_has_kept(
    api: tuple[Api, TokenReview], resources: dict[str, Any], cores: float
) -> None:
    """`1Ki` failed as 500, and a limit that no node has counted in full."""
    held, review = api
    held.pod["spec"]["containers"] = [{"name": "a", "resources": resources}]
    assert review.identify("good").devices == pytest.approx(cores)


def test_a_shared_token_is_one_namespace() -> None:
    local = Identity("local", "local", "", 4.0, "cpu")
    shared = SharedToken("a" * 32, local)
    assert shared.identify("a" * 32) == local
    for wrong in ("", "a" * 31, "a" * 33, "b" * 32):
        with pytest.raises(Rejected):
            shared.identify(wrong)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h100"),
        ("NVIDIA-A100-SXM4-40GB", "a100"),
        ("Tesla-V100-SXM2-16GB", "v100"),
        ("NVIDIA-L40S", "l40s"),
        ("NVIDIA-L4", "l4"),
        ("NVIDIA-A10", "a10"),
        ("Someone's own GPU", "other"),
        ("", "other"),
    ],
)
def test_products_are_a_closed_list(label: str, expected: str) -> None:
    assert product(label) == expected
