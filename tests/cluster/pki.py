"""Keys and certificates of a cluster that lives for a test: made in memory, valid for a month."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=30)
SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class Authority:
    """Signs certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Leaf:
    """A certificate and its key as PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> None:
        (folder / f"{name}.crt").write_bytes(self.certificate)
        write_key(folder / f"{name}.key", self.key)


def authority(name: str) -> Authority:
    """A new self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    builder = (
        _builder(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def read_authority(folder: Path) -> Authority:
    """The cluster's own, as `ca.crt` and `ca.key` of its folder hold it."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{folder / 'ca.key'} is not of this testbed")
    return Authority(x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()), key)


def leaf(
    signer: Authority, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()
) -> Leaf:
    """A certificate for a server of `hosts` and for a client who is `user` in `groups`."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    names.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(
        x509.Name(names), signer.certificate.subject, key.public_key()
    ).add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if hosts:
        alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(alternatives, critical=False)
    certificate = builder.sign(signer.key, hashes.SHA256())
    return Leaf(certificate.public_bytes(serialization.Encoding.PEM), key_pem(key))


def first_host(network: str) -> str:
    """The first address of a range: the Service `kubernetes` takes it."""
    return str(ipaddress.ip_network(network)[1])


def signing_keys() -> tuple[bytes, bytes]:
    """A key that signs service-account tokens, and the one that verifies them, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return key_pem(key), public


def write_key(path: Path, pem: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(pem)


def kubeconfig(server: str, signer: Authority, user: str, who: Leaf) -> str:
    """A kubeconfig that needs no other file (JSON is YAML)."""
    cluster = {"server": server, "certificate-authority-data": _base64(signer.pem)}
    credentials = {
        "client-certificate-data": _base64(who.certificate),
        "client-key-data": _base64(who.key),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stitch-testbed", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [
            {"name": "stitch-testbed", "context": {"cluster": "stitch-testbed", "user": user}}
        ],
        "current-context": "stitch-testbed",
    }
    return json.dumps(document, indent=1)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFE)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
