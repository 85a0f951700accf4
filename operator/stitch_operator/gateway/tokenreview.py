"""Identities in a cluster: TokenReview for the token, then the pod it was made for.

The token must be a projected one for our audience, bound to a pod: its claims name the pod, and the
pod as the API server shows it says the rest. Blocking calls; the caller runs them in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from stitch_operator.gateway.identity import Identity, product
from stitch_operator.gateway.problems import Problem, Rejected
from stitch_operator.names import AUDIENCE, WORKLOAD, without_run
from stitch_operator.quantity import parse

POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
PRODUCT = "nvidia.com/gpu.product"
GPU = "nvidia.com/gpu"
MIG = re.compile(r"^nvidia\.com/mig-([0-9]+)g\.")
OF_PRODUCT = re.compile(r"-MIG-([0-9]+)g\.")
"""Where a node's every GPU is cut alike, `nvidia.com/gpu` counts slices and the product names one
(the device plugin's MIG strategy `single`)."""
REPLICAS, SHARED = "nvidia.com/gpu.replicas", "-SHARED"
"""How many pods a GPU of the node is shared by; what its product's name then ends with."""
SLICES = 7
"""MIG profiles count sevenths of a GPU's SMs."""
USER = re.compile(r"^system:serviceaccount:([^:]+):([^:]+)$")
SECONDS = 5.0


class TokenReview:
    """An Authenticator that asks the API server."""

    def __init__(self, api: client.ApiClient) -> None:
        self._reviews = client.AuthenticationV1Api(api)
        self._core = client.CoreV1Api(api)

    def identify(self, token: str) -> Identity:
        try:
            namespace, account, name, uid = self._claims(token)
            pod = self._core.read_namespaced_pod(name, namespace, _request_timeout=SECONDS)
            if pod.metadata.uid != uid:
                raise Rejected(Problem.FORBIDDEN, f"pod {name} is not the token's pod any more")
            found = identity_of(pod, self._labels(pod.spec.node_name))
            return replace(found, account=account)
        except ApiException as error:
            if error.status == 404:
                raise Rejected(Problem.FORBIDDEN, "the token's pod does not exist") from error
            what = f"the API server answers {error.status} {error.reason}"
            raise Rejected(Problem.UNAVAILABLE, what) from error
        except (HTTPError, OSError) as error:
            what = f"the API server cannot be asked: {type(error).__name__}"
            raise Rejected(Problem.UNAVAILABLE, what) from error

    def _claims(self, token: str) -> tuple[str, str, str, str]:
        spec = client.V1TokenReviewSpec(token=token, audiences=[AUDIENCE])
        review = self._reviews.create_token_review(
            client.V1TokenReview(spec=spec), _request_timeout=SECONDS
        )
        status = review.status
        if status is None or not status.authenticated:
            raise Rejected(Problem.UNAUTHORIZED, "the API server does not accept the token")
        if AUDIENCE not in (status.audiences or ()):
            raise Rejected(Problem.UNAUTHORIZED, f"the token is not for {AUDIENCE}")
        user = USER.match(status.user.username or "")
        extra = status.user.extra or {}
        name, uid = _only(extra, POD_NAME), _only(extra, POD_UID)
        if user is None or not name or not uid:
            raise Rejected(Problem.FORBIDDEN, "the token is not a pod's projected token")
        return user[1], user[2], name, uid

    def _labels(self, node: str | None) -> Mapping[str, str]:
        if not node:
            return {}
        labels = self._core.read_node(node, _request_timeout=SECONDS).metadata.labels
        return dict(labels or {})


def identity_of(pod: Any, node_labels: Mapping[str, str]) -> Identity:
    """What a pod (V1Pod) says of itself and its devices."""
    containers = pod.spec.containers
    asked = sum(_gpus(_limits(container)) for container in containers)
    gpus = asked * _part(node_labels)
    cores = sum(_cores(container) for container in containers)
    started, code = _container_times(pod)
    return Identity(
        namespace=pod.metadata.namespace,
        owner=_owner(pod),
        pod=pod.metadata.uid,
        devices=gpus if asked else cores or 1.0,
        gpu=product(node_labels.get(PRODUCT, "")) if asked else "cpu",
        started=started,
        last_exit_code=code,
        pod_started=_pod_time(pod),
        controller=_controller(pod),
    )


def _only(extra: Mapping[str, list[str]], name: str) -> str:
    values = extra.get(name) or []
    return values[0] if len(values) == 1 else ""


def _limits(container: Any) -> Mapping[str, str]:
    resources = container.resources
    return {} if resources is None else {**(resources.requests or {}), **(resources.limits or {})}


def _part(node_labels: Mapping[str, str]) -> float:
    """What a pod has of each GPU that it asked for by name: less than one where the node cuts its
    GPUs, or shares them over time; nothing where it shares them and does not say among how many."""
    name, replicas = node_labels.get(PRODUCT, ""), node_labels.get(REPLICAS, "")
    cut = OF_PRODUCT.search(name)
    part = int(cut[1]) / SLICES if cut else 1.0
    if replicas.isdecimal() and int(replicas) > 0:
        return part / int(replicas)
    return 0.0 if name.endswith(SHARED) else part


def _gpus(limits: Mapping[str, str]) -> float:
    """GPUs of a container; a MIG slice is its share of the SMs. Shared ones may have a name of
    their own."""
    total = parse(limits.get(GPU, 0)) + parse(limits.get(f"{GPU}.shared", 0))
    for name, count in limits.items():
        profile = MIG.match(name)
        if profile is not None:
            total += Fraction(int(profile[1]), SLICES) * parse(count)
    return float(total)


def _cores(container: Any) -> float:
    """What the scheduler has kept for it. A limit alone is a wish: it may pass what the node has;
    the API server makes a request of it where there is none."""
    resources = container.resources
    if resources is None:
        return 0.0
    return float(parse({**(resources.limits or {}), **(resources.requests or {})}.get("cpu", 0)))


def _owner(pod: Any) -> str:
    workload = (pod.metadata.annotations or {}).get(WORKLOAD)
    if workload:
        return str(workload)
    owners = [owner for owner in pod.metadata.owner_references or () if owner.controller]
    name = str(owners[0].name) if owners else str(pod.metadata.generate_name or pod.metadata.name)
    return without_run(name)


def _controller(pod: Any) -> str:
    owners = [owner for owner in pod.metadata.owner_references or () if owner.controller]
    return str(owners[0].uid) if owners else ""


def _pod_time(pod: Any) -> float | None:
    """When the pod began: its containers' restarts do not change it."""
    begun = pod.status.start_time if pod.status is not None else None
    return begun.timestamp() if begun is not None else None


def _container_times(pod: Any) -> tuple[float | None, int | None]:
    """When the container that has run longest began, and how a restarted one ended before."""
    statuses = (pod.status.container_statuses or ()) if pod.status is not None else ()
    begun = [
        s.state.running.started_at.timestamp() for s in statuses if s.state and s.state.running
    ]
    ended = [
        s.last_state.terminated.exit_code
        for s in statuses
        if s.last_state is not None and s.last_state.terminated is not None
    ]
    return min(begun, default=None), max(ended, default=None)
