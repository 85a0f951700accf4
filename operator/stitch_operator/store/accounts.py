"""Whose token it is: a service account of the release, by TokenReview.

Tokens are projected ones for the store's own audience, so a token that a job sends to the gateway
is worth nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.names import STORE_AUDIENCE

SECONDS = 5.0
PREFIX = "system:serviceaccount:"


class Accounts:
    """Role by token. `roles` maps NAMESPACE/NAME of service accounts to roles. Blocking."""

    def __init__(self, api: client.ApiClient, roles: Mapping[str, str]) -> None:
        self._reviews = client.AuthenticationV1Api(api)
        self._roles = {f"{PREFIX}{name.replace('/', ':')}": role for name, role in roles.items()}

    def identify(self, token: str) -> str:
        """Raises Rejected."""
        spec = client.V1TokenReviewSpec(token=token, audiences=[STORE_AUDIENCE])
        try:
            status = self._reviews.create_token_review(
                client.V1TokenReview(spec=spec), _request_timeout=SECONDS
            ).status
        except (ApiException, HTTPError, OSError) as error:
            what = f"the API server cannot be asked: {type(error).__name__}"
            raise Rejected(Problem.UNAVAILABLE, what) from error
        if status is None or not status.authenticated:
            raise Rejected(Problem.UNAUTHORIZED, "the API server does not accept the token")
        if STORE_AUDIENCE not in (status.audiences or ()):
            raise Rejected(Problem.UNAUTHORIZED, f"the token is not for {STORE_AUDIENCE}")
        role = self._roles.get(str(status.user.username or ""))
        if role is None:
            raise Rejected(Problem.FORBIDDEN, "this account has no part in the store")
        return role
