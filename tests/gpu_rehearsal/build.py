"""The fake GPU, built by g++ and cached by content outside the checkout."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stitchcore.inject import build
from stitchcore.inject.plugin import PLUGIN

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native"
STANDIN = HERE.parent / "launch" / "standin"
CACHE = Path.home() / ".cache" / "stitch-testbed" / "gpu_rehearsal"
FLAGS = (
    "-std=c++17", "-O1", "-Wall", "-Wno-deprecated-declarations", "-fPIC", "-shared",
    "-fvisibility=hidden", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64",
)  # fmt: skip


@dataclass(frozen=True)
class FakeGpu:
    """`device` is the device, its kernels and its driver in one library: TensorFlow loads it by its
    path, the product finds it again as libcuda.so.1, by its soname. `plugin` is what the product
    loads (STITCH_PLUGIN): its own files, but for a shim that knows the device's streams."""

    device: Path
    plugin: Path


@functools.cache
def fake_gpu() -> FakeGpu:
    """Made for the TensorFlow of this Python. Raises BuildError."""
    tensorflow = build.tensorflow_of_this_python()
    assert tensorflow is not None
    product = build.library_folder()
    shim = build.shim_name(build.version_of(tensorflow))
    sources = [*sorted(NATIVE.glob("*.cc")), STANDIN / "cubin.cc"]
    sources.remove(NATIVE / "shim.cc")
    named = ("-Wl,-soname,libcuda.so.1", f"-I{STANDIN}")
    device = _built("fake_gpu.so", sources, tensorflow, named)
    own = (f"-I{build.NATIVE}", f'-DPRODUCT_SHIM="{product / shim}"', "-Wl,--no-as-needed",
           str(product / shim))  # fmt: skip
    made = _built(shim, [NATIVE / "shim.cc"], tensorflow, own)
    link = made.parent / PLUGIN
    if not link.exists():
        temporary = link.with_suffix(f".{os.getpid()}")
        temporary.symlink_to(product / PLUGIN)
        temporary.replace(link)
    return FakeGpu(device, made.parent)


def _built(name: str, sources: Sequence[Path], tensorflow: Path, extra: Sequence[str]) -> Path:
    headers = [*NATIVE.glob("*.h"), *STANDIN.glob("*.h"), build.NATIVE / "shim.h"]
    digest = hashlib.sha256(repr((build.version_of(tensorflow), FLAGS, tuple(extra))).encode())
    for path in (*sources, *sorted(headers)):
        digest.update(path.read_bytes())
    target = CACHE / digest.hexdigest()[:24] / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / name
        command = [build.compiler(), *FLAGS, "-isystem", str(tensorflow / "include")]
        command += [*map(str, sources), "-o", str(made), *extra, f"-L{tensorflow}"]
        command += ["-l:libtensorflow_framework.so.2", "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise build.BuildError(f"{name} does not compile:\n{done.stderr[-4000:]}")
        made.replace(target)
    return target
