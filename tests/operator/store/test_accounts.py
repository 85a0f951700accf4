"""Whose token it is, by an API server that speaks its HTTP: nobody's but an account's of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.names import STORE_AUDIENCE
from stitch_operator.store.accounts import Accounts
from tests.operator.webhook import handmade_api
from tests.operator.webhook.handmade_api import Api

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ROLES = {"stitch/stitch-worker": "worker", "stitch/stitch-signer": "signer"}


def says(user: str, audiences: list[str] | None = None, known: bool = True) -> dict[str, Any]:
    account = {"username": user}
    held = [STORE_AUDIENCE] if audiences is None else audiences
    return {REVIEWS: {"status": {"authenticated": known, "user": account, "audiences": held}}}


@pytest.fixture
def api() -> Iterator[Api]:
    with handmade_api.serve() as found:
        yield found


def accounts(api: Api) -> Accounts:
    configuration = client.Configuration(host=api.url)
    configuration.retries = False
    return Accounts(client.ApiClient(configuration), ROLES)


def test_an_account_has_the_role_that_it_was_given(api: Api) -> None:
    for name, role in ROLES.items():
        api.replies = says(f"system:serviceaccount:{name.replace('/', ':')}")
        assert accounts(api).identify("its-token") == role
    assert all(call.body["spec"]["token"] == "its-token" for call in api.writes)
    assert all(call.body["spec"]["audiences"] == [STORE_AUDIENCE] for call in api.writes)


WORKER = "system:serviceaccount:stitch:stitch-worker"


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (says(WORKER, known=False), Problem.UNAUTHORIZED),
        (says(WORKER, ["gateway.stitchcore.io"]), Problem.UNAUTHORIZED),
        (says(WORKER, []), Problem.UNAUTHORIZED),
        (says("system:serviceaccount:other:stitch-worker"), Problem.FORBIDDEN),
        (says("system:serviceaccount:stitch:stitch-webhook"), Problem.FORBIDDEN),
        (says("stitch-worker"), Problem.FORBIDDEN),
    ],
    ids=["unknown", "a job's", "no audience", "namespace", "no part", "no account"],
)
def test_all_others_are_turned_away(api: Api, said: dict[str, Any], problem: Problem) -> None:
    api.replies = said
    with pytest.raises(Rejected) as caught:
        accounts(api).identify("token")
    assert caught.value.problem is problem


def test_an_api_server_that_fails_is_no_denial(api: Api) -> None:
    api.refused = {"POST": 500}
    with pytest.raises(Rejected) as caught:
        accounts(api).identify("token")
    assert caught.value.problem is Problem.UNAVAILABLE
