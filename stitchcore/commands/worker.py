"""The worker of `stitch run`: one child process per request, bounded in time and memory.

The graph is untrusted: the child gets an empty environment, a folder of its own, no core files, and
dies with its parent. Memory is watched as resident bytes of the child's whole session (compilers
included), because TensorFlow and XLA reserve far more address space than they use.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import stitchcore
from stitchcore.errors import Reason
from stitchcore.options import Options

PACKAGE = Path(stitchcore.__file__).resolve().parent.parent
PAGE = resource.getpagesize()
POLL_SECONDS = 0.2
NICE = 10


@dataclass(frozen=True)
class Failure:
    """Why a worker made no answer: WORKER_FAILED or DEADLINE, and the detail a user needs."""

    reason: Reason
    detail: str


class Worker:
    """A running child. `poll` is called until it says something other than None."""

    def __init__(self, digest: str, options: Options, log: Path, polite: bool, python: str) -> None:
        self.digest = digest
        self._options = options
        self._log = log
        self._folder = tempfile.TemporaryDirectory(prefix="stitch-worker-")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                _command(digest, options, python, polite),
                env=_environment(os.environ.get("PATH", os.defpath), self._folder.name),
                cwd=self._folder.name,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._deadline = time.monotonic() + options.worker_seconds

    def poll(self) -> Failure | bool | None:
        """None while it runs, True when it answered, a Failure when it died or was ended."""
        code = self._process.poll()
        if code is not None:
            self.stop()
            return True if code == 0 else Failure(Reason.WORKER_FAILED, self._last_words(code))
        if time.monotonic() > self._deadline:
            self.stop()
            detail = f"the worker took longer than {self._options.worker_seconds:g} s"
            return Failure(Reason.DEADLINE, detail)
        used = session_bytes(self._process.pid)
        if used > self._options.worker_memory:
            self.stop()
            limit = self._options.worker_memory / 2**30
            return Failure(Reason.WORKER_FAILED, f"the worker used more than {limit:.1f} GiB")
        return None

    def stop(self) -> None:
        """End the child and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def _last_words(self, code: int) -> str:
        lines = self._log.read_bytes().decode(errors="replace").strip().splitlines()
        last = lines[-1][:300] if lines else "no output"
        return f"exit code {code}: {last} (all of it: {self._log})"


def _command(digest: str, options: Options, python: str, polite: bool) -> list[str]:
    command = [
        *(python, "-m", "stitchcore.commands.work", digest),
        *("--store", str(options.store), "--cache", str(options.cache), "--key", str(options.key)),
        *("--planner", options.planner, "--jobs", str(options.jobs)),
    ]
    if options.dump is not None:
        command += ["--dump", str(options.dump)]
    if options.restart is not None:
        command += ["--restart", str(options.restart)]
    return ["nice", "-n", str(NICE), *command] if polite else command


def _environment(path: str, folder: str) -> Mapping[str, str]:
    return {
        "PATH": path,
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(PACKAGE),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }


def session_bytes(session: int) -> int:
    """Resident bytes of all processes of a session (Linux)."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue  # it ended meanwhile
        if int(fields[3]) == session:
            total += int(fields[21]) * PAGE
    return total


def worker_python(job: Sequence[str], job_tf: str, own_tf: str) -> str | None:
    """The Python whose TensorFlow has the job's minor version: ours, else the job's if it holds
    stitchcore's needs; None when neither does."""
    if _minor(job_tf) == _minor(own_tf):
        return sys.executable
    program = shutil.which(job[0])
    if program is None:
        return None
    program = os.path.abspath(program)  # the worker runs in another folder
    check = "import stitchcore.pipeline, tensorflow; print(tensorflow.__version__)"
    command = [program, "-c", check]
    env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(PACKAGE)}
    try:
        found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    usable = found.returncode == 0 and _minor(found.stdout.strip()) == _minor(job_tf)
    return program if usable else None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
