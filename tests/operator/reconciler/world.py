"""A cluster as trust sees it: objects with versions, a reconciler that may die between any two of
its writes, and all that was ever written, with the time, so that it can be judged afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stitch_operator.names import AUTHORITIES, PUBLIC_KEYS
from stitch_operator.reconciler import issuing, keys, rotation
from stitch_operator.reconciler.decision import decide
from stitch_operator.reconciler.holding import ROTATE, Decision, Held, Role, Write, text
from stitch_operator.reconciler.rotation import DAY, Times
from stitch_operator.webhook.release import Release
from tests.operator.webhook import support

START = 1_900_000_000.0
HOOKS = ("pods", "workloads")
TIMES = Times()


@dataclass
class World:
    """`skew` is how far the reconciler's clock is ahead. `history` has each object at each time."""

    release: Release = field(default_factory=support.release)
    now: float = START
    skew: float = 0.0
    held: dict[Role, Held] = field(default_factory=dict)
    versions: dict[Role, int] = field(default_factory=dict)
    history: list[tuple[float, Role, Held | None]] = field(default_factory=list)
    refused: set[Role] = field(default_factory=set)
    """Objects that nobody can write for now."""
    counter: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        if Role.HOOKS not in self.held:
            self.put(Role.HOOKS, Held(dict.fromkeys(HOOKS, b"")))

    def put(self, role: Role, held: Held | None) -> None:
        if held is None:
            self.held.pop(role, None)
        else:
            self.held[role] = held
        self.versions[role] = next(self.counter)
        self.history.append((self.now, role, held))

    def look(self) -> Looked:
        """What a reconciler reads."""
        return Looked(dict(self.held), dict(self.versions))

    def decided(self, looked: Looked) -> Decision:
        return decide(looked.held, self.release, TIMES, self.now + self.skew)

    def apply(self, write: Write, looked: Looked) -> bool:
        """As the API server does: a write that was decided from another version fails."""
        role = write.role
        if role in self.refused or looked.versions.get(role) != self.versions.get(role):
            return False
        present = self.held.get(role)
        merged: dict[str, Any] = {**(present.annotations if present else {}), **write.annotations}
        annotations = {name: value for name, value in merged.items() if value is not None}
        self.put(role, Held(dict(write.data), annotations))
        return True

    def step(self, most: int | None = None) -> int:
        """Reads, decides and writes until nothing is left, or dies after `most` writes; then it
        began with the last one, for no order is promised."""
        done = 0
        for _ in range(20):
            looked = self.look()
            writes = [one for one in self.decided(looked).writes if one.role not in self.refused]
            if not writes:
                return done
            for write in writes if most is None else reversed(writes):
                if most is not None and done >= most:
                    return done
                self.apply(write, looked)
                done += 1
        raise AssertionError("it never comes to rest")

    def pass_time(self, seconds: float, every: float = DAY) -> None:
        """The reconciler looks now and then meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + every)
            self.step()

    def annotate(self, role: Role, value: str) -> None:
        held = self.held[role]
        self.put(role, replace(held, annotations={**held.annotations, ROTATE: value}))

    # ---- what others see -----------------------------------------------------------------------
    def leaf(self, role: Role) -> str:
        return text(self.held.get(role), rotation.CERTIFICATE)

    def signer(self) -> str:
        return text(self.held.get(Role.AUTHORITY), "ca.crt")

    def trusted(self) -> set[str]:
        return set(issuing.certificates(text(self.held.get(Role.TRUST), AUTHORITIES)))

    def hooked(self) -> set[str]:
        found = [set(issuing.certificates(pem)) for pem in self.held[Role.HOOKS].data.values()]
        return set.intersection(*found)

    def public(self) -> list[str]:
        return list(keys.listed(text(self.held.get(Role.TRUST), PUBLIC_KEYS)))


@dataclass(frozen=True)
class Looked:
    """What a reconciler has read, and will decide from even when others write meanwhile."""

    held: dict[Role, Held]
    versions: dict[Role, int]
