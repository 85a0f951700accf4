"""Certificates as the reconciler makes and reads them; what cannot be read is as if not there."""

from __future__ import annotations

import datetime
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from stitch_operator.gateway import tls
from stitch_operator.gateway.tls import Pair

MARGIN = 3600.0
"""Certificates begin so long before they are made: other clocks may be behind."""


@dataclass(frozen=True)
class Life:
    """When a certificate begins and ends, in seconds since 1970."""

    begin: float
    end: float


def life(certificate: x509.Certificate) -> Life:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Life(begin.timestamp(), end.timestamp())


def authority(name: str, now: float, seconds: float) -> Pair:
    """A new one. Its name has random digits, so that clients never take one for another."""
    return tls.authority(f"{name} {secrets.token_hex(4)}", *_times(now, now + seconds))


def server(names: Sequence[str], signer: Pair, now: float, seconds: float) -> Pair:
    """A certificate that does not outlive its signer's."""
    end = min(now + seconds, life(signer.certificate).end)
    return tls.server(names[0][:64], names, signer, *_times(now, end))


def _times(now: float, end: float) -> tuple[datetime.datetime, datetime.datetime]:
    begin, until = (datetime.datetime.fromtimestamp(one, datetime.UTC) for one in (now, end))
    return begin - datetime.timedelta(seconds=MARGIN), until


def pair(certificate: bytes, key: bytes) -> Pair | None:
    """A certificate and the key that belongs to it."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError):
        return None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        return None
    return Pair(found, private) if private.public_key() == found.public_key() else None


def certificates(text: bytes | str) -> dict[str, str]:
    """PEM of each certificate by its hash."""
    data = text.encode() if isinstance(text, str) else text
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError:
        return {}
    return {identity(one): one.public_bytes(Encoding.PEM).decode() for one in found}


def identity(certificate: x509.Certificate) -> str:
    """By which a bundle knows it."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()[:16]


def signed(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    """Whether `signer`'s key signed the certificate."""
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def serves(certificate: x509.Certificate, names: Sequence[str]) -> bool:
    """Whether it is for these hosts and addresses, and no others."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return set(found) == set(tls.hosts(names))
