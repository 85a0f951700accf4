"""Runs a compiled module on a CPU: opaque instructions by numpy, which also drives loops and
conditionals; patterns, those of loop bodies and branches included, by their kernels.

For verification, `stitch bench` and tests. Training jobs run kernels through StitchedFusion instead
(inject/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stitchcore.compiler.module import CompiledModule
from stitchcore.fusion.pattern import Pattern, Plan
from stitchcore.hlo.evaluator.evaluate import branch, evaluate, evaluate_all
from stitchcore.hlo.ir import dim as dims
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Computation, Instruction, computation, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.loop_ir import index
from stitchcore.loop_ir.nodes import Kernel, Role
from stitchcore.runtime.cpu_kernel import CpuKernel, load_library

Value = Any
"""A numpy array, or a tuple of values."""


def load(compiled: CompiledModule) -> list[CpuKernel]:
    """The distinct kernels, ready to call. Loads each library once."""
    libraries = [load_library(unit.library.data) for unit in compiled.units]
    return [CpuKernel(libraries[entry.unit], entry.kernel) for entry in compiled.kernels]


def run_module(
    compiled: CompiledModule,
    arguments: Sequence[Value],
    bindings: Mapping[str, int] | None = None,
    threads: int = 1,
) -> list[Value]:
    """The module's outputs for `arguments` (one per parameter, storage types).

    `bindings` of the symbols may be left out where the arguments' shapes give them.
    """
    sizes = dict(bindings) if bindings else bind(compiled.module, arguments)
    kernels = load(compiled)

    def launch(plan: Plan, number: int, inputs: Sequence[Value]) -> Sequence[Value]:
        kernel = kernels[compiled.kernels_of(plan)[number]]
        return run_kernel(kernel, plan.patterns[number], inputs, sizes, threads)

    return interpret(compiled.plan, arguments, sizes, launch)


Launch = Callable[[Plan, int, Sequence[Value]], Sequence[Value]]
"""Outputs of a plan's pattern by number, for its inputs."""


def interpret(
    plan: Plan, arguments: Sequence[Value], sizes: Mapping[str, int], launch: Launch
) -> list[Value]:
    """The outputs of `plan.module`: its patterns by `launch`, all else by numpy, with loops and
    conditionals run here so that their bodies' patterns are launched too. A value is dropped after
    its last use, so that a training step of many gigabytes fits."""
    owner = {
        value: number for number, pattern in enumerate(plan.patterns) for value in pattern.outputs
    }
    values: dict[Instruction, Value] = {}
    for parameter, argument in zip(plan.module.entry.parameters, arguments, strict=True):
        values[parameter] = argument
    steps = ordered(plan.module, plan.patterns, owner)
    for step, dead in zip(steps, _last_uses(plan, steps), strict=True):
        if isinstance(step, int):
            pattern = plan.patterns[step]
            outputs = launch(plan, step, [values[value] for value in pattern.inputs])
            values.update(zip(pattern.outputs, outputs, strict=True))
        else:
            operands = [values[operand] for operand in step.operands]
            values[step] = _control(plan, step, operands, sizes, launch)
            del operands
        for value in dead:
            values.pop(value, None)
    return [values[value] for value in plan.module.outputs]


def _last_uses(plan: Plan, steps: Sequence[int | Instruction]) -> list[list[Instruction]]:
    """After each step, the values that no later step reads and the module does not return."""
    last: dict[Instruction, int] = {}
    for position, step in enumerate(steps):
        read = plan.patterns[step].inputs if isinstance(step, int) else step.operands
        last.update(dict.fromkeys(read, position))
    dead: list[list[Instruction]] = [[] for _ in steps]
    for value in set(last) - set(plan.module.outputs):
        dead[last[value]].append(value)
    return dead


