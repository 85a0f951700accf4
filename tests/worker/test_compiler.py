"""Compile children are started by a process that holds no credential, and that nobody has to
believe. What is judged of a child's words is in test_process.py, for both ways of starting it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'stitchcore[tensorflow]'")
pytest.importorskip("celery", reason="needs Celery: pip install 'stitchcore[worker]'")

import msgspec

from stitch_worker import attempts, remote, units
from stitch_worker.children import Handed, Look
from stitch_worker.lease import FolderLeases
from stitch_worker.remote import About, Collect, Compile, Compiled, End, Greet, Leaving, LookAt
from stitch_worker.service import Service, process
from stitchcore.artifact.store import open_store
from stitchcore.device.host import host
from stitchcore.sandbox import isolate
from tests.waiting import RUN_SECONDS, wait_for
from tests.worker.conftest import Cluster
from tests.worker.requests import TF, submit, tiny_graph

pytestmark = pytest.mark.skipif(
    bool(isolate.open_to_children()),
    reason="nothing keeps children apart here: sysctl kernel.unprivileged_userns_clone=1",
)
LONG = 120
PASSWORD, TOKEN = "CanaryPassword", "CanaryToken"


def attempts_of(cluster: Cluster, key: str) -> attempts.Attempts:
    return attempts.read(cluster.store, key)


@pytest.mark.slow
def test_a_compiler_that_is_killed_costs_a_retry(cluster: Cluster) -> None:
    """kill -9 while it compiles: its children die with it, and the task is done by the next."""
    compiler, option = cluster.compiler()
    cluster.worker(option)
    cluster.signer()
    key = submit(cluster.store, tiny_graph())
    cluster.enqueue(key)
    below = wait_for(lambda: children(compiler.pid), "it compiles")
    compiler.kill()
    compiler.wait()
    wait_for(lambda: not any(Path(f"/proc/{n}").exists() for n in below), "none is left")
    cluster.compiler()
    wait_for(lambda: cluster.status(key) in ("ready", "refused"), "an answer")
    assert cluster.status(key) == "ready", cluster.store.read_answer(key)
    found = attempts_of(cluster, key)
    assert (found.started, found.ended, found.deaths) == (2, 1, ())


@pytest.mark.slow
def test_neither_children_nor_who_starts_them_hold_a_secret(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Memory, environment, arguments and descriptors of all three, while a graph is compiled."""
    if os.geteuid() != 0:
        pytest.skip("looking into the memory of others needs root: run as root")
    secret = "5ec4e7" * 10 + "abcd"
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "kernel.key").write_text(secret + "\n")
    compiler, option = cluster.compiler()
    worker = cluster.worker(
        *(option, "--kernel-key", str(tmp_path / "key" / "kernel.key")),
        STITCH_BROKER=f"redis://:{PASSWORD}@localhost/0",
        AWS_SECRET_ACCESS_KEY=TOKEN,
    )
    key = submit(cluster.store, tiny_graph())
    cluster.enqueue(key)
    wait_for(lambda: children(compiler.pid), "it compiles")
    below = stopped(compiler.pid)  # TensorFlow is being imported: it is still there to see
    canaries = [PASSWORD.encode(), TOKEN.encode(), bytes.fromhex(secret), cluster.where.encode()]
    holding = b"".join(map(content, isolate.tree(worker.pid)))
    assert all(canary in holding for canary in canaries), "who has them is seen to"
    for number in (compiler.pid, *below):
        held = content(number)
        assert not [canary for canary in canaries if canary in held], number


def stopped(compiler: int) -> list[int]:
    """All processes below a compiler, which stand still from now on."""
    seen: list[int] = []
    while seen != (below := [one for one in isolate.tree(compiler) if one != compiler]):
        seen = below
        for number in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGSTOP)
    assert children(compiler), "the child is among them"
    return below


def children(compiler: int) -> list[int]:
    """All processes below a compiler, once a compile child is among them: at its start it tries
    what it will confine."""
    below = [number for number in isolate.tree(compiler) if number != compiler]
    lines = []
    for number in below:
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{number}/cmdline").read_bytes())
    return below if any(b"stitch_worker.child\0" in line for line in lines) else []


def content(number: int) -> bytes:
    """What a process has: environment, arguments, names of open files, and all of its memory.
    Nothing where it has ended meanwhile."""
    folder = Path(f"/proc/{number}")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return _content(folder)
    return b""


