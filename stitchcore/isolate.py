"""A child process that works on what others wrote: bounded, alone, and without a network.

Workers parse graphs that they did not make (docs/contracts.md section 5). What handles one gets an
environment of five variables, a fresh temporary folder as its home, no descriptors but those given,
no capabilities, no core files, limits on processor time, file size and processes, and where the
kernel allows it a user and a network namespace of its own: no address is reachable, and nothing
outside can be traced or read through /proc. It dies with its parent.

Three limits are watched from outside, because the kernel has no such limit or waives it for root:
wall-clock seconds, resident bytes and threads of the child's whole process tree. The child is the
reaper of its descendants, so that a daemon stays in the tree. Address space is not limited:
TensorFlow and XLA reserve far more than they use. No process namespace is made: process numbers
name temporary files in shared folders.

This file is also the program that runs between `fork` and the command (`python -I -S isolate.py`):
a `preexec_fn` would run Python code in a fork of a parent with threads. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
HIGHEST_CAPABILITY = 63
PAGE = resource.getpagesize()
KILL_ROUNDS = 20  # a process that forks faster than it is killed is left to the kernel's limit


@dataclass(frozen=True)
class Limits:
    """What a child may use. `seconds` by the clock and `cpu_seconds` of each process; `memory` in
    resident bytes and `threads` of the whole tree; `file_bytes` of each file; `nice` is added.
    `hidden` folders look empty to it, where the kernel gives it a user namespace. With `private`
    its own folder is a file system in memory of so many bytes, which no other process sees; it does
    not start where that cannot be (ask `mounts_shared` before)."""

    seconds: float
    memory: int
    cpu_seconds: int
    threads: int = 512 + 16 * (os.cpu_count() or 1)
    file_bytes: int = 4 * 2**30
    nice: int = 0
    hidden: tuple[str, ...] = ()
    private: int = 0


@dataclass(frozen=True)
class Usage:
    """Of a process tree: resident bytes and threads."""

    memory: int
    threads: int


class Child:
    """A running command. `poll` and `exceeded` are to be asked now and then; `stop` ends it all."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: Limits,
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        self.process = process
        self.folder = Path(folder.name)
        self._limits = limits
        self._temporary = folder
        self._deadline = time.monotonic() + limits.seconds

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self.process.poll()

    def late(self) -> bool:
        """True when it has taken longer than it may."""
        return time.monotonic() > self._deadline

    def exceeded(self) -> str | None:
        """Which limit on the tree's memory or threads is broken, in words; None when none is."""
        used = usage(self.process.pid)
        if used.memory > self._limits.memory:
            return f"more than {self._limits.memory / 2**30:.1f} GiB"
        if used.threads > self._limits.threads:
            return f"more than {self._limits.threads} threads"
        return None

    def stop(self) -> None:
        """Kill the child and all it started; remove its folder. May be called again."""
        root = self.process.pid
        if self.process.poll() is None:
            _signal([root], signal.SIGSTOP)  # it starts nothing new; orphans still come to it
            for _ in range(KILL_ROUNDS):
                below = [one for one in tree(root) if one != root]
                if not below:
                    break
                _signal(below, signal.SIGKILL)
                time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGKILL)
        self.process.wait()
        self._temporary.cleanup()


