"""The launch library as a native file: its declarations, its needs, and many threads at once."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stitchcore.inject import build
from stitchcore.launch.cuda_table import write
from tests.launch.standin_cuda import HERE, compile_shared, launch_sources, standin_library
from tests.launch.tables import whole

CUDA = build.NATIVE / "cuda"


def test_it_needs_no_cuda_and_exports_its_interface_only() -> None:
    library = build.build_launch()
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    names = set(re.findall(r"NEEDED.*\[(.*)\]", needed))
    assert names <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libgcc_s.so.1"}
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True
    )
    exported = set(re.findall(r" T (\w+)", symbols.stdout))
    header = (CUDA / "stitch_launch.h").read_text()
    assert exported == set(re.findall(r"^int (stitch_\w+)\(", header, re.MULTILINE))


def test_the_interface_is_plain_c(tmp_path: Path) -> None:
    source = tmp_path / "plain.c"
    source.write_text('#include "stitch_launch.h"\nint main(void) { return STITCH_OK; }\n')
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{CUDA}"]
    subprocess.run([*command, "-c", str(source), "-o", str(tmp_path / "plain.o")], check=True)


def test_the_driver_is_declared_as_in_cuda_h() -> None:
    found = importlib.util.find_spec("nvidia.cuda_runtime")
    if found is None or not found.submodule_search_locations:
        pytest.skip("cuda.h is missing: pip install nvidia-cuda-runtime-cu12")
    [folder, *_] = found.submodule_search_locations
    source = HERE.parent / "header_check.cc"
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{CUDA}", f"-isystem{folder}/include"]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def run_threads(name: str, tmp_path: Path, before: list[str], runs: int, *flags: str) -> str:
    """Eight threads with a build of library and stand-in under `flags`; what was printed."""
    driver = [HERE.parent / "threads_driver.cc", *launch_sources()]
    include = f"-I{CUDA}"
    program = compile_shared(driver, name, "-pthread", include, *flags)
    table = tmp_path / "table"
    table.write_bytes(write(whole()))
    command = [*before, program, standin_library(*flags), table, "8", str(runs)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("-fsanitize=thread",), marks=pytest.mark.nightly),
        ("-fsanitize=address,undefined", "-fno-sanitize-recover"),
    ],
    ids=["thread", "address"],
)
def test_many_threads_under_a_sanitizer(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert run_threads("threads", tmp_path, [], 100, *flags) == "1000 barriers\n"


@pytest.mark.nightly
def test_many_threads_under_valgrind(tmp_path: Path) -> None:
    """No byte is read before it was written, and none is left."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("valgrind is missing: apt-get install valgrind")
    checks = [valgrind, "--quiet", "--error-exitcode=9", "--leak-check=full"]
    assert run_threads("plain", tmp_path, checks, 8) == "80 barriers\n"


@pytest.mark.slow
def test_it_builds_for_old_systems(tmp_path: Path) -> None:
    """With the compiler that targets any glibc: what is used was there in 2.31 (Debian 11). Its own
    C++ library is left out, which it would compile first, for a minute."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed: pip install ziglang")
    target = tmp_path / build.LAUNCH
    command = [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-linux-gnu.2.31"]
    compiled = [*command, "-c", *build.FLAGS, *map(str, launch_sources())]
    subprocess.run(compiled, check=True, cwd=tmp_path)
    objects = map(str, sorted(tmp_path.glob("*.o")))
    alone = ["-shared", "-nostdlib++", "-Wl,-z,undefs", "-ldl", "-lpthread"]
    subprocess.run([*command, *objects, "-o", str(target), *alone], check=True)
    symbols = subprocess.run(["objdump", "-T", target], capture_output=True, text=True).stdout
    versions = {
        tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", symbols)
    }
    assert versions and max(versions) <= (2, 31)