def _content(folder: Path) -> bytes:
    parts = [(folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()]
    for handle in (folder / "fd").iterdir():
        with contextlib.suppress(OSError):
            parts.append(os.readlink(handle).encode())
    with (folder / "mem").open("rb", 0) as memory:
        for line in (folder / "maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                begin, end = (int(one, 16) for one in span.split("-"))
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(begin)
                    parts.append(memory.read(end - begin))
    return b"".join(parts)


NETWORK = """
import socket, subprocess, sys
from stitchcore.sandbox import seccomp
assert seccomp.without_network() == ""
attempts = "import socket\\nfor kind in (socket.AF_INET, socket.AF_INET6, 16):\\n"
attempts += "    try: socket.socket(kind); print('made')\\n    except PermissionError: pass\\n"
attempts += "socket.socket(socket.AF_UNIX); print('files')"
exec(attempts, {})
subprocess.run([sys.executable, "-c", attempts], check=True)
"""


def test_a_compiler_reaches_no_network(tmp_path: Path, cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, "-u", "-c", NETWORK], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["files", "files"], done.stderr
    compiler, option = cluster.compiler("--heartbeat", str(tmp_path / "beat"))
    wait_for((tmp_path / "beat").exists, "it serves")
    status = Path(f"/proc/{compiler.pid}/status").read_text().split()
    assert status[status.index("Seccomp:") + 1] == "2"
    assert remote.Remote(Path(option.partition("=")[2])).about().tf == TF
    compiler.terminate()
    assert compiler.wait(RUN_SECONDS) == 0


# ---- what a stranger at the socket says ----------------------------------------------------------
STRANGERS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "half a length": lambda: b"\0\0\0",
    "a length that no request has": lambda: b"\0\xff\xff\xff\xff",
    "no message": lambda: b"\0" + frame(b"\xc1"),
    "a path for a key": lambda: b"\0" + frame(message(Handed("../x", *HANDED, host().target))),
    "another target": lambda: b"\0" + frame(message(Handed("a" * 64, *HANDED, "sm_90"))),
    "nowhere to say progress": lambda: (
        b"\0" + frame(message(Handed("a" * 64, *HANDED, host().target)))
    ),
    "a source too large": lambda: (
        b"\0" + frame(message(Compile("a" * 64, b"x" * (units.MAXIMUM_SOURCE + 1), host().target)))
    ),
}
HANDED: tuple[Any, ...] = (b"", b"{}", "exhaustive", 1, 0.0)


def message(of: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(of)


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def test_strangers_at_the_socket_are_dropped(cluster: Cluster) -> None:
    compiler, option = cluster.compiler()
    path = option.partition("=")[2]
    remote.Remote(Path(path)).awaited()
    for name, bytes_of in STRANGERS.items():
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(20)
            stranger.connect(path)
            stranger.sendall(bytes_of())
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b"", name
    assert isolate.tree(compiler.pid) == [compiler.pid], "nothing was started"
    assert remote.Remote(Path(path)).about().target == host().target


# ---- a compiler that somebody took over ----------------------------------------------------------
LIES: dict[str, list[bytes]] = {
    "names of other folders": [message(Leaving(names=["../../x"]))],
    "more names than files": [message(Leaving(names=[f"f{n}" for n in range(300)]))],
    "a file that is longer": [message(Leaving(names=["a"])), b"\xff\xff\xff\xff"],
    "a reason that is none": [message(Leaving(refused=b'{"reason": "x"}'))],
    "an artifact that is none": [message(Leaving(names=["manifest.json"])), frame(b"{}")],
    "no message": [b"\xc1"],
}
LOOKS = [
    Look(float("nan"), -999),
    Look(-5.0, 0),
    Look(1e300, 0),
]


@contextlib.contextmanager
def lying(path: Path, seen: Look, leaving: list[bytes]) -> Iterator[None]:
    """Whoever asks is told of a child that has ended as `seen`, and left what it says."""

    def serve(connection: socket.socket) -> None:
        _, handles, _, _ = socket.recv_fds(connection, 1, 2)
        for handle in handles:
            os.close(handle)
        with connection, contextlib.suppress(OSError):
            while True:
                kinds = Greet | Handed | Compile | LookAt | Collect | End
                asked: Any = remote.hear(connection, kinds, remote.MOST_HANDED)
                if isinstance(asked, Greet):
                    remote.say(connection, About(host().target, TF, 1))
                elif isinstance(asked, Compile):
                    remote.say(connection, Compiled(b"\x7fELF", "x", float("inf")))
                elif isinstance(asked, Collect):
                    connection.sendall(frame(leaving[0]) + b"".join(leaving[1:]))
                else:
                    remote.say(connection, seen)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.replace(" ", "_"))
@pytest.mark.parametrize("seen", LOOKS, ids=lambda seen: str(seen.code))
def test_a_compiler_is_believed_no_more_than_a_child(tmp_path: Path, lie: str, seen: Look) -> None:
    store, leases = open_store(str(tmp_path / "store")), FolderLeases(tmp_path / "leases", 1.0)
    path = tmp_path / "s"
    service = Service(store, leases, host().target, TF, remote.Remote(path), lease_seconds=1.0)
    key = submit(store, tiny_graph())
    with lying(path, seen, LIES[lie]):
        began = time.monotonic()
        try:
            outcome = process(service, key)
        except OSError:
            outcome = "later"
        elapsed = time.monotonic() - began
    assert outcome in ("again", "later", "refused")
    assert not store.list("unsigned") and (store.read_answer(key) or {})["status"] != "ready"
    spent = attempts.read(store, key).spent.get("compile", 0.0)
    assert 0 <= spent <= elapsed * (os.cpu_count() or 1)
    assert "\\ud800" not in json.dumps(store.read_answer(key))


def test_nothing_has_begun_where_no_compiler_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ten tasks that come while its container is away would count as lost workers, and
    quarantine the graph."""
    monkeypatch.setattr(remote, "READY_SECONDS", 0.5)
    store, leases = open_store(str(tmp_path / "store")), FolderLeases(tmp_path / "leases", 1.0)
    away = remote.Remote(tmp_path / "s")
    key = submit(store, tiny_graph())
    with pytest.raises(OSError, match="no compiler"):
        process(Service(store, leases, host().target, TF, away, lease_seconds=1.0), key)
    assert attempts.read(store, key).started == 0


def test_what_a_worker_leaves_is_ended(cluster: Cluster) -> None:
    """The connection is the child's life: kill -9 of a worker ends what it asked for."""
    compiler, option = cluster.compiler()
    away = remote.Remote(Path(option.partition("=")[2]))
    away.awaited()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb"):
        given = Handed("a" * 64, tiny_graph().SerializeToString(), *HANDED[1:], host().target)
        child = away.start(given, writing, None)
        assert child.look().code is None
        wait_for(lambda: len(isolate.tree(compiler.pid)) > 1, "a child")
        child._connection.close()  # type: ignore[attr-defined]
        wait_for(lambda: isolate.tree(compiler.pid) == [compiler.pid], "it is ended")
