"""What the store's account may do, kept beside the call it makes (store/accounts.py)."""

from __future__ import annotations

from typing import Any

from stitch_operator import names
from stitch_operator.webhook.release import Release

Object = dict[str, Any]


def roles(release: Release) -> list[Object]:
    """Ask whose a token is."""
    labels = {names.PART_OF: names.PRODUCT, "app.kubernetes.io/instance": release.name}
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": f"{release.name}-store", "labels": labels},
            "rules": [
                {
                    "apiGroups": ["authentication.k8s.io"],
                    "resources": ["tokenreviews"],
                    "verbs": ["create"],
                }
            ],
        }
    ]
