"""What the store's account may do, kept beside the call it makes (store/accounts.py)."""

from __future__ import annotations

from stitch_operator.objects import Object, account
from stitch_operator.webhook.release import Release


def roles(release: Release) -> list[Object]:
    """Ask whose a token is."""
    reviews = {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["tokenreviews"],
        "verbs": ["create"],
    }
    return account(release, "store", [reviews])
