"""What a patched step is tried with in the worker, and what comes to light there.

Regions are Identity nodes in place of an operation: TensorFlow runs them without kernels of ours.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from bench.structure import loop_step
from stitchcore.artifact.manifest import AddedNode, Patch, RegionPatch
from stitchcore.errors import Reason
from stitchcore.inject import digest, structure
from stitchcore.tensorflow import rehearsal
from stitchcore.tensorflow.fusion_node import encoded
from stitchcore.tensorflow.partition import Partition, partition
from stitchcore.tensorflow.rehearsal import KEPT, rehearse
from tests.waiting import PATIENCE_SECONDS

LOADED = isinstance(rehearsal._native(), rehearsal.plugin.Plugin)
needs_plugin = pytest.mark.skipif(not LOADED, reason="python -m stitchcore.inject.build")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends on a slow machine too is rehearsed; a loop of a billion passes would not end."""
    monkeypatch.setattr(rehearsal, "SECONDS", PATIENCE_SECONDS)


def region(parts: Partition, name: str, node: str, source: str = "") -> RegionPatch:
    """An Identity of the node's first input, or of `source`, in the node's place."""
    ids = digest.number(parts.request, parts.preserve).ids
    old = next(one for one in parts.request.node if one.name == node)
    read, port = digest.parse_reference(source or old.input[0])
    attributes = node_def_pb2.NodeDef()
    attributes.attr["T"].type = tf.float32.as_datatype_enum
    inputs = (f"{ids[read]}:{port}",)
    added = AddedNode(name, "Identity", encoded(attributes), ids[node], inputs)
    rewire = ((f"{ids[node]}:0", f"+{name}:0"), (f"^{ids[node]}", f"^+{name}"))
    return RegionPatch(name, (ids[node],), (added,), rewire)


def cut(graph: Any) -> Partition:
    return partition(graph, ("result",))


def operation(parts: Partition, kind: str, inside: bool) -> str:
    original = structure.Original(parts.request)
    return next(
        node.name
        for number, node in enumerate(parts.request.node)
        if node.op == kind and bool(original.inner[number]) == inside
    )


@needs_plugin
def test_a_loop_of_a_billion_passes_ends_after_two() -> None:
    parts = cut(loop_step(10**9))
    patched = Patch((region(parts, "in", operation(parts, "Tanh", True)),
                  region(parts, "out", operation(parts, "Sin", False))))  # fmt: skip
    done = rehearse(parts, patched, (), (), "")
    assert done.refused == {}
    assert "run with made-up values" in done.figure


@needs_plugin
def test_a_loop_may_begin_with_what_a_region_makes() -> None:
    """Its counter waits for what the loop's first values wait for in the patched graph."""
    parts = cut(loop_step())
    done = rehearse(parts, Patch((region(parts, "scale", operation(parts, "Sqrt", False)),)),
                    (), (), "")  # fmt: skip
    assert done.refused == {}
    assert "run with made-up values" in done.figure


def from_outside(parts: Partition) -> Patch:
    return Patch((region(parts, "good", operation(parts, "Sin", False)),
                  region(parts, "bad", operation(parts, "Tanh", True), "x")))  # fmt: skip


def test_what_the_rules_forbid_is_refused_before_it_runs() -> None:
    parts = cut(loop_step())
    done = rehearse(parts, from_outside(parts), (), (), "", run=False)
    assert set(done.refused) == {"bad"}
    assert done.refused["bad"].reason is Reason.STRUCTURE
    assert "is in no loop" in done.refused["bad"].detail
    assert done.figure == "validated; not run: a GPU's graph"


@needs_plugin
def test_what_the_rules_overlook_is_found_by_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "check", lambda *given: [])
    parts = cut(loop_step())
    done = rehearse(parts, from_outside(parts), (), (), "")
    assert set(done.refused) == {"bad"}
    assert "different frames" in done.refused["bad"].detail
    assert "run with made-up values" in done.figure


def training() -> Any:
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.ones([8, 4]), name="v")
        x = tf.compat.v1.placeholder(tf.float32, [16, 8], "x")
        y = tf.tanh(tf.matmul(tf.exp(x), variable))
        updated = variable.assign_sub(tf.ones([8, 4]), read_value=False)
        with tf.control_dependencies([updated]):
            tf.identity(tf.reduce_sum(y), name="result")
    definition = graph.as_graph_def(add_shapes=True)
    return tf.compat.v1.graph_util.extract_sub_graph(definition, ["result"])


@needs_plugin
def test_a_lost_update_is_found() -> None:
    parts = cut(training())
    ids = digest.number(parts.request, parts.preserve).ids
    update = next(n.name for n in parts.request.node if n.op == "AssignSubVariableOp")
    nothing = AddedNode("n", "NoOp", encoded(node_def_pb2.NodeDef()), ids[update], ())
    lost = RegionPatch("lost", (ids[update],), (nothing,), ((f"^{ids[update]}", "^+n"),))
    done = rehearse(parts, Patch((lost, region(parts, "good", "Tanh"))), (), (), "")
    assert set(done.refused) == {"lost"}
    assert "is not updated" in done.refused["lost"].detail


@needs_plugin
def test_it_runs_with_its_kernels_and_with_them_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time from the same variables, and at the end kernels are not aside."""
    steps: list[tuple[bool, Any]] = []
    aside: list[bool] = []
    observed = rehearsal._observed

    def told(*given: Any) -> rehearsal.Observed:
        found = observed(*given)
        steps.append((aside[-1], [value.tolist() for value in found.before.values()]))
        return found

    def retire(plugin: Any, keys: Any, retired: bool = True) -> None:
        aside.append(retired)

    monkeypatch.setattr(rehearsal, "_observed", told)
    monkeypatch.setattr(rehearsal.plugin.Plugin, "retire", retire)
    parts = cut(training())
    done = rehearse(parts, Patch((region(parts, "good", "Tanh"),)), (), (), "")
    assert not done.refused
    assert [retired for retired, _ in steps] == [False, False, True] and not aside[-1]
    assert len(steps[1][1]) == 1 and steps[1][1] == steps[2][1]


@needs_plugin
def test_another_shape_is_found() -> None:
    parts = cut(training())
    wrong = region(parts, "wrong", "Sum", "x")
    with pytest.raises(rehearsal.Refused, match=r"result was .* and is"):
        rehearse(parts, Patch((wrong,)), (), (), "")


def test_nothing_of_a_stranger_runs_but_arithmetic() -> None:
    graph = tf.Graph()
    with graph.as_default():
        name = tf.compat.v1.placeholder(tf.string, [], "name")
        text = tf.io.read_file(name)
        number = tf.strings.to_number(text)
        with tf.control_dependencies([tf.io.write_file("/tmp/never", text), tf.print(text)]):
            value = tf.numpy_function(lambda v: v, [number], tf.float32)
            value.set_shape([])
        drawn = tf.random.uniform([]) + tf.sqrt(value)
        tf.identity(drawn, name="result")
    parts = cut(graph.as_graph_def(add_shapes=True))
    original = structure.Original(parts.request)
    patched = rehearsal._Skeleton(parts, original, parts.request, frozenset()).build()
    operations = {node.op for node in patched.node}
    assert operations <= KEPT | {"IdentityN", "NoOp", "Const"}
    assert {"Sqrt", "AddV2"} <= operations
    strange = {"ReadFile", "WriteFile", "PyFunc", "EagerPyFunc", "PrintV2", "RandomUniform"}
    assert not strange & operations and strange & {node.op for node in parts.request.node}
