"""What is put into a pod: an init container that delivers the runtime, volumes, mounts, variables.

Each piece is a plain function of the release's settings and the pod, and satisfies the Pod Security
standard `restricted` by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from stitch_operator import names, quantity
from stitch_operator.webhook.environment import STITCH_MODE
from stitch_operator.webhook.placement import resolves
from stitch_operator.webhook.policy import PolicySpec
from stitch_operator.webhook.release import Release

FOLDER = "/stitchcore"
RUNTIME, CACHE, IDENTITY = (f"{FOLDER}/{name}" for name in ("runtime", "cache", "identity"))
BOOTSTRAP = f"{RUNTIME}/inject/bootstrap"
INIT_CONTAINER = "stitchcore-runtime"
RUNTIME_VOLUME, CACHE_VOLUME, IDENTITY_VOLUME = (
    f"stitchcore-{name}" for name in ("runtime", "cache", "identity")
)
VOLUMES = (RUNTIME_VOLUME, CACHE_VOLUME, IDENTITY_VOLUME)
DELIVER = ["/deliver", RUNTIME]
"""Of the runtime's image: copies it into a folder and ends with code 0 whatever happens."""
TOKEN_SECONDS = 3600
USER = 65532
UID_RANGE = "openshift.io/sa.scc.uid-range"
"""Annotation of namespaces whose cluster itself chooses the user, and refuses others."""

Piece = dict[str, Any]


def init_container(
    release: Release, pod: Mapping[str, Any], namespace: Mapping[str, str], resources: Piece
) -> Piece:
    """`namespace` are the annotations of the pod's."""
    made: Piece = {
        "name": INIT_CONTAINER,
        "image": release.image,
        "imagePullPolicy": release.image_pull_policy,
        "command": list(DELIVER),
        "securityContext": _security(pod, namespace),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": RUNTIME_VOLUME, "mountPath": RUNTIME}],
    }
    if resources:
        made["resources"] = resources
    return made


def _security(pod: Mapping[str, Any], namespace: Mapping[str, str]) -> Piece:
    made: Piece = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    of_pod = (pod.get("spec") or {}).get("securityContext") or {}
    if not of_pod.get("runAsUser") and UID_RANGE not in namespace:
        made |= {"runAsUser": USER, "runAsGroup": USER}
    return made


def volumes(release: Release, runtime_size: str, cache_size: str) -> list[Piece]:
    image = {"reference": release.image, "pullPolicy": release.image_pull_policy}
    runtime: Piece = {"emptyDir": {"sizeLimit": runtime_size}}
    if release.delivery == "imageVolume":
        runtime = {"image": image}
    token = {"audience": names.AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    authority = {
        "path": "ca.pem",
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": f"metadata.annotations['{names.GATEWAY_CA}']",
        },
    }
    sources = [{"serviceAccountToken": token}, {"downwardAPI": {"items": [authority]}}]
    return [
        {"name": RUNTIME_VOLUME, **runtime},
        {"name": CACHE_VOLUME, "emptyDir": {"sizeLimit": cache_size}},
        {"name": IDENTITY_VOLUME, "projected": {"defaultMode": 0o644, "sources": sources}},
    ]


def mounts(release: Release) -> list[Piece]:
    """In the containers that train. An image volume holds the runtime beside the program."""
    runtime: Piece = {"name": RUNTIME_VOLUME, "mountPath": RUNTIME, "readOnly": True}
    if release.delivery == "imageVolume":
        runtime["subPath"] = "runtime"
    return [
        runtime,
        {"name": CACHE_VOLUME, "mountPath": CACHE},
        {"name": IDENTITY_VOLUME, "mountPath": IDENTITY, "readOnly": True},
    ]


def variables(
    release: Release,
    public_keys: Sequence[str],
    pod: Mapping[str, Any],
    policy: PolicySpec,
    mode: str,
    cache_size: str,
) -> dict[str, str]:
    """The job side's settings (stitchcore/inject/settings.py)."""
    made = {
        "STITCH_GATEWAY": release.gateway_url,
        "STITCH_CA": f"{IDENTITY}/ca.pem",
        "STITCH_TOKEN_FILE": f"{IDENTITY}/token",
        "STITCH_PUBLIC_KEYS": ",".join(public_keys),
        STITCH_MODE: mode,
        "STITCH_CACHE_LIMIT": str(int(quantity.parse(cache_size))),
    }
    if not resolves(pod):
        made["STITCH_GATEWAY"] = f"https://{release.gateway_address}"
        made["STITCH_SERVER_NAME"] = release.server_name
    if policy.baseline_steps is not None:
        made["STITCH_BASELINE"] = str(policy.baseline_steps)
    if policy.canary_share is not None:
        made["STITCH_CONTROL"] = f"{policy.canary_share:g}"
    if policy.guard_ratio is not None:
        made["STITCH_GUARD"] = f"{policy.guard_ratio:g}"
    if policy.allow_unmeasured:
        made["STITCH_ALLOW_UNMEASURED"] = "1"
    return made


def fingerprint(release: Release, authorities: str, made: object) -> str:
    """Version and hash of what is injected, so that it can be told which pods have the present."""
    text = json.dumps([made, authorities], sort_keys=True, separators=(",", ":"))
    return f"{release.version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
