"""XLA's own CPU backend (jaxlib) on HLO text: the baseline of `stitch bench`.

jaxlib is optional and its interface below `jax` is private, so `load` says in one exception whether
this one can be used. Needs jaxlib 0.9 or later.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_ALIAS = re.compile(r", input_output_alias=\{(?:[^{}]|\{[^{}]*\})*\}")
FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id "
    "add-dependency opt-barrier".split()
)
"""Instructions of an optimised module that launch nothing."""
CONTRACTIONS = frozenset(
    "contraction dot convolution sort custom-call fft cholesky triangular-solve".split()
)
"""What XLA launches that is a library's work."""

CONTROL = frozenset("while call conditional".split())
"""What it enters."""


class NoXla(Exception):
    """jaxlib is missing, or too old or new for what is used here; the message says which."""


class Executable:
    """A compiled module with its arguments on the device."""

    def __init__(self, executable: Any, arguments: list[Any]) -> None:
        self._executable, self._arguments = executable, arguments

    @property
    def optimized_text(self) -> str:
        """The module as XLA's passes left it."""
        return str(self._executable.hlo_modules()[0].to_string())

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


@dataclass(frozen=True)
class Kernels:
    """What XLA launches for a module by class, and the seconds it took to compile it."""

    math: int
    memory: int
    copies: int
    compile_seconds: float


def kernels(text: str) -> Kernels:
    """Compile `text` for this machine's cores and count. Raises NoXla."""
    start = time.perf_counter()
    executable = load(text, ())
    seconds = time.perf_counter() - start
    with _private_interface():
        counts = launches(executable.optimized_text)
    math, copies = sum(counts[opcode] for opcode in CONTRACTIONS), counts["copy"]
    entered = sum(counts[opcode] for opcode in CONTROL)
    return Kernels(math, counts.total() - math - copies - entered, copies, seconds)


def without_aliases(text: str) -> str:
    """The module without input_output_alias, so that running it does not consume its arguments."""
    return _ALIAS.sub("", text, count=1)


def launches(text: str) -> Counter[str]:
    """Instructions of the entry, and of what it calls or loops over, that launch something. A
    fusion around a dot or convolution counts as "contraction"."""
    computations: dict[str, list[tuple[str, list[str]]]] = {}
    current: list[tuple[str, list[str]]] | None = None
    entry = ""
    for line in text.split("\n"):
        head = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if head:
            current = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
            continue
        plain = re.sub(r"/\*.*?\*/", "", line)
        shape = r"(?:\((?:[^()]|\([^()]*\))*\)|\S+)"
        found = re.match(rf"\s+(?:ROOT )?%?[\w.\-]+ = {shape} ([\w\-]+)\(", plain)
        if found and current is not None:
            called = re.findall(r"(?:condition|body|calls|to_apply)=%?([\w.\-]+)", line)
            current.append((found[1], called))
    counts: Counter[str] = Counter()
    waiting, seen = [entry], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for opcode, called in computations.get(name, []):
            fused = {inner for one in called for inner, _ in computations.get(one, [])}
            if opcode == "fusion" and fused & {"dot", "convolution"}:
                opcode = "contraction"
            if opcode not in FREE:
                counts[opcode] += 1
            if opcode in ("while", "call", "conditional"):
                waiting += called
    return counts


def load(text: str, arguments: Sequence[Array]) -> Executable:
    """Compile `text` for this machine's cores and place `arguments`. Raises NoXla."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # or XLA logs every client
    with _private_interface():
        return _load(text, arguments)


@contextmanager
def _private_interface() -> Iterator[None]:
    """NoXla for what goes wrong where jaxlib is another than is used here."""
    try:
        yield
    except ImportError as error:
        raise NoXla(f"jaxlib is not installed ({error}): pip install jaxlib") from error
    except (AttributeError, TypeError, RuntimeError, ValueError) as error:
        version = importlib.metadata.version("jaxlib")
        raise NoXla(f"jaxlib {version}: {type(error).__name__}: {error}") from error


def _load(text: str, arguments: Sequence[Array]) -> Executable:
    from jaxlib import _hlo, _jax, xla_client

    client = _client()
    module = _hlo.hlo_module_from_text(without_aliases(text))
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
