"""Ports for the servers that tests start, which nobody takes between their choice and their use.

One that was bound as port 0 and closed again is anybody's: another test's, or the end of any
client's connection, even of one to that very port, which then answers itself while its server is
being started again. These lie below those that Linux hands out, and a UDP socket of the same number
keeps each from other test processes for as long as this one lives.
"""

from __future__ import annotations

import random
import socket

RANGE = range(20_000, 32_000)
_KEPT: list[socket.socket] = []


def free_port() -> int:
    """Raises OSError where there is none left."""
    [port] = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Raises OSError where there are not so many left."""
    found: list[int] = []
    for port in random.sample(RANGE, len(RANGE)):
        if len(found) == count:
            break
        if _kept(port):
            found.append(port)
    if len(found) < count:
        raise OSError("this machine has no free port left")
    return found


def _kept(port: int) -> bool:
    keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            keeper.bind(("127.0.0.1", port))
            probe.bind(("127.0.0.1", port))
        except OSError:
            keeper.close()
            return False
    _KEPT.append(keeper)
    return True
