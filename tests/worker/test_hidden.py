"""A compile child cannot see, list or write what is hidden from it: the store, and keys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stitch_worker.__main__ import hidden_from_children
from stitchcore.sandbox import isolate
from tests.waiting import wait_for

PROGRAM = """
import ctypes, os, sys
store = sys.argv[1]
print(os.listdir(store))
try:
    open(os.path.join(store, "planted"), "w"); print("written")
except OSError as error:
    print("refused")
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0, 2):
    print(libc.umount2(store.encode(), flags))
libc.unshare(0x10020000)  # a user and a mount namespace below
print(libc.umount2(store.encode(), 2), os.listdir(store))
"""


def test_the_store_looks_empty_and_takes_nothing(tmp_path: Path) -> None:
    if isolate.network_open():
        pytest.skip("this kernel gives no user namespace: sysctl kernel.unprivileged_userns_clone")
    store = tmp_path / "store"
    store.mkdir()
    (store / "secret").write_text("x")
    limits = isolate.Limits(60, 2**30, 60, hidden=hidden_from_children(str(store), []))
    argv = [sys.executable, "-c", PROGRAM, str(store)]
    child = isolate.command(argv, limits, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: child.poll() is not None, "its end")
        assert child.process.stdout is not None and child.process.stderr is not None
        said = child.process.stdout.read().decode().split("\n")
        assert said[:5] == ["[]", "refused", "-1", "-1", "-1 []"], (
            said,
            child.process.stderr.read(),
        )
    finally:
        child.stop()
    assert [path.name for path in store.iterdir()] == ["secret"]


def test_only_folders_are_hidden(tmp_path: Path) -> None:
    assert hidden_from_children("s3://bucket/store", []) == ()
    assert hidden_from_children(f"file://{tmp_path}", ["/etc"]) == (str(tmp_path), "/etc")
