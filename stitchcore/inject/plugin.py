"""The native plug-in through ctypes: graphs in, kernels in, step intervals out."""

from __future__ import annotations

import ctypes
import os
import random
import re
import struct
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import reasons

PLUGIN = "stitch_plugin.so"
ERROR_BYTES = 512
TRACE_LEVEL = 2  # of TraceMe: operations that do work; trivial ones belong to the executor
HELD = 2  # an arm that no step may run: the replicas have yet to decide
POOL, CALLER_THREAD, IN_TURNS = 0, 1, 2  # where stitched calls run (native/timer.cc)
OLDEST, NEWEST = (2, 15), (2, 21)  # of TensorFlow, whose C API the plug-in was tried with
GPU_REASONS = {  # by StitchReason of native/cuda/stitch_launch.h; all others: KERNEL_FAILED
    1: reasons.NO_DEVICE,
    2: reasons.NO_DEVICE,
    3: reasons.NO_DEVICE,
    5: reasons.BAD_ARTIFACT,
    7: reasons.WRONG_TARGET,
    8: reasons.BAD_ARTIFACT,
    13: reasons.MEMORY,
}
LAUNCH_FAILURE = re.compile(r"launch failed \((\d+)\): ")
GUARD, WRONG = "guard: ", "wrong_result: "
COUNTERS = (
    "fresh",
    "reused",
    "released",
    "idle_bytes",
    "used_bytes",
    "forwarded",
    "in_place",
    "huge_bytes",
    "left_to_functions",
    "compared",
    "not_compared",
)
GraphCallback = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
)


class Interval(NamedTuple):
    """One call: nanoseconds of a step of it, arm (0 original, 1 stitched), place in its block,
    block number, and its steps: more than one where the job loops over steps in a graph."""

    nanoseconds: int
    arm: int
    position: int
    block: int
    steps: int = 1


class Peak(NamedTuple):
    """The most resident bytes that samples found in one block of an arm's calls."""

    block: int
    arm: int
    samples: int
    bytes: int


class _Peak(ctypes.Structure):
    _fields_ = [
        ("block", ctypes.c_int64),
        ("arm", ctypes.c_int32),
        ("samples", ctypes.c_int32),
        ("bytes", ctypes.c_int64),
    ]


class Failure(NamedTuple):
    """How a kernel failed in a node, and how often."""

    kernel: str
    node: str
    message: str
    times: int


class _Interval(ctypes.Structure):
    _fields_ = [
        ("nanoseconds", ctypes.c_int64),
        ("arm", ctypes.c_int32),
        ("position", ctypes.c_int32),
        ("block", ctypes.c_int64),
        ("steps", ctypes.c_int64),
    ]


