"""A server's certificate: read from files, and read again when they change, without a restart.

Webhook and gateway serve by it. Connections that are open stay, the next handshake has the new one.
Until the files are there a throwaway certificate is served and the process is not ready, so that a
replica that starts before the Secret notices it. A pair that does not fit together (a Secret in the
middle of its rotation) leaves the present one in use.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from prometheus_client import Counter, Gauge

from stitch_operator.gateway import tls

LOG = logging.getLogger("stitch.certificates")
LOOK_SECONDS = 5.0
HANDSHAKE_SECONDS = 2.0
NOTHING = "the certificate has not been read yet"


@dataclass(frozen=True)
class Metrics:
    """Of a server's certificate: when it ends (seconds since 1970), and files of no use."""

    end: Gauge
    failures: Counter


class Certificates:
    """`context` is the server's, always usable; `look` brings it up to date with the files.

    Each handshake is moved to the context of the last usable pair when it begins. Loading a pair
    into a context that serves would do it in two steps, and a handshake between them fails.
    """

    def __init__(self, certificate: Path, key: Path, metrics: Metrics) -> None:
        self._files = certificate, key
        self._metrics = metrics
        self._seen = b""
        self._leaf: x509.Certificate | None = None
        with tempfile.TemporaryDirectory() as folder:
            _, made, its_key = tls.make(Path(folder), ["throwaway"])
            self.context = self._live = tls.context(made, its_key)
        self.context.sni_callback = self._begin  # also called where the client names no server

    def _begin(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        handshake.context = self._live

    def look(self) -> bool:
        """True when the files have changed and the next handshake is with what they hold."""
        try:
            data = [file.read_bytes() for file in self._files]
            seen = hashlib.sha256(b"".join(data)).digest()
            if seen == self._seen:
                return False
            live = tls.context(*self._files)
            leaf = x509.load_pem_x509_certificate(data[0])
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            self._metrics.failures.inc()
            LOG.warning("certificate %s: %s", self._files[0], error)
            return False
        self._seen, self._leaf, self._live = seen, leaf, live
        end = leaf.not_valid_after_utc
        self._metrics.end.set(end.timestamp())
        LOG.info("certificate read; it ends %s", end.isoformat())
        return True

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_SECONDS)

    async def check(self, host: str, port: int) -> str:
        """Why clients would not get on with this server, "" if they would: a handshake with it."""
        if self._leaf is None:
            return NOTHING
        if self._leaf.not_valid_after_utc.timestamp() < time.time():
            return f"the certificate ended {self._leaf.not_valid_after_utc.isoformat()}"
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                served = await _served(host, port)
        except (OSError, TimeoutError) as error:
            return f"no handshake with {host}:{port}: {type(error).__name__}"
        if served != self._leaf.public_bytes(Encoding.DER):
            return "another certificate is served than the file holds"
        return ""


async def _served(host: str, port: int) -> bytes:
    """The certificate that a server shows. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        return bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b"")
    finally:
        writer.close()
