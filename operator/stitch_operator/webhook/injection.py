"""Decides about a pod: a JSON Patch, or the reason why it stays as it is. Pure and deterministic.

The same pod, policies, trust and settings always give the same patch (Kueue hashes the pods of a
group), and a pod that has been injected gives none, or only what containers need that others have
added since (`reinvocationPolicy: IfNeeded`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stitch_operator import names
from stitch_operator.webhook import containers, environment, pieces, placement, policy, resources
from stitch_operator.webhook.patch import Operation, add, entries, extend
from stitch_operator.webhook.policy import Namespace, Policy, texts
from stitch_operator.webhook.reasons import Reason, Skip
from stitch_operator.webhook.release import Release
from stitch_operator.webhook.trust import Trust

Result = Literal["injected", "already", "skipped", "dryRun", "ignored"]
OWNER_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "volcano.sh/job-name",
)
"""Labels by which controllers name the workload above a pod's own owner."""
Pod = Mapping[str, Any]


@dataclass(frozen=True)
class Situation:
    """What is known around a pod. `broken` are runtime images that could not start in its
    namespace, `failed` its workloads that failed before their first timed step."""

    namespace: Namespace
    trust: Trust
    policies: Sequence[Policy] = ()
    limit_ranges: Sequence[resources.Range] = ()
    broken: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Decision:
    """What becomes of a pod. `ignored`: nobody asked."""

    result: Result
    operations: tuple[Operation, ...] = ()
    reason: Reason | None = None
    text: str = ""


@dataclass(frozen=True)
class _Plan:
    """What the pod's containers are given; `kept` are not injected, each for its reason."""

    mode: str
    spec: policy.PolicySpec
    containers: list[tuple[int, list[Operation]]]
    kept: Mapping[str, Skip]
    runtime_size: str
    cache_size: str


def decide(pod: Pod, situation: Situation, release: Release) -> Decision:
    """Never raises for a pod that the API server has accepted so far."""
    annotations = texts(pod, "annotations")
    try:
        if not policy.asked(pod, situation.namespace):
            return Decision("ignored")
        _check(pod, situation, release)
        applying = policy.applying(situation.policies, situation.namespace, pod)
        mode = policy.mode(applying, pod, situation.namespace)
        if mode == "off":
            raise Skip(Reason.POLICY_OFF, applying.name)
        plan = _plan(pod, situation, release, applying, mode)
        made = _operations(pod, situation, release, plan)
    except Skip as skip:
        if _injected(pod):
            return Decision("already")
        said = entries(annotations, {names.SKIPPED: skip.reason.word}, "metadata", "annotations")
        return Decision("skipped", tuple(said), skip.reason, skip.text)
    if mode == "dryRun" and not _injected(pod):
        return _would(pod, annotations, plan)
    return Decision("injected" if made else "already", tuple(made))


def owner(pod: Pod) -> str:
    """The workload of a pod without its run's suffix, as the gateway names it."""
    metadata = pod.get("metadata") or {}
    given = texts(pod, "annotations").get(names.WORKLOAD)
    labels = texts(pod, "labels")
    above = next((labels[name] for name in OWNER_LABELS if labels.get(name)), None)
    owners = [one for one in metadata.get("ownerReferences") or [] if one.get("controller")]
    own = owners[0].get("name") if owners else metadata.get("name") or metadata.get("generateName")
    return str(given or above or "") or names.without_run(str(own or ""))


def _would(pod: Pod, annotations: Mapping[str, str], plan: _Plan) -> Decision:
    present = pod["spec"]["containers"]
    said = ",".join(str(present[at]["name"]) for at, _ in plan.containers)
    wanted = {names.WOULD_INJECT: said, names.SKIPPED: None}
    return Decision("dryRun", tuple(entries(annotations, wanted, "metadata", "annotations")))


def _injected(pod: Pod) -> bool:
    """By us, in an earlier call, or in the pod that this one was copied from."""
    return names.INJECTED in texts(pod, "annotations") and any(
        volume.get("name") == pieces.RUNTIME_VOLUME for volume in pod["spec"].get("volumes") or []
    )


def _check(pod: Pod, situation: Situation, release: Release) -> None:
    """Raises Skip for what keeps the whole pod from being injected."""
    if placement.mirror(pod):
        raise Skip(Reason.MIRROR_POD)
    own = texts(pod, "labels").get(names.PART_OF) == names.PRODUCT
    if situation.namespace.name == release.namespace or own:
        raise Skip(Reason.RELEASE_POD)
    if placement.windows(pod):
        raise Skip(Reason.WINDOWS)
    if not placement.possible(pod, placement.ARCHITECTURE, release.architectures):
        raise Skip(Reason.ARCHITECTURE, ", ".join(release.architectures))
    if not placement.resolves(pod) and not release.gateway_address:
        raise Skip(Reason.HOST_NETWORK)
    if release.image in situation.broken:
        raise Skip(Reason.BREAKER_OPEN, release.image)
    if owner(pod) in situation.failed:
        raise Skip(Reason.FAILED_BEFORE_START, owner(pod))


