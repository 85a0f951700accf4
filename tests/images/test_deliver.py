"""docs/contracts.md section 11, of the program itself: a whole copy or none, and always code 0."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.catalogue import ROOT
from tests.images.conftest import Delivery

OTHER = 65532
LIMIT = 16 << 20
CGROUPS = Path("/sys/fs/cgroup")
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
mounts_needed = pytest.mark.skipif(
    subprocess.run([*OWN_MOUNTS, "true"], capture_output=True).returncode != 0,
    reason="no mounts of one's own: sysctl kernel.unprivileged_userns_clone=1, or be root",
)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Content of files by path; None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_what_is_delivered_is_the_runtime(delivery: Delivery, target: Path) -> None:
    done = delivery.run(target)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(target) == ["inject"]
    assert tree(target) == tree(delivery.source)


def test_everybody_can_read_it_and_only_programs_run(delivery: Delivery, target: Path) -> None:
    program = delivery.source / "inject" / "lib" / "plugin.so"
    program.chmod(0o700)
    (delivery.source / "inject" / "bootstrap" / "sitecustomize.py").chmod(0o600)
    delivery.run(target, umask=0o777)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in target.rglob("*")}
    assert modes == {
        "inject": 0o755, "bootstrap": 0o755, "lib": 0o755,
        "plugin.so": 0o755, "sitecustomize.py": 0o644,
    }  # fmt: skip


def test_a_second_start_leaves_what_is_whole(delivery: Delivery, target: Path) -> None:
    delivery.run(target)
    kept = (target / "inject").stat().st_ino
    shutil.rmtree(delivery.source)
    done = delivery.run(target)
    assert (done.returncode, done.stderr) == (0, "")
    assert (target / "inject").stat().st_ino == kept


def said(delivery: Delivery, target: Path, why: str) -> None:
    """Nothing of the runtime is there, and the reason is wherever one may look for it."""
    delivery.message.touch()
    done = delivery.run(target)
    assert done.returncode == 0
    assert done.stderr.startswith("deliver: ") and why in done.stderr
    assert delivery.message.read_text() == done.stderr
    assert os.listdir(target) == ["not-delivered"]
    assert (target / "not-delivered").read_text() == done.stderr


def test_a_missing_source(delivery: Delivery, target: Path) -> None:
    shutil.rmtree(delivery.source)
    said(delivery, target, "No such file or directory")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_neither_file_nor_folder(delivery: Delivery, target: Path, kind: str) -> None:
    strange = delivery.source / "inject" / "strange"
    strange.symlink_to("/etc/passwd") if kind == "link" else os.mkfifo(strange)
    said(delivery, target, "does not copy strange")


def test_a_file_in_the_way(delivery: Delivery, target: Path) -> None:
    """Whatever lies under the name that copies begin with."""
    (target / ".partial").symlink_to("/etc")
    assert delivery.run(target).stderr == ""
    assert os.listdir(target) == ["inject"]
    assert Path("/etc/passwd").is_file()


def test_success_takes_back_what_was_said(delivery: Delivery, target: Path) -> None:
    moved = delivery.source.rename(delivery.source.with_name("away"))
    said(delivery, target, "No such file")
    moved.rename(delivery.source)
    delivery.run(target)
    assert os.listdir(target) == ["inject"]


@pytest.mark.parametrize("arguments", [[], ["/one", "/two"], ["/not/there"], ["/etc/passwd"]])
def test_it_is_called_wrongly(delivery: Delivery, arguments: list[str]) -> None:
    delivery.message.touch()
    done = subprocess.run([delivery.program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0
    assert delivery.message.read_text() == done.stderr != ""


def test_nobody_listens(delivery: Delivery, target: Path) -> None:
    shutil.rmtree(delivery.source)
    read, write = os.pipe()
    os.close(read)
    assert subprocess.run([delivery.program, target], stderr=write).returncode == 0
    os.close(write)


def test_a_folder_of_another_user(delivery: Delivery, target: Path) -> None:
    target.chmod(0o555)
    user = {"user": OTHER, "group": OTHER} if os.getuid() == 0 else {}
    done = delivery.run(target, **user)
    assert (done.returncode, os.listdir(target)) == (0, [])
    assert "cannot create .partial: Permission denied" in done.stderr


def test_any_user_can_deliver(delivery: Delivery, target: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs another user: run the tests as root")
    assert delivery.run(target, user=OTHER, group=OTHER).stderr == ""
    assert tree(target) == tree(delivery.source)
    assert (target / "inject").stat().st_uid == OTHER


def mounted(delivery: Delivery, target: Path, options: str) -> subprocess.CompletedProcess[str]:
    """Delivered into a file system of its own; prints what is there afterwards."""
    steps = f"mount -t tmpfs -o {options} none {target} && {delivery.program} {target}"
    steps += f"; echo code $?; ls -A {target}; df --output=used {target}"
    return subprocess.run([*OWN_MOUNTS, steps], capture_output=True, text=True)


@mounts_needed
def test_a_read_only_target(delivery: Delivery, target: Path) -> None:
    done = mounted(delivery, target, "ro")
    assert done.stdout.split()[:2] == ["code", "0"] and "inject" not in done.stdout
    assert "Read-only file system" in done.stderr


@mounts_needed
def test_a_full_disk(delivery: Delivery, target: Path) -> None:
    """The room that was taken is given back: the job needs it more."""
    done = mounted(delivery, target, "size=512k")
    code, listed, used = done.stdout.split("\n", 2)[0], done.stdout.split("\n")[1], done.stdout
    assert (code, listed) == ("code 0", "not-delivered")
    assert int(used.split()[-1]) <= 8
    assert "No space left on device" in done.stderr


def test_a_limit_on_the_size_of_files(delivery: Delivery, target: Path) -> None:
    done = delivery.run(target, "sh", "-c", 'ulimit -f 64; exec "$@"', "sh")
    assert (done.returncode, os.listdir(target)) == (0, ["not-delivered"])
    assert "File too large" in done.stderr


def test_one_killed_half_way_is_never_taken_for_whole(delivery: Delivery, target: Path) -> None:
    large = delivery.source / "inject" / "large"
    large.touch()
    os.truncate(large, 1 << 30)
    for _ in range(10):  # where it was quicker than the signal, again
        process = subprocess.Popen([delivery.program, target])
        while not (target / ".partial" / "large").exists() and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        if process.wait() == -signal.SIGKILL:
            break
        shutil.rmtree(target / "inject")
    assert process.returncode == -signal.SIGKILL
    assert not (target / "inject").exists()
    os.truncate(large, 1)
    assert delivery.run(target).stderr == ""
    assert os.listdir(target) == ["inject"] and tree(target) == tree(delivery.source)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A control group of its own with the limit that the contract names."""
    parent = CGROUPS / "memory" if (CGROUPS / "memory").is_dir() else CGROUPS
    own = parent / f"stitch-deliver-{os.getpid()}"
    name = "memory.limit_in_bytes" if parent != CGROUPS else "memory.max"
    try:
        own.mkdir()
        (own / name).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no control group of memory: run the tests as root ({error})")
    yield own
    own.rmdir()


def test_sixteen_mebibytes_are_enough_with_page_cache(
    delivery: Delivery, target: Path, memory: Path
) -> None:
    """Far more than that is copied; what is written to a disk stays in memory unless let go."""
    large = delivery.source / "inject" / "large"
    with large.open("wb") as file:
        for number in range(64):
            file.write(bytes([number]) * (1 << 20))
    os.sync()
    enter = f'echo $$ > {memory / "cgroup.procs"}; exec "$@"'
    done = delivery.run(target, "sh", "-c", enter, "sh")
    assert (done.returncode, done.stderr) == (0, "")
    assert (target / "inject" / "large").stat().st_size == 64 << 20
    v1 = memory / "memory.max_usage_in_bytes"
    peak = int((v1 if v1.exists() else memory / "memory.peak").read_text())
    assert peak < LIMIT // 2


def test_it_is_small_and_needs_no_library(delivery: Delivery) -> None:
    """It has no interpreter and asks for no library."""
    told = subprocess.run(["file", "-L", delivery.program], capture_output=True, text=True)
    if told.returncode == 0:
        assert "statically linked" in told.stdout
    assert delivery.program.stat().st_size < 1 << 20
    assert (ROOT / "images" / "runtime" / "deliver.c").is_file()
