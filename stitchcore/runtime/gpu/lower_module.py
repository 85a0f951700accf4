"""From a compiled module to steps on a GPU: places for all values, control flow, one launch table.

Loops and branches are written into the one sequence of program points, so that a single table holds
every launch and a single arena every temporary. A result goes straight to where it is wanted (a
module's output, a loop's state) where nothing reads that place any more when it is made; else it is
copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stitchcore.codegen.cuda import shared_bytes
from stitchcore.compiler.module import CompiledModule
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion.candidates import VIEWS
from stitchcore.fusion.pattern import Plan
from stitchcore.fusion.text import bodies
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction
from stitchcore.hlo.ir.literal import from_array
from stitchcore.launch.cuda_program import CudaLaunch, launch_table, temporaries
from stitchcore.launch.cuda_table import DRIVER, Cubin, driver_of
from stitchcore.launch.place import Output, Temporary
from stitchcore.runtime.gpu.library import dispatch
from stitchcore.runtime.gpu.liveness import Memory, Tree, as_tree, is_updated, leaves, tree
from stitchcore.runtime.gpu.program import (
    Array,
    Block,
    Choice,
    Copy,
    GpuModule,
    HostCall,
    LaunchRange,
    LibraryCall,
    Loop,
    Step,
)
from stitchcore.runtime.gpu.trip_count import trip_count
from stitchcore.runtime.module import apply, ordered
from stitchcore.schedule.input_output_aliasing import possible_pairs
from stitchcore.toolchain.nvrtc import CompiledProgram


def lower_module(compiled: CompiledModule, updates: bool = False) -> GpuModule:
    """The steps of a module compiled for a GPU, whose plan has passed `require`. With `updates`
    an output that the module says shares a parameter's memory is made there: a run changes its
    parameters, and the next goes on from them.

    Raises Refused where a kernel was refused, and for a module with symbols (specialise it first).
    """
    for refusal in compiled.refused:
        raise Refused(refusal.subject, refusal.reason, refusal.detail)
    if compiled.module.symbols:
        raise Refused(compiled.module.name, Reason.UNSUPPORTED_TYPE, "sizes must be known")
    builder = _Builder(compiled)
    parameters = [builder.memory.parameter(p.shape) for p in compiled.module.entry.parameters]
    before = builder.memory.parameters
    steps, results = builder.block(compiled.plan, parameters)
    outputs = [leaf for result in results for leaf in leaves(result)]
    shared = dict(compiled.module.aliases) if updates else {}
    wanted = [
        replace(output, place=_array(parameters[shared[n]]).place if n in shared else Output(n))
        for n, output in enumerate(outputs)
    ]
    steps += builder.delivered(outputs, wanted, 0)
    memory = builder.memory
    launches = [memory.launch(launch) for launch in builder.launches]
    schedule = memory.schedule(builder.points)
    binaries = [unit.binary for unit in compiled.units]
    modules = [[Cubin(compiled.device.target, binary.data)] for binary in binaries]
    inputs = before + len(memory.constants)
    programs = [binary for binary in binaries if isinstance(binary, CompiledProgram)]
    driver = max((driver_of(program.version) for program in programs), default=DRIVER)
    table = launch_table(launches, modules, (), inputs, len(wanted), driver, schedule)
    numbers = temporaries(launches, schedule)
    return GpuModule(
        compiled.module,
        compiled.device.target,
        table,
        memory.resolved(steps),
        tuple(leaf for parameter in parameters for leaf in leaves(parameter)),
        tuple(memory.constants),
        tuple(wanted),
        tuple(numbers.get(Temporary(n), -1) for n in range(len(memory.lives))),
        tuple(entry.kernel for entry in compiled.kernels),
        tuple(sum(size for size in launch.sizes if isinstance(size, int)) for launch in launches),
        tuple(builder.refused),
    )


def require(plan: Plan) -> None:
    """Raises Refused for a value outside kernels that no memory here holds: before anything is
    compiled."""
    for node in (node for within in (plan, *bodies(plan).values()) for node in within.opaque):
        if op.record(node.opcode).kind != "control" and not _is_identity(node):
            dispatch.require(node)


class _Builder:
    """Writes steps in order; `memory` keeps where values are and until when."""

    def __init__(self, compiled: CompiledModule) -> None:
        self.compiled = compiled
        self.memory = Memory()
        self.launches: list[CudaLaunch] = []
        self.points: list[int] = []
        self.refused: list[Refusal] = []

    # ---- straight lines -----------------------------------------------------------------------
    def block(self, plan: Plan, arguments: Sequence[Tree]) -> tuple[Block, list[Tree]]:
        """Steps of `plan`, and its outputs."""
        owner = {value: n for n, pattern in enumerate(plan.patterns) for value in pattern.outputs}
        values: dict[Instruction, Tree] = dict(
            zip(plan.module.entry.parameters, arguments, strict=True)
        )
        steps: list[Step] = []
        for step in ordered(plan.module, plan.patterns, owner):
            self.memory.tick()
            if isinstance(step, int):
                self.pattern(plan, step, values, steps)
            else:
                values[step] = self.instruction(plan, step, values, steps)
        return tuple(steps), [values[output] for output in plan.module.outputs]

    def pattern(
        self, plan: Plan, number: int, values: dict[Instruction, Tree], steps: list[Step]
    ) -> None:
        pattern = plan.patterns[number]
        entry = self.compiled.kernels[self.compiled.kernels_of(plan)[number]]
        kernel = entry.kernel
        results = [self.memory.fresh(value.shape) for value in pattern.outputs]
        operands = [_array(values[value]) for value in pattern.inputs]
        self.memory.read(*operands)
        self.memory.write(*results)
        for source, target in possible_pairs(kernel.buffers, kernel.phases):
            if sum(operand.place == operands[source].place for operand in operands) == 1:
                self.memory.update(results[target], operands[source])
        read, written = (tuple(array.place for array in arrays) for arrays in (operands, results))
        launch = CudaLaunch(kernel, read, written, entry.unit, kernel.threads, shared_bytes(kernel))
        if steps and isinstance(steps[-1], LaunchRange):
            last = steps.pop()
            assert isinstance(last, LaunchRange)
            steps.append(LaunchRange(last.first, last.count + 1))
        else:
            steps.append(LaunchRange(len(self.launches), 1))
        self.launches.append(launch)
        self.points.append(self.memory.now)
        values.update(zip(pattern.outputs, results, strict=True))

    def instruction(
        self, plan: Plan, node: Instruction, values: dict[Instruction, Tree], steps: list[Step]
    ) -> Tree:
        operands = [values[operand] for operand in node.operands]
        if node.opcode == op.TUPLE:
            return tuple(operands)
        if node.opcode == op.GET_TUPLE_ELEMENT:
            whole = operands[0]
            assert isinstance(whole, tuple)
            return whole[node["index"]]
        if node.opcode in VIEWS or _is_identity(node):
            return replace(_array(operands[0]), dims=node.shape.static, dtype=node.shape.dtype)
        if op.record(node.opcode).kind == "constant":
            value = node.get("value")
            if value is None:
                value = from_array(apply(node, [], plan.module, {}), node.shape.dtype)
            return self.memory.constant(value)
        if node.opcode == op.WHILE:
            return self.loop(plan, node, operands[0], steps)
        if node.opcode == op.CONDITIONAL:
            return self.choice(plan, node, operands, steps)
        if node.opcode in (op.CALL, op.FUSION):
            body = node["to_apply"] if node.opcode == op.CALL else node["calls"]
            inner, results = self.block(plan.nested[body], operands)
            steps += inner
            return _returned(body, results)
        return self.call(node, [*map(_array, operands)], steps)

    def call(self, node: Instruction, operands: list[Array], steps: list[Step]) -> Tree:
        result = tree(node.shape, self.memory.fresh)
        self.memory.read(*operands)
        self.memory.write(*leaves(result))
        if node.opcode == op.DYNAMIC_UPDATE_SLICE and is_updated(operands):
            self.memory.update(leaves(result)[0], operands[0])
        why = dispatch.refused(node)
        if why is not None:
            self.refused.append(why)
        call = LibraryCall if why is None else HostCall
        steps.append(call(node, tuple(operands), tuple(leaves(result))))
        return result

    # ---- control flow -------------------------------------------------------------------------
    def loop(self, plan: Plan, node: Instruction, initial: Tree, steps: list[Step]) -> Tree:
        """The state is in places of its own, but for members that the body hands on as they are."""
        body: Computation = node["body"]
        memory, begun = self.memory, leaves(initial)
        invariant = _invariant(body, initial)
        state = [
            a if same else memory.fresh_like(a) for a, same in zip(begun, invariant, strict=True)
        ]
        changed = [n for n, same in enumerate(invariant) if not same]
        steps += self.copied([(begun[n], state[n]) for n in changed])
        inside = as_tree(initial, state)
        before, [predicate] = self.block(plan.nested[node["condition"]], [inside])
        memory.tick()
        memory.read(_array(predicate))
        start = memory.now
        inner, results = self.block(plan.nested[body], [inside])
        finals = leaves(_returned(body, results))
        inner += self.delivered([finals[n] for n in changed], [state[n] for n in changed], start)
        memory.tick()
        memory.touch(*state)
        steps.append(Loop(before, _array(predicate), inner, trip_count(node)))
        return inside

    def choice(
        self, plan: Plan, node: Instruction, operands: Sequence[Tree], steps: list[Step]
    ) -> Tree:
        memory, results = self.memory, tree(node.shape, self.memory.fresh)
        index = _array(operands[0])
        memory.read(index)
        memory.write(*leaves(results))
        branches = []
        for body, argument in zip(node["branch_computations"], operands[1:], strict=True):
            start = memory.now
            inner, returned = self.block(plan.nested[body], [argument])
            wanted = leaves(results)
            values = leaves(_returned(body, returned))
            branches.append(inner + self.delivered(values, wanted, start))
        steps.append(Choice(index, tuple(branches)))
        return results

    def delivered(self, values: Sequence[Array], wanted: Sequence[Array], start: int) -> Block:
        """Bring values, of which those made after `start` may move, to where they are wanted."""
        self.memory.tick()
        targets = {target.place for target in wanted}
        away = [pair for pair in zip(values, wanted, strict=True) if pair[0].place != pair[1].place]
        self.memory.read(*(value for value, _ in away if value.place in targets))
        return self.copied([pair for pair in away if not self.memory.move(*pair, start)])

    def copied(self, pairs: Sequence[tuple[Array, Array]]) -> Block:
        """All of `pairs` as if at once: what one overwrites and another reads waits in memory of
        its own."""
        memory, targets = self.memory, {target.place for _, target in pairs}
        staged: list[Step] = []
        final: list[Step] = []
        memory.tick()
        for source, target in pairs:
            value = source
            if memory.final(source.place) in targets:
                value = memory.fresh_like(source)
                staged.append(Copy(source, value))
            final.append(Copy(value, target))
        for step in (*staged, *final):
            assert isinstance(step, Copy)
            memory.tick()
            memory.read(step.source)
            memory.tick()
            memory.write(step.target)
        return (*staged, *final)


def _array(value: Tree) -> Array:
    assert isinstance(value, Array), "a tuple where an array is read"
    return value


def _returned(body: Computation, results: Sequence[Tree]) -> Tree:
    return tuple(results) if body.root.opcode == op.TUPLE else results[0]


def _invariant(body: Computation, state: Tree) -> list[bool]:
    """For each leaf of a loop's state, whether the body hands it on as it is."""
    if not isinstance(state, tuple) or body.root.opcode != op.TUPLE:
        return [False] * len(leaves(state))
    [parameter] = body.parameters
    return [
        value.opcode == op.GET_TUPLE_ELEMENT
        and value.operands[0] is parameter
        and value["index"] == number
        for number, (value, member) in enumerate(zip(body.root.operands, state, strict=True))
        for _ in leaves(member)
    ]


def _is_identity(node: Instruction) -> bool:
    """Whether a dimension is set to what it is, or the value is only held back."""
    if node.opcode == op.OPTIMIZATION_BARRIER:
        return True
    if node.opcode != op.SET_DIMENSION_SIZE or node.operands[1].opcode != op.CONSTANT:
        return False
    size = node.operands[1].get("value")
    [axis] = node["dimensions"]
    return size is not None and size.scalar == node.operands[0].shape.dims[axis]
