"""Ports of tests are nobody else's, and whoever waits in vain says for what."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests import ports, waiting
from tests.lean import ROOT


def test_taken_and_kept_ports_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has the one, this one was given the other before; the third is free."""
    code = "from tests import ports; print(ports.free_port(), flush=True); input()"
    with (
        socket.create_server(("127.0.0.1", ports.free_port())) as listening,
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other,
    ):
        assert other.stdout is not None
        theirs, ours, free = int(other.stdout.readline()), *ports.free_ports(2)
        ports._KEPT.pop().close()  # the last one is given back
        taken = listening.getsockname()[1]
        monkeypatch.setattr(ports, "RANGE", [taken, theirs, ours, free])
        assert ports.free_port() == free
        with pytest.raises(OSError, match="no free port"):
            ports.free_port()
        other.communicate(b"\n")


def test_no_client_is_given_one() -> None:
    """Linux hands out others."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        least, _ = map(int, file.read().split())
    assert max(ports.RANGE) < least


def test_who_waits_is_told_the_value_or_for_what_he_waits_in_vain() -> None:
    found = iter([0, None, False, 7])
    assert waiting.wait_for(lambda: next(found)) == 7
    with pytest.raises(AssertionError, match="not within 0 s: an answer"):
        waiting.wait_for(lambda: False, "an answer", seconds=0.0)
    with pytest.raises(AssertionError, match="none of 3"):
        waiting.wait_for(lambda: False, lambda: "none of 3", seconds=0.0)
