"""When the certificates of servers and of their authority are replaced, and by what.

    authority signs        next made, trusted         next signs             old is dropped
    |----------------------|== both are trusted ======|== both are trusted ==|------------
                             overlap, then promoted     servers change over    grace

Each step is one write of one object, decided from what is there; so a reconciler that dies between
any two of them goes on where it was. What makes a change safe is time that has passed since
another change was seen: the authority has been trusted for `propagation` before a server shows a
certificate of it (API servers and webhooks have heard of it by then), and for `overlap` before it
replaces one that works (jobs know whom to trust from when their pod was made).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509

from stitch_operator.gateway.tls import Pair
from stitch_operator.reconciler import issuing
from stitch_operator.reconciler.bundle import Bundle
from stitch_operator.reconciler.holding import NOW, ROTATE, Held, Role, Write

DAY = 86400.0
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""Of a Secret of a server, as Kubernetes and cert-manager name them."""


@dataclass(frozen=True)
class Times:
    """Seconds. `leaf`, `authority` and `signing` are lives, `renew` is what is left of an
    authority's when it is replaced. `propagation`: until everybody in the cluster knows a change;
    `grace`: until no process shows what it replaced; `overlap`: the longest job that matters."""

    leaf: float = 90 * DAY
    authority: float = 3650 * DAY
    renew: float = 365 * DAY
    overlap: float = 30 * DAY
    propagation: float = 600.0
    grace: float = 3600.0
    signing: float = 365 * DAY
    signing_grace: float = DAY


def authority(
    name: str, secret: Held | None, bundles: Sequence[Bundle], times: Times, now: float
) -> Write | None:
    """The next step of the authority's Secret. `bundles` are all that must know a successor."""
    current, successor = signer(secret), _pair(secret, "next")
    if secret is None or current is None:
        pair = issuing.authority(name, now, times.authority)
        return Write(Role.AUTHORITY, _named("ca", pair))
    span = issuing.life(current.certificate)
    ending = not span.begin <= now < span.end - times.leaf
    if successor is None or not _usable(successor.certificate, now):
        if ROTATE not in secret.annotations and not ending and now < span.end - times.renew:
            return None
        pair = issuing.authority(name, now, times.authority)
        return Write(Role.AUTHORITY, {**_named("ca", current), **_named("next", pair)})
    hurry = ending or secret.annotations.get(ROTATE) == NOW
    wait = times.propagation if hurry else times.overlap
    if not _trusted(successor, bundles, wait, now):
        return None
    return Write(Role.AUTHORITY, _named("ca", successor), {ROTATE: None})


def server(
    role: Role,
    secret: Held | None,
    by: Pair,
    bundle: Bundle | None,
    names: Sequence[str],
    times: Times,
    now: float,
) -> Write | None:
    """The next step of a server's Secret. `bundle` is what its clients trust; None: nobody asks."""
    present = _of_server(secret)
    if secret is not None and present is not None:
        if ROTATE not in secret.annotations and not _due(present, by, names, now):
            return None
    works = present is not None and _works(present, secret, bundle, now)
    wait = times.propagation if works else 0.0
    if not _usable(by.certificate, now):
        return None  # its successor will
    if bundle is not None and not _trusted(by, [bundle], wait, now):
        return None
    pair = issuing.server(names, by, now, times.leaf)
    data = {CERTIFICATE: pair.pem, KEY: pair.key_pem, AUTHORITY: by.pem}
    return Write(role, data, {ROTATE: None})


def signer(secret: Held | None) -> Pair | None:
    """The authority that signs at present."""
    return _pair(secret, "ca")


def authorities(secret: Held | None) -> dict[str, str]:
    """Certificates that the authority's Secret wants trusted."""
    pairs = [pair for pair in (signer(secret), _pair(secret, "next")) if pair is not None]
    return {issuing.identity(pair.certificate): pair.pem.decode() for pair in pairs}


def needed(secret: Held | None) -> dict[str, str]:
    """Who signed what the server of this Secret shows."""
    return issuing.certificates(secret.data.get(AUTHORITY, b"")) if secret is not None else {}


def _pair(secret: Held | None, name: str) -> Pair | None:
    if secret is None:
        return None
    return issuing.pair(secret.data.get(f"{name}.crt", b""), secret.data.get(f"{name}.key", b""))


def _named(name: str, pair: Pair) -> dict[str, bytes]:
    return {f"{name}.crt": pair.pem, f"{name}.key": pair.key_pem}


def _of_server(secret: Held | None) -> x509.Certificate | None:
    if secret is None:
        return None
    pair = issuing.pair(secret.data.get(CERTIFICATE, b""), secret.data.get(KEY, b""))
    return None if pair is None else pair.certificate


def _trusted(pair: Pair, bundles: Sequence[Bundle], wait: float, now: float) -> bool:
    ages = [bundle.age(issuing.identity(pair.certificate), now) for bundle in bundles]
    return all(age is not None and age >= wait for age in ages)


def _usable(certificate: x509.Certificate, now: float) -> bool:
    span = issuing.life(certificate)
    return span.begin <= now < span.end


def _due(present: x509.Certificate, by: Pair, names: Sequence[str], now: float) -> bool:
    """A third of its life before the end, when it is for other names, or another one's."""
    span = issuing.life(present)
    if not span.begin <= now < span.end - (span.end - span.begin) / 3:
        return True
    return not (issuing.serves(present, names) and issuing.signed(present, by.certificate))


def _works(
    present: x509.Certificate, secret: Held | None, bundle: Bundle | None, now: float
) -> bool:
    """Whether clients get on with what is there, so that there is something to lose."""
    if not _usable(present, now):
        return False
    return bundle is None or any(issuer in bundle.items for issuer in needed(secret))
