"""The processes of a cluster: each carries its cluster's state folder in its environment.

That mark, not a remembered number, says which processes are a cluster's: it is there from a
process's first moment, children inherit it, and a number that was given anew has another one. So
whatever a killed `up` left is found, and nothing else is ever touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "STITCH_TESTBED"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IN_BACKGROUND = 'pid=$1; log=$2; shift 2; "$@" >"$log" 2>&1 & echo $! >"$pid"'


class NotUp(RuntimeError):
    """A cluster, or a part of it, that did not come up; says what its log says."""


@dataclass(frozen=True)
class Daemon:
    """A program of the cluster and how it is called."""

    name: str
    command: tuple[str, ...]
    within: tuple[str, ...] = ()
    """What enters the namespaces that it runs in; then the program is that command's child."""


def start(state: Path, daemon: Daemon) -> int:
    """Starts it as nobody's child: it outlives whoever called. Returns its process id."""
    pid, log = pid_file(state, daemon.name), log_file(state, daemon.name)
    folder = str(Path(daemon.command[0]).parent)
    environment = {MARK: str(state), "PATH": f"{folder}:{PATH}", "HOME": str(state)}
    subprocess.run(
        ["sh", "-c", IN_BACKGROUND, "sh", str(pid), str(log), *daemon.within, *daemon.command],
        env=environment,
        cwd=state,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )
    started = int(pid.read_text())
    if daemon.within:
        started = _only_child(state, daemon.name, started)
        pid.write_text(str(started))
    return started


def _only_child(state: Path, name: str, parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    found = await_ready(state, [name], lambda: children.read_text().split(), 10, f"{name} starts")
    return int(found[0])


def namespace() -> str:
    """The pid namespace of this process, as Linux names it."""
    return os.readlink("/proc/self/ns/pid")


def pid_file(state: Path, name: str) -> Path:
    return state / "pid" / name


def log_file(state: Path, name: str) -> Path:
    return state / "log" / f"{name}.log"


def marked(pid: int, state: Path) -> bool:
    """Whether this process lives and is of the cluster at `state`."""
    try:
        return has_mark(_environment(Path(f"/proc/{pid}")), state)
    except OSError:
        return False


def _environment(process: Path) -> bytes:
    """Linux shows none while a process changes from one program to another (exec): asked again."""
    for _ in range(50):
        if environment := (process / "environ").read_bytes():
            return environment
        (process / "exe").readlink()  # there is none of the kernel's threads and of the dead
        time.sleep(0.001)
    return b""


def has_mark(environment: bytes, state: Path) -> bool:
    """Whether a process with this environment, as Linux shows it, is of the cluster at `state`."""
    return f"{MARK}={state}".encode() in environment.split(b"\0")


def owned(state: Path) -> list[int]:
    """All living processes of the cluster at `state`."""
    everything = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [pid for pid in everything if marked(pid, state)]


def alive(state: Path, name: str) -> bool:
    """Whether the program that was started under this name still runs."""
    try:
        return marked(int(pid_file(state, name).read_text()), state)
    except (OSError, ValueError):
        return False


def end(pids: Callable[[], Iterable[int]], seconds: float = 20.0) -> None:
    """Kills what `pids` names until it names nothing: the state goes too, so nothing is flushed.

    No cluster has the caller, its parent or the machine's first process. Who names them has lost
    the way to tell whose a process is, and would end the whole machine: nothing is killed then.
    """
    deadline = time.monotonic() + seconds
    while left := list(pids()):
        if wrong := {1, os.getpid(), os.getppid()} & set(left):
            raise NotUp(f"processes {sorted(wrong)} are no cluster's: nothing is ended")
        if time.monotonic() > deadline:
            raise NotUp(f"processes {left} cannot be ended")
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def stop(state: Path, name: str) -> None:
    """Ends one program, as a crash would."""
    pid = int(pid_file(state, name).read_text())
    end(lambda: [pid] if marked(pid, state) else [])
    deadline = time.monotonic() + 20.0
    while _dying(pid) and time.monotonic() < deadline:  # its ports are taken until it has ended
        time.sleep(0.02)


def _dying(pid: int) -> bool:
    """Whether it has been killed and still holds what it had open: until its last thread is gone,
    which may be later than the first."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = os.listdir(f"/proc/{pid}/task")
        has_memory = Path(f"/proc/{pid}/statm").read_text().split()[0] != "0"
    except OSError:
        return False
    return not has_memory and (fields[0] not in ("Z", "X") or len(threads) > 1)


def await_ready(
    state: Path, names: Iterable[str], ready: Callable[[], Any], seconds: float, what: str
) -> Any:
    """The first true answer of `ready`; a program that ends meanwhile is told with its log."""
    deadline, watched = time.monotonic() + seconds, list(names)
    while not (answer := ready()):
        dead = [name for name in watched if not alive(state, name)]
        if dead or time.monotonic() > deadline:
            why = f"{dead[0]} ended" if dead else f"not within {seconds:.0f} s"
            tails = "\n".join(f"{name}: {tail(state, name)}" for name in dead or watched)
            raise NotUp(f"{what}: {why}\n{tails}")
        time.sleep(0.05)
    return answer


def tail(state: Path, name: str, lines: int = 8) -> str:
    """The end of a program's log."""
    try:
        text = log_file(state, name).read_text(errors="replace")
    except OSError:
        return "has no log"
    return "\n".join(text.splitlines()[-lines:])
