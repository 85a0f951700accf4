"""Runs a program with the fake GPU in TensorFlow, which then says what a build for CUDA says.

    python -m tests.gpu_rehearsal.with_gpu PROGRAM [ARGUMENTS]

FAKE_GPU_DEVICE: the built device; FAKE_GPU_CAPABILITY: the compute capability that TensorFlow tells
(default 9.0); FAKE_GPU_EXCLUSIVE: a file that the process which has the GPUs locks (a compute mode
for one process at a time). What else there is to set is in native/fake_gpu.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import runpy
import sys
from pathlib import Path
from typing import Any

_KEPT: list[Any] = []
"""What the driver has addresses of."""


def _give_kernels(driver: Any, dump: Path) -> None:
    """Has the driver ask for what the kernels of each module that it loads compute."""
    from tests.gpu_rehearsal import kernels

    def find(names: bytes) -> int:
        try:
            path = str(kernels.library_of(names.decode().split(), dump))
        except Exception as error:
            sys.stderr.write(f"[fake_gpu] {error}\n")
            path = ""
        _KEPT.append(ctypes.create_string_buffer(path.encode()))
        return ctypes.addressof(_KEPT[-1])

    _KEPT.append(ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(find))
    driver.fake_gpu_set_kernels(_KEPT[-1])


def _exclusive(path: str) -> None:
    """Who comes second cannot begin TensorFlow's work with the GPUs, as with a build for CUDA."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import config, errors_impl

    begin = context.pywrap_tfe.TFE_NewContext

    def taken(options: Any) -> Any:
        if config.get_visible_devices("GPU"):
            raise errors_impl.InternalError(None, None, "CUDA_ERROR_DEVICE_UNAVAILABLE")
        return begin(options)

    _KEPT.append(open(path, "a"))  # noqa: SIM115
    try:
        fcntl.flock(_KEPT[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        context.pywrap_tfe.TFE_NewContext = taken


def install() -> None:
    """Gives this process's TensorFlow its GPUs."""
    from tensorflow.python.framework import config, load_library
    from tensorflow.python.platform import sysconfig

    device = os.environ["FAKE_GPU_DEVICE"]
    load_library.load_pluggable_device_library(device)
    if "STITCH_DUMP" in os.environ:
        _give_kernels(ctypes.CDLL(device), Path(os.environ["STITCH_DUMP"]))
    if "FAKE_GPU_EXCLUSIVE" in os.environ:
        _exclusive(os.environ["FAKE_GPU_EXCLUSIVE"])
    major, minor = map(int, os.environ.get("FAKE_GPU_CAPABILITY", "9.0").split("."))
    told, built = config.get_device_details, sysconfig.get_build_info()

    def details(device: Any) -> Any:
        if device.device_type != "GPU":
            return told(device)
        return {"device_name": "Fake GPU", "compute_capability": (major, minor)}

    # A PluggableDevice tells no capability, and the build of tensorflow-cpu is none for CUDA.
    config.get_device_details = details
    sysconfig.get_build_info = lambda: {**built, "is_cuda_build": True}


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    install()
    runpy.run_path(sys.argv[0], run_name="__main__")
