"""From compiled modules to programs of the bench driver (program.py). Needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.program import Launch, Program, Value
from stitchcore.compiler.module import CompiledModule
from stitchcore.device.records import Device
from stitchcore.fusion.cost import cost
from stitchcore.fusion.pattern import Pattern
from stitchcore.hlo.ir.instruction import Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.shape import DTYPES
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Kernel

Array = np.ndarray[Any, np.dtype[Any]]


class NotWhole(Exception):
    """Some instruction of a subgraph is in no kernel; the message lists the refusals."""


def program(module: CompiledModule, inputs: Mapping[str, Array]) -> Program:
    """`module`'s kernels as a program. Raises NotWhole when they do not cover the module."""
    plan = module.plan
    if plan.opaque:
        raise NotWhole("; ".join(str(refusal) for refusal in plan.refusals))
    kernels = [module.kernels[of] for of in module.of]
    pairs = [
        (pattern, kernel.kernel, module.units[kernel.unit].library.data)
        for pattern, kernel in zip(plan.patterns, kernels, strict=True)
    ]
    return of_kernels(plan.module, pairs, tuple(inputs), module.device)


def of_kernels(
    module: Module,
    kernels: Sequence[tuple[Pattern, Kernel, bytes]],
    inputs: Sequence[str],
    device: Device,
) -> Program:
    """Kernels of `module`'s patterns, in a runnable order, each with the library that exports it;
    `inputs` name the module's parameters. Raises NotWhole where something is not computed."""
    names = dict(zip(module.entry.parameters, inputs, strict=True))
    launches = []
    for number, (pattern, kernel, library) in enumerate(kernels):
        missing = [value for value in pattern.inputs if value not in names]
        if missing:
            raise NotWhole(f"kernel {number} reads {missing[0].opcode} {missing[0].shape}")
        for position, value in enumerate(pattern.outputs):
            names[value] = f"k{number}_{position}"
        seconds = cost(pattern, device).seconds * device.units
        launches.append(
            launch_of(
                kernel,
                library,
                tuple(names[value] for value in pattern.inputs),
                tuple(value_of(names[value], value) for value in pattern.outputs),
                round(seconds * 1e9),
            )
        )
    lost = [value for value in module.outputs if value not in names]
    if lost:
        raise NotWhole(f"output {lost[0].opcode} {lost[0].shape} is in no kernel")
    values = tuple(value_of(names[value], value) for value in module.entry.parameters)
    return Program(values, tuple(launches), tuple(names[v] for v in module.outputs))


def value_of(name: str, value: Instruction) -> Value:
    """The array an instruction stands for; a kernel's buffer may have other dimensions."""
    dims = tuple(index.evaluate(index.from_dim(dim), {}) for dim in value.shape.dims)
    return Value(name, np.dtype(DTYPES[value.shape.dtype].numpy).name, dims)


def launch_of(
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
    return Launch(kernel.name, library, inputs, outputs, tasks, scratch, work, kernel.aliases)
