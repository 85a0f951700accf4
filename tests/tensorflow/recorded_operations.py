"""What TensorFlow's own kernels on another machine's device made of the conformance cases.

A GPU is lent for minutes: there only TensorFlow's outputs are computed and written down
(`python -m bench.gpu.operations`); here they are held against the lowering (gpu_conformance.py).
This module says what is recorded and how it is written: one JSON object a line, so that what was
written before a process died is whole. Arrays are kept bit for bit. Inputs are made again from
their seeds; their hash says whether they are the same ones.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from stitchcore.tensorflow import op_allowlist
from stitchcore.tensorflow.updates import UPDATES
from tests.tensorflow.conformance_cases import CLASSES, NUMPY, SHAPE, Array, Case, cases, inputs

FIRST = ("float32", "float16", "bfloat16", "float64")
"""Types in the order in which they are worth most; then all others."""


class Way(StrEnum):
    """How a case is run."""

    PLAIN = ""
    EXACT = "without TensorFloat-32"
    CHAINED = "of what its normalization saved"
    UPDATE = "update"


@dataclass(frozen=True)
class Probe:
    """A case as it is recorded."""

    case: Case
    way: Way = Way.PLAIN

    @property
    def key(self) -> str:
        """Unique among probes."""
        return f"{self.case.name} {self.case.shapes} {self.way}".rstrip()

    def inputs(self) -> Iterator[tuple[str, list[Array]]]:
        """The classes of inputs that the case has, each with its data inputs."""
        for kind in ("ordinary",) if self.way is Way.CHAINED else CLASSES:
            arrays = inputs(self.case, kind)
            if arrays is None or (self.way is Way.UPDATE and kind == "empty"):
                continue
            if self.way is Way.UPDATE:  # slots hold squares: all but the variable and the gradient
                arrays[1:-1] = [np.abs(array) for array in arrays[1:-1]]
            yield kind, arrays


UPDATE_SCALARS: dict[str, tuple[float, ...]] = {
    "ResourceApplyAdaMax": (0.729, 0.02, 0.9, 0.8, 1e-3),
    "ResourceApplyAdadelta": (0.5, 0.9, 1e-3),
    "ResourceApplyAdagrad": (0.1,),
    "ResourceApplyAdagradV2": (0.1, 1e-3),
    "ResourceApplyAdam": (0.729, 0.997, 0.02, 0.9, 0.999, 1e-3),
    "ResourceApplyCenteredRMSProp": (0.1, 0.9, 0.8, 30.0),
    "ResourceApplyGradientDescent": (0.1,),
    "ResourceApplyKerasMomentum": (0.1, 0.9),
    "ResourceApplyMomentum": (0.1, 0.9),
    "ResourceApplyRMSProp": (0.1, 0.9, 0.8, 1e-3),
}
"""Operands of updates that are numbers, in their order without the gradient."""


def update_operands(case: Case, gradient: Any, scalars: Sequence[Any]) -> list[Any]:
    """An update's operands after its variables, the gradient in its place."""
    update = UPDATES[case.operation]
    place = update.gradient - update.variables
    return [*scalars[:place], gradient, *scalars[place:]]


def _updates(dtype: str) -> Iterator[Probe]:
    for name, update in UPDATES.items():
        count = update.variables + 1
        scalars = tuple(np.array(s).astype(NUMPY[dtype]) for s in UPDATE_SCALARS[name])
        for flag in (False, True) if update.flag else (False,):
            attributes = {update.flag: flag} if update.flag else {}
            note = f"{update.flag}={flag}" if update.flag else ""
            case = Case(name, (dtype,) * count, (SHAPE,) * count, attributes, scalars, note=note)
            yield Probe(case, Way.UPDATE)


def _of_type(dtype: str) -> Iterator[Probe]:
    for operation in sorted(op_allowlist.ALLOWED):
        if dtype not in op_allowlist.ALLOWED[operation].inputs:
            continue
        for case in cases(operation, [dtype]):
            yield Probe(case)
            if operation in op_allowlist.CONTRACTIONS and dtype == "float32":
                yield Probe(case, Way.EXACT)
            if operation == "FusedBatchNormGradV3" and dtype != "float64":
                yield Probe(case, Way.CHAINED)
    if dtype in FIRST:
        yield from _updates(dtype)


def probes() -> list[Probe]:
    """All of them, those that are worth most first; equal cases once."""
    order = dict.fromkeys((*FIRST, *NUMPY))
    return list({probe.key: probe for dtype in order for probe in _of_type(dtype)}.values())


def digest(arrays: Sequence[Array]) -> str:
    """Of a case's inputs."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.name}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:12]


@dataclass(frozen=True)
class Outcome:
    """Of one class of inputs: results and the device each lay on, or how the error begins."""

    digest: str
    results: tuple[Array, ...] = ()
    devices: tuple[str, ...] = ()
    error: str = ""


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    if outcome.error:
        return {"inputs": outcome.digest, "error": outcome.error}
    results = [[r.dtype.name, r.shape, base64.b64encode(r.tobytes()).decode()]
               for r in outcome.results]  # fmt: skip
    return {"inputs": outcome.digest, "devices": outcome.devices, "results": results}


def _outcome(found: dict[str, Any]) -> Outcome:
    results = tuple(np.frombuffer(base64.b64decode(text), NUMPY[dtype]).reshape(shape)
                    for dtype, shape, text in found.get("results", ()))  # fmt: skip
    devices = tuple(found.get("devices", ()))
    return Outcome(found["inputs"], results, devices, found.get("error", ""))


@dataclass
class Recording:
    """By probe and class what came out. `about` tells of machine and TensorFlow; `begun` are probes
    that have no outcome: the process ended in them, or was ended."""

    about: dict[str, Any] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)


def _opened(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path)
    return lzma.open(path) if path.suffix == ".xz" else path.open("rb")


def read(folder: Path) -> Recording:
    """What all `operations*.jsonl*` in a folder say."""
    recording = Recording()
    for path in sorted(folder.glob("operations*.jsonl*")):
        with _opened(path) as lines:
            for line in lines:
                _add(recording, line)
    recording.begun -= set(recording.outcomes)
    return recording


def _add(recording: Recording, line: bytes) -> None:
    try:
        found = json.loads(line)
    except ValueError:  # the process was ended while it wrote
        return
    if "about" in found:
        recording.about = found["about"]
    elif "begun" in found:
        recording.begun.add(found["begun"])
    else:
        outcomes = {kind: _outcome(one) for kind, one in found["outcomes"].items()}
        recording.outcomes[found["key"]] = outcomes
