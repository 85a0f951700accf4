"""What code in a compile child tries, in a plain restricted pod: no namespace, no mount, the
worker's own user, and every secret where the worker has it."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stitchcore.sandbox import seccomp
from tests.waiting import RUN_SECONDS

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
CANARY = "CanarySecret"
DRIVER = """
import json, subprocess, sys
from stitchcore.sandbox import isolate
given = json.loads(sys.argv[1])
limits = isolate.Limits(**{"seconds": 60, "memory": 2**30, "cpu_seconds": 60, **given["limits"]})
argv = [sys.executable, "-I", "-c", given["code"], *given["arguments"]]
child = isolate.command(argv, limits, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
why = None
while child.poll() is None and why is None:
    why = child.exceeded()
said, errors = b"", b""
if why is None:
    said, errors = child.process.communicate(timeout=1000)
child.stop()
print(json.dumps([said.decode(), errors.decode(), why, isolate.open_to_children()]))
"""
ATTEMPTS = """
import ctypes, json, os, signal, socket, sys
about = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def opened(path, mode="rb"):
    with open(path, mode) as file: return file.read() if mode == "rb" else file.write("x")
def connected(family, kind, address):
    with socket.socket(family, kind) as one:
        one.settimeout(3)
        one.sendto(b"x", address) if kind == socket.SOCK_DGRAM else one.connect(address)
def called(number, *arguments):
    if libc.syscall(number, *arguments) < 0: raise OSError(ctypes.get_errno(), "call")
def datagram():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", about["unix"])
parent = os.getppid()
attempts = {
    "read a secret": lambda: opened(about["secret"]),
    "read it by another name": lambda: opened(f"/proc/self/cwd/../../..{about['secret']}"),
    "list the store": lambda: os.listdir(about["store"]),
    "write the store": lambda: opened(about["store"] + "/new", "w"),
    "remove from the store": lambda: os.unlink(about["store"] + "/kept"),
    "link the secret": lambda: os.link(about["secret"], "link"),
    "read a home": lambda: os.listdir(os.path.expanduser("~root")),
    "the parent's environment": lambda: opened(f"/proc/{parent}/environ"),
    "the parent's memory": lambda: opened(f"/proc/{parent}/mem", "rb"),
    "the parent's files": lambda: os.readlink(f"/proc/{parent}/fd/2"),
    "the parent's root": lambda: os.listdir(f"/proc/{parent}/root/"),
    "trace the parent": lambda: called(101, 16, parent, 0, 0),
    "read a process's memory": lambda: called(310, parent, 0, 0, 0, 0, 0),
    "end the parent": lambda: os.kill(parent, 0),
    "connect": lambda: connected(socket.AF_INET, socket.SOCK_STREAM, tuple(about["tcp"])),
    "send a datagram": lambda: connected(socket.AF_INET, socket.SOCK_DGRAM, tuple(about["tcp"])),
    "connect to a path": lambda: connected(socket.AF_UNIX, socket.SOCK_STREAM, about["unix"]),
    "send to a socket's path": datagram,
    "write where all may": lambda: opened("/tmp/stitch-escaped", "w"),
    "write memory that all share": lambda: opened("/dev/shm/stitch-escaped", "w"),
    "a user namespace": lambda: called(272, 0x10000000),
    "a ring of calls": lambda: called(425, 1, 0),
    "a key ring": lambda: called(250, 0, -3, 0),
}
done = []
for name, attempt in attempts.items():
    if name in about.get("left out", ()): continue
    try: attempt()
    except (OSError, PermissionError): continue
    done.append(name)
opened("own", "w")
print(json.dumps(done))
"""


def run(code: str, arguments: list[str], *pod: str, free: bool = False, **limits: Any) -> list[Any]:
    """What code prints in a child, its errors, which limit it broke, and what is open to children,
    in a restricted pod, or with `free` on this machine."""
    given = {"code": code, "arguments": arguments, "limits": limits}
    wrapper = [] if free else ["-m", "tests.sandbox.restricted", *pod, sys.executable]
    done = subprocess.run(
        [sys.executable, *wrapper, "-c", DRIVER, json.dumps(given)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "STITCH_BROKER": CANARY},
        cwd=ROOT,
        timeout=RUN_SECONDS,
    )
    assert done.stdout, done.stderr.decode()
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def about(needs_landlock: None) -> Iterator[str]:
    """Secrets, a store and servers, none below /tmp."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="escape-", dir=BUILD) as made:
        folder = Path(made)
        (folder / "secret").write_text(CANARY)
        (folder / "store").mkdir()
        (folder / "store" / "kept").write_text("x")
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        unix.bind(str(folder / "s"))
        with socket.create_server(("127.0.0.1", 0)) as server:
            known = {"secret": str(folder / "secret"), "store": str(folder / "store")}
            yield json.dumps({**known, "tcp": server.getsockname()[:2], "unix": str(folder / "s")})
        unix.close()
        assert (folder / "secret").read_text() == CANARY


@pytest.mark.parametrize("free", [False, True], ids=["restricted pod", "user namespaces"])
def test_nothing_that_a_child_tries_is_done(about: str, free: bool) -> None:
    said, errors, _, reachable = run(ATTEMPTS, [about], free=free, apart=True)
    assert reachable == {}
    assert said, errors
    own = {"write where all may", "write memory that all share", "read a home"}  # in its own mounts
    assert set(json.loads(said)) <= (own if free else set())


def test_without_it_a_restricted_pod_keeps_nothing_back(about: str) -> None:
    """That the attempts are real: what a default install gave away before."""
    known = {**json.loads(about), "left out": ["trace the parent"]}  # which would stop it for good
    said, _, _, _ = run(ATTEMPTS, [json.dumps(known)])
    done = set(json.loads(said))
    assert {"read a secret", "write the store", "the parent's environment", "connect"} <= done


FORK = """
import os, time
for _ in range(10_000):
    try:
        if os.fork() == 0: time.sleep(60)
    except OSError: time.sleep(1)
"""
FILL = """
import time
for number in range(10_000):
    open(f"f{number}", "wb").write(bytes(2**20))
time.sleep(60)
"""


@pytest.mark.slow
def test_bombs_are_ended(about: str) -> None:
    assert "threads" in run(FORK, [], apart=True, threads=64, memory=2**40)[2]
    assert "of files" in run(FILL, [], apart=True, disk=2**26)[2]


def test_a_child_that_nothing_keeps_apart_does_not_start(about: str) -> None:
    """A kernel without Landlock, in a pod without namespaces."""
    said, errors, _, reachable = run("print('ran')", [], "--old", apart=True)
    assert said == "" and "it would reach files of others" in errors
    assert set(reachable) == {"files"} and "landlock" in reachable["files"]


def test_a_hidden_folder_within_what_is_shown_is_refused(about: str) -> None:
    secret = str(Path(json.loads(about)["secret"]).parent)
    said, errors, _, _ = run("print('ran')", [], apart=True, hidden=[secret], shown=[str(BUILD)])
    assert said == "" and "lies in what it has to see" in errors


def test_an_open_network_is_said() -> None:
    """Of a child that is not to be kept apart: one line, and it runs."""
    said, errors, _, _ = run("print('ran')", [])
    assert said == "ran\n" and errors.count("the network stays open") == 1


def test_every_name_of_the_list_is_a_system_call() -> None:
    library = ctypes.CDLL(seccomp.LIBRARY)
    unknown = [
        name for name in seccomp.ALLOWED
        if library.seccomp_syscall_resolve_name(name.encode()) == -1
    ]  # fmt: skip
    assert unknown == []
