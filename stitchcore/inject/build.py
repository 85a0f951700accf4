"""Builds the native plug-in and the shims of TensorFlow versions with gcc.

The plug-in uses TensorFlow's C API only: built once against the oldest supported headers, it loads
in 2.15 to 2.21. A shim is compiled against one version's C++ headers and serves that version.
Headers and libraries come from installed wheels:

    python -m stitchcore.inject.build --tensorflow DIR [--tensorflow DIR ...]

where DIR is an installed `tensorflow` package; without it, the one of this Python. `--version 2.18`
takes headers and library from that version's wheel, which pip downloads. `--launch` builds the CUDA
launch library (native/cuda) instead, which needs none. Results go to
`stitchcore/inject/lib/<arch>/`. A file that is newer than every source is left alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native"
LAUNCH = "stitch_launch.so"
LAUNCH_SOURCES = (
    "expression.cc", "cuda/context.cc", "cuda/cubin.cc", "cuda/driver.cc", "cuda/launch.cc",
    "cuda/program.cc", "cuda/run.cc", "cuda/table.cc",
)  # fmt: skip
PLUGIN_SOURCES = (
    "failures.cc", "faults.cc", "fusion.cc", "gpu.cc", "grappler.cc", "huge.cc", "kernels.cc",
    "launch.cc", "memory.cc", "op.cc", "pool.cc", "register.cc", "shadow.cc", "signature.cc",
    "threads.cc", "timer.cc",
    *LAUNCH_SOURCES,
)  # fmt: skip
SHIM_SOURCES = ("caller_thread.cc", "shim.cc")
FLAGS = (
    "-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden",
    "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64",
)  # fmt: skip
OWN_SYMBOLS = ("-Wl,-Bsymbolic", "-Wl,--exclude-libs,ALL")
"""The plug-in and the launch library share sources: each calls its own copy where both are
loaded."""


class BuildError(Exception):
    """The build cannot go on; the message says what to install."""


def library_folder() -> Path:
    """Where built files lie, for the machine's architecture."""
    return HERE / "lib" / platform.machine()


def tensorflow_of_this_python() -> Optional[Path]:
    """The installed `tensorflow` package, found without importing it."""
    spec = importlib.util.find_spec("tensorflow")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def version_of(tensorflow: Path) -> Tuple[int, int]:
    """(major, minor) of an installed wheel, from its metadata folder (headers of 2.21 lack it)."""
    for metadata in sorted(tensorflow.parent.glob("tensorflow*.dist-info")):
        match = re.match(r"tensorflow(?:_cpu|_intel|_rocm)?-(\d+)\.(\d+)", metadata.name)
        if match and (tensorflow / "include" / "tensorflow").is_dir():
            return int(match.group(1)), int(match.group(2))
    raise BuildError(f"{tensorflow}: not an installed TensorFlow wheel with headers")


