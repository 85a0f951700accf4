"""A program that was killed is gone when its last thread is."""

from __future__ import annotations

import subprocess
import sys

from tests.cluster import processes
from tests.waiting import wait_for

LEADERLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone: what is left has a zombie for a head
"""


def test_a_program_whose_first_thread_has_ended_still_holds_what_it_had_open() -> None:
    with subprocess.Popen([sys.executable, "-c", LEADERLESS]) as process:
        try:
            wait_for(lambda: " Z " in _stat(process.pid), "its first thread has ended")
            assert processes._dying(process.pid)
        finally:
            process.kill()
        wait_for(lambda: not processes._dying(process.pid), "all of it has")


def _stat(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read()
