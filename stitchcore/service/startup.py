"""How a service's process begins and ends.

One that cannot start says what and where, why, and what to do, and ends with code 2. `stitch serve`
gives a process up that ends with this code at its first start: starting it again mends nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from stitchcore.artifact.store import Store, open_store
from stitchcore.errors import Refused
from stitchcore.options import store_access
from stitchcore.service.queues import check_broker

CANNOT_START = 2
STORE_SECONDS = 60.0
"""How long a store's server that cannot be reached is waited for."""
FREE = "another port, or end what listens there; an address of this machine"


class CannotStart(Exception):
    """`what` and where, `why`, and what mends it."""

    def __init__(self, what: str, why: str, mend: str) -> None:
        super().__init__(what, why, mend)
        self.what, self.why, self.mend = what, why, mend


def guarded(program: str, start: Callable[[], int]) -> int:
    """The exit code of `start`, or CANNOT_START after two lines on standard error."""
    try:
        return start()
    except CannotStart as error:
        sys.stderr.write(f"{program}: {error.what}: {error.why}\n  to mend it: {error.mend}\n")
        return CANNOT_START


def leave(code: int) -> NoReturn:
    """Ends the process, which has threads of its own, with `code`. Python's own end takes libraries
    down under them, OpenSSL first, and a process that crashes so has said nothing of what it had to
    say. Nothing is left to write: standard error is buffered by lines."""
    os._exit(code)


@contextlib.contextmanager
def needed(what: str, mend: str, *also: type[Exception]) -> Iterator[None]:
    """Raises CannotStart where the block raises OSError, ValueError or one of `also`."""
    kinds: tuple[type[Exception], ...] = (OSError, ValueError, *also)
    try:
        yield
    except kinds as error:
        raise CannotStart(what, _words(error), mend) from error


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error) or type(error).__name__


def store(url: str, seconds: float = STORE_SECONDS) -> Store:
    """The store at `url`, which must take a file. A server that is not up is waited for: it starts
    beside those that need it. Raises CannotStart."""
    what = f"--store {url}"
    with needed(what, "a folder, or the URL of a store that fsspec knows", ImportError):
        opened = open_store(url, store_access(os.environ, url))
    with needed(what, "make it readable and writable for this user, and reachable", Refused):
        _try(opened, what, time.monotonic() + seconds)
    return opened


def _try(opened: Store, what: str, deadline: float) -> None:
    """Writes a file and removes it. Raises Refused."""
    probe, told = f".probe-{os.getpid()}", False
    while True:
        try:
            opened.write(b"", probe)
            opened.delete(probe)
            return
        except Refused as refused:
            down = isinstance(refused.__cause__, ConnectionError)
            if not down or time.monotonic() > deadline:
                raise
            if not told:
                sys.stderr.write(f"{what} is waited for: {refused.refusal.detail}\n")
                told = True
        time.sleep(1.0)


def broker(url: str) -> str:
    """`url`, where it is a broker's; one that is down is waited for. Raises CannotStart."""
    mend = "redis://host:port/0, sentinel://host:port/0?master=NAME or amqp://user:password@host//"
    with needed("--broker or STITCH_BROKER", mend):
        check_broker(url)
    return url


def listening(host: str, port: int, option: str) -> socket.socket:
    """A socket bound to the address. Raises CannotStart."""
    with needed(f"--host {host} {option} {port}", FREE):
        if not 0 <= port <= 65535:
            raise ValueError("a port is at most 65535")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    return made
