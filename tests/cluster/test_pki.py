"""Certificates name their servers and users, and chain to the cluster's authority."""

from __future__ import annotations

import base64
import ipaddress
import json
import stat
from pathlib import Path

from cryptography import x509

from tests.cluster import pki, plane
from tests.cluster.plane import Network


def test_a_leaf_is_signed_and_names_its_hosts() -> None:
    root = pki.authority("root")
    made = pki.leaf(root, "user", ["group"], ["10.0.0.1", "example.test"])
    certificate = x509.load_pem_x509_certificate(made.certificate)
    certificate.verify_directly_issued_by(root.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["example.test"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.1")]
    assert certificate.subject.rfc4514_string() == "CN=user,O=group"


def test_the_kubeconfig_needs_no_other_file() -> None:
    root = pki.authority("root")
    made = pki.leaf(root, "user")
    document = json.loads(pki.kubeconfig("https://example.test", root, "user", made))
    [cluster], [user] = document["clusters"], document["users"]
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"]) == root.pem
    assert base64.b64decode(user["user"]["client-key-data"]) == made.key


def test_keys_are_the_users_own(tmp_path: Path) -> None:
    plane.write(tmp_path, Network())
    secret = [*tmp_path.glob("*.conf"), *tmp_path.rglob("*.key")]
    assert len(secret) == 11
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}


def test_the_services_first_address_is_the_api_servers() -> None:
    assert pki.first_host("10.96.0.0/16") == "10.96.0.1"
