"""XLA on an HLO module through jaxlib: the baseline where there is no TensorFlow graph.

`python -m bench.xla MODULE.hlo[.xz]` prints milliseconds a run and XLA's kernel counts. The CPU of
this process, or a GPU where jax has its plug-in.
"""

from __future__ import annotations

import argparse
import collections
import lzma
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stitchcore.verify import xla_baseline

Array = np.ndarray[Any, np.dtype[Any]]
_COPY = re.compile(r"(?<=[]}]) copy\(")
"""TensorFlow's bridge ends a module in copies of its results. jaxlib 0.11's way from HLO text to
StableHLO refuses them (`failed to legalize operation 'mhlo.copy'`); XLA makes those it needs."""


@dataclass(frozen=True)
class Executable:
    """A module compiled by XLA. `kernels` counts what it launches, by opcode."""

    loaded: Any
    device: Any
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # numpy dtype name and dims of each parameter
    kernels: collections.Counter[str]
    compile_seconds: float

    def put(self, arguments: Sequence[Array]) -> list[Any]:
        import jax

        return [jax.device_put(argument, self.device) for argument in arguments]

    def run(self, buffers: Sequence[Any]) -> list[Any]:
        """Device arrays of the outputs, ready."""
        rows = self.start(buffers)
        for output in rows:
            output.block_until_ready()
        return rows

    def start(self, buffers: Sequence[Any]) -> list[Any]:
        """Device arrays of the outputs, perhaps not ready yet."""
        rows = self.loaded.execute_sharded(list(buffers)).disassemble_into_single_device_arrays()
        return [row[0] for row in rows]


def read(path: Path) -> str:
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode()


def compile_text(text: str, aliases: bool = False) -> Executable:
    """Compile HLO text; with `aliases` a run consumes the arguments that the text says an output
    takes the place of. Raises ImportError without jaxlib, and XLA's own errors."""
    import jax
    from jaxlib import _hlo as hlo
    from jaxlib import _jax, xla_client

    jax.config.update("jax_enable_x64", True)
    device = jax.devices()[0]
    start = time.perf_counter()
    source = _COPY.sub(" reshape(", text if aliases else xla_baseline.without_aliases(text))
    proto = hlo.hlo_module_from_text(source).as_serialized_hlo_module_proto()
    computation = hlo.XlaComputation(proto)
    converter = xla_client._xla.mlir  # no public way from HLO text to an executable
    stablehlo = converter.xla_computation_to_mlir_module(computation)
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    loaded = device.client.compile_and_load(stablehlo, _jax.DeviceList((device,)), options)
    seconds = time.perf_counter() - start
    parameters = computation.program_shape().parameter_shapes()
    shapes = tuple((str(np.dtype(p.numpy_dtype())), tuple(p.dimensions())) for p in parameters)
    optimised = loaded.hlo_modules()[0].to_string()
    return Executable(loaded, device, shapes, xla_baseline.launches(optimised), seconds)


def arguments(executable: Executable, seed: int = 0) -> list[Array]:
    """Small random arguments: floats of scale 0.1, integers below 10."""
    random = np.random.default_rng(seed)
    made: list[Array] = []
    for name, dims in executable.shapes:
        dtype = np.dtype(name)
        if dtype.kind in "iu":
            made.append(random.integers(0, 10, dims).astype(dtype))
        elif dtype.kind == "b":
            made.append(random.random(dims) > 0.5)
        else:
            made.append(np.asarray(np.abs(random.standard_normal(dims)) * 0.1, dtype))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.xla", description=__doc__)
    parser.add_argument("module", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    try:
        executable = compile_text(read(options.module))
    except ImportError as missing:
        print(f"{missing}: pip install 'jaxlib>=0.9' 'jax>=0.9'", file=sys.stderr)
        return 1
    buffers = executable.put(arguments(executable))
    executable.run(buffers)
    seconds = []
    for _ in range(options.runs):
        start = time.perf_counter()
        executable.run(buffers)
        seconds.append(time.perf_counter() - start)
    common = ", ".join(f"{count} {name}" for name, count in executable.kernels.most_common(6))
    print(
        f"{options.module.name}: {np.median(seconds) * 1e3:.2f} ms a run, compiled in "
        f"{executable.compile_seconds:.1f} s, {executable.kernels.total()} launches ({common})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
