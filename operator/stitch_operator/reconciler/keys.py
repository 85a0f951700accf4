"""Keys that are no certificates: what signs artifacts, what kernels are kept by, the broker's.

The key that signs is replaced as an authority is: its successor's public half is trusted first, for
as long as jobs run, then signs, and the old one stays valid until the signer has signed everything
again. The other two are made once: what they protect is lost with them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from stitch_operator.reconciler.bundle import Bundle
from stitch_operator.reconciler.holding import LEAKED, NOW, ROTATE, Held, Role, Write, text
from stitch_operator.reconciler.rotation import Times
from stitchcore.artifact import sign

SIGNS, NEXT, ALSO_VALID = "signing.key", "next.key", "also-valid"
DISTRUSTED = "leaked"
"""Public halves of keys that leaked: the signer removes what they signed."""
MADE = "stitchcore.io/made"
"""Annotation of the signing key's Secret: when its key became the one that signs."""
PUBLIC = re.compile(r"[0-9a-f]{64}")
KERNEL_SECRET, KERNEL_BYTES = "secret", 32
PASSWORD, URL = "password", "url"


def signing(held: Held | None, trusted: Bundle, times: Times, now: float) -> Write | None:
    """The next step of the signing key's Secret. `trusted` are the public keys that pods know."""
    key, successor = _key(held, SIGNS), _key(held, NEXT)
    if held is None or key is None:
        before = trusted.oldest  # what artifacts are signed by
        return _signing(Ed25519PrivateKey.generate(), None, before, {MADE: f"{now:.0f}"})
    if held.annotations.get(ROTATE) == LEAKED:
        lost = " ".join((*distrusted(held), sign.public_hex(key)))
        fresh = _signing(Ed25519PrivateKey.generate(), None, "", {MADE: f"{now:.0f}", ROTATE: None})
        return replace(fresh, data={**fresh.data, DISTRUSTED: lost.encode()})
    step = _rotated(held, key, successor, trusted, times, now)
    lasting = {name: value for name, value in held.data.items() if name == DISTRUSTED}
    return replace(step, data={**step.data, **lasting}) if step is not None else None


def _rotated(
    held: Held,
    key: Ed25519PrivateKey,
    successor: Ed25519PrivateKey | None,
    trusted: Bundle,
    times: Times,
    now: float,
) -> Write | None:
    also, made = also_valid(held), _made(held)
    if made is None:
        return _signing(key, successor, also, {MADE: f"{now:.0f}"})
    hurry = held.annotations.get(ROTATE) == NOW
    if successor is not None:
        age = trusted.age(sign.public_hex(successor), now)
        if also != sign.public_hex(successor):
            return _signing(key, successor, sign.public_hex(successor), {})
        if age is None or age < (times.propagation if hurry else times.overlap):
            return None
        return _signing(successor, None, sign.public_hex(key), {MADE: f"{now:.0f}"})
    if also:
        if now - made < (times.propagation if hurry else times.signing_grace):
            return None
        return _signing(key, None, "", {ROTATE: None})
    if ROTATE in held.annotations or now - made >= times.signing:
        successor = Ed25519PrivateKey.generate()
        return _signing(key, successor, sign.public_hex(successor), {})
    return None


def public_keys(held: Held | None) -> dict[str, str]:
    """What pods are to trust, each with its line; {} where the Secret holds no key."""
    key = _key(held, SIGNS)
    if held is None or key is None:
        return {}
    return {one: f"{one}\n" for one in (sign.public_hex(key), also_valid(held)) if one}


def listed(keys: str) -> dict[str, str]:
    """Public keys as they were written."""
    return {one: f"{one}\n" for one in keys.split() if PUBLIC.fullmatch(one)}


def distrusted(held: Held | None) -> list[str]:
    """Public keys of which nobody can tell who signs with them."""
    return [one for one in text(held, DISTRUSTED).split() if PUBLIC.fullmatch(one)]


def also_valid(held: Held) -> str:
    """The public key that is valid beside the one that signs."""
    found = text(held, ALSO_VALID).strip()
    return found if PUBLIC.fullmatch(found) else ""


def kernel_key(held: Held | None) -> Write | None:
    if held is not None:
        return None
    return Write(Role.KERNEL_KEY, {KERNEL_SECRET: f"{secrets.token_hex(KERNEL_BYTES)}\n".encode()})


def broker(held: Held | None, host: str) -> Write | None:
    """A password for the bundled broker, and the URL with it."""
    if held is not None:
        return None
    password = secrets.token_hex(24)
    return Write(
        Role.BROKER,
        {PASSWORD: password.encode(), URL: f"redis://:{password}@{host}:6379/0".encode()},
    )


def _key(held: Held | None, name: str) -> Ed25519PrivateKey | None:
    data = held.data.get(name, b"") if held is not None else b""
    return Ed25519PrivateKey.from_private_bytes(data) if len(data) == 32 else None


def _made(held: Held) -> float | None:
    try:
        return float(held.annotations[MADE])
    except (KeyError, ValueError):
        return None


def _signing(
    key: Ed25519PrivateKey,
    successor: Ed25519PrivateKey | None,
    also: str,
    annotations: Mapping[str, str | None],
) -> Write:
    data = {SIGNS: _raw(key), ALSO_VALID: also.encode()}
    if successor is not None:
        data[NEXT] = _raw(successor)
    return Write(Role.SIGNING, data, annotations)


def _raw(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
