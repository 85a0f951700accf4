"""What a graph from Grappler is taken for, and where its gate goes."""

from __future__ import annotations

from typing import Any

import pytest
from tensorflow.core.framework import graph_pb2

from stitchcore.inject import graphs, reasons

TRAINS = ("_Arg", "MatMul", "ReluGrad", "ReadVariableOp", "AssignSubVariableOp", "_Retval")
COUNTS = ("_Arg", "MatMul", "ReadVariableOp", "AssignAddVariableOp", "_Retval")
COMPUTES = ("_Arg", "MatMul", "Softmax", "_Retval")


def graph_of(*operations: str, filling: int = 0) -> Any:
    graph = graph_pb2.GraphDef()
    for number, operation in enumerate((*operations, *("Mul",) * filling)):
        graph.node.add(name=f"n{number}", op=operation)
    return graph


@pytest.mark.parametrize(
    ("operations", "kind"),
    [
        (TRAINS, graphs.TRAINING),
        (("MatMul", "ResourceApplyAdam"), graphs.TRAINING),
        (("MatMul", "ApplyMomentum"), graphs.TRAINING),
        (COUNTS, graphs.EVALUATION),
        (COMPUTES, graphs.INFERENCE),
    ],
)
def test_kinds_of_steps(operations: tuple[str, ...], kind: str) -> None:
    assert graphs.kind_of(graph_of(*operations)) == kind


@pytest.mark.parametrize("scope", ["gradient_tape/model/mul", "tower/gradients/mul"])
def test_a_gradient_of_plain_operations_is_known_by_its_scope(scope: str) -> None:
    graph = graph_of("Mul", "AssignSubVariableOp")
    assert graphs.kind_of(graph) == graphs.EVALUATION
    graph.node[0].name = scope
    assert graphs.kind_of(graph) == graphs.TRAINING


def test_inference_is_no_reason_any_more() -> None:
    assert graphs.why_left(graph_of(*COMPUTES, filling=30)) is None
    assert graphs.why_left(graph_of(*COUNTS, filling=30)) is None
    assert graphs.why_left(graph_of(*COMPUTES)) == reasons.REGION_TOO_SMALL
    assert graphs.why_left(graph_of("AssignVariableOp", filling=30)) == reasons.INITIALIZATION
    pipeline = graph_of("MapDataset", "IteratorGetNext", filling=30)
    assert graphs.why_left(pipeline) == reasons.INPUT_PIPELINE


def test_calls_are_timed_where_nothing_is_trained() -> None:
    assert graphs.called_for_results(graph_of(*COMPUTES))
    assert graphs.called_for_results(graph_of(*COUNTS))
    assert not graphs.called_for_results(graph_of(*TRAINS))
    assert graphs.called_for_results(graph_of("MatMul", "ReluGrad")), "nothing to hang a timer on"


def test_steps_in_a_loop_are_timed_step_by_step() -> None:
    graph = graph_of("Const", "Enter", "AssignAddVariableOp", "Exit")
    graph.node[1].attr["frame_name"].s = b"loop"
    for consumer in (1, 2, 3):
        graph.node[consumer].input.append(f"n{consumer - 1}")
    assert not graphs.called_for_results(graph)


def test_functions_that_a_step_calls_are_no_steps() -> None:
    assert graphs.is_whole_of(graph_of(*COMPUTES), (1, 1))
    assert not graphs.is_whole_of(graph_of(*COMPUTES), (2, 1))
    assert not graphs.is_whole_of(graph_of(*COMPUTES), None), "a session's graph has no arguments"
    assert graphs.is_whole_of(graph_of("Placeholder", "Softmax"), None)


@pytest.mark.parametrize(("operations", "preserve"), [(COMPUTES, ()), (("Mul", "Mul"), ("n1",))])
def test_a_call_without_effects_passes_its_gate(
    operations: tuple[str, ...], preserve: tuple[str, ...]
) -> None:
    gated = graphs.add_gates(graph_of(*operations), 7, 1, frozenset(preserve))
    [gate] = [node for node in gated.node if node.op == "StitchGate"]
    [waiting] = [node.name for node in gated.node if f"^{gate.name}" in node.input]
    assert waiting == f"n{len(operations) - 1}"


def test_a_layers_own_xla_call_is_not_the_step() -> None:
    graph = graph_of(*COUNTS)
    graph.node.add(name="call", op="StatefulPartitionedCall").attr["_XlaMustCompile"].b = True
    assert [call.name for call in graphs.xla_calls(graph)] == ["call"]
    graph.node.add(name="n9", op="ReluGrad")
    assert graphs.xla_calls(graph) == []
