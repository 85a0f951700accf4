"""A module compiled for a device: the plan, its distinct kernels, and how to run the whole.

Runs are for verification, `stitch bench` and tests: opaque instructions are evaluated by numpy,
patterns by their kernels. Training jobs run kernels through StitchedFusion instead (inject/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stitchcore.device.records import Device
from stitchcore.hlo import dim as dims
from stitchcore.hlo import opcodes
from stitchcore.hlo.evaluate import evaluate
from stitchcore.hlo.instruction import Instruction, computation, instruction
from stitchcore.hlo.module import Module
from stitchcore.kernel import index
from stitchcore.kernel.nodes import Kernel, Role
from stitchcore.plan.pattern import Pattern, Plan
from stitchcore.target.cpu_runtime import CpuKernel, load_library
from stitchcore.target.toolchain import CompiledLibrary

Value = Any
"""A numpy array, or a tuple of values."""


@dataclass(frozen=True)
class CompiledKernel:
    """A distinct kernel: its content key, loop IR and the library that exports `kernel.name`."""

    key: str
    kernel: Kernel
    library: int


@dataclass(frozen=True)
class CompiledModule:
    """`of[i]` is the kernel of `plan.patterns[i]`; equal patterns share one.

    `sources` are the translation units of `libraries`. `seconds` are wall times by stage.
    """

    plan: Plan
    device: Device
    kernels: tuple[CompiledKernel, ...]
    of: tuple[int, ...]
    libraries: tuple[CompiledLibrary, ...]
    sources: tuple[str, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def module(self) -> Module:
        return self.plan.module

    def loaded(self) -> list[CpuKernel]:
        """The distinct kernels, ready to call. Loads each library once."""
        libraries = [load_library(library.data) for library in self.libraries]
        return [CpuKernel(libraries[entry.library], entry.kernel) for entry in self.kernels]

    def run(
        self,
        arguments: Sequence[Value],
        bindings: Mapping[str, int] | None = None,
        threads: int = 1,
    ) -> list[Value]:
        """The module's outputs for `arguments` (one per parameter, storage types).

        `bindings` of the symbols may be left out where the arguments' shapes give them.
        """
        sizes = dict(bindings) if bindings else bind(self.module, arguments)
        loaded = self.loaded()
        owner = {
            value: number
            for number, pattern in enumerate(self.plan.patterns)
            for value in pattern.outputs
        }
        values: dict[Instruction, Value] = {}
        for parameter, argument in zip(self.module.entry.parameters, arguments, strict=True):
            values[parameter] = argument

        def launch(number: int) -> None:
            pattern = self.plan.patterns[number]
            given = [values[value] for value in pattern.inputs]
            made = run_kernel(loaded[self.of[number]], pattern, given, sizes, threads)
            values.update(zip(pattern.outputs, made, strict=True))

        for step in _steps(self.module, self.plan.patterns, owner):
            if isinstance(step, int):
                launch(step)
            else:
                values[step] = apply(step, [values[o] for o in step.operands], self.module, sizes)
        return [values[value] for value in self.module.outputs]


def run_kernel(
    kernel: CpuKernel,
    pattern: Pattern,
    inputs: Sequence[Value],
    bindings: Mapping[str, int],
    threads: int = 1,
) -> list[Value]:
    """Outputs of `pattern` (in HLO's shapes) by its kernel, whose buffers hold the same bytes with
    dimensions collapsed or split."""
    given = buffers(kernel.kernel, inputs, bindings)
    made = kernel.run(given, bindings, threads)
    return [
        array.reshape([dims.evaluate(dim, bindings) for dim in value.shape.dims])
        for array, value in zip(made, pattern.outputs, strict=True)
    ]


def buffers(kernel: Kernel, inputs: Sequence[Value], bindings: Mapping[str, int]) -> list[Value]:
    """`inputs` in the shapes of the kernel's input buffers."""
    return [
        np.reshape(array, [index.evaluate(dim, bindings) for dim in buffer.dims])
        for array, buffer in zip(inputs, kernel.with_role(Role.INPUT), strict=True)
    ]


def bind(module: Module, arguments: Sequence[Value]) -> dict[str, int]:
    """Symbol values from argument shapes: each symbol must be some dimension by itself.

    Raises ValueError for a symbol that no shape gives, or two shapes that disagree.
    """
    found: dict[str, int] = {}
    for parameter, argument in zip(module.entry.parameters, arguments, strict=True):
        if parameter.shape.elements is not None:
            continue
        for dim, extent in zip(parameter.shape.dims, np.shape(argument), strict=True):
            for name in module.symbols:
                if dim == dims.symbol(name) and found.setdefault(name, extent) != extent:
                    raise ValueError(f"symbol {name} is {found[name]} and {extent}")
    missing = [name for name in module.symbols if name not in found]
    if missing:
        raise ValueError(f"no argument gives the size of {missing}: pass bindings")
    return found


def apply(
    node: Instruction, operands: Sequence[Value], module: Module, bindings: Mapping[str, int]
) -> Value:
    """The value of one instruction, evaluated by numpy in storage precision."""
    if node.opcode == opcodes.TUPLE:
        return tuple(operands)
    parameters = [
        instruction(opcodes.PARAMETER, operand.shape, number=number)
        for number, operand in enumerate(node.operands)
    ]
    root = instruction(node.opcode, node.shape, parameters, **dict(node.attributes))
    alone = Module("step", computation(parameters, root), module.symbols)
    return evaluate(alone, operands, bindings)[0]


def _steps(
    module: Module, patterns: Sequence[Pattern], owner: Mapping[Instruction, int]
) -> list[int | Instruction]:
    """Pattern numbers and the needed instructions outside patterns, in a runnable order."""
    steps: list[int | Instruction] = []
    done: set[int | Instruction] = set(module.entry.parameters)
    stack: list[tuple[int | Instruction, bool]] = [
        (owner.get(value, value), False) for value in reversed(module.outputs)
    ]
    while stack:
        step, ready = stack.pop()
        if step in done:
            continue
        if ready:
            done.add(step)
            steps.append(step)
            continue
        needed = patterns[step].inputs if isinstance(step, int) else step.operands
        stack.append((step, True))
        stack.extend((owner.get(value, value), False) for value in needed)
    return steps
