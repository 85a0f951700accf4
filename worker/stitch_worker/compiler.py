"""The process that starts compile children, without any credential: a worker's other container.

    python -m stitch_worker.compiler --socket FILE

It reads no graph, and has no broker, no store, no key and no network: what a child that broke out
of its confinement would find here is what it was given already. A worker asks over the socket
(remote.py), which is not believed either: a request is a graph, its settings, or C, of bounded
sizes. A connection that ends, ends what it asked for. Ends at SIGTERM once nothing is asked for.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stitch_worker import machine, remote, units
from stitch_worker.children import Children, Handed, Left, Local, Look, Running
from stitch_worker.remote import About, Collect, Compile, Compiled, End, Greet, Leaving, LookAt
from stitchcore.device.host import host
from stitchcore.sandbox import isolate, seccomp
from stitchcore.service import startup
from stitchcore.service.startup import needed

log = logging.getLogger("stitch.compiler")
ACCEPT_SECONDS = 1.0
SILENT_SECONDS = 60.0
"""To say what one has begun to say, or to read an answer."""
LOOK_SECONDS = 1.0
MOST_CONNECTIONS = 512
KEY = re.compile(r"[0-9a-f]{64}")
MOST_JOBS = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal. Returns 2 where this machine cannot."""
    parsed = _arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    return startup.guarded("compiler", lambda: _run(parsed))


def _run(parsed: argparse.Namespace) -> int:
    target, tf = machine.found(parsed.target)
    machine.confined()
    cores = host().cores
    limits = isolate.Limits(
        parsed.seconds, parsed.memory, int(parsed.seconds * cores), shown=tuple(parsed.show)
    )
    children = Local(limits, parsed.logs or Path(tempfile.mkdtemp(prefix="stitch-compiler-")))
    with needed(f"--socket {parsed.socket}", "a path of at most 107 bytes that can be made"):
        listener = _listening(parsed.socket)
    with needed("this process would reach the network", "libseccomp2"):
        if why := seccomp.without_network():
            raise ValueError(why)
    server = Server(children, About(target, tf, parsed.jobs or cores), parsed.heartbeat)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.end.set())
    log.info("%s, TensorFlow %s: compiling for who asks at %s", target, tf, parsed.socket)
    server.serve(listener)
    return 0


def _listening(path: Path) -> socket.socket:
    """For this user alone, in the place of a process before. Raises OSError."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(MOST_CONNECTIONS)
    return listener


@dataclass
class Server:
    """Each connection in a thread of its own: children die with the thread that started them."""

    children: Children
    about: About
    heartbeat: Path | None = None
    accept_seconds: float = ACCEPT_SECONDS
    end: threading.Event = field(default_factory=threading.Event)
    _asking: list[threading.Thread] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        """Until `end` is set and nothing is asked for."""
        listener.settimeout(self.accept_seconds)
        while not self.end.is_set() or self._asking:
            if self.heartbeat is not None:
                self.heartbeat.touch()
            self._asking = [thread for thread in self._asking if thread.is_alive()]
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            if len(self._asking) >= MOST_CONNECTIONS:
                connection.close()  # who asked tries again
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._asking.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        handles: list[int] = []
        with connection:
            connection.settimeout(SILENT_SECONDS)
            try:
                _, handles, _, _ = socket.recv_fds(connection, 1, 2, socket.MSG_CMSG_CLOEXEC)
                self._answer(connection, handles)
            except (OSError, ValueError) as error:
                log.warning("a request is dropped: %s", error)
            finally:
                _close(handles)

    def _answer(self, connection: socket.socket, handles: list[int]) -> None:
        """Raises OSError, and ValueError for what is not done."""
        request: Greet | Compile | Handed = remote.hear(
            connection, Greet | Compile | Handed, remote.MOST_HANDED
        )
        if isinstance(request, Greet):
            remote.say(connection, self.about)
            return
        if request.target != self.about.target or not KEY.fullmatch(request.key):
            raise ValueError(f"not for {self.about.target}, or of no key")
        if isinstance(request, Compile):
            self._compile(connection, request)
            return
        if not handles or not 0 < request.jobs <= MOST_JOBS:
            raise ValueError("nowhere to say progress, or so many jobs")
        lines, channel = handles[0], handles[1] if len(handles) > 1 else None
        child = self.children.start(request, lines, channel)
        try:
            _close(handles)  # that of progress ends with the child
            remote.say(connection, Look(0.0))
            _follow(connection, child)
        finally:
            child.stop()

    def _compile(self, connection: socket.socket, request: Compile) -> None:
        if len(request.source) > units.MAXIMUM_SOURCE:
            raise ValueError(f"a source of {len(request.source)} bytes")
        unit, seconds = self.children.compile(
            request.source, request.key, request.target, lambda: _gone(connection)
        )
        library, remarks = (None, "") if unit is None else (unit.library, unit.remarks)
        remote.say(connection, Compiled(library, remarks, seconds))


def _follow(connection: socket.socket, child: Running) -> None:
    """Until it is not wanted any more. It is bounded also where its worker hangs. Raises
    OSError."""
    broken = None
    while True:
        while not select.select([connection], [], [], LOOK_SECONDS)[0]:
            if broken is None and (broken := child.look().broken) is not None:
                child.stop()
        request: LookAt | Collect | End = remote.hear(
            connection, LookAt | Collect | End, remote.MOST_SAID
        )
        if isinstance(request, End):
            remote.say(connection, Look(child.stop()))
            return
        if isinstance(request, LookAt):
            seen = child.look()
            remote.say(connection, Look(seen.seconds, seen.code, broken or seen.broken))
        else:
            _give(connection, child.left())


def _give(connection: socket.socket, left: Left) -> None:
    names = None if left.files is None else list(left.files)
    remote.say(connection, Leaving(left.refused, names, left.unreadable))
    for data in (left.files or {}).values():
        units.send(connection, data)


def _gone(connection: socket.socket) -> bool:
    """Whether the other end has closed."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _close(handles: list[int]) -> None:
    while handles:
        os.close(handles.pop())


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stitch_worker.compiler")
    parser.add_argument("--socket", type=Path, required=True, help="where a worker asks")
    parser.add_argument("--target", default="", help="sm_90: a GPU's requests (default: own CPU's)")
    parser.add_argument("--jobs", type=int, default=0, help="compilers at a time (0: cores)")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest compilation")
    parser.add_argument("--memory", type=int, default=8 * 2**30, help="bytes of a compilation")
    parser.add_argument("--show", action="append", default=[],
                        help="folder below /home, /tmp or /run that children need: a compiler's, "
                             "say")  # fmt: skip
    parser.add_argument("--logs", type=Path, help="folder of the compile children's output")
    parser.add_argument("--heartbeat", type=Path, help="file to touch while serving")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
