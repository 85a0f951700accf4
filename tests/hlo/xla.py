"""XLA's own CPU backend (jaxlib) as a second opinion on HLO text; a loud skip without it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

_ALIAS = re.compile(r", input_output_alias=\{(?:[^{}]|\{[^{}]*\})*\}")


def client() -> Any:
    """A CPU client of jaxlib's XLA."""
    pytest.importorskip("jaxlib._hlo", reason="XLA check skipped: pip install jaxlib")
    from jaxlib import xla_client

    return xla_client.make_cpu_client()


def run(client: Any, text: str, arguments: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    """Outputs of the module `text` under XLA, flat, as numpy arrays."""
    from jaxlib import _hlo, _jax, xla_client

    module = _hlo.hlo_module_from_text(_ALIAS.sub("", text, count=1))
    computation = _hlo.XlaComputation(module.as_serialized_hlo_module_proto())
    stable = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    device = client.devices()[0]
    executable = client.compile_and_load(stable, _jax.DeviceList((device,)), options)
    buffers = [_put(np.asarray(a), device) for a in arguments]
    results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
    return [result[0]._single_device_array_to_np_array_did_copy()[0] for result in results]


def _put(array: np.ndarray[Any, Any], device: Any) -> Any:
    from types import SimpleNamespace

    from jaxlib import _hlo, _jax

    aval = SimpleNamespace(shape=array.shape, dtype=array.dtype, weak_type=False)

    class Whole(_jax.SingleDeviceSharding):  # what the jax package adds to it, no more
        memory_kind = None

        def _to_xla_hlo_sharding(self, rank: int) -> Any:
            return _hlo.HloSharding.replicate()

    sharding = Whole(device)
    return _jax.batched_device_put(aval, sharding, [array], [device], enable_x64=True)
