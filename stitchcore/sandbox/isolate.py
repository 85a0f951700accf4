"""A child process that works on what others wrote: bounded, alone, and without a network.

Workers parse graphs that they did not make (docs/contracts.md section 5). What handles one gets an
environment of five variables, a fresh temporary folder as its home, no descriptors but those given,
no capabilities, no core files, limits on processor time, file size and processes, and where the
kernel allows it a user and a network namespace of its own: no address is reachable, and nothing
outside can be traced or read through /proc. With `apart` it sees no other's temporary files, no
sockets or secrets in /run, and nothing of its user's home: by mounts of its own where the kernel
gives a user namespace, and by Landlock and a list of system calls, which a plain restricted pod has
too; a child that none of them keeps apart does not start. It dies with its parent; what a parent
that was killed leaves of its folder, `sweep` removes.

Four limits are watched from outside, because the kernel has no such limit or waives it for root:
wall-clock seconds, resident bytes and threads of the child's whole process tree, bytes of its
folder. The child is the reaper of its descendants, so that a daemon stays in the tree. Address
space is not limited: TensorFlow and XLA reserve far more than they use. No process namespace is
made: process numbers name temporary files in shared folders.

What takes the child's rights away runs between `fork` and the command: confine.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from stitchcore.sandbox import confine
from stitchcore.sandbox.confine import Limits, Process, Usage, processes

__all__ = [
    "Child",
    "Limits",
    "Usage",
    "command",
    "mounts_shared",
    "network_open",
    "open_to_children",
    "sweep",
    "tree",
]

ROOT = str(Path(confine.__file__).resolve().parents[2])
"""Where the child finds this package."""
_PROGRAM = (sys.executable, "-I", "-S", "-c", confine.START, ROOT)
KILL_ROUNDS = 20  # a process that forks faster than it is killed is left to the kernel's limit
DISK_SECONDS = 2.0
PREFIX = "stitch-child-"
GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "LD_LIBRARY_PATH",
)
"""What says which GPUs there are, and where their driver is."""
EMPTY_SECONDS = 60.0
"""A folder of PREFIX without content may be one that its maker has not locked yet."""


class Child:
    """A running command. `poll` and `exceeded` are to be asked now and then; `stop` ends it all.

    `seconds` is the processor time of its tree as last seen by any of them: it never falls, and
    after `stop` it is what was used in all.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: Limits,
        folder: _Folder,
    ) -> None:
        self.process = process
        self.folder = Path(folder.name)
        self.seconds = 0.0
        self._limits = limits
        self._temporary = folder
        self._deadline = time.monotonic() + limits.seconds
        self._look_at_files = 0.0

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        if self.process.returncode is None:
            # What it used goes with it when it is waited for.
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, self.process.pid, ended) is not None:
                    self._look()
        return self.process.poll()

    def renew(self) -> None:
        """Its wall-clock seconds begin now."""
        self._deadline = time.monotonic() + self._limits.seconds

    def late(self) -> bool:
        """True when it has taken longer than it may."""
        return time.monotonic() > self._deadline

    def exceeded(self) -> str | None:
        """Which limit on the tree's memory, threads or files is broken, in words; None when none
        is."""
        used = self._look()
        if used.memory > self._limits.memory:
            return f"more than {self._limits.memory / 2**30:.1f} GiB"
        if used.threads > self._limits.threads:
            return f"more than {self._limits.threads} threads"
        if time.monotonic() > self._look_at_files:
            self._look_at_files = time.monotonic() + DISK_SECONDS
            most = self._limits.private or self._limits.disk
            if _bytes_in(self.folder) > most:
                return f"more than {most / 2**30:.1f} GiB of files"
        return None

    def stop(self) -> None:
        """Kill the child and all it started; remove its folder. May be called again."""
        root = self.process.pid
        if self.poll() is None:
            _signal([root], signal.SIGSTOP)  # it starts nothing new; orphans still come to it
            self._look()
            for _ in range(KILL_ROUNDS):
                below = [process for process in tree(root) if process != root]
                if not below:
                    break
                _signal(below, signal.SIGKILL)
                time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGKILL)
        self.process.wait()
        self._temporary.cleanup()

    def _look(self) -> Usage:
        used = usage(self.process.pid)
        self.seconds = max(self.seconds, used.seconds)
        return used


