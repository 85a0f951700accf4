"""What a release tells its webhook: the runtime's image, the gateway, sizes. One file, read once.

The chart writes it; everything that is injected follows from it and from the pod, so two pods of
one template are always injected alike.
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from stitch_operator.webhook import quantity

PUBLIC_KEY = r"^[0-9a-f]{64}$"
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\n.+?-----END CERTIFICATE-----", re.DOTALL)
Text = Annotated[str, Meta(min_length=1)]


class Release(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """`gateway_address` is host:port of the gateway for pods that cannot resolve the cluster's
    names. Sizes are Kubernetes quantities; `runtime_size` and `cache_size` bound the volumes."""

    name: Text
    namespace: Text
    version: Text
    image: Text
    gateway_url: Text
    ca: Text
    public_keys: Annotated[
        list[Annotated[str, Meta(pattern=PUBLIC_KEY)]], Meta(min_length=1, max_length=2)
    ]
    gateway_address: str = ""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    delivery: Literal["initContainer", "imageVolume"] = "initContainer"
    architectures: list[str] = msgspec.field(default_factory=lambda: ["amd64"])
    runtime_size: str = "256Mi"
    cache_size: str = "1Gi"
    cpu: str = "100m"
    memory: str = "128Mi"
    ephemeral_storage: str = "16Mi"

    def __post_init__(self) -> None:
        parts = urlsplit(self.gateway_url)
        if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError("gatewayUrl is not https://host:port")
        if self.gateway_address and not re.fullmatch(r"[^/\s]+:[0-9]+", self.gateway_address):
            raise ValueError("gatewayAddress is not host:port")
        if not CERTIFICATE.search(self.ca):
            raise ValueError("ca holds no certificate in PEM")
        sizes = (self.runtime_size, self.cache_size, self.cpu, self.memory)
        for size in (*sizes, self.ephemeral_storage):
            if quantity.parse(size) <= 0:
                raise ValueError(f"{size} is not above zero")

    @property
    def server_name(self) -> str:
        """Of the gateway's certificate."""
        return urlsplit(self.gateway_url).hostname or ""

    @property
    def wanted(self) -> dict[str, Fraction]:
        """What the init container asks where the pod has it: cores and bytes."""
        return {
            "cpu": quantity.parse(self.cpu),
            "memory": quantity.parse(self.memory),
            "ephemeral-storage": quantity.parse(self.ephemeral_storage),
        }


def read(path: Path) -> Release:
    """The release's settings from a file of JSON. Raises OSError or ValueError."""
    return msgspec.json.decode(path.read_bytes(), type=Release)
