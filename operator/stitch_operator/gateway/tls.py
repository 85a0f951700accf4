"""TLS of our servers: 1.2 or newer, and how their certificates are made."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make(folder: Path, names: Sequence[str]) -> tuple[Path, Path, Path]:
    """A new authority and a certificate by it for `names` (hosts and addresses), in `folder`.

    Returns the paths (authority, certificate, key). The authority's own key is not kept, so nobody
    can ever make another certificate that clients of this one trust.
    """
    now = datetime.datetime.now(datetime.UTC)
    begin, end = now - MARGIN, now + datetime.timedelta(days=DAYS)
    signer = authority("stitch serve", begin, end)
    made = server("stitch gateway", names, signer, begin, end)
    paths = folder / "ca.pem", folder / "gateway.pem", folder / "gateway.key"
    _write(paths[0], signer.pem, 0o644)
    _write(paths[1], made.pem, 0o644)
    _write(paths[2], made.key_pem, 0o600)
    return paths


def _write(path: Path, data: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def authority(name: str, begin: datetime.datetime, end: datetime.datetime) -> Pair:
    """A new authority that signs servers' certificates, and no other authority's."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, _name(name), key, key, begin, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    return Pair(builder.add_extension(_usage(True), True).sign(key, hashes.SHA256()), key)


def server(
    name: str,
    names: Sequence[str],
    signer: Pair,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> Pair:
    """A certificate of `signer` for a server of these hosts and addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = (
        _builder(name, signer.certificate.subject, key, signer.key, begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(_usage(False), True)
        .add_extension(x509.SubjectAlternativeName(hosts(names)), False)
        .add_extension(usage, False)
    )
    return Pair(builder.sign(signer.key, hashes.SHA256()), key)


def _builder(
    name: str,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(by, False)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def hosts(names: Sequence[str]) -> list[x509.GeneralName]:
    """Hosts and addresses, as a certificate has them."""
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