def command(
    argv: Sequence[str],
    limits: Limits,
    *,
    environment: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
    gpus: bool = False,
) -> Child:
    """Start `argv` isolated, in a session and a temporary folder of its own.

    `environment` is added to PATH, HOME, TMPDIR, LANG and CUDA_VISIBLE_DEVICES: nothing of this
    process's own environment but PATH is passed on. With `gpus` it sees the GPUs that this process
    does (GPU_VARIABLES), else none. A kernel that refuses a network namespace is
    named in the child's first line on `stderr`; ask `network_open` to know before. Raises OSError.
    """
    folder = _Folder()
    base = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": folder.name,
        "TMPDIR": folder.name,
        "LANG": "C.UTF-8",
    }
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    # TensorFlow would take all of their memory, and ours is beside it.
    shown = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    shown |= {name: os.environ[name] for name in GPU_VARIABLES if name in os.environ}
    try:
        process = subprocess.Popen(
            _launcher(limits, os.getpid(), argv),
            env={**base, **(shown if gpus else hidden), **(environment or {})},
            cwd=folder.name,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except OSError:
        folder.cleanup()
        raise
    return Child(process, limits, folder)


def network_open() -> str:
    """Why a child of `command` can reach the network on this machine; "" when it cannot.

    Tried once per process, in a child.
    """
    return _probed()[0]


def mounts_shared() -> str:
    """Why a child of `command` sees this machine's mounts and no others; "" where it has mounts of
    its own."""
    return _probed()[1]


def open_to_children() -> dict[str, str]:
    """What this machine's kernel does not keep from children that are `apart`, and why: `network`,
    and `files` of others. Such children do not start where it is not empty."""
    network, mounts, landlock, seccomp = _probed()
    reasons = {
        "network": f"{network}; {seccomp}" if network and seccomp else "",
        "files": f"{mounts}; {landlock}" if mounts and landlock else "",
    }
    return {kept_open: why for kept_open, why in reasons.items() if why}


@functools.cache
def _probed() -> tuple[str, str, str, str]:
    """Why there is no network, no mounts of its own, no Landlock, no filter of system calls."""
    process = subprocess.run([*_PROGRAM, "probe"], capture_output=True, text=True, timeout=60)
    if process.returncode != 0:
        why = f"exit code {process.returncode}"
        return why, why, why, why
    network, mounts, landlock, seccomp = map(str, json.loads(process.stdout))
    return network, mounts, landlock, seccomp


def _launcher(limits: Limits, parent: int, argv: Sequence[str]) -> list[str]:
    shown = (*limits.shown, sys.prefix, sys.base_prefix)
    child_limits = replace(limits, shown=shown, covered=(*limits.covered, *_homes()))
    return [*_PROGRAM, json.dumps(asdict(child_limits)), str(parent), *argv]


def _homes() -> set[str]:
    """This user's home: credentials lie there."""
    homes = {os.path.expanduser("~")}
    with contextlib.suppress(KeyError):  # a user without a name
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    return {home for home in homes if os.path.isabs(home)}


# Folders


class _Folder:
    """A child's folder, locked for as long as the process lives that made it."""

    def __init__(self) -> None:
        self._made = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        self.name = self._made.name
        lock = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._unlock = weakref.finalize(self, os.close, lock)

    def cleanup(self) -> None:
        """Remove it. May be called again."""
        self._made.cleanup()
        self._unlock()


def sweep() -> int:
    """Remove folders of children whose maker was killed, of this user; how many.

    Those of living makers are locked (`flock`, which ends with its holder however it ends).
    """
    return sum(_swept(path) for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def _swept(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False  # no folder, another user's, or gone
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh = time.time() - os.fstat(handle).st_ctime < EMPTY_SECONDS
        if fresh and not os.listdir(handle):
            return False
        shutil.rmtree(path, onerror=_open_and_again)
    except OSError:
        return False  # locked: its maker lives
    finally:
        os.close(handle)
    return not path.exists()


def _open_and_again(remove: Callable[..., object], path: str, why: object) -> None:
    """A child may have taken rights away on its own folders. Raises OSError."""
    del why
    parent = os.path.dirname(path)
    for folder in (parent, path):
        if stat.S_ISDIR(os.lstat(folder).st_mode):
            os.chmod(folder, 0o700, follow_symlinks=False)
    if remove is os.unlink or remove is os.rmdir:
        remove(path)
    else:
        shutil.rmtree(path)


def _bytes_in(folder: Path) -> int:
    """What the files below take of the disk; those that vanish meanwhile take nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
    return total


# Process trees


def _tree(root: int) -> list[Process]:
    by_parent: dict[int, list[Process]] = {}
    members = []
    for process in processes():
        by_parent.setdefault(process.parent, []).append(process)
        if process.number == root:
            members.append(process)
    for process in members:  # grows while it is walked: breadth first
        members.extend(by_parent.get(process.number, ()))
    return members


def tree(root: int) -> list[int]:
    """Process numbers of `root` and its living descendants (Linux)."""
    return [process.number for process in _tree(root)]


def usage(root: int) -> Usage:
    """What the tree of `root` uses now (Linux); shared pages count for each process."""
    usages = [process.usage for process in _tree(root)]
    return Usage(
        sum(member.memory for member in usages),
        sum(member.threads for member in usages),
        sum(member.seconds for member in usages),
    )


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)
