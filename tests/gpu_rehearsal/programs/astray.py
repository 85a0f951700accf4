"""Addresses on the wrong side: what a GPU would fault at.

    astray.py OUT TABLE read|kernel

TABLE sums columns, 8 rows of 40. `read`: the host reads device memory. `kernel`: a kernel is given
an address of the host.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import numpy as np

from stitchcore.inject import build
from stitchcore.runtime.cuda_library import CudaLibrary, DeviceBuffer

OUT, TABLE, WHAT = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
ROWS, COLUMNS = 8, 40

path = Path(os.environ["FAKE_GPU_DEVICE"])
driver = ctypes.CDLL(str(path))
context = ctypes.c_void_p()
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxPushCurrent_v2(context)


def device_memory(size):
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    return DeviceBuffer(address.value, size)


given, made, arena = map(device_memory, (4 * ROWS * COLUMNS, 4 * COLUMNS, 1 << 20))
host = np.ones(given.bytes // 4 + 64, np.float32)
if WHAT == "kernel":
    given = DeviceBuffer((host.ctypes.data + 255) // 256 * 256, given.bytes)
program = CudaLibrary(build.build_launch(), path).load(TABLE.read_bytes())
program.run([given], [made], symbols=(ROWS,), arena=arena)
OUT.write_text(json.dumps({"code": driver.cuCtxSynchronize()}))
if WHAT == "read":
    ctypes.string_at(made.address, 4)
