"""What a child gives up before its command runs: `python -I -S -c START ROOT LIMITS
PARENT COMMAND...`

A program of its own, because a `preexec_fn` would run Python code in a fork of a parent with
threads. Standard library only. isolate.py starts it and says what it is for.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stitchcore.sandbox import landlock, seccomp

START = "import sys; sys.path.append(sys.argv.pop(1)); from stitchcore.sandbox import confine; "
START += "confine.main(sys.argv[1:])"
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC = 1, 2, 4, 8, 4096, 16384
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
HIGHEST_CAPABILITY = 63
PAGE = resource.getpagesize()
TICKS = os.sysconf("SC_CLK_TCK")
COVERED = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/var/run")
"""Where temporary files, sockets and mounted secrets of others are."""
READABLE = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/proc", "/sys"),
    *("/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime"),
)
"""Beside the interpreter and what is shown: programs and libraries, and what the kernel says of the
machine. Of other processes it says what all may read."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
COVERED_OPTIONS = "size=16m,nr_inodes=4096,mode=1777"


@dataclass(frozen=True)
class Limits:
    """What a child may use. `seconds` by the clock and `cpu_seconds` of each process; `memory` in
    resident bytes and `threads` of the whole tree; `file_bytes` of each file; `nice` is added.
    `hidden` folders look empty to it, where the kernel gives it a user namespace. With `private`
    its own folder is a file system in memory of so many bytes, which no other process sees, or
    where it has no mounts of its own a folder of so many that no other child reaches. With `apart`
    it touches READABLE files, its own folder, the interpreter's and what is `shown`, and nothing
    else; COVERED, TMPDIR and `covered` folders hold no more than those where it has mounts of its
    own; it makes no system call but those of seccomp.ALLOWED. It does not start where it would
    reach files of others or a network (ask `open_to_children` before). `disk` bytes of files are
    watched in its folder."""

    seconds: float
    memory: int
    cpu_seconds: int
    threads: int = 512 + 16 * (os.cpu_count() or 1)
    file_bytes: int = 4 * 2**30
    disk: int = 8 * 2**30
    nice: int = 0
    hidden: tuple[str, ...] = ()
    private: int = 0
    apart: bool = False
    shown: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Of a process tree: resident bytes and threads, and the processor seconds that it has used,
    with those of processes that ended and were waited for."""

    memory: int
    threads: int
    seconds: float


@dataclass(frozen=True)
class Process:
    """One row of /proc."""

    number: int
    parent: int
    usage: Usage


def processes() -> Iterable[Process]:
    """All that can be seen in /proc (Linux)."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue  # it ended meanwhile
        seconds = sum(map(int, fields[11:15])) / TICKS
        used = Usage(int(fields[21]) * PAGE, int(fields[17]), seconds)
        yield Process(int(entry.name), int(fields[1]), used)


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


def _outermost(paths: Iterable[str]) -> list[str]:
    """The folders among them, none within another, and never all of the file system."""
    resolved = {os.path.realpath(path) for path in paths}
    folders = [path for path in resolved if path != "/" and os.path.isdir(path)]
    return [path for path in sorted(folders) if not _beneath(path, folders)]


def _beneath(path: str, folders: Iterable[str]) -> bool:
    """Whether `path` is in one of the folders, and none of them itself."""
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders if folder != path)


def _set_apart(shown: Sequence[str], also: Sequence[str]) -> str:
    """What is covered becomes this process's own: empty, but for the working folder and what is
    `shown`, each where it was. Why not, or ""."""
    working = os.path.realpath(os.getcwd())
    covered = _outermost((os.path.dirname(working), *COVERED, *also))
    wanted = sorted({working, *(os.path.realpath(path) for path in shown)})
    handles = {path: os.open(path, os.O_PATH) for path in wanted if _beneath(path, covered)}
    for folder in covered:
        if why := _cover(folder, 0, COVERED_OPTIONS):
            return f"{folder}: {why}"
    for path, handle in handles.items():
        if why := _bind(f"/proc/self/fd/{handle}", path):
            return f"{path}: {why}"
        os.close(handle)
    os.chdir(working)
    return ""


def _bind(source: str, path: str) -> str:
    os.makedirs(path, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), os.fsencode(path), None, MS_BIND | MS_REC, None) == 0:
        return ""
    return os.strerror(ctypes.get_errno())


def _limit(kind: int, value: int) -> None:
    """Lowers a limit; one that stands lower already is kept."""
    _, hard = resource.getrlimit(kind)
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (most, most))


def _confine(limits: Limits, parent: int) -> str:
    """Takes this process's rights away; why the network is still open, or ""."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Threads of the user count together where there is no user namespace: those that run stay.
    running = sum(
        process.usage.threads for process in processes() if _owner(process.number) == os.getuid()
    )
    still_open, shared = _separate()
    for folder in limits.hidden:
        fenced = shared and (limits.apart or limits.private)
        if not fenced and (why := shared and f"no user namespace ({shared})" or _hide(folder)):
            sys.stderr.write(f"stitch: {folder}: {why}\n")
    if limits.apart and not shared and (why := _set_apart(limits.shown, limits.covered)):
        sys.exit(f"stitch: it cannot be set apart: {why}")
    if limits.private and not shared and (why := _make_private(limits.private)):
        sys.exit(f"stitch: no private folder: {why}")
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, limits.cpu_seconds)
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_NPROC, limits.threads + running)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for capability in range(HIGHEST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # gone with the exec that follows
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.nice(limits.nice)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # last: a change of rights clears it
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # the parent died before the line above
    if limits.apart or limits.private:
        still_open = _fence(limits, bool(shared), bool(still_open))
    return still_open


def _fence(limits: Limits, shared: bool, reachable: bool) -> str:
    """Files by Landlock, system calls by a filter; beside namespaces, or in their place. Ends the
    process where neither keeps it from files of others, or from the network."""
    own = [os.getcwd(), *DEVICES, *sorted(map(str, Path("/dev").glob("nvidia*")))]
    if limits.apart and not shared:
        own += [*COVERED, *limits.covered, os.path.dirname(os.getcwd())]
    seen = [*READABLE, *limits.shown]
    for folder in limits.hidden:
        if shared and landlock.within(folder, [*seen, *own]):
            sys.exit(f"stitch: {folder} lies in what it has to see: {', '.join(seen)}")
    if (why := landlock.restrict(seen, own)) and shared:
        sys.exit(f"stitch: it would reach files of others: {why}")
    if (why := seccomp.restrict()) and reachable:
        sys.exit(f"stitch: it would reach the network: {why}")
    return ""


def _owner(process: int) -> int:
    try:
        return os.stat(f"/proc/{process}").st_uid
    except OSError:
        return -1


def main(arguments: Sequence[str]) -> None:
    """`probe`, or LIMITS PARENT COMMAND...: never returns from the latter."""
    if list(arguments) == ["probe"]:
        libc = ctypes.CDLL(None, use_errno=True)
        network, mounts = _separate()
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        print(json.dumps((network, mounts, landlock.restrict(READABLE, ()), seccomp.restrict())))
        return
    text, parent, *argv = arguments
    still_open = _confine(Limits(**json.loads(text)), int(parent))
    if still_open:
        sys.stderr.write(f"stitch: the network stays open to this process: {still_open}\n")
        sys.stderr.flush()
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1:])
