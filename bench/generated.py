"""From a TensorFlow function to a program of generated kernels, through the compiler's stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bench.program import Launch, Program, Value
from stitchcore.compiled import CompiledModule
from stitchcore.device.records import DEVICES, Device
from stitchcore.hlo.expand import expand
from stitchcore.hlo.instruction import Instruction
from stitchcore.hlo.parse import parse
from stitchcore.hlo.shape import DTYPES
from stitchcore.inject import target
from stitchcore.kernel import index
from stitchcore.kernel.nodes import Kernel
from stitchcore.plan.cost import cost
from stitchcore.stages import BuildOptions, compile_module

Array = np.ndarray[Any, np.dtype[Any]]


def this_device() -> Device:
    """The record of the machine this runs on."""
    return DEVICES[target.detect(target.cpu_flags())]


def hlo(function: Callable[..., Any], inputs: Mapping[str, Array]) -> str:
    """`function`'s HLO before XLA's own optimisations, at the shapes of `inputs`."""
    jitted = tf.function(function, jit_compile=True, autograph=False)
    constants = [tf.constant(array) for array in inputs.values()]
    return str(jitted.experimental_get_compiler_ir(*constants)(stage="hlo"))


def compiled(text: str, options: BuildOptions | None = None) -> CompiledModule:
    return compile_module(expand(parse(text)).module, this_device(), options)


class NotWhole(Exception):
    """Some instruction of a subgraph is in no kernel; the message lists the refusals."""


def program(module: CompiledModule, inputs: Mapping[str, Array]) -> Program:
    """`module`'s kernels as a program. Raises NotWhole when they do not cover the module."""
    plan = module.plan
    if plan.opaque:
        raise NotWhole("; ".join(str(refusal) for refusal in plan.refusals))
    names: dict[Instruction, str] = {}
    for parameter, name in zip(plan.module.entry.parameters, inputs, strict=True):
        names[parameter] = name
    launches = []
    for number, pattern in enumerate(plan.patterns):
        missing = [value for value in pattern.inputs if value not in names]
        if missing:
            raise NotWhole(f"kernel {number} reads {missing[0].opcode} {missing[0].shape}")
        for position, value in enumerate(pattern.outputs):
            names[value] = f"k{number}_{position}"
        entry = module.kernels[module.of[number]]
        seconds = cost(pattern, module.device).seconds * module.device.units
        launches.append(
            _launch(
                entry.kernel,
                module.libraries[entry.library].data,
                tuple(names[value] for value in pattern.inputs),
                tuple(_value(names[value], value) for value in pattern.outputs),
                round(seconds * 1e9),
            )
        )
    lost = [value for value in plan.module.outputs if value not in names]
    if lost:
        raise NotWhole(f"output {lost[0].opcode} {lost[0].shape} is in no kernel")
    values = tuple(
        Value(name, str(np.asarray(array).dtype), np.shape(array)) for name, array in inputs.items()
    )
    return Program(values, tuple(launches), tuple(names[v] for v in plan.module.outputs))


def _value(name: str, value: Instruction) -> Value:
    """The array an instruction stands for; a kernel's buffer may have other dimensions."""
    dims = tuple(index.evaluate(index.from_dim(dim), {}) for dim in value.shape.dims)
    return Value(name, np.dtype(DTYPES[value.shape.dtype].numpy).name, dims)


def _launch(
    kernel: Kernel,
    library: bytes,
    inputs: tuple[str, ...],
    outputs: tuple[Value, ...],
    work: int,
) -> Launch:
    tasks = tuple(
        sum(index.evaluate(section.tasks, {}) for section in phase.sections)
        for phase in kernel.phases
    )
    scratch = index.evaluate(kernel.scratch_bytes, {})
    return Launch(kernel.name, library, inputs, outputs, tasks, scratch, work, kernel.forwards)


def updating(made: Program, updates: Mapping[int, int]) -> Program:
    """`made` with the results of `updates` (input position -> result position) in its inputs."""
    pairs = tuple((made.inputs[i].name, made.results[r]) for i, r in updates.items())
    return Program(made.inputs, made.launches, made.results, pairs)
