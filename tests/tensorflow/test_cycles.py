"""Regions that would wait for each other in a circle become one, or are given up; no other does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from stitchcore.errors import Reason
from stitchcore.inject import reasons
from stitchcore.tensorflow import partition as cutting
from stitchcore.tensorflow.partition import Partition, partition
from tests.tensorflow.standing_in import attempted

SIDE = 512
"""A square of this side is a megabyte: no region is merged with others for being small."""


class Graph:
    """A GraphDef of squares, with reads and writes of one variable."""

    def __init__(self) -> None:
        self.definition = graph_pb2.GraphDef()
        handle = self.definition.node.add(name="variable", op="VarHandleOp")
        handle.attr["dtype"].type = tf.float32.as_datatype_enum
        handle.attr["shape"].shape.CopyFrom(tf.TensorShape((SIDE, SIDE)).as_proto())
        handle.attr["_output_shapes"].list.shape.add()

    def add(self, name: str, op: str, *inputs: str, shape: Sequence[int] = (SIDE, SIDE)) -> str:
        node = self.definition.node.add(name=name, op=op)
        node.input.extend(inputs)
        attribute = "dtype" if op in ("Placeholder", "Const", *VARIABLE) else "T"
        node.attr[attribute].type = tf.float32.as_datatype_enum
        if op == "Const":
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.full(shape, 2.0, "f")))
        if op != "AssignVariableOp":
            node.attr["_output_shapes"].list.shape.add().CopyFrom(tf.TensorShape(shape).as_proto())
        return name

    def constant(self, name: str, *after: str) -> str:
        """A small constant as Grappler leaves it: with control edges from what it was folded of."""
        return self.add(name, "Const", *(f"^{one}" for one in after), shape=())


VARIABLE = ("ReadVariableOp", "AssignVariableOp")
KINDS = ("Tanh", "AddV2", "Mul", "Const", "MatMul", "Const", "Exp", "Const", "Placeholder", "Read")


def random_graph(choices: Sequence[tuple[int, int, int, int, int]]) -> Any:
    """One node per choice: (kind, two inputs, two control sources). Constants have many."""
    graph = Graph()
    names, squares = [graph.add("x", "Placeholder")], ["x"]
    written = False
    for number, (kind, first, second, third, fourth) in enumerate(choices):
        op, name = KINDS[kind % len(KINDS)], f"n{number}"
        controls = [names[third % len(names)]] if third % 3 == 0 or op == "Const" else []
        controls += [names[fourth % len(names)]] if fourth % 4 == 0 or op == "Const" else []
        after = [f"^{one}" for one in dict.fromkeys(controls)]
        data = [squares[first % len(squares)], names[second % len(names)]]
        if op == "Const":
            graph.constant(name, *dict.fromkeys(controls))
        elif op == "Placeholder":
            graph.add(name, op)
        elif op == "Read" and not written:
            written = True
            graph.add(name, "ReadVariableOp", "variable")
            graph.add(f"{name}w", "AssignVariableOp", "variable", data[0], f"^{name}", *after)
            graph.add(f"{name}a", "ReadVariableOp", "variable", f"^{name}w")
            squares.append(f"{name}a")
            names.append(f"{name}a")
        elif op in ("Tanh", "Exp", "Read"):
            graph.add(name, op.replace("Read", "Tanh"), data[0], *after)
        else:
            operands = [data[0]] * 2 if op == "MatMul" else data
            graph.add(name, op, *operands, *after)
        names.append(name)
        squares += [name] if op != "Const" else []
    return graph.definition


def unmended(graph: Any) -> Partition:
    """The partition without a look for cycles."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cutting, "_without_cycles", lambda *arguments: (list(arguments[-1]), []))
        return partition(graph)


def is_circular(cut: Partition) -> bool:
    """Whether the patched graph has a cycle, by the job's own check of the whole."""
    try:
        return any("waits for itself" in fault.what for fault in attempted(cut).taken_back.values())
    except reasons.Refused as refused:
        return "waits for itself" in refused.detail


CHOICES = st.lists(
    st.tuples(st.integers(0, 9), *(st.integers(0, 60) for _ in range(4))), min_size=4, max_size=40
)


@pytest.mark.slow
@settings(max_examples=300)
@given(CHOICES)
def test_the_patched_graph_has_no_cycle_and_nothing_else_changes(choices: list[Any]) -> None:
    graph = random_graph(choices)
    before, after = unmended(graph), partition(graph)
    if before.regions:
        assert not is_circular(after)
        if not is_circular(before):
            assert after.regions == before.regions
            assert after.refusals == before.refusals


def circular(steps: int) -> Any:
    """Two computations of one level; each copies a constant that was folded of the other's, behind
    `steps` further constants."""
    graph = Graph()
    for name in "ab":
        graph.add(f"{name}0", "Placeholder")
        graph.add(f"{name}1", "Exp", f"{name}0")
    for name, other in ("ab", "ba"):
        folded = graph.constant(f"{name}folded", f"{other}1")
        for number in range(steps):
            folded = graph.constant(f"{name}folded{number}", folded)
        graph.add(f"{name}2", "Mul", f"{name}1", folded)
    return graph.definition


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_regions_that_copy_each_others_constants_become_one(steps: int) -> None:
    graph = circular(steps)
    assert len(unmended(graph).regions) == 2
    assert is_circular(unmended(graph))
    cut = partition(graph)
    (region,) = cut.regions
    assert {cut.graph.nodes[i].name for i in region.members} == {"a1", "a2", "b1", "b2"}
    assert not is_circular(cut)
    assert not any(refusal.reason is Reason.CYCLE for refusal in cut.refusals)


def test_control_edges_between_members_join_regions_too() -> None:
    graph = Graph()
    for name in "ab":
        graph.add(f"{name}0", "Placeholder")
        graph.add(f"{name}1", "Exp", f"{name}0")
    for name, other in ("ab", "ba"):
        graph.add(f"{name}2", "Tanh", f"{name}1", f"^{other}1")
    assert is_circular(unmended(graph.definition))
    cut = partition(graph.definition)
    assert len(cut.regions) == 1
    assert not is_circular(cut)


def test_what_no_merging_mends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels keep opaque operations out of such circles; where one is in, its regions are none."""
    graph = Graph()
    graph.add("x", "Placeholder")
    graph.add("first", "Exp", "x")
    graph.add("second", "Tanh", "first")
    graph.add("product", "MatMul", "second", "second")
    graph.add("third", "Exp", "product")
    graph.add("fourth", "Tanh", "third")
    components = cutting._components

    def together(*arguments: Any) -> list[tuple[int, ...]]:
        groups = components(*arguments)
        return [tuple(i for group in groups for i in group)] if groups else []

    monkeypatch.setattr(cutting, "_components", together)
    assert is_circular(unmended(graph.definition))
    cut = partition(graph.definition)
    assert not cut.regions
    given_up = {r.subject for r in cut.refusals if r.reason is Reason.CYCLE}
    assert given_up == {"first", "second", "third", "fourth"}
