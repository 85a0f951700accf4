"""What is known, by uid: which pods belong to which workload, and what the gateway says of them.

Kept up to date by watches, one change at a time; asked for one job at a time. A relation is looked
up when it is needed, so the order in which objects come to be known does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stitch_operator.reconciler.pods import Namespace, Owner, Pod, Workload
from stitch_operator.reconciler.records import WorkloadReference
from stitch_operator.reconciler.status import Replica
from stitch_operator.reports import Workload as Row

CRON_JOB = "CronJob"
DEPTH = 8
"""Of owners above a pod; more is a loop."""
CREATED_SECONDS = 1.0
"""Times of the API server are whole seconds."""


@dataclass(frozen=True)
class Top:
    """The workload that a StitchedJob tells of."""

    reference: WorkloadReference
    namespace: str
    asked: bool


@dataclass
class Family:
    """`watched` says whether objects of a (group, kind) would be known: one that is not is no
    more."""

    watched: Callable[[str, str], bool]
    pods: dict[str, Pod] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    namespaces: dict[str, Namespace] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    _children: dict[str, set[str]] = field(default_factory=dict)
    _rows_of: dict[str, set[str]] = field(default_factory=dict)

    # Changes

    def put_pod(self, before: Pod | None, after: Pod | None) -> None:
        self._part(before)
        if before is not None:
            self.pods.pop(before.uid, None)
        if after is not None:
            self.pods[after.uid] = after
            self._join(after)

    def put_workload(self, before: Workload | None, after: Workload | None) -> None:
        self._part(before)
        if before is not None:
            self.workloads.pop(before.uid, None)
        if after is not None:
            self.workloads[after.uid] = after
            self._join(after)

    def put_row(self, row: Row) -> None:
        self.rows[row.pod] = row
        if row.controller:
            self._rows_of.setdefault(row.controller, set()).add(row.pod)

    def forget_rows(self, before: float) -> int:
        """Rows that were silent since then, of pods and controllers that are no more."""
        gone = [
            row
            for row in self.rows.values()
            if row.contact < before
            and row.pod not in self.pods
            and row.controller not in self.workloads
        ]
        for row in gone:
            del self.rows[row.pod]
            of = self._rows_of.get(row.controller, set())
            of.discard(row.pod)
            if not of:
                self._rows_of.pop(row.controller, None)
        return len(gone)

    def _join(self, one: Pod | Workload) -> None:
        if one.owner is not None:
            self._children.setdefault(one.owner.uid, set()).add(one.uid)

    def _part(self, one: Pod | Workload | None) -> None:
        if one is None or one.owner is None:
            return
        of = self._children.get(one.owner.uid, set())
        of.discard(one.uid)
        if not of:
            self._children.pop(one.owner.uid, None)

    # Questions

    def top(self, uid: str) -> Top | None:
        """The topmost workload above or at `uid` that asked itself; where none did, the topmost.
        None for what is not known, or is to go with a workload that is no more."""
        chain = self._chain(uid)
        if not chain:
            return None
        asked = [one for one in chain if one.asked]
        return (asked or chain)[-1]

    def _chain(self, uid: str) -> list[Top]:
        """From the first workload upwards. A CronJob is not one: its Jobs are."""
        pod = self.pods.get(uid)
        one: Pod | Workload | None = pod or self.workloads.get(uid)
        if one is None or self._is_cron_job(one):
            return []
        bare = pod is not None and pod.owner is None
        made = [self._as_top(one)] if pod is None or bare else []
        for _ in range(DEPTH):
            owner = one.owner if one is not None else None
            if owner is None or owner.kind == CRON_JOB:
                return made
            one = self.workloads.get(owner.uid)
            if one is None:
                if self.watched(_group(owner.api_version), owner.kind):
                    return []
                namespace = made[-1].namespace if made else (pod.namespace if pod else "")
                return [*made, Top(_reference(owner), namespace, False)]
            made.append(self._as_top(one))
        return made

    @staticmethod
    def _is_cron_job(one: Pod | Workload) -> bool:
        return isinstance(one, Workload) and one.kind == CRON_JOB

    @staticmethod
    def _as_top(one: Pod | Workload) -> Top:
        if isinstance(one, Pod):
            reference = WorkloadReference(api_version="v1", kind="Pod", name=one.name, uid=one.uid)
        else:
            reference = WorkloadReference(
                api_version=one.api_version, kind=one.kind, name=one.name, uid=one.uid
            )
        return Top(reference, one.namespace, bool(one.asked))

    def replicas(self, top: Top) -> list[Replica]:
        """The pods of a job that asked, whether or not they were injected."""
        uid = top.reference.uid
        return [
            Replica(pod, self.rows.get(pod.uid))
            for pod in self._pods_below(uid, DEPTH)
            if self._is_of(pod, uid) and self.counts(pod)
        ]

    def gone(self, top: Top) -> list[Row]:
        """Rows of the job's pods that are no more."""
        uid = top.reference.uid
        below = {uid, *self._uids_below(uid, DEPTH)}
        return [
            self.rows[pod]
            for one in sorted(below)
            for pod in sorted(self._rows_of.get(one, ()))
            if pod not in self.pods
        ]

    def counts(self, pod: Pod) -> bool:
        """Whether a pod is of ours: the webhook had it, or should have."""
        return pod.reviewed or self.asked(pod)

    def asked(self, pod: Pod) -> bool:
        """By the rules of the webhook: its own word, its workload's, its namespace's."""
        if pod.asked is not None:
            return pod.asked
        owner = pod.owner
        for _ in range(DEPTH):
            one = self.workloads.get(owner.uid) if owner is not None else None
            if one is None:
                break
            if one.asked is not None:
                return one.asked
            owner = one.owner
        namespace = self.namespaces.get(pod.namespace)
        since = namespace.since if namespace is not None else None
        return since is not None and pod.created > since + CREATED_SECONDS

    def _is_of(self, pod: Pod, uid: str) -> bool:
        top = self.top(pod.uid)
        return top is not None and top.reference.uid == uid

    def _pods_below(self, uid: str, depth: int) -> Iterator[Pod]:
        own = self.pods.get(uid)
        if own is not None:
            yield own
        for one in self._uids_below(uid, depth):
            if one in self.pods:
                yield self.pods[one]

    def _uids_below(self, uid: str, depth: int) -> Iterator[str]:
        for one in self._children.get(uid, ()) if depth else ():
            yield one
            yield from self._uids_below(one, depth - 1)


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _reference(owner: Owner) -> WorkloadReference:
    return WorkloadReference(
        api_version=owner.api_version, kind=owner.kind, name=owner.name, uid=owner.uid
    )
