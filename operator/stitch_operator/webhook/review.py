"""AdmissionReview v1: what the API server asks and is answered. Every answer allows.

Objects stay plain JSON: fields that this release has never heard of pass through untouched.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from stitch_operator.webhook.patch import Operation

API = "admission.k8s.io/v1"
WARNING_LENGTH = 256
"""Of one warning, beyond which the API server cuts all of them."""


class Kind(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class Asked(msgspec.Struct, frozen=True, rename="camel"):
    """The request of a review."""

    uid: str
    kind: Kind
    operation: str
    object: dict[str, Any]
    namespace: str = ""
    dry_run: bool | None = None


class Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    request: Asked


def read(body: bytes) -> Asked:
    """The request in a body. Raises ValueError for what is no AdmissionReview v1 with an object."""
    try:
        review = msgspec.json.decode(body, type=Review)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not an AdmissionReview: {error}") from error
    if review.kind != "AdmissionReview" or review.api_version != API:
        raise ValueError(f"{review.api_version} {review.kind} is not {API} AdmissionReview")
    return review.request


def answer(
    uid: str, operations: Sequence[Operation] = (), warning: str = "", outcome: str = ""
) -> bytes:
    """An answer that allows, and applies `operations`. `outcome` stands in the audit log."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if operations:
        encoded = base64.b64encode(msgspec.json.encode(list(operations))).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    if warning:
        response["warnings"] = [warning[:WARNING_LENGTH]]
    if outcome:
        response["auditAnnotations"] = {"outcome": outcome}
    return msgspec.json.encode({"apiVersion": API, "kind": "AdmissionReview", "response": response})
