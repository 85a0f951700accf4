"""Ed25519 signatures (RFC 8032) over manifests.

A manifest names each library's hash, so one signature covers the artifact. `stitch run` signs with
a key of the user's own, made at first use and readable by that user only.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    """The private key in `path` (32 raw bytes, mode 0600), made if the file does not exist.

    Raises ValueError when the file is not a key. Two processes that race agree on one key.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = Ed25519PrivateKey.generate()
        raw = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return load_or_create_key(path)
        finally:
            temporary.unlink()
        return key
    if len(data) != 32:
        raise ValueError(f"{path} is not an Ed25519 key (32 bytes expected, {len(data)} found)")
    return Ed25519PrivateKey.from_private_bytes(data)


def public_hex(key: Ed25519PrivateKey) -> str:
    """The public key as 64 hexadecimal digits, the form of STITCH_PUBLIC_KEY."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def sign(key: Ed25519PrivateKey, data: bytes) -> bytes:
    """The 64-byte signature of `data`."""
    return key.sign(data)


def verify(public_key_hex: str, signature: bytes, data: bytes) -> bool:
    """True when `signature` is that key's signature of `data`."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key_hex))
        key.verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
