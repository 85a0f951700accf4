"""Computing again instead of reading: the cut is minimal, and the plan stays complete."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from stitchcore.fusion import candidates
from stitchcore.fusion.recompute import _Network, cut
from stitchcore.hlo.ir import opcodes
from stitchcore.hlo.ir.instruction import Instruction, instruction
from tests.fusion.test_exhaustive import binary, check, dot, module_of, parameter, planned


def unary(opcode: str, operand: Instruction) -> Instruction:
    return instruction(opcode, operand.shape, (operand,))


def test_an_activations_gradient_reads_the_activations_input() -> None:
    """tanh(y) and y*y are both needed after the second library call; y alone is read, for it is
    too large for the cache."""
    x, w = parameter(0, 1024, 1024), parameter(1, 1024, 1024)
    y = dot(x, w)
    t = unary(opcodes.TANH, y)
    s = binary(opcodes.MULTIPLY, y, y)
    z = dot(binary(opcodes.ADD, t, s), w)
    out = binary(opcodes.ADD, binary(opcodes.MULTIPLY, z, t), s)
    plan = planned(module_of([x, w], out))
    check(plan)
    assert set(plan.patterns[-1].inputs) == {y, z}
    assert len(plan.patterns[0].outputs) == 1


def test_a_reduction_is_never_computed_again() -> None:
    x, w = parameter(0, 256, 256), parameter(1, 256, 256)
    y = dot(x, w)
    graph = candidates.build(module_of([x, w], binary(opcodes.MULTIPLY, y, y)), {})
    position = graph.position[y]
    assert cut(graph, [position], lambda v: 1.0) == frozenset()


@settings(max_examples=100)
@given(
    st.integers(2, 6).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(
                st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(1, 9)),
                max_size=12,
            ),
        )
    )
)
def test_flow_equals_the_smallest_cut(case: tuple[int, list[tuple[int, int, int]]]) -> None:
    count, edges = case
    network = _Network()
    nodes = [network.node() for _ in range(count)]
    for start, end, capacity in edges:
        network.edge(nodes[start], nodes[end], capacity)
    flow = network.saturate(nodes[0], nodes[-1])
    middle = range(1, count - 1)
    sides = ({0, *chosen} for size in range(count - 1) for chosen in combinations(middle, size))
    smallest = min(
        sum(c for start, end, c in edges if start in side and end not in side) for side in sides
    )
    assert flow == smallest
    near = network.reaches(nodes[-1])
    assert sum(c for start, end, c in edges if start not in near and end in near) == flow