def _declare(library: Any) -> None:
    void, size, integer, wide = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
    text = ctypes.c_char_p
    for name, result, arguments in (
        ("stitch_load_library", void, [text, size, text, size]),
        ("stitch_register_kernel", integer, [text, void, text]),
        ("stitch_retire_kernel", None, [text, integer]),
        ("stitch_prove", None, [integer]),
        ("stitch_add_functions", integer, [text, size, text, size]),
        ("stitch_arm_fault", None, [text, text, wide]),
        (
            "stitch_check_fusion",
            integer,
            [
                ctypes.POINTER(wide),
                size,
                ctypes.POINTER(ctypes.c_int32),
                *(integer, integer, integer, integer),
                text,
                size,
            ],
        ),
        ("stitch_open_gpu", integer, [text, text, size]),
        ("stitch_register_program", integer, [text, text, size, integer, text, size]),
        ("stitch_verify_signature", integer, [text, text, size, text]),
        ("stitch_load_shim", integer, [text, text, size]),
        ("stitch_set_callback", None, [GraphCallback]),
        ("stitch_allocate", void, [size]),
        ("stitch_free", None, [void]),
        ("stitch_preserved", void, [void]),
        ("stitch_fetched", void, [void]),
        ("stitch_shapes", void, [void, text, ctypes.POINTER(size)]),
        ("stitch_new_step", integer, []),
        ("stitch_step_arm", ctypes.POINTER(ctypes.c_int32), [integer]),
        ("stitch_step_begun", ctypes.POINTER(wide), [integer]),
        ("stitch_schedule_step", None, [integer, integer, wide, wide]),
        ("stitch_hold_step", integer, [integer, wide]),
        (
            "stitch_decide_step",
            integer,
            [integer, integer, wide, wide, wide, ctypes.c_uint64],
        ),
        ("stitch_stretch_step", None, [integer, wide, ctypes.c_uint64]),
        (
            "stitch_read_step",
            wide,
            [integer, ctypes.POINTER(wide), ctypes.POINTER(_Interval), wide],
        ),
        ("stitch_pass_step", None, [integer, integer]),
        ("stitch_begin_call", None, [integer]),
        ("stitch_record_call", None, [integer, integer, wide, integer]),
        ("stitch_passes", wide, [integer, integer]),
        ("stitch_watch_memory", integer, [integer]),
        ("stitch_unwatch_memory", None, [integer]),
        ("stitch_read_memory", wide, [integer, ctypes.POINTER(_Peak), wide]),
        ("stitch_failures", void, []),
        ("stitch_counters", None, [ctypes.POINTER(wide)]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def reason_of(failure: str) -> str:
    """Why an operation failed, from its message: one of shapes begins with GUARD, one of values
    with WRONG (native/op.cc), a launch's with what the launch library says (native/gpu.cc)."""
    if failure.startswith(GUARD):
        return reasons.GUARD_FAILED
    if failure.startswith(WRONG):
        return reasons.WRONG_RESULT
    launch = LAUNCH_FAILURE.match(failure)
    return GPU_REASONS.get(int(launch[1]) if launch else 0, reasons.KERNEL_FAILED)


class Plugin:
    """The loaded plug-in. `load` is called once per process, after `import tensorflow`."""

    def __init__(self, library: Any, versioned: Any = None) -> None:
        self._library, self._versioned = library, versioned
        self._kept: List[Any] = []
        self._seed = random.SystemRandom().getrandbits(62) + 1  # 0 would mean equal blocks

    def set_callback(self, function: Callable[[bytes, int], Optional[bytes]]) -> None:
        """`function(graph, item)` returns the new graph or None; it must not raise."""

        def call(data: int, size: int, item: int, replaced: Any, replaced_size: Any) -> int:
            try:
                new = function(ctypes.string_at(data, size), item)
            except Exception:
                return 0  # it has said why, or could not: the graph stays
            if new is None:
                return 0
            buffer = self._library.stitch_allocate(len(new))
            if not buffer:
                return 0
            ctypes.memmove(buffer, new, len(new))
            replaced[0], replaced_size[0] = buffer, len(new)
            return 1

        callback = GraphCallback(call)
        self._kept.append(callback)
        self._library.stitch_set_callback(callback)

    def preserved(self, item: int) -> List[str]:
        """Names of the nodes that must stay. Raises Refused(HOOK_ERROR)."""
        return self._names(self._library.stitch_preserved(item), "preserved")

    def fetched(self, item: int) -> List[str]:
        """Names of those of them that are fetched, or run for what they do; the others are fed.
        Raises Refused(HOOK_ERROR)."""
        names = self._names(self._library.stitch_fetched(item), "fetched")
        return [name.split(":")[0] for name in names]

    def _names(self, buffer: Any, which: str) -> List[str]:
        if not buffer:
            raise reasons.Refused(reasons.HOOK_ERROR, f"TensorFlow did not list {which} nodes")
        try:
            return [name.decode() for name in ctypes.string_at(buffer).split(b"\n") if name]
        finally:
            self._library.stitch_free(buffer)

    def shapes(self, item: int, names: List[str]) -> List[Tuple[int, int, bytes]]:
        """(node index, output, serialized OpInfo.TensorProperties) by static inference."""
        size = ctypes.c_size_t(0)
        text = "".join(f"{name}\n" for name in names).encode()
        buffer = self._library.stitch_shapes(item, text, ctypes.byref(size))
        if not buffer:
            raise reasons.Refused(reasons.HOOK_ERROR, "TensorFlow's shape inference failed")
        try:
            data = ctypes.string_at(buffer, size.value)
        finally:
            self._library.stitch_free(buffer)
        records, cursor = [], 0
        while cursor < len(data):
            node, output, length = struct.unpack_from("<III", data, cursor)
            cursor += 12
            records.append((node, output, data[cursor : cursor + length]))
            cursor += length
        return records

    def verify(self, signature: bytes, message: bytes, public_key: bytes) -> bool:
        """True when the Ed25519 signature holds."""
        if len(signature) != 64 or len(public_key) != 32:
            return False
        library = self._library
        return bool(library.stitch_verify_signature(signature, message, len(message), public_key))

    def load_library(self, data: bytes) -> int:
        """A handle of a shared object given by its verified bytes. Raises Refused."""
        error = ctypes.create_string_buffer(ERROR_BYTES)
        handle = self._library.stitch_load_library(data, len(data), error, ERROR_BYTES)
        if not handle:
            raise reasons.Refused(reasons.BAD_ARTIFACT, error.value.decode(errors="replace"))
        return int(handle)

    def check_fusion(
        self, table: List[int], inputs: List[int], host: List[int], outputs: List[int], gpu: bool
    ) -> str:
        """Why a fusion with this launch table and these types cannot be made; "" when it can.
        `host` are the types of its inputs in host memory."""
        words = (ctypes.c_int64 * len(table))(*table)
        dtypes = [*inputs, *host, *outputs]
        types = (ctypes.c_int32 * len(dtypes))(*dtypes)
        counts = (len(inputs), len(host), len(outputs), int(gpu))
        error = ctypes.create_string_buffer(ERROR_BYTES)
        self._library.stitch_check_fusion(words, len(table), types, *counts, error, ERROR_BYTES)
        return error.value.decode(errors="replace")

    def register_kernel(self, key: str, handle: int, symbol: str) -> None:
        if not self._library.stitch_register_kernel(key.encode(), handle, symbol.encode()):
            raise reasons.Refused(reasons.BAD_ARTIFACT, f"library has no function {symbol}")

    def add_functions(self, library: bytes) -> None:
        """Functions that do the work of kernels which cannot, a serialized FunctionDefLibrary.
        Raises Refused(BAD_ARTIFACT)."""
        error = ctypes.create_string_buffer(ERROR_BYTES)
        if not self._library.stitch_add_functions(library, len(library), error, ERROR_BYTES):
            detail = f"functions: {error.value.decode(errors='replace')}"
            raise reasons.Refused(reasons.BAD_ARTIFACT, detail)

    def retire(self, keys: Iterable[str], retired: bool = True) -> None:
        """Operations of these kernels leave their work to the functions from now on, or no more."""
        for key in keys:
            self._library.stitch_retire_kernel(key.encode(), int(retired))

    def prove(self, first: bool) -> None:
        """Whether kernels do the work of an operation from its second execution on, once they have
        been compared in the first; else at once."""
        self._library.stitch_prove(int(first))

    def arm_fault(self, point: str, kernel: str = "", occasion: int = 1) -> None:
        """Has the operation of `kernel` (key and symbol; "": any) fail on purpose (docs/faults.md)
        when it comes to `point` of native/exports.h for the `occasion`-th time."""
        self._library.stitch_arm_fault(point.encode(), kernel.encode(), occasion)

    def open_gpu(self, driver: Optional[str] = None) -> None:
        """Finds the CUDA driver (libcuda.so.1, or `driver`). Raises Refused(NO_DEVICE)."""
        error = ctypes.create_string_buffer(ERROR_BYTES)
        path = None if driver is None else driver.encode()
        if self._library.stitch_open_gpu(path, error, ERROR_BYTES):
            raise reasons.Refused(reasons.NO_DEVICE, error.value.decode(errors="replace"))

    def register_program(self, key: str, table: bytes, device: int) -> None:
        """A kernel's launch table (docs/contracts.md 12), made ready on a device by its CUDA
        number. Raises Refused: all that a device refuses is refused here, before a graph is
        changed."""
        error = ctypes.create_string_buffer(ERROR_BYTES)
        reason = self._library.stitch_register_program(
            key.encode(), table, len(table), device, error, ERROR_BYTES
        )
        if reason:
            said = error.value.decode(errors="replace")
            raise reasons.Refused(GPU_REASONS.get(reason, reasons.KERNEL_FAILED), said)

    def new_step(self) -> int:
        return int(self._library.stitch_new_step())

    def step_arm(self, step: int) -> Any:
        """A ctypes pointer; `pointer[0]` is the arm that the next call should run."""
        return self._library.stitch_step_arm(step)

    def step_begun(self, step: int) -> Any:
        """A ctypes pointer; `pointer[arm]` counts gates of that arm that calls have passed."""
        return self._library.stitch_step_begun(step)

    def schedule(self, step: int, arm: int, original: int, stitched: int) -> None:
        """Blocks of so many calls in turn, `arm` first; 0 for the other arm means never."""
        self._library.stitch_schedule_step(step, arm, original, stitched)

    def hold(self, step: int, agreed: int) -> bool:
        """Has the step after so many passes wait (arm HELD) for `decide`; False: it has begun."""
        return bool(self._library.stitch_hold_step(step, agreed))

    def decide(
        self, step: int, arm: int, original: int, stitched: int, most: int, seed: int
    ) -> bool:
        """What happens at the agreed pass: blocks as `schedule` deals them, the stitched ones
        growing to `most` steps with the stitched passes, of random length by `seed`; or nothing,
        with `arm` -1. Equal on all replicas whose passes are. False: nothing was agreed on."""
        library = self._library
        return bool(library.stitch_decide_step(step, arm, original, stitched, most, seed))

    def stretch(self, step: int, stitched: int, seed: Optional[int] = None) -> None:
        """The next stitched blocks are of half to one and a half times so many calls, and 3 at
        least, at random: by the first `seed` that is given for the step, or by the process's."""
        seed = self._seed + step if seed is None else seed
        self._library.stitch_stretch_step(step, stitched, seed)

    def read(self, step: int, cursor: int, capacity: int = 4096) -> Tuple[int, List[Interval]]:
        """Intervals recorded since `cursor`, and the next cursor."""
        position = ctypes.c_int64(cursor)
        out = (_Interval * capacity)()
        count = self._library.stitch_read_step(step, ctypes.byref(position), out, capacity)
        intervals = [
            Interval(i.nanoseconds // i.steps, i.arm, i.position, i.block, i.steps)
            for i in out[:count]
        ]
        return position.value, intervals

    def pass_step(self, step: int, arm: int) -> None:
        """Marks a pass of a step that has no timer in its graph."""
        self._library.stitch_pass_step(step, arm)

    def begin_call(self, step: int) -> None:
        """A call on a GPU begins, in this thread."""
        self._library.stitch_begin_call(step)

    def record_call(self, step: int, arm: int, nanoseconds: int, on_gpu: bool) -> None:
        """A call that has ended, timed by its caller; on a GPU by the device."""
        self._library.stitch_record_call(step, arm, nanoseconds, int(on_gpu))

    def passes(self, step: int, arm: int) -> int:
        return int(self._library.stitch_passes(step, arm))

    def calls(self, step: int, arm: int) -> int:
        return int(self._library.stitch_calls(step, arm))

    def watch_memory(self, step: int) -> bool:
        """Samples the process's resident memory while the step's arms run in turn; False where the
        system does not tell it."""
        return bool(self._library.stitch_watch_memory(step))

    def unwatch_memory(self, step: int) -> None:
        self._library.stitch_unwatch_memory(step)

    def memory(self, step: int, capacity: int = 4096) -> List[Peak]:
        """By block, oldest first; blocks in which no sample was taken are left out."""
        out = (_Peak * capacity)()
        count = self._library.stitch_read_memory(step, out, capacity)
        return [Peak(peak.block, peak.arm, peak.samples, peak.bytes) for peak in out[:count]]

    def failures(self) -> List[Failure]:
        """What has failed of stitched operations in this process."""
        buffer = self._library.stitch_failures()
        if not buffer:
            return []
        try:
            text = ctypes.string_at(buffer).decode(errors="replace")
        finally:
            self._library.stitch_free(buffer)
        failures = []
        for line in text.splitlines():
            count, kernel, node, message = line.split("\t", 3)
            failures.append(Failure(kernel, node, message, int(count)))
        return failures

    def start_trace(self) -> bool:
        """Has TensorFlow record what its operations do; False where somebody does already."""
        return bool(self._versioned.stitch_start_trace(TRACE_LEVEL))

    def stop_trace(self) -> str:
        """What has been recorded since (native/shim.cc)."""
        buffer = self._versioned.stitch_stop_trace()
        try:
            return ctypes.string_at(buffer).decode(errors="replace")
        finally:
            self._library.stitch_free(ctypes.c_void_p(buffer))

    def caller_thread_executor(self) -> str:
        """The type of the executor that runs a step in the thread that calls it, for graphs that
        allow it and where the step is placed so (native/caller_thread.cc)."""
        choice = ctypes.cast(self._library.stitch_runs_in_caller_thread, ctypes.c_void_p)
        return str(self._versioned.stitch_caller_thread_executor(choice).decode())

    def place(self, step: int, place: int) -> None:
        """Where stitched calls of a step run that may run in the caller's thread: POOL,
        CALLER_THREAD, or IN_TURNS, by their block's number (timer.in_caller_thread)."""
        self._library.stitch_place_step(step, place)

    def counters(self) -> Dict[str, int]:
        """Pool and buffer statistics since the start (native/pool.h, op.cc)."""
        values = (ctypes.c_int64 * len(COUNTERS))()
        self._library.stitch_counters(values)
        return dict(zip(COUNTERS, values))


def open_native(folder: str) -> Any:
    """The plug-in's library, functions declared. TensorFlow must be imported."""
    library = ctypes.CDLL(os.path.join(folder, PLUGIN))
    _declare(library)
    return library


def other_optimizer() -> Optional[str]:
    """A library of this process, not ours, that has TensorFlow register an optimizer of graphs:
    where two do so for one type of device TensorFlow ends the process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    for path in sorted(paths):
        name = os.path.basename(path)
        if name == PLUGIN or name.startswith("shim_tf"):
            continue
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue  # mapped as data, or removed since
        if hasattr(library, "TF_InitGraph"):
            return path
    return None


def load(folder: str, version: Tuple[int, int]) -> Plugin:
    """Registers the plug-in with TensorFlow. Raises Refused(UNSUPPORTED_VERSION) and others."""
    name = f"{version[0]}.{version[1]}"
    mend = f"python -m stitchcore.inject.build --version {name}"  # in a clone and from a wheel
    if not OLDEST <= version <= NEWEST:
        detail = f"TensorFlow {name}; 2.{OLDEST[1]} to 2.{NEWEST[1]} are supported"
        raise reasons.Refused(reasons.UNSUPPORTED_VERSION, detail)
    shim = os.path.join(folder, f"shim_tf{version[0]}{version[1]}.so")
    if not os.path.exists(shim):
        detail = f"TensorFlow {name}: {shim} is missing: {mend}"
        raise reasons.Refused(reasons.UNSUPPORTED_VERSION, detail)
    path = os.path.join(folder, PLUGIN)
    if not os.path.exists(path):
        detail = f"{path} is missing: python -m stitchcore.inject.build"
        raise reasons.Refused(reasons.HOOK_ERROR, detail)
    other = other_optimizer()
    if other is not None:
        raise reasons.Refused(reasons.HOOK_ERROR, f"{other} optimizes graphs as well")
    from tensorflow.python.client import pywrap_tf_session

    pywrap_tf_session.TF_LoadPluggableDeviceLibrary(path)
    library = open_native(folder)
    error = ctypes.create_string_buffer(ERROR_BYTES)
    if not library.stitch_load_shim(shim.encode(), error, ERROR_BYTES):
        detail = f"{shim}: {error.value.decode(errors='replace')}: {mend}"
        raise reasons.Refused(reasons.UNSUPPORTED_VERSION, detail)
    # A graph wholly on a GPU is shown to an optimizer of that device type only (native/shim.cc).
    versioned = ctypes.CDLL(shim)
    if not hasattr(versioned, "stitch_caller_thread_executor"):
        raise reasons.Refused(reasons.UNSUPPORTED_VERSION, f"{shim} is of an older release: {mend}")
    versioned.stitch_set_optimizer(ctypes.cast(library.TF_InitGraph, ctypes.c_void_p))
    versioned.stitch_start_trace.restype = ctypes.c_bool
    versioned.stitch_stop_trace.restype = ctypes.c_void_p
    versioned.stitch_caller_thread_executor.restype = ctypes.c_char_p
    pywrap_tf_session.TF_LoadPluggableDeviceLibrary(shim)
    return Plugin(library, versioned)