def unpacked(version: str, folder: Path) -> Path:
    """The `tensorflow` package of a version ("2.18"), as far as a build needs it, in `folder`.

    Raises BuildError where pip finds no wheel.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
               "--no-deps", "--only-binary=:all:", "--python-version=3.11", f"--dest={folder}",
               f"tensorflow-cpu=={version}.*"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("tensorflow_cpu-*.whl"))
    if done.returncode != 0 or not wheels:
        raise BuildError(f"TensorFlow {version}: {done.stderr.strip()[-500:]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if _is_needed(name)])
    wheels[0].unlink()
    return folder / "tensorflow"


def _is_needed(member: str) -> bool:
    top, _, rest = member.partition("/")
    library = rest.startswith("libtensorflow_framework.so")
    return top.endswith(".dist-info") or rest.startswith("include/") or library


def shim_name(version: Tuple[int, int]) -> str:
    return f"shim_tf{version[0]}{version[1]}.so"


def compiler() -> str:
    command = shutil.which(os.environ.get("CXX", "g++"))
    if command is None:
        raise BuildError("no C++ compiler: apt-get install g++")
    return command


def sodium() -> List[str]:
    """Link arguments for a static libsodium."""
    for folder in ("/usr/lib/" + platform.machine() + "-linux-gnu", "/usr/lib64", "/usr/lib"):
        archive = Path(folder) / "libsodium.a"
        if archive.exists() and Path("/usr/include/sodium.h").exists():
            return [str(archive)]
    raise BuildError("no static libsodium: apt-get install libsodium-dev")


def is_fresh(target: Path, folders: Sequence[Path] = (NATIVE,)) -> bool:
    if not target.exists():
        return False
    built = target.stat().st_mtime
    sources = [Path(__file__), *(path for folder in folders for path in folder.glob("*.[ch]*"))]
    return all(source.stat().st_mtime < built for source in sources)


@dataclass(frozen=True)
class Shared:
    """One shared library to build: its sources, what they are compiled with, what it is linked
    with."""

    target: Path
    sources: Sequence[str]
    flags: Sequence[str]
    libraries: Sequence[str]


def compile_all(libraries: Sequence[Shared]) -> None:
    """Compiles the sources of all `libraries` side by side, a process for each processor, and
    links them; each target is written whole or not at all. Raises BuildError with the compiler's
    words."""
    if not libraries:
        return
    with tempfile.TemporaryDirectory(prefix="stitch-build-") as folder:
        units = [
            (one, str(NATIVE / source), str(Path(folder) / f"{position}-{index}.o"))
            for position, one in enumerate(libraries)
            for index, source in enumerate(one.sources)
        ]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            longest_first = sorted(units, key=lambda unit: -os.path.getsize(unit[1]))
            compiled = pool.map(
                lambda unit: _call(unit[0], [*unit[0].flags, "-c", unit[1], "-o", unit[2]]),
                longest_first,
            )
            list(compiled)  # raises what one of them raised
        for one in libraries:
            temporary = one.target.with_name(one.target.name + f".{os.getpid()}")
            objects = [made for library, _, made in units if library is one]
            _call(one, ["-shared", *objects, "-o", str(temporary), *OWN_SYMBOLS, *one.libraries,
                        "-ldl", "-lpthread"])  # fmt: skip
            os.replace(temporary, one.target)


def _call(library: Shared, arguments: Sequence[str]) -> None:
    result = subprocess.run([compiler(), *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(f"{library.target.name} does not compile:\n{result.stderr[-4000:]}")


def build(tensorflows: Sequence[Path], folder: Optional[Path] = None) -> List[Path]:
    """Builds the plug-in against the oldest of `tensorflows`, and a shim for each.

    Returns the files. Raises BuildError with what to install.
    """
    folder = library_folder() if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    by_version = sorted((version_of(path), path) for path in tensorflows)
    if not by_version:
        raise BuildError("no TensorFlow found: pip install tensorflow-cpu")

    def against(path: Path, target: Path, sources: Sequence[str], *static: str) -> Shared:
        return Shared(
            target, sources, [*FLAGS, "-isystem", str(path / "include")],
            [f"-L{path}", "-l:libtensorflow_framework.so.2", "-Wl,-z,defs", "-Wl,--as-needed",
             *static],
        )  # fmt: skip

    plugin = folder / "stitch_plugin.so"
    shims = {folder / shim_name(version): path for version, path in by_version}
    stale = [
        against(path, shim, SHIM_SOURCES) for shim, path in shims.items() if not is_fresh(shim)
    ]
    if not is_fresh(plugin, (NATIVE, NATIVE / "cuda")):
        static = ["-static-libstdc++", "-static-libgcc", *sodium()]
        stale.append(against(by_version[0][1], plugin, PLUGIN_SOURCES, *static))
    compile_all(stale)
    return [plugin, *shims]


def build_launch(folder: Optional[Path] = None, extra: Sequence[str] = ()) -> Path:
    """Builds the CUDA launch library, which needs neither TensorFlow nor CUDA, with flags `extra`.

    Returns the file. Raises BuildError with what to install, or the compiler's errors.
    """
    folder = library_folder() if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / LAUNCH
    if not is_fresh(target, (NATIVE, NATIVE / "cuda")):
        static = ["-static-libstdc++", "-static-libgcc"]
        compile_all([Shared(target, LAUNCH_SOURCES, [*FLAGS, *extra], [*extra, *static])])
    return target


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stitchcore.inject.build")
    parser.add_argument("--tensorflow", type=Path, action="append", default=[])
    parser.add_argument("--version", action="append", default=[], help="2.18: from its wheel")
    parser.add_argument("--launch", action="store_true", help="the CUDA launch library only")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args(arguments)
    installed = tensorflow_of_this_python()
    tensorflows = list(options.tensorflow)
    if not tensorflows and not options.version and installed is not None:
        tensorflows = [installed]
    with tempfile.TemporaryDirectory(prefix="stitch-build-") as folder:
        try:
            if options.launch:
                print(build_launch(options.output))
                return 0
            for version in options.version:
                tensorflows.append(unpacked(version, Path(folder) / version))
            for target in build(tensorflows, options.output):
                print(target)
        except BuildError as error:
            print(f"stitch: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
