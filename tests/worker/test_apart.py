"""A compile child sees no temporary file but its own: not its sibling's, not the machine's; and
what a killed worker leaves of its children goes when the next one starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from stitch_worker import children
from stitch_worker.children import Local
from stitch_worker.compiling import Job, Spent, compile_alone
from stitchcore.errors import Refusal
from stitchcore.sandbox import isolate
from tests.waiting import RUN_SECONDS, wait_for
from tests.worker.requests import python_path

LIMITS = isolate.Limits(60, 2**30, 60)
CHILD = """
import ctypes, json, os, sys, time
open("secret", "w").write("structure of a stranger's graph")
mine = {root + os.path.basename(os.getcwd()) + ".own" for root in ("/tmp/", "/dev/shm/")}
for path in mine: open(path, "w").write("x")
print(json.dumps({"stage": "lower", "done": 1, "total": 1, "cpu": 0}), flush=True)
while not os.path.exists("options.json"): time.sleep(0.01)
key = json.loads(open("options.json").read())["key"]
if key == "spy":
    libc, seen = ctypes.CDLL(None), set()
    def look():
        for root in ("/tmp", "/var/tmp", "/dev/shm", os.path.dirname(os.getcwd())):
            for at, folders, files in os.walk(root):
                if not at.startswith((os.getcwd(), sys.prefix)):
                    seen.update(os.path.join(at, one) for one in files)
    look()
    sibling = json.loads(open("request/meta.json").read())
    def read(path):
        try: seen.add(open(path).read()[:9])
        except OSError as error: seen.add(type(error).__name__)
    read(sibling["folder"] + "/secret")
    for number in filter(str.isdigit, os.listdir("/proc")):
        if number != str(os.getpid()):
            try: os.listdir("/proc/" + number + "/cwd/"); seen.add("another's folder")
            except OSError: pass
            try: read("/proc/" + number + "/root" + sibling["folder"] + "/secret")
            except OSError: pass
    for folder in ("/tmp", "/dev/shm", "/var/tmp"): libc.umount2(folder.encode(), 2)
    libc.unshare(0x10020000)
    for folder in ("/tmp", "/dev/shm", "/var/tmp"): libc.umount2(folder.encode(), 2)
    look(); read(sibling["folder"] + "/secret")
    seen -= mine
    said = json.dumps(sorted(one for one in seen if not one.startswith(SOURCES)))
else:
    while not os.path.exists("end"): time.sleep(0.01)
    said = "waited"
json.dump({"reason": "slower", "subject": "s", "detail": said}, open("refused.json", "w"))
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The child's program is replaced, what starts it is real. It lies under /tmp itself."""
    package = tmp_path / "program" / "stitch_worker"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    text = f"SOURCES = {str(tmp_path / 'program')!r}\n{CHILD}"
    (package / "child.py").write_text(text)
    monkeypatch.setattr(children, "SOURCES", (str(tmp_path / "program"),))
    return tmp_path


def child(key: str, meta: str, folder: Path) -> Refusal | object:
    job = Job(key, b"", meta.encode(), "a" * 64, {}, "exhaustive", 1)
    here = Local(LIMITS, folder)
    made = compile_alone(job, here, lambda *_: None, lambda: False, Spent())
    print((folder / f"{key}.log").read_text())
    return made


@pytest.mark.slow
def test_siblings_do_not_see_each_others_folders(own_mounts: None, sources: Path) -> None:
    """The spy knows where its sibling works, and tries as hard as it can."""
    before = set(Path(tempfile.gettempdir()).glob(f"{isolate.PREFIX}*/secret"))
    results: list[object] = []
    sibling = threading.Thread(target=lambda: results.append(child("sibling", "{}", sources)))
    sibling.start()
    place = Path(tempfile.gettempdir())
    found = wait_for(lambda: {*place.glob(f"{isolate.PREFIX}*/secret")} - before, "its sibling")
    [secret] = found
    try:
        spied = child("spy", f'{{"folder": "{secret.parent}"}}', sources)
    finally:
        (secret.parent / "end").touch()
        sibling.join()
    assert isinstance(spied, Refusal) and isinstance(results[0], Refusal), (spied, results)
    assert spied.detail == '["FileNotFoundError", "PermissionError"]'
    assert results[0].detail == "waited"
    for root in ("/tmp", "/dev/shm"):
        assert not list(Path(root).glob(f"{isolate.PREFIX}*.own")), (
            "what it writes there is its own"
        )


KILLED = """
import os, sys
from stitchcore.sandbox import isolate
children = []
for mode in (0o700, 0):
    child = isolate.command(["sleep", "60"], isolate.Limits(60, 2**30, 60))
    (child.folder / "below" / "request").mkdir(parents=True)
    (child.folder / "below" / "request" / "graph.pb").write_bytes(b"x")
    (child.folder / "below").chmod(mode)
    print(child.folder, flush=True)
    children.append(child)
os.kill(os.getpid(), 9)
"""


def test_what_killed_workers_leave_is_swept_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": python_path()}
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    left = [Path(line) for line in done.stdout.splitlines()]
    assert done.returncode == -signal.SIGKILL and [one.parent for one in left] == [tmp_path] * 2
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (left[0] / "link").symlink_to(outside)
    link = tmp_path / f"{isolate.PREFIX}link"
    link.symlink_to(outside)
    fresh = tmp_path / f"{isolate.PREFIX}fresh"
    fresh.mkdir()  # its maker is about to lock it
    alive = isolate.command(["sleep", "60"], LIMITS)
    (alive.folder / "work").touch()
    try:
        assert isolate.sweep() == 2
        assert not any(one.exists() for one in left)
        assert alive.folder.exists() and fresh.exists() and link.is_symlink()
        assert (outside / "kept").exists()
        assert isolate.sweep() == 0
    finally:
        alive.stop()
    monkeypatch.setattr(isolate, "EMPTY_SECONDS", 0.0)
    assert isolate.sweep() == 1 and not fresh.exists()
