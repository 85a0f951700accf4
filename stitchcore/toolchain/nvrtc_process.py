"""NVRTC in a process that can be ended: `python -m stitchcore.toolchain.nvrtc_process`.

NVRTC has no time limit, and a program that it hangs on, explodes on or crashes with would take the
compiler's process with it. The process is kept for the next program; one that used too much is
killed, and the next program gets a fresh one. Requests and answers are JSON, one a line.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import IO, Any

from stitchcore.errors import Reason, Refused
from stitchcore.toolchain import nvrtc
from stitchcore.toolchain.nvrtc import CompiledProgram, Resources

PR_SET_PDEATHSIG = 1
LOOKS = 0.05
"""Seconds between looks at what a process uses."""


@dataclass(frozen=True)
class Limits:
    """Of one program. The clock's limit is for what waits without working, and wide: a machine may
    be busy. `memory_bytes` are of address space: NVRTC's own are under 1 GiB."""

    processor_seconds: float = 90.0
    seconds: float = 600.0
    memory_bytes: int = 8 << 30


DEFAULT = Limits()
"""The largest program of the workloads takes 13 s of a processor."""


class Compiler:
    """A process that compiles, begun at first use. May be used by any thread, one at a time."""

    def __init__(self, limits: Limits = DEFAULT, command: tuple[str, ...] = ()) -> None:
        self._limits = limits
        default_command = (
            sys.executable,
            "-m",
            "stitchcore.toolchain.nvrtc_process",
            str(limits.memory_bytes),
        )
        self._command = command or default_command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def compile(self, source: str, target: str) -> CompiledProgram:
        """As nvrtc.compile_cuda. Raises Refused(COMPILE_FAILED) also for what was cut, or died."""
        with self._lock:
            process = self._running()
            answer = self._exchange(process, {"source": source, "target": target})
        if "reason" in answer:
            raise Refused("nvrtc", Reason(answer["reason"]), answer["detail"])
        return CompiledProgram(
            base64.b64decode(answer["data"]),
            target,
            answer["version"],
            tuple(Resources(**fields) for fields in answer["resources"]),
            answer["seconds"],
        )

    def close(self) -> None:
        """End the process; a later `compile` begins another."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, unless it has ended or is the parent's of a fork."""
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        return self._process

    def _exchange(
        self, process: subprocess.Popen[bytes], request: dict[str, str]
    ) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        began, used = time.monotonic(), _processor_seconds(process.pid)
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            return self._answer(process, process.stdout, began, used)
        except _Cut as why:
            self.close()
            raise Refused("nvrtc", Reason.COMPILE_FAILED, str(why)) from None
        except (OSError, ValueError) as error:
            self.close()
            detail = f"its process ended with {process.returncode}: {error or 'no answer'}"
            raise Refused("nvrtc", Reason.COMPILE_FAILED, detail) from None

    def _answer(
        self, process: subprocess.Popen[bytes], stdout: IO[bytes], began: float, used: float
    ) -> dict[str, Any]:
        """Raises _Cut over a limit, ValueError for what is no answer (the process ended)."""
        limits, said = self._limits, bytearray()
        while not said.endswith(b"\n"):
            if not select.select([stdout], [], [], LOOKS)[0]:
                if _processor_seconds(process.pid) - used > limits.processor_seconds:
                    raise _Cut(f"cut after {limits.processor_seconds:g} s of a processor")
                if time.monotonic() - began > limits.seconds:
                    raise _Cut(f"cut after {limits.seconds:g} s")
                continue
            part = os.read(stdout.fileno(), 1 << 20)
            if not part:
                process.wait()
                break
            said += part
        answer: dict[str, Any] = json.loads(said)
        return answer


class _Cut(Exception):
    """What was used, and how much of it there is."""


def _processor_seconds(number: int) -> float:
    """Of a process so far; 0 where it has gone."""
    try:
        with open(f"/proc/{number}/stat", encoding="ascii") as file:
            parts = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


@lru_cache(maxsize=1)
def shared() -> Compiler:
    """The one process of this one."""
    return Compiler()


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Compile what is asked until there is no more."""
    for line in requests:
        request = json.loads(line)
        try:
            program = nvrtc.compile_cuda(request["source"], request["target"])
        except Refused as refused:
            refusal = refused.refusal
            answer: dict[str, Any] = {"reason": refusal.reason.value, "detail": refusal.detail}
        else:
            answer = {
                "data": base64.b64encode(program.data).decode(),
                "version": program.version,
                "resources": [asdict(resources) for resources in program.resources],
                "seconds": program.seconds,
            }
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _main() -> None:
    """Dies with its parent, also in the middle of a program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    _main()
