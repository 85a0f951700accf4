"""A child that works on what others wrote: what it can reach, and that its limits end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stitchcore.sandbox import isolate
from tests.waiting import RUN_SECONDS, wait_for

LIMITS = isolate.Limits(seconds=240, memory=2**30, cpu_seconds=240)


def finished(child: isolate.Child, seconds: float = 120) -> int:
    try:
        return child.process.wait(seconds)
    finally:
        child.stop()


def output(code: str, limits: isolate.Limits = LIMITS, **environment: str) -> str:
    """What Python code prints in an isolated child."""
    argv = [sys.executable, "-I", "-c", code]
    child = isolate.command(argv, limits, environment=environment, stdout=subprocess.PIPE)
    printed, _ = child.process.communicate(timeout=RUN_SECONDS)
    child.stop()
    return printed.decode()


def test_the_environment_is_empty_but_for_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_TOKEN", "secret")
    environment = json.loads(
        output("import json, os; print(json.dumps(dict(os.environ)))", GIVEN="1")
    )
    environment.pop("LC_CTYPE", None)  # Python's own
    assert environment.pop("HOME") == environment.pop("TMPDIR") != os.environ.get("HOME")
    assert set(environment) == {"PATH", "LANG", "CUDA_VISIBLE_DEVICES", "GIVEN"}


@pytest.mark.parametrize(("gpus", "visible"), [(False, ["", None]), (True, ["1", "/opt/nvidia"])])
def test_gpus_are_seen_by_whom_they_are_given(
    gpus: bool, visible: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker proves kernels for a GPU on the GPUs of the job."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/nvidia")
    names = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
    code = f"import json, os; print(json.dumps([os.environ.get(name) for name in {names}]))"
    argv = [sys.executable, "-I", "-c", code]
    child = isolate.command(argv, LIMITS, stdout=subprocess.PIPE, gpus=gpus)
    printed, _ = child.process.communicate(timeout=RUN_SECONDS)
    child.stop()
    assert json.loads(printed) == visible


def test_its_folder_is_fresh_and_goes_with_it() -> None:
    code = "import os; print(os.getcwd(), os.listdir()); open('left', 'w').write('x')"
    folder, listing = output(code).split(maxsplit=1)
    assert listing.strip() == "[]" and not Path(folder).exists()


def test_a_private_folder_is_seen_by_nobody_else(tmp_path: Path) -> None:
    if why := isolate.mounts_shared():
        pytest.skip(f"the kernel gives no mount namespace ({why}): allow user namespaces")
    limits = replace(LIMITS, private=2**20)
    code = """
import os, time
open("own", "w").write("x" * 1000)
try: open("large", "wb").write(bytes(2**21)); print("written")
except OSError as error: print(error.strerror)
print(sorted(os.listdir()), os.environ["TMPDIR"] == os.getcwd(), flush=True); time.sleep(1000)
"""
    argv = [sys.executable, "-I", "-c", code]
    child = isolate.command(argv, limits, stdout=subprocess.PIPE)
    assert child.process.stdout is not None
    said = [child.process.stdout.readline().decode().strip() for _ in range(2)]
    assert said == ["No space left on device", "['large', 'own'] True"]
    assert list(child.folder.iterdir()) == []
    spy = f"import os; print(os.listdir({str(child.folder)!r}))"
    assert output(spy).strip() == "[]"
    child.stop()
    child.process.stdout.close()
    assert not child.folder.exists()


def test_no_descriptor_is_inherited(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
        assert file.fileno() > 3 and file.fileno() not in json.loads(output(code))


def test_no_capabilities_and_no_way_to_new_ones() -> None:
    status = output("print(open('/proc/self/status').read())").splitlines()
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if name != "CapBnd" or os.getuid() == 0 or not isolate.network_open():
            assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"


def test_the_network_is_gone() -> None:
    """Not even an address of this machine answers, nor does one exist in the child."""
    if why := isolate.network_open():
        pytest.skip(f"the kernel gives no network namespace ({why}): allow user namespaces")
    code = """
