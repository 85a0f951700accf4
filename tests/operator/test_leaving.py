"""A service ends with its exit code, whatever its threads are in the middle of."""

from __future__ import annotations

import signal
import subprocess
import sys

CODE = 75
CONNECTING = """
import ssl, threading, time
def connect():
    while True:
        ssl.create_default_context()
for _ in range(4):
    threading.Thread(target=connect, daemon=True).start()
time.sleep(0.3)
"""
ABORTING = "import atexit, os; atexit.register(os.abort)"
"""Taking a library down ends the process, always."""
TRIES = 8


def code(program: str, leave: str) -> int:
    ending = f"{program}\nimport sys\nfrom stitchcore.service import startup\n{leave}({CODE})"
    command = [sys.executable, "-c", ending]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode


def test_threads_that_connect_cost_no_exit_code() -> None:
    """By Python's own end OpenSSL is taken down under them: 4 of 15 such processes crashed."""
    assert {code(CONNECTING, "startup.leave") for _ in range(TRIES)} == {CODE}


def test_nothing_is_taken_down() -> None:
    """And the mutant, Python's own end."""
    assert code(ABORTING, "startup.leave") == CODE
    assert code(ABORTING, "sys.exit") == -signal.SIGABRT
