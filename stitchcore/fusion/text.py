"""A plan as text one can read and edit; `parse_plan(plan_text(p), p.module, ...)` is p again.

    planner exhaustive: 2 kernels, 14 launches and 4,194,304 bytes unfused, 1,048,576 bytes planned
    # Lines of inputs and outputs may be left out: they then follow from the instructions.
    kernel 0: 3 instructions
      inputs parameter.0
      instructions exponential.1 add.2
      outputs add.2
    left out dot.3: library_call (dot)
    computation computation.1
    kernel 0: ...

Names are those of the printed module (hlo/text/printer.py). Kernels after a `computation` line
belong to that loop body or branch. What only moves one operand's elements, or is cheaper computed
again than read, need not be listed. The first line, counts and the numbers of kernels are not read
back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stitchcore.device.records import Device
from stitchcore.errors import Reason, Refusal, Refused
from stitchcore.fusion import candidates
from stitchcore.fusion.candidates import VIEWS, Graph, Role
from stitchcore.fusion.cost import total, unfused
from stitchcore.fusion.pattern import CostFunction, Pattern, Plan
from stitchcore.hlo.ir.instruction import Computation, Instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.text.printer import every_name, names

HINT = "# Lines of inputs and outputs may be left out: they then follow from the instructions."
_LEFT_OUT = re.compile(r"left out (\S+): (\w+)(?: \((.*)\))?$")
_KERNEL = re.compile(r"kernel( \d+)?(: .*)?$")


# ---- printing ----------------------------------------------------------------------------------
def plan_text(plan: Plan) -> str:
    """The plan with its loop bodies' and branches' plans, ending in a newline."""
    before, after = plan.unfused, plan.planned
    lines = [
        f"planner {plan.planner}: {len(plan.patterns)} kernels, {before.launches} launches and "
        f"{before.bytes:,} bytes unfused, {after.bytes:,} bytes planned",
        HINT,
    ]
    labels = every_name(plan.module)
    lines += _printed(plan, labels[plan.module.entry][1])
    for body, inner in bodies(plan).items():
        label, name = labels[body]
        lines += [f"computation {label}", *_printed(inner, name)]
    return "\n".join(lines) + "\n"


def bodies(plan: Plan) -> dict[Computation, Plan]:
    """Plans of all loop bodies and branches under `plan`, at any depth, callers first."""
    plans: dict[Computation, Plan] = {}
    waiting = list(plan.nested.items())
    while waiting:
        body, inner = waiting.pop(0)
        if body not in plans:
            plans[body] = inner
            waiting += inner.nested.items()
    return plans


def _printed(plan: Plan, name: Mapping[Instruction, str]) -> Iterator[str]:
    value_of = {text: value for value, text in names(plan.module).items()}
    for number, pattern in enumerate(plan.patterns):
        yield f"kernel {number}: {len(pattern.instructions)} instructions"
        yield from (
            f"  {word} " + " ".join(name[value] for value in values)
            for word, values in (
                ("inputs", pattern.inputs),
                ("instructions", pattern.instructions),
                ("outputs", pattern.outputs),
            )
            if values
        )
    for refusal in plan.refusals:
        subject = (
            name[value_of[refusal.subject]] if refusal.subject in value_of else refusal.subject
        )
        yield f"left out {Refusal(subject, refusal.reason, refusal.detail)}"


# ---- reading -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class ReadPlan:
    """A plan that was read, and the line on which each of its kernels begins."""

    plan: Plan
    lines: Mapping[Pattern, int]


@dataclass
class _Kernel:
    """What was written of one kernel; None: that line is not there."""

    line: int
    instructions: list[Instruction] = field(default_factory=list)
    inputs: list[Instruction] | None = None
    outputs: list[Instruction] | None = None


@dataclass
class _Section:
    """The kernels of one computation, and what it leaves out."""

    computation: Computation
    line: int
    kernels: list[_Kernel] = field(default_factory=list)
    left_out: dict[Instruction, tuple[Reason, str]] = field(default_factory=dict)


def parse_plan(
    text: str, module: Module, device: Device, cost: CostFunction, file: str, planner: str
) -> ReadPlan:
    """The plan of `module` that `text` says; `file` is what errors call it.

    Raises Refused(PARSE_ERROR) with file and line for unknown names, values that nothing makes or
    two kernels make, kernels that wait for each other, and lines that are none of the form above.
    """
    reader = _Reader(file, module)
    sections = {section.computation: section for section in reader.sections(text)}
    lines: dict[Pattern, int] = {}

    def plan_of(body: Module) -> Plan:
        section = sections.get(body.entry) or _Section(body.entry, 0)
        graph = candidates.build(body, section.left_out)
        checked = _Checked(reader, graph, section)
        ordered = checked.patterns()
        lines.update({pattern: kernel.line for kernel, pattern in ordered})
        patterns = tuple(pattern for _, pattern in ordered)
        name = names(body)
        return Plan(
            body,
            patterns,
            tuple(v for v, r in zip(graph.instructions, graph.roles, strict=True) if _is_opaque(r)),
            tuple(
                Refusal(name[graph.instructions[v]], reason, detail)
                for v, (reason, detail) in graph.reasons.items()
            ),
            unfused((graph.instructions[v] for v in graph.placed()), device),
            total(cost(pattern, device) for pattern in patterns),
            planner,
            {inner.entry: plan_of(inner) for inner in candidates.bodies(graph)},
        )

    return ReadPlan(plan_of(module), lines)


def _is_opaque(role: Role) -> bool:
    return role is Role.OPAQUE


class _Reader:
    """Reads the lines; knows the names of every computation."""

    def __init__(self, file: str, module: Module) -> None:
        self.file = file
        self.module = module
        labels = every_name(module)
        self.labels = {label: body for body, (label, _) in labels.items()}
        self.name = {value: text for _, named in labels.values() for value, text in named.items()}
        self._values = {
            body: {text: value for value, text in named.items()}
            for body, (_, named) in labels.items()
        }

    def error(self, line: int, message: str) -> Refused:
        return Refused(f"{self.file}:{line}", Reason.PARSE_ERROR, message)

    def sections(self, text: str) -> list[_Section]:
        sections = [_Section(self.module.entry, 1)]
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith(("#", "planner ")) or not line.strip():
                continue
            section = sections[-1]
            words = line.split()
            if line.startswith("computation "):
                body = self.labels.get(words[1])
                if body is None:
                    raise self.error(number, f"the module has no {words[1]}")
                sections.append(_Section(body, number))
            elif _KERNEL.match(line):
                section.kernels.append(_Kernel(number))
            elif line.startswith("left out "):
                value, why = self._left_out(section, line, number)
                section.left_out[value] = why
            elif line.startswith(" ") and section.kernels:
                self._part(section, words, number)
            else:
                raise self.error(number, f"not a line of a plan: {line.strip()[:60]!r}")
        return sections

    def _left_out(
        self, section: _Section, line: str, number: int
    ) -> tuple[Instruction, tuple[Reason, str]]:
        match = _LEFT_OUT.match(line)
        if match is None:
            raise self.error(number, "expected 'left out NAME: reason (detail)'")
        try:
            reason = Reason(match[2])
        except ValueError:
            raise self.error(number, f"{match[2]!r} is none of the reasons in errors.py") from None
        return self._value(section, match[1], number), (reason, match[3] or "")

    def _part(self, section: _Section, words: Sequence[str], number: int) -> None:
        kernel = section.kernels[-1]
        values = [self._value(section, word, number) for word in words[1:]]
        twice = {value for value in values if values.count(value) > 1} if len(values) < 500 else ()
        for value in twice:
            raise self.error(number, f"{self.name[value]} is listed twice")
        match words[0]:
            case "instructions":
                kernel.instructions = values
            case "inputs":
                kernel.inputs = values
            case "outputs":
                kernel.outputs = values
            case other:
                raise self.error(number, f"expected inputs, instructions or outputs, not {other!r}")

    def _value(self, section: _Section, name: str, number: int) -> Instruction:
        value = self._values[section.computation].get(name)
        if value is None:
            raise self.error(number, f"no instruction is called {name}")
        return value


class _Checked:
    """One computation's kernels as patterns that can run."""

    def __init__(self, reader: _Reader, graph: Graph, section: _Section) -> None:
        self._reader, self._graph, self._section = reader, graph, section

    def patterns(self) -> list[tuple[_Kernel, Pattern]]:
        """In a runnable order; the file's where that is one."""
        inside = [self._inside(kernel) for kernel in self._section.kernels]
        inputs = [
            self._inputs(k, instructions)
            for k, instructions in zip(self._section.kernels, inside, strict=True)
        ]
        outputs = self._outputs(inside, inputs)
        kernels = [
            (kernel, Pattern(self._sorted(instructions), read, written))
            for kernel, instructions, read, written in zip(
                self._section.kernels, inside, inputs, outputs, strict=True
            )
        ]
        return [kernels[number] for number in self._ordered(kernels)]

    def _sorted(self, values: set[Instruction]) -> tuple[Instruction, ...]:
        return tuple(sorted(values, key=self._graph.position.__getitem__))

    def _inside(self, kernel: _Kernel) -> set[Instruction]:
        graph, inputs = self._graph, set(kernel.inputs or ())
        instructions = set(kernel.instructions)
        if not instructions:
            raise self._error(kernel.line, "the kernel has no instructions")
        for value in instructions:
            if value not in graph.position:
                raise self._error(kernel.line, f"nothing needs {self._name(value)}")
            if graph.roles[graph.position[value]] is Role.OPAQUE:
                raise self._error(kernel.line, f"no kernel can hold {self._name(value)}")
        stack = list(instructions)
        while stack:
            for operand in stack.pop().operands:
                known = operand in instructions or operand in inputs
                if not known and graph.through[graph.position[operand]]:
                    instructions.add(operand)
                    stack.append(operand)
        return instructions

    def _inputs(self, kernel: _Kernel, inside: set[Instruction]) -> tuple[Instruction, ...]:
        needed = {o for value in inside for o in value.operands if o not in inside}
        if kernel.inputs is None:
            return self._sorted(needed)
        for value in needed.symmetric_difference(kernel.inputs):
            word = "is read but not listed" if value in needed else "is listed but not read"
            raise self._error(kernel.line, f"among the inputs {self._name(value)} {word}")
        return tuple(kernel.inputs)

    def _outputs(
        self, inside: Sequence[set[Instruction]], inputs: Sequence[tuple[Instruction, ...]]
    ) -> list[tuple[Instruction, ...]]:
        """Outputs of every kernel; each value that memory must hold is made by exactly one."""
        graph, kernels = self._graph, self._section.kernels
        wanted = {v for v, d in zip(graph.instructions, graph.demanded, strict=True) if d}
        wanted |= {value for read in inputs for value in read}
        maker: dict[Instruction, int] = {}
        for number, kernel in enumerate(kernels):
            for value in kernel.outputs or ():
                if value not in inside[number]:
                    raise self._error(kernel.line, f"{self._name(value)} is not in this kernel")
                if value in maker:
                    first = kernels[maker[value]].line
                    detail = f"{self._name(value)} is an output of the kernel of line {first} too"
                    raise self._error(kernel.line, detail)
                maker[value] = number
        for number, kernel in enumerate(kernels):
            if kernel.outputs is None:
                for value in self._sorted(inside[number] & wanted):
                    if graph.roles[graph.position[value]] is Role.PLACED:
                        maker.setdefault(value, number)
        self._all_made(wanted, maker)
        return [
            tuple(kernel.outputs)
            if kernel.outputs is not None
            else self._sorted({value for value, by in maker.items() if by == number})
            for number, kernel in enumerate(kernels)
        ]

    def _all_made(self, wanted: set[Instruction], maker: Mapping[Instruction, int]) -> None:
        for value in self._sorted(wanted):
            role = self._graph.roles[self._graph.position[value]]
            view = value.opcode in VIEWS or role is Role.DUPLICABLE
            if value not in maker and role not in (Role.SOURCE, Role.OPAQUE) and not view:
                name = self._name(value)
                detail = f"no kernel makes {name}: list it in one, or add 'left out {name}: REASON'"
                raise self._error(self._section.line, detail)

    def _ordered(self, kernels: Sequence[tuple[_Kernel, Pattern]]) -> list[int]:
        """Kernel numbers, each after what it waits for. Raises Refused where two wait in turn."""
        maker = {value: n for n, (_, pattern) in enumerate(kernels) for value in pattern.outputs}
        order: list[int] = []
        state: dict[int | Instruction, bool] = {}  # entered: False, left: True
        for start in range(len(kernels)):
            stack: list[tuple[int | Instruction, bool]] = [(start, False)]
            while stack:
                step, leaving = stack.pop()
                if leaving:
                    state[step] = True
                    order += [step] if isinstance(step, int) else []
                    continue
                if step in state:
                    if not state[step]:
                        line = kernels[step if isinstance(step, int) else start][0].line
                        raise self._error(line, "this kernel waits for a value that waits for it")
                    continue
                state[step] = False
                stack.append((step, True))
                needs = kernels[step][1].inputs if isinstance(step, int) else step.operands
                later = [maker.get(value, value) for value in reversed(needs)]
                stack += [
                    (step_needed, False)
                    for step_needed in later
                    if not state.get(step_needed, False)
                ]
        return order

    def _name(self, value: Instruction) -> str:
        return self._reader.name.get(value, value.opcode)

    def _error(self, line: int, message: str) -> Refused:
        return self._reader.error(line, message)
