"""A program: kernels of the shared ABI in order, run bare or as StitchedFusion nodes.

Hand-written and generated kernels are described the same way, so that in a comparison only the
kernels differ.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import platform
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stitchcore.launch.cpu_table import TABLE_VERSION
from stitchcore.runtime.cpu_kernel import load_library

HERE = Path(__file__).resolve().parent
Array = np.ndarray[Any, np.dtype[Any]]
POOLED_BYTES = 1 << 20
"""Outputs at least this large come from the plug-in's pool, as in a packaged artifact."""


@dataclass(frozen=True)
class Value:
    """A dense array a program reads or makes: numpy dtype name and static shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Launch:
    """One kernel of a program. `forwards` are (input, output) positions that may share memory.

    `nanoseconds` estimates one call on one core; the plug-in uses it to choose threads.
    """

    symbol: str
    library: bytes
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    tasks: tuple[int, ...]
    scratch_bytes: int
    nanoseconds: int
    forwards: tuple[tuple[int, int], ...] = ()

    @property
    def key(self) -> str:
        return hashlib.sha256(self.library).hexdigest() + ":" + self.symbol


@dataclass(frozen=True)
class Program:
    """`updates` are (input name, result name): the input is a variable that takes the result."""

    inputs: tuple[Value, ...]
    launches: tuple[Launch, ...]
    results: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()


# ---- without TensorFlow ------------------------------------------------------------------------
@lru_cache(maxsize=1)
def driver() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "driver.so"
        command = ["gcc", "-O2", "-march=native", "-fPIC", "-shared", str(HERE / "driver.c")]
        subprocess.run([*command, "-o", str(target), "-lpthread"], check=True)
        library = load_library(target.read_bytes())
    library.run_kernel.restype = ctypes.c_int64
    return library


HUGE = 2 << 20


def resident(shape: tuple[int, ...], dtype: str, huge: bool) -> Array:
    """A zeroed array in memory of its own: `huge` as the plug-in's pool makes it (2 MB aligned, on
    huge pages), else as TensorFlow's allocator does (ordinary pages).
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    alignment = HUGE if huge and size >= POOLED_BYTES else 4096
    pages = mmap.mmap(-1, (size + alignment - 1) // alignment * alignment + alignment)
    if alignment == HUGE:
        pages.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(pages, np.uint8)
    start = -block.ctypes.data % alignment
    block[start : start + size] = 0
    return block[start : start + size].view(dtype).reshape(shape)


@lru_cache(maxsize=64)
def _loaded(library: bytes) -> ctypes.CDLL:
    return load_library(library)


@dataclass(frozen=True)
class Bare:
    """A program bound to arrays: `run()` runs it whole, `launches` are its kernels one by one."""

    values: Mapping[str, Array]
    launches: Mapping[str, Callable[[], None]]
    results: tuple[str, ...]

    def run(self) -> None:
        for launch in self.launches.values():
            launch()

    def outputs(self) -> list[Array]:
        return [self.values[name] for name in self.results]


def bare(program: Program, inputs: Mapping[str, Array], threads: int = 2) -> Bare:
    """Bind `program` to copies of `inputs`; updates overwrite those copies."""
    values: dict[str, Array] = {}
    for value in program.inputs:
        values[value.name] = resident(value.shape, value.dtype, huge=False)
        values[value.name][...] = inputs[value.name]
    aliases = {result: source for source, result in program.updates}
    launches = {}
    for number, launch in enumerate(program.launches):
        for output in launch.outputs:
            if output.name in aliases:
                values[output.name] = values[aliases[output.name]]
            else:
                values[output.name] = resident(output.shape, output.dtype, huge=True)
        launches[f"{number}:{launch.symbol}"] = bind(launch, values, threads)
    return Bare(values, launches, program.results)


def bind(launch: Launch, values: Mapping[str, Array], threads: int) -> Callable[[], None]:
    names = [*launch.inputs, *(value.name for value in launch.outputs)]
    pointers = (ctypes.c_void_p * len(names))(*(values[name].ctypes.data for name in names))
    scratch = resident((max(launch.scratch_bytes, 64),), "uint8", huge=True)
    tasks = (ctypes.c_int64 * len(launch.tasks))(*launch.tasks)
    function = ctypes.cast(getattr(_loaded(launch.library), launch.symbol), ctypes.c_void_p)
    run = driver().run_kernel
    used = threads if launch.nanoseconds >= 200_000 else 1
    block = ctypes.c_void_p(scratch.ctypes.data)
    count, team = ctypes.c_int64(len(launch.tasks)), ctypes.c_int64(used)

    def call() -> None:
        failed = run(function, pointers, None, block, count, tasks, team)
        if failed:
            raise RuntimeError(f"{launch.symbol}: check {failed} failed")

    call.keep = (scratch, values)  # type: ignore[attr-defined]
    return call


# ---- inside TensorFlow -------------------------------------------------------------------------
@lru_cache(maxsize=1)
def plugin() -> Any:
    """The job-side plug-in, loaded into this process's TensorFlow."""
    import tensorflow as tf

    from stitchcore.inject import plugin as native

    major, minor = (int(part) for part in tf.__version__.split(".")[:2])
    folder = HERE.parent / "stitchcore" / "inject" / "lib" / platform.machine()
    return native.load(str(folder), (major, minor))


def register(program: Program) -> None:
    """Load every kernel of `program` into the plug-in."""
    handles: dict[bytes, int] = {}
    for launch in program.launches:
        if launch.library not in handles:
            handles[launch.library] = plugin().load_library(launch.library)
        plugin().register_kernel(launch.key, handles[launch.library], launch.symbol)


def call(program: Program, arguments: Sequence[Any]) -> list[Any]:
    """StitchedFusion nodes for `program`; arguments are tensors, or variables to be updated.

    Returns the results in order; an update's result is the variable itself.
    """
    from tensorflow.python.framework import op_def_library

    values = {v.name: argument for v, argument in zip(program.inputs, arguments, strict=True)}
    variables = {result: source for source, result in program.updates}
    for launch in program.launches:
        tensors, results, table = _arguments(launch, values, variables)
        made = [value for value in launch.outputs if value.name not in variables]
        outputs = op_def_library.apply_op(
            "StitchedUpdate" if len(made) < len(launch.outputs) else "StitchedFusion",
            arguments=tensors,
            Tout=[value.dtype for value in made],
            kernel=launch.key,
            table=table,
            errors=[],
            work=launch.nanoseconds,
            pool=[i for i, value in enumerate(made) if value.bytes >= POOLED_BYTES],
        )
        if made:
            listed = outputs if isinstance(outputs, list | tuple) else [outputs]
            for value, tensor in zip(made, listed, strict=True):
                tensor.set_shape(value.shape)
                values[value.name] = tensor
        values |= {name: values[variables[name]] for name in results}
    return [values[name] for name in program.results]


def _arguments(
    launch: Launch, values: Mapping[str, Any], variables: Mapping[str, str]
) -> tuple[list[Any], list[str], list[int]]:
    """Op inputs, names of results that are variables, and the launch table."""
    positions: dict[str, int] = {}
    tensors: list[Any] = []

    def position(name: str) -> int:
        if name not in positions:
            positions[name] = len(tensors)
            value = values[name]
            tensors.append(value.handle if hasattr(value, "handle") else value)
        return positions[name]

    table = [TABLE_VERSION, 0, len(launch.inputs)]
    for name in launch.inputs:
        table += [int(hasattr(values[name], "handle")), position(name)]
    table.append(len(launch.outputs))
    outputs, updated = 0, []
    for value in launch.outputs:
        if value.name in variables:
            table += [1, position(variables[value.name])]
            updated.append(value.name)
        else:
            table += [0, outputs]
            outputs += 1
        table.append(len(value.shape))
        for extent in value.shape:
            table += [2, 0, extent]
    table.append(len(launch.forwards))
    for pair in launch.forwards:
        table += pair
    table += [0, 2, 0, launch.scratch_bytes, len(launch.tasks)]
    for tasks in launch.tasks:
        table += [2, 0, tasks]
    return tensors, updated, table
