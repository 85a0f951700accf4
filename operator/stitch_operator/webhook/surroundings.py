"""What the webhook knows of the cluster: what a watch cache answers from memory.

Nothing here asks the API server during admission: what is known is what was last seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
