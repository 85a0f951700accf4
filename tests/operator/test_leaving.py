"""A service ends with its exit code, whatever its threads are in the middle of."""

from __future__ import annotations

import subprocess
import sys

CODE = 75
PROGRAM = f"""
import ssl, sys, threading, time
from stitchcore.service import startup
def connect():
    while True:
        ssl.create_default_context()
for _ in range(4):
    threading.Thread(target=connect, daemon=True).start()
time.sleep(0.3)
{{}}({CODE})
"""
TRIES = 8


def code(leave: str) -> int:
    command = [sys.executable, "-c", PROGRAM.format(leave)]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode


def test_threads_that_connect_cost_no_exit_code() -> None:
    """The mutant, Python's own end: OpenSSL is taken down under them."""
    assert {code("startup.leave") for _ in range(TRIES)} == {CODE}
    assert any(code("sys.exit") < 0 for _ in range(4 * TRIES))