import socket, sys
names = [name for _, name in socket.if_nameindex()]
server = socket.socket(); server.settimeout(2)
try: server.connect(("127.0.0.1", int(sys.argv[1]))); said = "connected"
except OSError as error: said = "unreachable"
print(names, said)
"""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        direct = subprocess.run([sys.executable, "-c", code, port], capture_output=True, text=True)
        assert direct.stdout.strip().endswith("connected")
        child = isolate.command([sys.executable, "-c", code, port], LIMITS, stdout=subprocess.PIPE)
        printed, _ = child.process.communicate(timeout=RUN_SECONDS)
        child.stop()
    assert printed.decode().strip() == "['lo'] unreachable"


def test_the_parents_environment_cannot_be_read() -> None:
    if why := isolate.network_open():
        pytest.skip(f"the kernel gives no user namespace ({why}): allow user namespaces")
    code = f"""
try: open("/proc/{os.getpid()}/environ", "rb").read(); print("read")
except PermissionError: print("denied")
"""
    assert output(code).strip() == "denied"


def test_files_keep_their_owner(tmp_path: Path) -> None:
    output(f"open({str(tmp_path / 'made')!r}, 'w').write('x')")
    assert (tmp_path / "made").stat().st_uid == os.getuid()


def test_a_file_cannot_grow_past_its_limit(tmp_path: Path) -> None:
    limits = isolate.Limits(seconds=240, memory=2**30, cpu_seconds=240, file_bytes=10_000)
    code = f"""
try: open({str(tmp_path / "large")!r}, "wb").write(bytes(20_000)); print("written")
except OSError as error: print(error.strerror)
"""
    assert output(code, limits).strip() == "File too large"
    assert (tmp_path / "large").stat().st_size == 10_000


@pytest.mark.slow
def test_processor_time_ends_it() -> None:
    limits = isolate.Limits(seconds=240, memory=2**30, cpu_seconds=1)
    child = isolate.command([sys.executable, "-c", "while True: pass"], limits)
    assert finished(child) in (-signal.SIGXCPU, -signal.SIGKILL)


@pytest.mark.slow
def test_late_exceeded_memory_and_threads() -> None:
    code = """
import threading, time
held = bytearray(300 * 2**20); held[::4096] = b"x" * len(held[::4096])
for _ in range(40): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("ready", flush=True); time.sleep(1000)
"""
    wide = isolate.Limits(seconds=240, memory=2**30, cpu_seconds=240, threads=200)
    for limits, expected in (
        (wide, None),
        (isolate.Limits(seconds=240, memory=200 * 2**20, cpu_seconds=240), "GiB"),
    ):
        child = isolate.command([sys.executable, "-c", code], limits, stdout=subprocess.PIPE)
        assert child.process.stdout is not None and child.process.stdout.readline()
        exceeded = child.exceeded()
        child.stop()
        assert exceeded is None if expected is None else exceeded and expected in exceeded
    few = isolate.Limits(seconds=0.01, memory=2**30, cpu_seconds=240, threads=20)
    child = isolate.command([sys.executable, "-c", code], few, stdout=subprocess.PIPE)
    try:
        # A user namespace makes the kernel's own limit exact; root is watched.
        wait_for(lambda: child.poll() is not None or "threads" in (child.exceeded() or ""))
        assert child.late()
    finally:
        child.stop()


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""


@pytest.mark.slow
def test_a_daemon_is_counted_and_killed() -> None:
    """It has left session and parent; the child is its reaper."""
    child = isolate.command([sys.executable, "-c", DAEMON], LIMITS, stdout=subprocess.PIPE)
    assert child.process.stdout is not None
    daemon = int(child.process.stdout.readline())
    wait_for(lambda: daemon in isolate.tree(child.process.pid))
    child.stop()
    wait_for(lambda: not Path(f"/proc/{daemon}").exists())  # it sleeps for longer
    child.stop()  # may be called again


@pytest.mark.slow
def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(isolate.__file__).parents[2])!r})
from stitchcore.sandbox import isolate
waits = "import time; print(1, flush=True); time.sleep(1000)"
child = isolate.command([sys.executable, "-c", waits],
                        isolate.Limits(1000, 2**30, 1000), stdout=-1)
child.process.stdout.readline()
print(child.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=RUN_SECONDS
    )
    number = int(done.stdout)
    wait_for(lambda: not isolate.tree(number))  # it sleeps for longer
