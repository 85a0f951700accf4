"""Who may do what in the store: a table by role and top folder, and names that lead nowhere else.

With a volume that all mount, whoever breaks into a worker replaces answers and artifacts of all.
Here a worker adds what is unsigned and says how far it is; nothing signed can be changed by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

READ, WRITE, DELETE = "read", "write", "delete"
ALL = frozenset({READ, WRITE, DELETE})
SEEN, MADE = frozenset({READ}), frozenset({READ, WRITE})

ROLES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "gateway": {
        "requests": MADE,
        "answers": SEEN,
        "artifacts": SEEN,
        "workers": SEEN,
        "public_keys.json": SEEN,
        "revoked.json": SEEN,
    },
    "worker": {
        "requests": SEEN,
        "answers": MADE,
        "artifacts": SEEN,
        "unsigned": MADE,
        "kernels": MADE,
        "attempts": MADE,
        "workers": MADE,
        "public_keys.json": SEEN,
        "revoked.json": SEEN,
    },
    "signer": {
        "requests": SEEN,
        "answers": MADE,
        "artifacts": ALL,
        "unsigned": ALL,
        "public_keys.json": MADE,
        "revoked.json": MADE,
    },
    "collector": {
        name: frozenset({READ, DELETE})
        for name in (
            *("requests", "answers", "artifacts", "unsigned", "kernels", "attempts"),
            "workers",
        )
    },
}
"""What each program of the service does in the store, and no more (docs/service.md)."""

PROBE = re.compile(r"\.probe-[0-9]{1,10}")
"""What a program writes and removes at its start, to see that the store takes a file."""
NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
DEEPEST = 4


def parts_of(path: str) -> tuple[str, ...]:
    """The names of a path within the store. Raises ValueError for what is none."""
    parts = tuple(path.split("/"))
    if len(parts) > DEEPEST or not all(NAME.fullmatch(part) for part in parts):
        raise ValueError("not a path of the store")
    if any(part in (".", "..") for part in parts):
        raise ValueError("a path of the store does not go up")
    return parts


def allowed(role: str, verb: str, parts: tuple[str, ...]) -> bool:
    """Whether `role` may do this to a file or folder; nobody may delete a whole top folder."""
    if len(parts) == 1 and PROBE.fullmatch(parts[0]):
        return role in ROLES
    if verb != READ and len(parts) == 1 and not parts[0].endswith(".json"):
        return False
    return verb in ROLES.get(role, {}).get(parts[0], frozenset())
