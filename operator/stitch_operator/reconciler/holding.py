"""The objects that trust is made of, as plain data: what was read, and what is to be written.

A decision is made from objects as they are, never from ones that are still to be written. So its
writes depend on no order, and one that did not happen is decided anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

ROTATE = "stitchcore.io/rotate"
"""Annotation of a Secret: whoever sets it asks for another key. `now`: without the long overlap;
`leaked`, of what signs: at once, and what the old one signed is worth nothing."""
NOW, LEAKED = "now", "leaked"


class Role(StrEnum):
    """What an object is for."""

    AUTHORITY = "authority"
    WEBHOOK = "webhook"
    GATEWAY = "gateway"
    STORE = "store"
    SIGNING = "signing"
    KERNEL_KEY = "kernel-key"
    BROKER = "broker"
    TRUST = "trust"
    HOOKS = "hooks"


@dataclass(frozen=True)
class Held:
    """An object as it was read. Of the webhook configuration `data` are the hooks' caBundles."""

    data: Mapping[str, bytes]
    annotations: Mapping[str, str] = field(default_factory=dict)
    ours: bool = True


@dataclass(frozen=True)
class Write:
    """All of an object's data, and annotations (None: removed). Others of it stay."""

    role: Role
    data: Mapping[str, bytes]
    annotations: Mapping[str, str | None] = field(default_factory=dict)


Seen = Mapping[Role, Held]
"""Objects that are there."""


@dataclass(frozen=True)
class Decision:
    """What is to be written, and what keeps it from being right."""

    writes: tuple[Write, ...] = ()
    problems: tuple[str, ...] = ()


def text(held: Held | None, key: str) -> str:
    """A value of an object, "" where it has none that is text."""
    try:
        return held.data.get(key, b"").decode() if held is not None else ""
    except UnicodeDecodeError:
        return ""
