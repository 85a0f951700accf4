"""`python -m bench.gpu.operations --output DIR`: what TensorFlow's own kernels on a GPU compute.

Each conformance case's operation runs eagerly on the device: no Grappler, no XLA, no soft
placement, so an operation without a kernel there is recorded as its error. Nothing is compared: a
lent GPU is for what only it knows (tests/tensorflow/recorded_operations.py, gpu_conformance.py).
float32 of all operations comes first; when the time is over what is done is what there is.

Several processes share the operations, as kernels are compiled from PTX on first use. One that dies
(CUDA's errors end TensorFlow's process) is started again after the case that it died in.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from bench.gpu.measure import NO_GPU
from tests.tensorflow.conformance_cases import Case
from tests.tensorflow.recorded_operations import (
    Outcome,
    Probe,
    Way,
    digest,
    outcome_to_json,
    probes,
    read,
    update_operands,
)

SHARES = max(2, min(14, (os.cpu_count() or 4) - 2))
"""Processes: a context of each is some 500 MB of the GPU."""
ATTEMPTS = 12
"""How often a process is started again."""
AFTER = 5.0
"""Seconds in which a process whose time is over may end by itself."""
ERROR_CHARACTERS = 300
PLACE = re.compile(r"^(\{\{.*?\}\} )+")
"""How an eager operation's error begins, before its words."""
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "CUDA_CACHE_MAXSIZE": str(4 << 30),  # of what is compiled from PTX, for a second run
}


class Kernels:
    """TensorFlow's operations, run one by one on a device."""

    def __init__(self, device: str) -> None:
        import tensorflow as tf  # after the environment

        from tests.tensorflow import conformance

        self._tf, self._conformance = tf, conformance
        self._device = f"/{device}"
        tf.config.set_soft_device_placement(False)

    def about(self) -> dict[str, Any]:
        import numpy as np

        tf = self._tf
        gpus = [tf.config.experimental.get_device_details(gpu)
                for gpu in tf.config.list_physical_devices("GPU")]  # fmt: skip
        build = {name: str(value) for name, value in tf.sysconfig.get_build_info().items()}
        return {"device": self._device, "tensorflow": tf.__version__, "numpy": np.__version__,
                "build": build, "gpus": [str(one) for one in gpus]}  # fmt: skip

    def outcomes(self, probe: Probe) -> dict[str, Outcome]:
        """By class of input; whatever goes wrong is an outcome too."""
        self._tf.config.experimental.enable_tensor_float_32_execution(probe.way is not Way.EXACT)
        found = {}
        for kind, arrays in probe.inputs():
            try:
                found[kind] = self._outcome(probe, arrays)
            except Exception as error:
                lines = str(getattr(error, "message", error)).strip().splitlines() or [""]
                words = f"{type(error).__name__}: {PLACE.sub('', lines[0])}"
                found[kind] = Outcome(digest(arrays), error=words[:ERROR_CHARACTERS])
        return found

    def _outcome(self, probe: Probe, arrays: Sequence[Any]) -> Outcome:
        ways = {Way.UPDATE: self._updated, Way.CHAINED: self._chained}
        tensors = ways.get(probe.way, self._plain)(probe.case, arrays)
        devices = tuple(tensor.backing_device.rpartition("device:")[2] for tensor in tensors)
        return Outcome(digest(arrays), tuple(tensor.numpy() for tensor in tensors), devices)

    def _plain(self, case: Case, arrays: Sequence[Any]) -> list[Any]:
        subgraph = self._conformance.function(case, [array.shape for array in arrays])
        [node] = [node for node in subgraph.graph.node if node.name == "n0"]
        with self._tf.device(self._device):
            operands = [self._tf.constant(value) for value in (*arrays, *case.constants)]
            if case.order is not None:
                operands = [operands[position] for position in case.order]
            return self._execute(node, operands)

    def _definition(self, operation: str) -> Any:
        from tensorflow.python.framework import op_def_registry

        return op_def_registry.get(operation)

    def _execute(self, node: Any, operands: Sequence[Any]) -> list[Any]:
        """The operation of a node, its attributes as they are there."""
        from tensorflow.python.eager import context, execute

        count = 0
        for output in self._definition(node.op).output_arg:
            count += node.attr[output.number_attr].i if output.number_attr else 1
        attributes: list[Any] = []
        for name, value in node.attr.items():
            attributes += [name, self._attribute(value)]
        results = execute.quick_execute(
            node.op, count, list(operands), tuple(attributes), context.context()
        )
        return list(results)

    def _attribute(self, value: Any) -> Any:
        which = value.WhichOneof("value")
        if which == "list":
            return [*value.list.i, *value.list.s]
        if which == "shape":
            return self._tf.TensorShape(value.shape).as_list()
        return getattr(value, which)

    def _updated(self, case: Case, arrays: Sequence[Any]) -> list[Any]:
        """The variables of an optimizer's update, after it."""
        tf = self._tf
        *values, gradient = arrays
        names = [argument.name for argument in self._definition(case.operation).input_arg]
        with tf.device(self._device):
            variables = [tf.Variable(value) for value in values]
            numbers = [tf.constant(number) for number in case.constants]
            operands = update_operands(case, tf.constant(gradient), numbers)
            operands = [*(variable.handle for variable in variables), *operands]
            update = getattr(tf.raw_ops, case.operation)
            update(**dict(zip(names, operands, strict=True)), **case.attributes)
            return [variable.read_value() for variable in variables]

    def _chained(self, case: Case, arrays: Sequence[Any]) -> list[Any]:
        """A normalization, then its gradient by what it saved: first what it saved (mean, the other
        statistic, workspace), then the gradient's outputs."""
        tf = self._tf
        with tf.device(self._device):
            gradient, x, scale = (tf.constant(array) for array in arrays[:3])
            nothing = tf.constant([], tf.float32)
            norm = tf.raw_ops.FusedBatchNormV3(
                x=x, scale=scale, offset=tf.zeros_like(scale), mean=nothing, variance=nothing,
                **case.attributes,
            )  # fmt: skip
            names = ("reserve_space_1", "reserve_space_2", "reserve_space_3")
            saved = dict(zip(names, norm[3:], strict=True))
            back = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=gradient, x=x, scale=scale, **saved, **case.attributes
            )
        return [*norm[3:], *back[:3]]


