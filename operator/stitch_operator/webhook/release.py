"""What a release tells its processes: the runtime's image, the gateway, sizes. One file, read once.

The chart writes it; everything that is injected follows from it, from whom pods trust and from the
pod, so two pods of one template are injected alike.
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from stitch_operator import quantity

Text = Annotated[str, Meta(min_length=1)]
Host = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:*-]+$")]


class Certificates(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Who makes the certificates: the reconciler (`self`), or somebody else (`existing`), whose
    Secrets (kubernetes.io/tls, with ca.crt) are then named here, or have the names of ours.
    `webhook_names` are further hosts of the webhook's certificate."""

    mode: Literal["self", "existing"] = "self"
    webhook: str = ""
    gateway: str = ""
    store: str = ""
    webhook_names: list[Host] = []


class Secrets(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Names of somebody's own Secrets; the reconciler makes those that are not named. `keep`: what
    the store is signed and kept with outlives an uninstall, as the store itself does."""

    signing: str = ""
    kernel_key: str = ""
    broker: str = ""
    keep: bool = False


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
    gateway_address: str = ""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    delivery: Literal["initContainer", "imageVolume"] = "initContainer"
    architectures: list[str] = msgspec.field(default_factory=lambda: ["amd64"])
    runtime_size: str = "256Mi"
    cache_size: str = "1Gi"
    cpu: str = "100m"
    memory: str = "128Mi"
    ephemeral_storage: str = "16Mi"
    certificates: Certificates = Certificates()
    secrets: Secrets = Secrets()

    def __post_init__(self) -> None:
        parts = urlsplit(self.gateway_url)
        if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError("gatewayUrl is not https://host:port")
        if self.gateway_address and not re.fullmatch(r"[^/\s]+:[0-9]+", self.gateway_address):
            raise ValueError("gatewayAddress is not host:port")
        sizes = (self.runtime_size, self.cache_size, self.cpu, self.memory)
        for size in (*sizes, self.ephemeral_storage):
            if quantity.parse(size) <= 0:
                raise ValueError(f"{size} is not above zero")

    @property
    def server_name(self) -> str:
        """Of the gateway's certificate."""
        return urlsplit(self.gateway_url).hostname or ""

    @property
    def webhook_tls(self) -> str:
        """The Secret with the webhook's certificate."""
        return self.certificates.webhook or f"{self.name}-webhook-tls"

    @property
    def gateway_tls(self) -> str:
        return self.certificates.gateway or f"{self.name}-gateway-tls"

    @property
    def store_tls(self) -> str:
        return self.certificates.store or f"{self.name}-store-tls"

    @property
    def _servers(self) -> list[str]:
        return [self.webhook_tls, self.gateway_tls, self.store_tls]

    @property
    def authority_secret(self) -> str:
        """The Secret with the key that signs them; nobody but the reconciler reads it."""
        return f"{self.name}-ca"

    @property
    def signing_secret(self) -> str:
        return self.secrets.signing or f"{self.name}-signing"

    @property
    def kernel_key_secret(self) -> str:
        return self.secrets.kernel_key or f"{self.name}-kernel-key"

    @property
    def broker_secret(self) -> str:
        return self.secrets.broker or f"{self.name}-broker"

    @property
    def made_secrets(self) -> list[str]:
        """Those that the reconciler makes, and replaces."""
        by_us = self.certificates.mode == "self"
        made = [self.authority_secret, *self._servers] if by_us else []
        named = {
            self.signing_secret: self.secrets.signing,
            self.kernel_key_secret: self.secrets.kernel_key,
            self.broker_secret: self.secrets.broker,
        }
        return [*made, *(name for name, given in named.items() if not given)]

    @property
    def read_secrets(self) -> list[str]:
        """Somebody's own that the reconciler reads, to know whom to trust."""
        theirs = self.certificates.mode == "existing"
        found = self._servers if theirs else []
        return [*found, self.secrets.signing] if self.secrets.signing else found

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