def command(
    argv: Sequence[str],
    limits: Limits,
    *,
    environment: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
) -> Child:
    """Start `argv` isolated, in a session and a temporary folder of its own.

    `environment` is added to PATH, HOME, TMPDIR, LANG and CUDA_VISIBLE_DEVICES: nothing of this
    process's own environment but PATH is passed on. A kernel that refuses a network namespace is
    named in the child's first line on `stderr`; ask `network_open` to know before. Raises OSError.
    """
    folder = tempfile.TemporaryDirectory(prefix="stitch-child-", ignore_cleanup_errors=True)
    own = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": folder.name,
        "TMPDIR": folder.name,
        "LANG": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": "",
    }
    try:
        process = subprocess.Popen(
            _launcher(limits, os.getpid(), argv),
            env={**own, **(environment or {})},
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
    """Why a child of `command` sees this machine's mounts and no others, so that nothing can be
    hidden from it and it can have no `private` folder; "" where it has mounts of its own."""
    return _probed()[1]


@functools.cache
def _probed() -> tuple[str, str]:
    here = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "probe"]
    done = subprocess.run(here, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        return f"exit code {done.returncode}", f"exit code {done.returncode}"
    network, mounts = json.loads(done.stdout)
    return str(network), str(mounts)


def _launcher(limits: Limits, parent: int, argv: Sequence[str]) -> list[str]:
    here = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
    return [*here, json.dumps(asdict(limits)), str(parent), *argv]


# Process trees


@dataclass(frozen=True)
class _Process:
    number: int
    parent: int
    usage: Usage


def _processes() -> Iterable[_Process]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue  # it ended meanwhile
        used = Usage(int(fields[21]) * PAGE, int(fields[17]))
        yield _Process(int(entry.name), int(fields[1]), used)


def _tree(root: int) -> list[_Process]:
    by_parent: dict[int, list[_Process]] = {}
    found = []
    for process in _processes():
        by_parent.setdefault(process.parent, []).append(process)
        if process.number == root:
            found.append(process)
    for process in found:  # grows while it is walked: breadth first
        found.extend(by_parent.get(process.number, ()))
    return found


def tree(root: int) -> list[int]:
    """Process numbers of `root` and its living descendants (Linux)."""
    return [process.number for process in _tree(root)]


def usage(root: int) -> Usage:
    """What the tree of `root` uses now (Linux); shared pages count for each process."""
    found = [process.usage for process in _tree(root)]
    return Usage(sum(one.memory for one in found), sum(one.threads for one in found))


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


# In the child, before the command


def _separate() -> tuple[str, str]:
    """Leave the network for an empty one, and have mounts of its own: why not, or "", of each.

    With a user namespace first: in it even root has no right over what is outside. Identity maps
    keep the owner of files what it is.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) == 0:
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        except OSError as error:
            why = f"user namespace: {error.strerror}"
            return why, why
        return "", ""
    why = f"unshare: {os.strerror(ctypes.get_errno())}"
    return "" if libc.unshare(CLONE_NEWNET) == 0 else why, why


def _cover(folder: str, flags: int, options: str) -> str:
    """Put an empty file system over a folder, in this process's own mount namespace; why not, or
    "". What a user namespace inherits cannot be taken off in it, nor in one below."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = os.fsencode(os.path.realpath(folder))
    if libc.mount(b"none", path, b"tmpfs", flags | MS_NOSUID | MS_NODEV, options.encode()) == 0:
        return ""
    return os.strerror(ctypes.get_errno())


def _hide(folder: str) -> str:
    why = _cover(folder, MS_RDONLY | MS_NOEXEC, "size=4k,mode=555")
    return f"it stays visible to this process: {why}" if why else ""


def _make_private(size: int) -> str:
    """The working folder becomes one that only this process and its children see."""
    folder = os.getcwd()
    why = _cover(folder, 0, f"size={size},mode=700")
    os.chdir(folder)  # into what was put over it
    return why


def _limit(kind: int, value: int) -> None:
    """Lowers a limit; one that stands lower already is kept."""
    _, hard = resource.getrlimit(kind)
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (most, most))


def _confine(limits: Limits, parent: int) -> str:
    """Takes this process's rights away; why the network is still open, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Threads of the user count together where there is no user namespace: those that run stay.
    others = sum(one.usage.threads for one in _processes() if _owner(one.number) == os.getuid())
    still_open, shared = _separate()
    for folder in limits.hidden:
        if why := f"no user namespace ({shared})" if shared else _hide(folder):
            sys.stderr.write(f"stitch: {folder}: {why}\n")
    if limits.private and (why := shared or _make_private(limits.private)):
        sys.exit(f"stitch: no private folder: {why}")
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, limits.cpu_seconds)
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_NPROC, limits.threads + others)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for capability in range(HIGHEST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # gone with the exec that follows
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.nice(limits.nice)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # last: a change of rights clears it
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # the parent died before the line above
    return still_open


def _owner(process: int) -> int:
    try:
        return os.stat(f"/proc/{process}").st_uid
    except OSError:
        return -1


def main(arguments: Sequence[str]) -> None:
    """`probe`, or LIMITS PARENT COMMAND...: never returns from the latter."""
    if list(arguments) == ["probe"]:
        print(json.dumps(_separate()))
        return
    text, parent, *argv = arguments
    still_open = _confine(Limits(**json.loads(text)), int(parent))
    if still_open:
        sys.stderr.write(f"stitch: the network stays open to this process: {still_open}\n")
        sys.stderr.flush()
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1:])
