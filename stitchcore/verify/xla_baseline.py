"""XLA's own CPU backend (jaxlib) on HLO text: the baseline of `stitch bench`.

jaxlib is optional and its interface below `jax` is private, so `load` says in one exception whether
this one can be used. Needs jaxlib 0.9 or later.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_ALIAS = re.compile(r", input_output_alias=\{(?:[^{}]|\{[^{}]*\})*\}")


class NoXla(Exception):
    """jaxlib is missing, or too old or new for what is used here; the message says which."""


class Executable:
    """A compiled module with its arguments on the device."""

    def __init__(self, executable: Any, arguments: list[Any]) -> None:
        self._executable, self._arguments = executable, arguments

    def run(self) -> list[Array]:
        """Outputs as numpy arrays, flat."""
        return [np.asarray(value) for value in self._call()]

    def seconds(self, repeats: int) -> list[float]:
        """Wall seconds of `repeats` runs, after one warm-up."""
        taken = []
        for repeat in range(repeats + 1):
            start = time.perf_counter()
            for value in self._call():
                value.block_until_ready()
            if repeat:
                taken.append(time.perf_counter() - start)
        return taken

    def _call(self) -> list[Any]:
        results = self._executable.execute_sharded(self._arguments)
        outputs = results.disassemble_into_single_device_arrays()
        return [result[0] for result in outputs]


def load(text: str, arguments: Sequence[Array]) -> Executable:
    """Compile `text` for this machine's cores and place `arguments`. Raises NoXla."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # or XLA logs every client
    try:
        return _load(text, arguments)
    except ImportError as error:
        raise NoXla(f"jaxlib is not installed ({error}): pip install jaxlib") from error
    except (AttributeError, TypeError, RuntimeError, ValueError) as error:
        version = importlib.metadata.version("jaxlib")
        raise NoXla(f"jaxlib {version}: {type(error).__name__}: {error}") from error


def _load(text: str, arguments: Sequence[Array]) -> Executable:
    from jaxlib import _hlo, _jax, xla_client

    client = _client()
    module = _hlo.hlo_module_from_text(_ALIAS.sub("", text, count=1))
    computation = _hlo.XlaComputation(module.as_serialized_hlo_module_proto())
    stable = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    device = client.devices()[0]
    executable = client.compile_and_load(stable, _jax.DeviceList((device,)), options)
    return Executable(executable, [_put(np.asarray(a), device) for a in arguments])


@lru_cache(maxsize=1)
def _client() -> Any:
    """One client per process: each has threads of its own."""
    from jaxlib import xla_client

    return xla_client.make_cpu_client()


def _put(array: Array, device: Any) -> Any:
    from jaxlib import _hlo, _jax

    aval = SimpleNamespace(shape=array.shape, dtype=array.dtype, weak_type=False)

    class Whole(_jax.SingleDeviceSharding):  # type: ignore[misc]  # what the jax package adds
        memory_kind = None

        def _to_xla_hlo_sharding(self, rank: int) -> Any:
            return _hlo.HloSharding.replicate()

    sharding = Whole(device)
    return _jax.batched_device_put(aval, sharding, [array], [device], enable_x64=True)
