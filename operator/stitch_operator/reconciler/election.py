"""Which of a release's reconcilers acts: the one that holds a Lease.

As in client-go, a holder that stops renewing is succeeded when its lease has not changed for as
long as it lasts, by the follower's own clock: no two clocks are compared. The Kubernetes client for
Python has an election too; it ends at the first broken connection, goes by the clock that can be
set, and gives nothing back when it ends.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

LOG = logging.getLogger("stitch.reconciler")
LEASE_SECONDS, RENEW_SECONDS, ACT_SECONDS = 15.0, 2.0, 10.0
"""A lease's life; how often it is renewed, or looked at; how long after its last renewal a holder
still acts. What is left of its life is for writes that are under way."""
CALL_SECONDS = 4.0
NOT_FOUND, CONFLICT = 404, 409


class Election:
    """`step` again and again, from one thread; `leads` from any."""

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        name: str,
        holder: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = client.CoordinationV1Api(api)
        self._namespace, self._name, self._holder = namespace, name, holder
        self._clock = clock
        self._seen: tuple[str, float] = ("", 0.0)
        self._renewed: float | None = None
        self.lost = threading.Event()
        """Another one holds the lease that this one had: it has to end, and to begin anew."""

    def leads(self) -> bool:
        """Whether this one may act now."""
        renewed = self._renewed
        return renewed is not None and self._clock() - renewed < ACT_SECONDS

    def step(self) -> None:
        """Take the lease, or renew it, where it can be. Raises what the client does."""
        began = self._clock()
        try:
            lease = self._api.read_namespaced_lease(
                self._name, self._namespace, _request_timeout=CALL_SECONDS
            )
        except ApiException as error:
            if error.status != NOT_FOUND:
                raise
            lease = None
        if lease is not None and not self._may_take(lease, began):
            if self._renewed is not None:
                self._renewed = None
                self.lost.set()
            return
        if self._written(lease):
            if self._renewed is None:
                LOG.info("%s leads", self._holder)
            self._renewed = began

    def give_back(self) -> None:
        """So that a successor need not wait. Raises what the client does."""
        if self.leads():
            self._renewed = None
            lease = self._api.read_namespaced_lease(
                self._name, self._namespace, _request_timeout=CALL_SECONDS
            )
            if lease.spec.holder_identity == self._holder:
                lease.spec.holder_identity = ""
                self._replace(lease)

    def _may_take(self, lease: Any, now: float) -> bool:
        holder = lease.spec.holder_identity or ""
        version = lease.metadata.resource_version
        if version != self._seen[0]:
            self._seen = (version, now)
        lasts = float(lease.spec.lease_duration_seconds or LEASE_SECONDS)
        return holder in ("", self._holder) or now - self._seen[1] > lasts

    def _written(self, lease: Any) -> bool:
        """False where somebody else was quicker."""
        now = datetime.datetime.now(datetime.UTC)
        if lease is None:
            lease = client.V1Lease(
                metadata=client.V1ObjectMeta(name=self._name),
                spec=client.V1LeaseSpec(lease_transitions=0),
            )
        if lease.spec.holder_identity != self._holder:
            lease.spec.acquire_time = now
            lease.spec.lease_transitions = (lease.spec.lease_transitions or 0) + 1
        lease.spec.holder_identity = self._holder
        lease.spec.lease_duration_seconds = int(LEASE_SECONDS)
        lease.spec.renew_time = now
        return self._replace(lease)

    def _replace(self, lease: Any) -> bool:
        try:
            if lease.metadata.resource_version is None:
                self._api.create_namespaced_lease(
                    self._namespace, lease, _request_timeout=CALL_SECONDS
                )
            else:  # of the version that was read, or it is a conflict
                self._api.replace_namespaced_lease(
                    self._name, self._namespace, lease, _request_timeout=CALL_SECONDS
                )
        except ApiException as error:
            if error.status != CONFLICT:
                raise
            return False
        return True
