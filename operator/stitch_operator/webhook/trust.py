"""Whom the pods of a release trust: who signs the gateway's certificate, and artifacts.

The reconciler keeps it in a ConfigMap, with two of either while one replaces the other, so that a
pod that is made meanwhile gets on with both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stitch_operator.names import AUTHORITIES, PUBLIC_KEYS

PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\n.+?-----END CERTIFICATE-----", re.DOTALL)
MOST_KEYS = 2
"""That the job side takes."""


@dataclass(frozen=True)
class Trust:
    """`authorities` in PEM, public keys as 64 hexadecimal digits each."""

    authorities: str
    public_keys: tuple[str, ...]


def decode(document: Mapping[str, Any]) -> Trust:
    """The ConfigMap as the API server shows it. Raises ValueError for what no pod could use."""
    data = document.get("data") or {}
    authorities, keys = data.get(AUTHORITIES) or "", (data.get(PUBLIC_KEYS) or "").split()
    if not CERTIFICATE.search(authorities):
        raise ValueError(f"{AUTHORITIES} holds no certificate in PEM")
    if not 1 <= len(keys) <= MOST_KEYS or not all(PUBLIC_KEY.fullmatch(key) for key in keys):
        raise ValueError(f"{PUBLIC_KEYS} is not one or two lines of 64 hexadecimal digits")
    return Trust(authorities, tuple(keys))
