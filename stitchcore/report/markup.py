"""HTML by construction: what is not Markup is text, and is escaped when it is put into a tag."""

from __future__ import annotations

import hashlib
import html
from base64 import b64encode
from collections.abc import Iterable

import msgspec

VOID = frozenset({"meta", "input", "br"})
"""Elements without an end, of those that we write."""


class Markup(str):
    """HTML that was written by this module."""

    __slots__ = ()


def tag(element: str, /, *children: str, **attributes: str | int | float | bool | None) -> Markup:
    """`<element ...>children</element>`. Attributes of None and False are left out, True stands
    alone; underscores are dashes, and one at the end keeps Python's words apart (class_)."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{html.escape(str(value), quote=True)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{join(children)}</{element}>")


def join(parts: Iterable[str]) -> Markup:
    """All parts, text among them escaped."""
    return Markup("".join(p if isinstance(p, Markup) else html.escape(p) for p in parts))


def data(identity: str, value: object) -> Markup:
    """A value as JSON that a script may read; nothing in it can end the element."""
    written = msgspec.json.encode(value).decode()
    for character in "<>&\u2028\u2029":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Markup(written), type="application/json", id=identity)


def digest(text: str) -> str:
    """The source expression by which a Content-Security-Policy lets an inline text run."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ---- quantities --------------------------------------------------------------------------------
def bytes_text(count: float) -> str:
    """A byte count with three digits and its unit (powers of 1024)."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} TiB" if abs(count) < 1000 else f"{count:,.0f} TiB"


def saved_text(saved: float, saveable: float) -> str:
    """Bytes that a step's kernels save, and their share of all that could be saved: wherever that
    is told it is told so (tensorflow/coverage.py)."""
    return f"{bytes_text(saved)} ({saved_share(saved, saveable):.1%} of what could be saved)"


def saved_share(saved: float, saveable: float) -> float:
    """0 where nothing could be saved; never above 1."""
    return min(1.0, max(0.0, saved / saveable)) if saveable > 0 else 0.0


def seconds_text(seconds: float) -> str:
    """A duration with three digits and its unit."""
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if abs(seconds) < 1000 else f"{seconds:,.0f} s"
