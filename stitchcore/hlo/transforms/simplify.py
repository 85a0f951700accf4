"""Simplification: named local rules to a fixed point, in time linear in the module.

A rule looks at one instruction whose operands are already simple and returns a better one, or None.
Rules keep every bit of the result (denormals, which the CPU flushes, and NaN payloads aside), so
that stitched programs stay comparable to the framework's; what only holds in real arithmetic
(x - x, reassociation, f32 -> bf16 -> f32) is not a rule. Dead code goes because only what the root
needs is rebuilt; common subexpressions because instructions are interned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.ir import opcodes as op
from stitchcore.hlo.ir.instruction import Computation, Instruction, computation, instruction
from stitchcore.hlo.ir.module import Module
from stitchcore.hlo.ir.rewrite import map_computations, renew
from stitchcore.hlo.transforms import rules_algebra, rules_fold, rules_movement, rules_structure

DEFAULT_STEP_LIMIT = 2_000_000

Rule = Callable[[Instruction], Instruction | None]


@dataclass(frozen=True)
class NamedRule:
    """A rule, its name in traces, and the opcodes it looks at."""

    name: str
    opcodes: frozenset[str]
    apply: Rule


@dataclass(frozen=True)
class Simplified:
    """The simplified module, and how often each rule was applied."""

    module: Module
    trace: Mapping[str, int]


_ELEMENTWISE = tuple(n for n, record in op.OPCODES.items() if record.kind == "elementwise")


def _rule(function: Rule, *opcodes: str) -> NamedRule:
    return NamedRule(function.__name__, frozenset(opcodes), function)


RULES: tuple[NamedRule, ...] = (
    _rule(rules_fold.zero_sized, op.SLICE, op.REVERSE, op.PAD),
    _rule(rules_fold.fold_constants, *_ELEMENTWISE, op.REDUCE, op.RESHAPE, op.TRANSPOSE, op.SLICE,
          op.PAD, op.CONCATENATE, op.REVERSE),
    _rule(rules_fold.narrow_elementwise, *_ELEMENTWISE),
    _rule(rules_algebra.constant_to_the_right, *op.REDUCERS),
    _rule(rules_algebra.neutral_operand, op.ADD, op.SUBTRACT, op.MULTIPLY, op.DIVIDE, op.POWER,
          op.AND, op.OR, op.XOR, op.MAXIMUM, op.MINIMUM, *op.SHIFTS),
    _rule(rules_algebra.absorbing_operand, op.MULTIPLY, op.AND, op.OR),
    _rule(rules_algebra.same_operands, op.AND, op.OR, op.XOR, op.MAXIMUM, op.MINIMUM, op.SUBTRACT,
          op.COMPARE),
    _rule(rules_algebra.exact_reciprocal, op.DIVIDE),
    _rule(rules_algebra.small_power, op.POWER),
    _rule(rules_algebra.involution, op.NOT, op.NEGATE),
    _rule(rules_algebra.decided_select, op.SELECT),
    _rule(rules_algebra.held_check, op.CHECK),
    _rule(rules_algebra.same_type_convert, op.CONVERT),
    _rule(rules_algebra.convert_of_convert, op.CONVERT),
    _rule(rules_algebra.same_type_bitcast, op.BITCAST_CONVERT),
    _rule(rules_algebra.identity, op.COPY, op.OPTIMIZATION_BARRIER),
    _rule(rules_movement.bitcast_to_reshape, op.BITCAST),
    _rule(rules_movement.same_shape_reshape, op.RESHAPE),
    _rule(rules_movement.reshape_of_reshape, op.RESHAPE),
    _rule(rules_movement.reshape_of_splat, op.RESHAPE),
    _rule(rules_movement.identity_broadcast, op.BROADCAST),
    _rule(rules_movement.broadcast_of_broadcast, op.BROADCAST),
    _rule(rules_movement.broadcast_to_reshape, op.BROADCAST),
    _rule(rules_movement.identity_transpose, op.TRANSPOSE),
    _rule(rules_movement.transpose_of_transpose, op.TRANSPOSE),
    _rule(rules_movement.transpose_of_broadcast, op.TRANSPOSE),
    _rule(rules_movement.transpose_to_reshape, op.TRANSPOSE),
    _rule(rules_movement.whole_slice, op.SLICE),
    _rule(rules_movement.slice_of_slice, op.SLICE),
    _rule(rules_movement.slice_of_splat, op.SLICE),
    _rule(rules_movement.slice_of_concatenate, op.SLICE),
    _rule(rules_movement.flat_concatenate, op.CONCATENATE),
    _rule(rules_movement.no_padding, op.PAD),
    _rule(rules_movement.short_reverse, op.REVERSE),
    _rule(rules_movement.short_iota, op.IOTA),
    _rule(rules_movement.batched_gather, op.GATHER),
    _rule(rules_structure.reduce_of_unit_dimensions, op.REDUCE),
    _rule(rules_structure.element_of_tuple, op.GET_TUPLE_ELEMENT),
    _rule(rules_structure.decided_conditional, op.CONDITIONAL),
    _rule(rules_structure.inline_map, op.MAP),
    _rule(rules_structure.known_dimension_size, op.GET_DIMENSION_SIZE),
    _rule(rules_structure.static_dynamic_slice, op.DYNAMIC_SLICE),
    _rule(rules_structure.whole_update, op.DYNAMIC_UPDATE_SLICE),
)  # fmt: skip
"""The rules, tried in this order on each instruction."""


def simplify(
    module: Module,
    step_limit: int = DEFAULT_STEP_LIMIT,
    rules: Sequence[NamedRule] = RULES,
) -> Simplified:
    """`module` with `rules` applied until none applies, called computations included.

    Raises Refused(STEP_LIMIT) when more than `step_limit` rules were applied.
    """
    state = _State(_by_opcode(rules), step_limit)
    roots = _resolve(state, module.entry.root)
    entry = computation(module.entry.parameters, roots)
    provenance = renew(module, entry, state.resolved)
    trace = dict(sorted(state.trace.items()))
    return Simplified(replace(module, entry=entry, provenance=provenance), trace)


class _State:
    """Progress of one simplification: what each instruction became, and the trace."""

    def __init__(self, rules: Mapping[str, tuple[NamedRule, ...]], step_limit: int) -> None:
        self.rules = rules
        self.steps_left = step_limit
        self.step_limit = step_limit
        self.trace: Counter[str] = Counter()
        self.resolved: dict[Instruction, Instruction] = {}
        self.computations: dict[Computation, Computation] = {}


def _by_opcode(rules: Sequence[NamedRule]) -> dict[str, tuple[NamedRule, ...]]:
    return {name: tuple(rule for rule in rules if name in rule.opcodes) for name in op.OPCODES}


def _resolve(state: _State, root: Instruction) -> Instruction:
    """What `root` becomes. `next_form` holds a rewritten instruction until its form is resolved."""
    resolved = state.resolved
    next_form: dict[Instruction, Instruction] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        if node in resolved:
            stack.pop()
            continue
        form = next_form.get(node)
        if form is None:
            pending = [operand for operand in node.operands if operand not in resolved]
            if pending:
                stack.extend(reversed(pending))
                continue
            form = _step(state, node)
        if form is node:
            resolved[node] = node
        elif form in resolved:
            resolved[node] = resolved[form]
        elif form in next_form:
            # It waits further down the stack for this very form: rules that undo each other.
            raise Refused(node.opcode, Reason.STEP_LIMIT, "rules turn it back into itself")
        else:
            next_form[node] = form
            stack.append(form)
            continue
        stack.pop()
    return resolved[root]


def _step(state: _State, node: Instruction) -> Instruction:
    """The next form of `node`, whose operands are resolved: itself when nothing applies."""
    operands = tuple(state.resolved[operand] for operand in node.operands)
    attributes = {
        name: map_computations(value, lambda body: _called(state, body))
        for name, value in node.attributes
    }
    form = instruction(node.opcode, node.shape, operands, **attributes)
    if form is not node:
        return form
    for rule in state.rules[node.opcode]:
        better = rule.apply(node)
        if better is not None and better is not node:
            if better.shape != node.shape:
                raise AssertionError(f"{rule.name} made {better.shape} of {node.shape}")
            state.trace[rule.name] += 1
            state.steps_left -= 1
            if state.steps_left < 0:
                detail = f"more than {state.step_limit} steps, last {rule.name}"
                raise Refused(node.opcode, Reason.STEP_LIMIT, detail)
            return better
    return node


def _called(state: _State, body: Computation) -> Computation:
    """Called computations nest a few levels deep, so this recursion is shallow."""
    if body not in state.computations:
        state.computations[body] = computation(body.parameters, _resolve(state, body.root))
    return state.computations[body]
