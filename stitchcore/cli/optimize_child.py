"""The worker of `stitch run`: one child process per request, isolated as isolate.py says. One is
started when the job has imported TensorFlow, so that it has too when the first request comes.

The graph is untrusted. A worker started by the job's own user writes answers and artifacts itself:
it can reach that user's files, but no network.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import stitchcore
from stitchcore.errors import Reason
from stitchcore.options import Options
from stitchcore.sandbox import isolate

PACKAGE = Path(stitchcore.__file__).resolve().parent.parent
POLL_SECONDS = 0.2
NICE = 10
START_SECONDS = 60
"""Of a processor, for what a worker imports before its time begins: on a slow machine more than a
short limit allows for its work, and its end would be told as a crash."""


@dataclass(frozen=True)
class Failure:
    """Why a worker made no answer: WORKER_FAILED or DEADLINE, and the detail a user needs."""

    reason: Reason
    detail: str


class Worker:
    """A running child, which imports what it needs and waits to be asked; it sees GPUs where its
    artifact is for one (`target`). Then `poll` is called until it says something other than None.
    """

    digest = ""

    def __init__(self, target: str, options: Options, log: Path, polite: bool, python: str) -> None:
        self.gpus = target.startswith("sm_")
        self._options = options
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {"PYTHONPATH": str(PACKAGE), "TF_CPP_MIN_LOG_LEVEL": "2"}
        with log.open("ab") as output:
            self._child = isolate.command(
                _command(options, python),
                limits(options, polite),
                environment=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                gpus=self.gpus,
            )

    def ask(self, digest: str) -> None:
        """Hand it the request of this digest; its time begins now."""
        self.digest = digest
        self._asked = time.monotonic()
        self._child.renew()
        given = self._child.process.stdin
        assert given is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, which `poll` says
            given.write(f"{digest}\n".encode())
            given.close()

    def poll(self) -> Failure | bool | None:
        """None while it runs, True when it answered, a Failure when it died or was ended."""
        code = self._child.poll()
        if code is not None:
            self.stop()
            return True if code == 0 else Failure(Reason.WORKER_FAILED, self._last_words(code))
        if self._child.late():
            self.stop()
            detail = f"the worker took longer than {self._options.worker_seconds:g} s"
            return Failure(Reason.DEADLINE, detail)
        exceeded = self._child.exceeded()
        if exceeded is not None:
            self.stop()
            return Failure(Reason.WORKER_FAILED, f"the worker used {exceeded}")
        return None

    @property
    def seconds(self) -> float:
        """Since it was asked."""
        return time.monotonic() - self._asked

    @property
    def processor_seconds(self) -> float:
        """Those of all its processes so far, what it did before it was asked too."""
        return self._child.seconds

    def stop(self) -> None:
        """End the child and everything it started."""
        self._child.stop()

    def _last_words(self, code: int) -> str:
        lines = self._log.read_bytes().decode(errors="replace").strip().splitlines()
        last = lines[-1][:300] if lines else "no output"
        return f"exit code {code}: {last} (all of it: {self._log})"


def _command(options: Options, python: str) -> list[str]:
    command = [
        *(python, "-m", "stitchcore.cli.optimize"),
        *("--store", str(options.store), "--cache", str(options.cache), "--key", str(options.key)),
        *("--planner", options.planner, "--jobs", str(options.jobs), "--tune", str(options.tune)),
    ]
    if options.dump is not None:
        command += ["--dump", str(options.dump)]
    if options.restart is not None:
        command += ["--restart", str(options.restart)]
    if options.verify_passes:
        command.append("--verify-passes")
    if options.without:
        command += ["--without", ",".join(options.without)]
    if options.library is not None:
        command += ["--library", str(options.library)]
    if options.memory:
        command += ["--memory", str(options.memory)]
    return command


def limits(options: Options, polite: bool) -> isolate.Limits:
    """A worker's limits: every core may be busy for all of its time, once it is asked."""
    return isolate.Limits(
        seconds=options.worker_seconds,
        memory=options.worker_memory,
        cpu_seconds=math.ceil(START_SECONDS + options.worker_seconds * (os.cpu_count() or 1)),
        nice=NICE if polite else 0,
    )


def worker_python(job: Sequence[str], job_tf: str, own_tf: str) -> str | None:
    """The Python whose TensorFlow has the job's minor version: ours, else the job's if it holds
    stitchcore's needs; None when neither does."""
    if _minor(job_tf) == _minor(own_tf):
        return sys.executable
    program = shutil.which(job[0])
    if program is None:
        return None
    program = os.path.abspath(program)  # the worker runs in another folder
    check = "import stitchcore.optimize.pipeline, tensorflow; print(tensorflow.__version__)"
    command = [program, "-c", check]
    env = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(PACKAGE)}
    try:
        completed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    usable = completed.returncode == 0 and _minor(completed.stdout.strip()) == _minor(job_tf)
    return program if usable else None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
