"""What the webhook knows of the cluster, behind a protocol: a watch cache, or plain data in tests.

Nothing here asks the API server during admission: what is known is what was last seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stitch_operator.webhook.policy import Namespace, Policy
from stitch_operator.webhook.resources import Range
from stitch_operator.webhook.trust import Trust


class Surroundings(Protocol):
    """All methods answer at once, from memory."""

    def ready(self) -> bool:
        """Whether everything has been read at least once. It is served stale afterwards."""
        ...

    def trust(self) -> Trust | None:
        """Whom pods of the release trust; None as long as nobody has said."""
        ...

    def namespace(self, name: str) -> Namespace: ...
    def policies(self) -> Sequence[Policy]: ...
    def limit_ranges(self, namespace: str) -> Sequence[Range]: ...

    def cron_job(self, namespace: str, name: str) -> Mapping[str, str]:
        """Our annotations of a CronJob; {} for one that is not known."""
        ...

    def broken(self, namespace: str) -> frozenset[str]:
        """Images of the runtime that could not start there."""
        ...

    def failed(self, namespace: str) -> frozenset[str]:
        """Workloads there that failed before their first timed step while injected."""
        ...


@dataclass(frozen=True)
class Plain:
    """Surroundings that never change."""

    namespaces: Mapping[str, Namespace] = field(default_factory=dict)
    all_policies: Sequence[Policy] = ()
    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    cron_jobs: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    breakers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    failures: Mapping[str, frozenset[str]] = field(default_factory=dict)
    trusted: Trust | None = None
    known: bool = True

    def ready(self) -> bool:
        return self.known

    def trust(self) -> Trust | None:
        return self.trusted

    def namespace(self, name: str) -> Namespace:
        return self.namespaces.get(name, Namespace(name))

    def policies(self) -> Sequence[Policy]:
        return self.all_policies

    def limit_ranges(self, namespace: str) -> Sequence[Range]:
        return self.ranges.get(namespace, ())

    def cron_job(self, namespace: str, name: str) -> Mapping[str, str]:
        return self.cron_jobs.get((namespace, name), {})

    def broken(self, namespace: str) -> frozenset[str]:
        return self.breakers.get(namespace, frozenset())

    def failed(self, namespace: str) -> frozenset[str]:
        return self.failures.get(namespace, frozenset())
