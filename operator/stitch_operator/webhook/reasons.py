"""Why a pod that asked for it is left as it is: a closed list, each with what a user can do.

A pod is never refused. The reason stands in its annotation `stitchcore.io/skipped`, in the answer's
warning and in the metrics; docs/kubernetes.md has the table, which a test compares with this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Remedy:
    """`why` the pod is left as it is, and what to do."""

    why: str
    mend: str


class Reason(Enum):
    """Closed list. The name in lower case is what annotations and metrics show."""

    AMBIGUOUS_CONTAINER = Remedy(
        "it has several containers, and nothing says which one trains",
        "name it: annotation stitchcore.io/container-names",
    )
    ARCHITECTURE = Remedy(
        "it can only run on nodes of an architecture that the runtime is not built for",
        "amd64 is; use a node of it",
    )
    BAD_ANNOTATION = Remedy(
        "an annotation or label of stitchcore.io has a value that means nothing",
        "optimize: true or false; mode: off, dryRun, observe or optimize",
    )
    BREAKER_OPEN = Remedy(
        "an earlier pod of the namespace could not start because of the runtime's image",
        "make the image pullable there; the breaker then closes by itself",
    )
    DEVICE_NOT_TARGETED = Remedy(
        "the policy's `targets` do not hold the pod's kind of device",
        "change the StitchPolicy, or leave it",
    )
    EPHEMERAL_STORAGE = Remedy(
        "its limit of ephemeral-storage leaves no room for the runtime and its cache",
        "raise the limit to at least five times the runtime's size",
    )
    FAILED_BEFORE_START = Remedy(
        "an injected pod of this workload failed before its first timed step",
        "see that pod's log; an image's own PYTHONPATH: annotation stitchcore.io/pythonpath",
    )
    HOST_NETWORK = Remedy(
        "it cannot resolve the cluster's names, and the release has no address of the gateway",
        "set gatewayAddress, or dnsPolicy: ClusterFirstWithHostNet",
    )
    INTERNAL = Remedy(
        "the webhook failed at this pod",
        "this is a bug of the webhook: its log says more",
    )
    LIMIT_RANGE = Remedy(
        "a LimitRange asks more of the init container than the pod itself requests",
        "raise the pod's requests to the LimitRange's minimum",
    )
    MIRROR_POD = Remedy(
        "the kubelet made it from a file",
        "start it through the API server",
    )
    MODE_ABOVE_POLICY = Remedy(
        "its container sets STITCH_MODE above what policy and annotations allow, or from a source",
        "remove STITCH_MODE from the container's env",
    )
    NAME_CONFLICT = Remedy(
        "it has a volume or container of a name that is ours, and was not injected",
        "rename what is called stitchcore-...",
    )
    NOT_READY = Remedy(
        "the webhook has not read the policies, or whom pods trust, yet",
        "create the pod again later",
    )
    PATH_CONFLICT = Remedy(
        "its container mounts something at or under /stitchcore",
        "mount it elsewhere",
    )
    POLICY_OFF = Remedy(
        "the StitchPolicy that applies, or an annotation, says off",
        "change maxMode of the policy, or the annotation stitchcore.io/mode",
    )
    PYTHONPATH_FROM_SOURCE = Remedy(
        "PYTHONPATH comes from a ConfigMap, Secret or field, which admission cannot read",
        "set it by `value`, or leave it out and use annotation stitchcore.io/pythonpath",
    )
    PYTHONPATH_UNKNOWN = Remedy(
        "envFrom may bring a PYTHONPATH, which ours would replace",
        'say what it is: annotation stitchcore.io/pythonpath, "" for none',
    )
    RELEASE_POD = Remedy(
        "it is of stitchcore's own release",
        "nothing",
    )
    RESOURCES_TOO_SMALL = Remedy(
        "its limits are too small for the init container to start within",
        "give it 10m of CPU and 16Mi of memory or more",
    )
    UNKNOWN_CONTAINER = Remedy(
        "annotation stitchcore.io/container-names names a container that it does not have",
        "correct the annotation",
    )
    WINDOWS = Remedy(
        "it runs on Windows",
        "use a Linux image",
    )

    @property
    def word(self) -> str:
        return self.name.lower()


class Skip(Exception):
    """Ends a decision: the pod stays as it is. `detail` says what of this pod."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason.word, detail)
        self.reason = reason
        self.detail = detail

    @property
    def text(self) -> str:
        """One line for a person: what, why and what to do."""
        about = f" ({self.detail})" if self.detail else ""
        remedy = self.reason.value
        return f"stitchcore: {self.reason.word}: {remedy.why}{about}; to mend it: {remedy.mend}"
