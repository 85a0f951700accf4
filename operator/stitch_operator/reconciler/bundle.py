"""What is trusted somewhere, since when, and since when nobody needs it any more.

Whoever replaces a certificate must know how long its successor has been trusted, and whoever drops
one that nobody needs it any more. Both times are kept beside the bundle, in one object with it, so
that they say what was written, whoever wrote it and died after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

STATE = "stitchcore.io/trusted"
"""Annotation: the times, as JSON."""


class Times(msgspec.Struct, frozen=True):
    """Seconds since 1970, by the items' identities."""

    since: dict[str, float] = {}
    unneeded: dict[str, float] = {}


@dataclass(frozen=True)
class Bundle:
    """Items by identity (a certificate's hash, a key itself), each with its text."""

    items: Mapping[str, str] = field(default_factory=dict)
    times: Times = field(default_factory=Times)

    def age(self, identity: str, now: float) -> float | None:
        """How long the item has been trusted; None where it is not."""
        if identity not in self.items:
            return None
        return now - min(self.times.since.get(identity, now), now)

    def needing(self, needed: Mapping[str, str], now: float, grace: float) -> Bundle:
        """The bundle with all that is needed; what is not is kept for `grace` seconds.

        Times of the future, from a clock that was wrong, are taken for now: then it waits longer.
        """

        def known(times: Mapping[str, float], identity: str) -> float:
            return min(times.get(identity, now), now)

        idle = {one: known(self.times.unneeded, one) for one in self.items if one not in needed}
        idle = {one: since for one, since in idle.items() if now - since < grace}
        held = {**needed, **{one: self.items[one] for one in idle}}
        since = {
            one: known(self.times.since, one) if one in self.items else now for one in sorted(held)
        }
        return Bundle({one: held[one] for one in sorted(held)}, Times(since, idle))

    @property
    def oldest(self) -> str:
        """What has been trusted longest, "" where nothing is."""
        return min(sorted(self.items), key=lambda one: self.times.since.get(one, 0.0), default="")

    @property
    def text(self) -> str:
        """In an order that depends on nothing but what is in it."""
        return "".join(self.items[one] for one in sorted(self.items))

    @property
    def state(self) -> str:
        """The value of the annotation."""
        return msgspec.json.encode(self.times, order="deterministic").decode()


def read(items: Mapping[str, str], annotations: Mapping[str, Any], field: str = STATE) -> Bundle:
    """A bundle as it was written; what nobody can read any more is as if it began now."""
    try:
        times = msgspec.json.decode(annotations.get(field, "{}"), type=Times)
    except msgspec.MsgspecError:
        times = Times()
    return Bundle(dict(items), times)
