"""Rates of a namespace hold for all gateways of a ledger together: each tells the others what it
has let through.

Now and then a gateway writes, by kind and namespace, the sum of what it has taken since it began,
and takes from its own buckets what the others' sums have grown by: one transaction a round, however
many calls. In between, buckets are each gateway's own, and so they stay while the ledger is away:
sums lose nothing, so it is told later.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from stitch_operator.gateway.limits import Buckets

SHARE_SECONDS = 1.0
HEARD_SECONDS = 60.0
"""How old a sum may be that is read; gateways' clocks differ by ten at most (/readyz)."""

About = tuple[str, str]
"""Kind and namespace."""


@dataclass(frozen=True)
class Sum:
    """What a gateway has taken since it began, and what it had when it last said so: all that one
    who hears of it for the first time can go by."""

    before: float
    total: float


@dataclass
class Sharing:
    """One gateway's. A round is `news`, what is heard in return, `hear`."""

    buckets: Mapping[str, Buckets]
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    _told: dict[About, float] = field(default_factory=dict)
    _heard: Mapping[tuple[str, About], Sum] = field(default_factory=dict)

    def news(self) -> dict[About, Sum]:
        """What has changed since the ledger was last told."""
        totals = {
            (kind, name): total
            for kind, buckets in self.buckets.items()
            for name, total in buckets.totals.items()
        }
        return {
            about: Sum(self._told.get(about, 0.0), total)
            for about, total in totals.items()
            if total != self._told.get(about, 0.0)
        }

    def hear(
        self, told: Mapping[About, Sum], others: Mapping[tuple[str, About], Sum], now: float
    ) -> None:
        """The ledger was `told`, and has sums of `others` by gateway."""
        self._told.update({about: one.total for about, one in told.items()})
        for (gateway, about), one in others.items():
            known = self._heard.get((gateway, about))
            more = one.total - (one.before if known is None else known.total)
            kind, name = about
            if more and kind in self.buckets:  # else of a later release
                self.buckets[kind].charge_others(name, more, now)
        self._heard = others
