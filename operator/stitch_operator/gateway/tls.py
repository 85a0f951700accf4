"""TLS for the gateway: 1.2 or newer, and for one machine a certificate made on the spot."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365
MARGIN = datetime.timedelta(hours=1)


def context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's context. Raises OSError or ssl.SSLError for files that are no such pair."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(certificate, key)
    return made


def make(folder: Path, names: Sequence[str]) -> tuple[Path, Path, Path]:
    """A new authority and a certificate by it for `names` (hosts and addresses), in `folder`.

    Returns the paths (authority, certificate, key). The authority's own key is not kept, so nobody
    can ever make another certificate that clients of this one trust.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("stitch serve", authority_key, None, authority_key, ())
    key = ec.generate_private_key(ec.SECP256R1())
    server = _certificate("stitch gateway", key, authority, authority_key, names)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    paths = folder / "ca.pem", folder / "gateway.pem", folder / "gateway.key"
    _write(paths[0], authority.public_bytes(Encoding.PEM), 0o644)
    _write(paths[1], server.public_bytes(Encoding.PEM), 0o644)
    _write(paths[2], private, 0o600)
    return paths


def _write(path: Path, data: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signer = issuer_key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - MARGIN)
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), False)
        .add_extension(_usage(issuer is None), True)
    )
    if names:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(x509.SubjectAlternativeName(_names(names)), False)
        builder = builder.add_extension(usage, False)
    return builder.sign(issuer_key, hashes.SHA256())


def _names(names: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def trusting(authority: Path) -> ssl.SSLContext:
    """A client's context that trusts `authority` and nothing else."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_verify_locations(cafile=authority)
    return made
