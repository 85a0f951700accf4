"""Reads a request's body with its limits in force on every chunk, before anything is parsed.

A gzip bomb is stopped when its output passes the limit or the ratio, not when it is unpacked.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from stitch_operator.gateway.problems import Problem, Rejected

GZIP_WINDOW = 16 + zlib.MAX_WBITS
RATIO_FROM = 2**20
"""Bytes of output below which any ratio may be: zeros of a small graph compress well."""


@dataclass(frozen=True)
class Limits:
    """Bytes as sent, bytes when unpacked, and the largest quotient of the two."""

    sent: int
    unpacked: int
    ratio: int = 200


GRAPHS = Limits(64 * 2**20, 256 * 2**20)
REPORTS = Limits(64 * 2**10, 256 * 2**10)


async def read(chunks: AsyncIterator[bytes], encoding: str, limits: Limits) -> bytes:
    """The body, unpacked. Raises Rejected: TOO_LARGE, BAD_REQUEST, UNSUPPORTED_MEDIA_TYPE."""
    if encoding not in ("", "identity", "gzip"):
        raise Rejected(Problem.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding: {encoding[:100]!r}")
    unpacker = zlib.decompressobj(GZIP_WINDOW) if encoding == "gzip" else None
    out = bytearray()
    sent = 0
    async for chunk in chunks:
        sent += len(chunk)
        if sent > limits.sent:
            raise Rejected(Problem.TOO_LARGE, f"more than {limits.sent} bytes")
        if unpacker is None:
            out += chunk
        else:
            _unpack(unpacker, chunk, sent, out, limits)
    if unpacker is not None and (not unpacker.eof or unpacker.unused_data):
        raise Rejected(Problem.BAD_REQUEST, "the gzip stream is cut short, or more follows it")
    return bytes(out)


def _unpack(
    unpacker: zlib._Decompress, chunk: bytes, sent: int, out: bytearray, limits: Limits
) -> None:
    allowed = min(limits.unpacked, max(sent * limits.ratio, RATIO_FROM))
    try:
        out += unpacker.decompress(chunk, allowed - len(out) + 1)
    except zlib.error as error:
        raise Rejected(Problem.BAD_REQUEST, f"not gzip: {error}") from error
    if len(out) > allowed:
        what = f"unpacks to more than {limits.unpacked} bytes or {limits.ratio} times what was sent"
        raise Rejected(Problem.TOO_LARGE, what)