def _control(
    plan: Plan, node: Instruction, operands: list[Value], sizes: Mapping[str, int], launch: Launch
) -> Value:
    """The value of an instruction outside kernels; what it calls runs by the nested plans."""

    def call(body: Computation, arguments: Sequence[Value]) -> Value:
        outputs = interpret(plan.nested[body], arguments, sizes, launch)
        return tuple(outputs) if body.root.opcode == opcodes.TUPLE else outputs[0]

    if node.opcode == opcodes.WHILE:
        state = operands[0]
        while bool(call(node["condition"], [state])):
            state = call(node["body"], [state])
        return state
    if node.opcode == opcodes.CONDITIONAL:
        chosen = branch(node, operands[0])
        return call(node["branch_computations"][chosen], [operands[1 + chosen]])
    return apply(node, operands, plan.module, sizes)


def captured_inputs(
    plan: Plan, arguments: Sequence[Value], bindings: Mapping[str, int], warm: int = 2
) -> dict[Computation, dict[Instruction, Value]]:
    """Inputs of every pattern, by computation, as a numpy run of the module makes them.

    Of a loop they are those of iteration `warm` (or of the last before), because initial states are
    often constant; of a conditional, each branch's own operand, taken or not.
    """
    captured: dict[Computation, dict[Instruction, Value]] = {}
    _capture(plan, arguments, bindings, warm, captured)
    return captured


def _capture(
    plan: Plan,
    arguments: Sequence[Value],
    bindings: Mapping[str, int],
    warm: int,
    captured: dict[Computation, dict[Instruction, Value]],
) -> None:
    calls = [node for node in plan.opaque if opcodes.record(node.opcode).kind == "control"]
    keep = {value for pattern in plan.patterns for value in pattern.inputs}
    keep |= {operand for node in calls for operand in node.operands}
    values = evaluate_all(plan.module, arguments, bindings, "storage", keep)
    captured[plan.module.entry] = values

    def call(body: Computation, state: Value) -> Value:
        outputs = evaluate(plan.nested[body].module, [state], bindings)
        return tuple(outputs) if body.root.opcode == opcodes.TUPLE else outputs[0]

    for node in calls:
        if node.opcode == opcodes.WHILE:
            state = values[node.operands[0]]
            for _ in range(warm):
                after = call(node["body"], state)
                if not bool(call(node["condition"], after)):
                    break
                state = after
            for body in (node["condition"], node["body"]):
                _capture(plan.nested[body], [state], bindings, warm, captured)
        elif node.opcode == opcodes.CONDITIONAL:
            for body, operand in zip(node["branch_computations"], node.operands[1:], strict=True):
                _capture(plan.nested[body], [values[operand]], bindings, warm, captured)


def run_kernel(
    kernel: CpuKernel,
    pattern: Pattern,
    inputs: Sequence[Value],
    bindings: Mapping[str, int],
    threads: int = 1,
) -> list[Value]:
    """Outputs of `pattern` (in HLO's shapes) by its kernel, whose buffers hold the same bytes with
    dimensions collapsed or split."""
    input_buffers = buffers(kernel.kernel, inputs, bindings)
    output_buffers = kernel.run(input_buffers, bindings, threads)
    return [
        array.reshape([dims.evaluate(dim, bindings) for dim in value.shape.dims])
        for array, value in zip(output_buffers, pattern.outputs, strict=True)
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
    sizes: dict[str, int] = {}
    for parameter, argument in zip(module.entry.parameters, arguments, strict=True):
        if parameter.shape.elements is not None:
            continue
        for dim, extent in zip(parameter.shape.dims, np.shape(argument), strict=True):
            for name in module.symbols:
                if dim == dims.symbol(name) and sizes.setdefault(name, extent) != extent:
                    raise ValueError(f"symbol {name} is {sizes[name]} and {extent}")
    missing = [name for name in module.symbols if name not in sizes]
    if missing:
        raise ValueError(f"no argument gives the size of {missing}: pass bindings")
    return sizes


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


def ordered(
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
