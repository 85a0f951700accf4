"""Reads a request's body with its limits in force on every chunk, before anything is parsed.

A gzip bomb is stopped when its output passes the limit or the ratio, not when it is unpacked. What
is kept is charged piece by piece: a body that never ends has been paid for like any other.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from stitch_operator.gateway.problems import Problem, Rejected

GZIP_WINDOW = 16 + zlib.MAX_WBITS
RATIO_FROM = 2**20
"""Bytes of output below which any ratio may be: zeros of a small graph compress well."""
PIECE = 2**20
"""Bytes that are unpacked before they are charged."""


@dataclass(frozen=True)
class Limits:
    """Bytes as sent, bytes when unpacked, and the largest quotient of the two."""

    sent: int
    unpacked: int
    ratio: int = 200


GRAPHS = Limits(64 * 2**20, 256 * 2**20)
REPORTS = Limits(64 * 2**10, 256 * 2**10)


async def read(
    chunks: AsyncIterator[bytes], encoding: str, limits: Limits, charge: Callable[[int], None]
) -> bytes:
    """The body, unpacked. `charge` is called with the size of each piece and may refuse it. Raises
    Rejected: TOO_LARGE, BAD_REQUEST, UNSUPPORTED_MEDIA_TYPE, and what `charge` raises."""
    if encoding not in ("", "identity", "gzip"):
        raise Rejected(Problem.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding: {encoding[:100]!r}")
    unpacker = zlib.decompressobj(GZIP_WINDOW) if encoding == "gzip" else None
    out = bytearray()
    sent = 0
    try:
        async for chunk in chunks:
            sent += len(chunk)
            if sent > limits.sent:
                raise Rejected(Problem.TOO_LARGE, f"more than {limits.sent} bytes")
            allowed = min(limits.unpacked, max(sent * limits.ratio, RATIO_FROM))
            for piece in [chunk] if unpacker is None else _unpacked(unpacker, chunk):
                charge(len(piece))
                out += piece
                if len(out) > allowed:
                    what = f"{limits.unpacked} bytes or {limits.ratio} times what was sent"
                    raise Rejected(Problem.TOO_LARGE, f"unpacks to more than {what}")
            if unpacker is not None and unpacker.unused_data:
                raise Rejected(Problem.BAD_REQUEST, "more follows the gzip stream")
        if unpacker is not None and not unpacker.eof:
            raise Rejected(Problem.BAD_REQUEST, "the gzip stream is cut short")
        return bytes(out)
    finally:
        out.clear()  # the traceback of a refusal keeps this frame while the rest is read on


def _unpacked(unpacker: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    """What a chunk unpacks to, in pieces. Only one that is not full is the last: when a full one
    takes the last input, the unpacker may still hold output."""
    while True:
        try:
            piece = unpacker.decompress(chunk, PIECE)
        except zlib.error as error:
            raise Rejected(Problem.BAD_REQUEST, f"not gzip: {error}") from error
        yield piece
        if len(piece) < PIECE:
            return
        chunk = unpacker.unconsumed_tail
