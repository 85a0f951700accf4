"""Runs a command that is told to end when its parent ends, however that ends (Linux).

`python -I -S launch.py PARENT COMMAND...`: a program of its own, because code between `fork` and
`exec` of a process with threads may deadlock. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the parent ended first")
    os.execvp(command[0], command)
