"""Surroundings in a cluster: watches of what decides about pods, and nothing else (no Secrets).

Policies, namespaces, LimitRanges, CronJobs (their annotations of ours alone), and the ConfigMaps in
which the reconciler keeps what must not be injected for now, and whom pods trust.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubernetes import client

from stitch_operator.names import ASKED, trust_name
from stitch_operator.watch import Watched, WatchGroup, config_map, custom
from stitch_operator.webhook import policy, resources, trust
from stitch_operator.webhook.policy import Namespace, Policy
from stitch_operator.webhook.resources import Range
from stitch_operator.webhook.trust import Trust

PLURAL = "stitchpolicies"
IMAGES, WORKLOADS = "images", "workloads"
Breakers = Mapping[str, frozenset[tuple[str, str]]]


def breakers_name(release: str) -> str:
    """Of the ConfigMap: `images` and `workloads`, each line a namespace and a name."""
    return f"{release}-breakers"


class Cluster(WatchGroup):
    """Surroundings as the API server shows them."""

    def __init__(
        self, api: client.ApiClient, name: str, namespace: str, failed: Callable[[str], None]
    ) -> None:
        """`name` and `namespace` are the release's; `failed` counts a watch's error."""
        core, batch = client.CoreV1Api(api), client.BatchV1Api(api)
        policies = custom(client.CustomObjectsApi(api), PLURAL)
        cron_jobs = batch.list_cron_job_for_all_namespaces
        limits = core.list_limit_range_for_all_namespaces
        self._policies = Watched(PLURAL, policies, policy.decode, failed)
        self._namespaces = Watched("namespaces", core.list_namespace, namespace_of, failed)
        self._limits = Watched("limitranges", limits, resources.ranges, failed)
        self._cron_jobs = Watched("cronjobs", cron_jobs, asked_of, failed)
        breakers = config_map(core, namespace, breakers_name(name))
        trusted = config_map(core, namespace, trust_name(name))
        self._breakers = Watched("configmaps", breakers, breakers_of, failed)
        self._trust = Watched("configmaps", trusted, trust.decode, failed)
        self._trusted: Trust | None = None
        super().__init__(
            [self._policies, self._namespaces, self._limits, self._cron_jobs, self._breakers,
             self._trust]
        )  # fmt: skip

    def trust(self) -> Trust | None:
        """One that was deleted stays until there is another: the reconciler makes it again."""
        self._trusted = next(iter(self._trust.values()), self._trusted)
        return self._trusted

    def namespace(self, name: str) -> Namespace:
        return self._namespaces.get("", name) or Namespace(name)

    def policies(self) -> Sequence[Policy]:
        return self._policies.values()

    def limit_ranges(self, namespace: str) -> Sequence[Range]:
        return [line for lines in self._limits.of(namespace) for line in lines]

    def cron_job(self, namespace: str, name: str) -> Mapping[str, str]:
        return self._cron_jobs.get(namespace, name) or {}

    def broken(self, namespace: str) -> frozenset[str]:
        return self._listed(IMAGES, namespace)

    def failed(self, namespace: str) -> frozenset[str]:
        return self._listed(WORKLOADS, namespace)

    def _listed(self, kind: str, namespace: str) -> frozenset[str]:
        held = [lines for one in self._breakers.values() for lines in one.get(kind, ())]
        return frozenset(name for where, name in held if where == namespace)


def namespace_of(document: Mapping[str, Any]) -> Namespace:
    """What of a namespace decides about its pods."""
    name = str(document["metadata"]["name"])
    return Namespace(name, policy.texts(document, "labels"), policy.texts(document, "annotations"))


def asked_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Of an object's annotations those that ask something of us; a cluster may have thousands."""
    annotations = policy.texts(document, "annotations")
    return {name: annotations[name] for name in ASKED if name in annotations}


def breakers_of(document: Mapping[str, Any]) -> Breakers:
    """(namespace, name) of every line, by the ConfigMap's keys."""
    made = {}
    for kind, text in (document.get("data") or {}).items():
        lines = (line.split() for line in str(text).splitlines())
        made[kind] = frozenset((line[0], line[1]) for line in lines if len(line) == 2)
    return made
