"""Names that webhook, gateway and reconciler share, as Kubernetes shows them.

One place, so that what the webhook writes on a pod is what the others read there.
"""

from __future__ import annotations

import re

GROUP, VERSION = "stitchcore.io", "v1alpha1"
"""Of our kinds."""

AUDIENCE = "gateway.stitchcore.io"
"""Of the tokens that pods send to the gateway."""

STORE_AUDIENCE = "store.stitchcore.io"
"""Of the tokens that the release's own programs send to the store."""

OPTIMIZE = "stitchcore.io/optimize"
MODE = "stitchcore.io/mode"
CONTAINERS = "stitchcore.io/container-names"
PYTHON_PATH = "stitchcore.io/pythonpath"
WORKLOAD = "stitchcore.io/workload"
"""Annotation the webhook writes: the root owner's name without its run's suffix."""
ASKED = (OPTIMIZE, MODE, CONTAINERS, PYTHON_PATH)
"""What users write, on a workload, a pod template or a pod."""

INJECTED = "stitchcore.io/injected"
SKIPPED = "stitchcore.io/skipped"
LEFT_OUT = "stitchcore.io/skipped-containers"
WOULD_INJECT = "stitchcore.io/would-inject"
GATEWAY_CA = "stitchcore.io/gateway-ca"

PART_OF = "app.kubernetes.io/part-of"
PRODUCT = "stitchcore"
MANAGER = "stitchcore.io/webhook"
"""How the webhook signs what it adds where an API keeps changes apart by manager."""

AUTHORITIES, PUBLIC_KEYS = "ca.pem", "public-keys"
"""Keys of that ConfigMap: certificates in PEM, and public keys, a line each."""

RUN_SUFFIX = re.compile(r"-[0-9]{8,}$")


def trust_name(release: str) -> str:
    """Of the ConfigMap that says whom pods trust: the reconciler writes, the webhook reads it."""
    return f"{release}-trust"


def without_run(name: str) -> str:
    """A workload's name without what tells its runs apart: a CronJob's time, a last dash."""
    return RUN_SUFFIX.sub("", name.rstrip("-"))
