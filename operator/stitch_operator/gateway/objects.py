"""What the gateway's account may do, kept beside the calls it makes (gateway/tokenreview.py)."""

from __future__ import annotations

from stitch_operator.objects import Object, account
from stitch_operator.webhook.release import Release


def roles(release: Release) -> list[Object]:
    """Ask whose a token is, and look at the pod it was made for and that pod's node."""
    reviews = {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["tokenreviews"],
        "verbs": ["create"],
    }
    looked_at = {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get"]}
    return account(release, "gateway", [reviews, looked_at])