def _plan(pod: Pod, situation: Situation, release: Release, applying: Policy, mode: str) -> _Plan:
    """Raises Skip where no container can be injected."""
    chosen = set(containers.chosen(pod))
    present = pod["spec"]["containers"]
    device = "gpu" if any(containers.devices(one) for one in present) else "cpu"
    if device not in applying.spec.targets:
        raise Skip(Reason.DEVICE_NOT_TARGETED, device)
    if not _injected(pod):
        _check_names(pod)
    sizes = resources.volume_sizes(pod, release.runtime_size, release.cache_size)
    if _injected(pod):
        sizes = _present_sizes(pod, sizes)
    annotations = texts(pod, "annotations")
    wanted = environment.Variables(
        pieces.BOOTSTRAP,
        annotations.get(names.PYTHON_PATH),
        pieces.variables(release, situation.trust.public_keys, pod, applying.spec, mode, sizes[1]),
    )
    made: list[tuple[int, list[Operation]]] = []
    kept: dict[str, Skip] = {}
    for at, container in enumerate(present):
        if container["name"] not in chosen:
            continue
        try:
            made.append((at, _of_container(container, at, wanted, release)))
        except Skip as skip:
            kept[container["name"]] = skip
    if not made:
        raise next(iter(kept.values()))
    return _Plan(mode, applying.spec, made, kept, *sizes)


def _of_container(
    container: Mapping[str, Any], at: int, wanted: environment.Variables, release: Release
) -> list[Operation]:
    mounted = container.get("volumeMounts") or []
    if any(one.get("name") == pieces.RUNTIME_VOLUME for one in mounted):
        return []  # in an earlier call
    for one in mounted:
        if f"{one.get('mountPath', '')}/".startswith(f"{pieces.FOLDER}/"):
            raise Skip(Reason.PATH_CONFLICT, str(one["mountPath"])[:100])
    steps = ("spec", "containers", at)
    return [
        *environment.operations(container, wanted, *steps),
        *extend(mounted, list(pieces.mounts(release)), *steps, "volumeMounts"),
    ]


def _check_names(pod: Pod) -> None:
    spec = pod["spec"]
    for name in _names(spec, "containers", "initContainers"):
        if name == pieces.INIT_CONTAINER:
            raise Skip(Reason.NAME_CONFLICT, f"container {name}")
    for name in _names(spec, "volumes"):
        if name in pieces.VOLUMES:
            raise Skip(Reason.NAME_CONFLICT, f"volume {name}")


def _names(spec: Mapping[str, Any], *fields: str) -> Iterator[str]:
    for name in fields:
        yield from (str(one.get("name", "")) for one in spec.get(name) or [])


def _present_sizes(pod: Pod, sizes: tuple[str, str]) -> tuple[str, str]:
    """The sizes an earlier call chose: containers added since share its volumes."""
    for volume in pod["spec"]["volumes"]:
        if volume.get("name") == pieces.CACHE_VOLUME:
            return sizes[0], str((volume.get("emptyDir") or {}).get("sizeLimit") or sizes[1])
    return sizes


def _operations(pod: Pod, situation: Situation, release: Release, plan: _Plan) -> list[Operation]:
    """The whole patch. Raises Skip where the init container does not fit."""
    spec = pod["spec"]
    of_containers = [operation for _, some in plan.containers for operation in some]
    if _injected(pod):
        return of_containers
    delivery: list[Operation] = []
    volumes = pieces.volumes(release, plan.runtime_size, plan.cache_size)
    if release.delivery == "initContainer":
        asked = resources.of_init_container(pod, release.wanted, situation.limit_ranges)
        container = pieces.init_container(release, pod, situation.namespace.annotations, asked)
        first = spec.get("initContainers")
        one = add(container, "spec", "initContainers", 0)
        delivery = [one if first else add([container], "spec", "initContainers")]
    made = [*delivery, *extend(spec.get("volumes"), volumes, "spec", "volumes"), *of_containers]
    said: dict[str, str | None] = {
        names.INJECTED: pieces.fingerprint(release, situation.trust.authorities, made),
        names.GATEWAY_CA: situation.trust.authorities,
        names.WORKLOAD: texts(pod, "annotations").get(names.WORKLOAD) or owner(pod),
        names.LEFT_OUT: ",".join(f"{n}={s.reason.word}" for n, s in plan.kept.items()) or None,
        names.SKIPPED: None,
        names.WOULD_INJECT: None,
    }
    return [*made, *entries(texts(pod, "annotations"), said, "metadata", "annotations")]
