"""What the gateway's account may do, kept beside the calls it makes (gateway/tokenreview.py)."""

from __future__ import annotations

from typing import Any

from stitch_operator import names
from stitch_operator.webhook.release import Release

Object = dict[str, Any]


def roles(release: Release) -> list[Object]:
    """Ask whose a token is, and look at the pod it was made for and that pod's node."""
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {
                "name": f"{release.name}-gateway",
                "labels": {
                    names.PART_OF: names.PRODUCT,
                    "app.kubernetes.io/instance": release.name,
                },
            },
            "rules": [
                {
                    "apiGroups": ["authentication.k8s.io"],
                    "resources": ["tokenreviews"],
                    "verbs": ["create"],
                },
                {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get"]},
            ],
        }
    ]