def missing(device: str) -> str:
    """Why nothing can be recorded of `device` ("GPU:0") here, or "": else each operation's want of
    the device would stand in the recording as its want of a kernel."""
    if find_spec("tensorflow") is None:
        return "no TensorFlow here (docs/gpu.md says how it travels)"
    import tensorflow as tf

    kind, _, number = device.partition(":")
    there = tf.config.list_physical_devices(kind)
    return "" if number.isdecimal() and int(number) < len(there) else f"TensorFlow sees no {device}"


def work(output: Path, device: str, share: int, only: Sequence[str], deadline: float) -> None:
    """One process's share of the operations, but for what it did before."""
    path = output / f"operations-{share}.jsonl"
    before = read(output)
    mine = share_of(wanted(only), share)
    kernels = Kernels(device)
    with path.open("a") as journal:
        journal.write("\n")  # whatever line the one before was in
        if share == 0:
            _write(journal, {"about": kernels.about()})
        for probe in mine:
            if time.time() > deadline:
                break
            if probe.key in before.outcomes or probe.key in before.begun:
                continue
            _write(journal, {"begun": probe.key})
            outcomes = {k: outcome_to_json(o) for k, o in kernels.outcomes(probe).items()}
            _write(journal, {"key": probe.key, "outcomes": outcomes})


def wanted(only: Sequence[str]) -> list[Probe]:
    """All probes, or those of some operations."""
    return [probe for probe in probes() if not only or probe.case.operation in only]


def share_of(all_probes: Sequence[Probe], share: int) -> list[Probe]:
    """All probes of an operation are one process's: they have kernels in common."""
    operations = sorted({probe.case.operation for probe in all_probes})
    number = {operation: n % SHARES for n, operation in enumerate(operations)}
    return [probe for probe in all_probes if number[probe.case.operation] == share]


def _write(journal: IO[str], line: Any) -> None:
    journal.write(json.dumps(line, separators=(",", ":")) + "\n")
    journal.flush()


def supervise(output: Path, device: str, only: Sequence[str], deadline: float) -> None:
    """All shares at once; what dies is started again, and what hangs is ended."""
    starts = dict.fromkeys(range(SHARES), 0)
    running: dict[int, subprocess.Popen[bytes]] = {}
    words = (output / "operations.txt").open("ab")

    def start(share: int) -> None:
        starts[share] += 1
        command = [sys.executable, "-m", "bench.gpu.operations", "--output", str(output)]
        command += ["--device", device, "--share", str(share), "--until", str(deadline)]
        command += ["--only", *only]
        running[share] = subprocess.Popen(command, stdout=words, stderr=words)

    for share in starts:
        start(share)
    while running:
        time.sleep(0.2)
        late = time.time() > deadline + AFTER
        for share, process in list(running.items()):
            if late:
                process.kill()
                process.wait()
            if process.poll() is None:
                continue
            del running[share]
            if process.returncode != 0 and not late and starts[share] < ATTEMPTS:
                print(f"share {share} ended with {process.returncode}: again", flush=True)
                start(share)


def pack(output: Path) -> Path:
    """The shares' files as one."""
    whole = output / "operations.jsonl.gz"
    parts = sorted(output.glob("operations-*.jsonl"))
    with gzip.open(whole, "wb", compresslevel=6) as packed:
        for part in parts:
            with part.open("rb") as lines:
                shutil.copyfileobj(lines, packed)
    for part in parts:
        part.unlink()
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.operations", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the recording")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--device", default="GPU:0")
    parser.add_argument("--only", nargs="*", default=(), metavar="OPERATION")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)
    if given.share is not None:
        work(given.output, given.device, given.share, given.only, given.until)
        return 0
    if why := missing(given.device):
        print(f"bench.gpu.operations: nothing was recorded: {why}", file=sys.stderr)
        return NO_GPU
    given.output.mkdir(parents=True, exist_ok=True)
    began = time.time()
    supervise(given.output, given.device, given.only, began + given.seconds)
    whole = pack(given.output)
    recording = read(given.output)
    every = [o for outcomes in recording.outcomes.values() for o in outcomes.values()]
    errors = sum(bool(outcome.error) for outcome in every)
    print(
        f"{len(recording.outcomes)} of {len(wanted(given.only))} cases, {len(every)} outcomes, "
        f"{errors} errors, {len(recording.begun)} died; {time.time() - began:.0f} s, "
        f"{whole.stat().st_size >> 10} KiB: {recording.about}"
    )
    return 0 if recording.outcomes else 1


if __name__ == "__main__":
    sys.exit(main())
