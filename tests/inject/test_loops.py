"""Loops with less in each pass compute what they did, bit for bit; TensorFlow runs both graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.training.saver import export_meta_graph

from stitchcore.inject import loop_order, loops, structure
from stitchcore.tensorflow.graph import index
from stitchcore.tensorflow.rehearsal import types_of

v1 = tf.compat.v1
WIDTH = 8
numbers = np.random.default_rng(5)
CELL = (numbers.normal(size=(2 * WIDTH, WIDTH)) * 0.5).astype(np.float32)
STEPS = numbers.normal(size=(6, 4, WIDTH)).astype(np.float32)


@dataclass
class Step:
    """A function's graph with its loops lowered, as Grappler shows it, and what it is run with."""

    graph: Any
    results: Sequence[str]
    inputs: Sequence[str]
    variables: dict[str, Any]

    def lean(self) -> loops.Rewritten:
        """Its loops rewritten; whatever is not as it was is an error here."""
        keep = [name.split(":")[0] for name in self.results]
        made = loops.rewritten(self.graph, "test", keep, types_of(self.graph))
        original = structure.Original(self.graph)
        assert not structure.check(original, made.graph, types_of(self.graph), made.added, keep)
        return made

    def run(self, graph: Any, *values: Any) -> list[Any]:
        """Results, then variables after it, of two runs."""
        with tf.Graph().as_default() as imported:
            tf.import_graph_def(graph, name="")
            handles = [imported.get_tensor_by_name(f"{name}:0") for name in self.variables]
            reads = [tf.raw_ops.ReadVariableOp(resource=h, dtype=tf.float32) for h in handles]
            first = [
                tf.raw_ops.AssignVariableOp(resource=h, value=tf.constant(value))
                for h, value in zip(handles, self.variables.values(), strict=True)
            ]
        options = v1.ConfigProto()
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        found: list[Any] = []
        with v1.Session(graph=imported, config=options) as session:
            session.run(first)
            for _ in range(2):
                found += session.run(
                    list(self.results), dict(zip(self.inputs, values, strict=True))
                )
                found += session.run(reads)
        return found


def optimized(made: Any) -> Any:
    """A function's graph with what it calls inlined and loops lowered, without needless nodes."""
    meta = export_meta_graph(graph_def=made.graph.as_graph_def(), graph=made.graph)
    fetched = meta_graph_pb2.CollectionDef()
    fetched.node_list.value.extend(tensor.name for tensor in made.inputs + made.outputs)
    fetched.node_list.value.extend(op.name for op in made.graph.control_outputs)
    meta.collection_def["train_op"].CopyFrom(fetched)
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1
    rewrites.optimizers.extend(["function", "dependency"])
    rewrites.function_optimization = rewriter_config_pb2.RewriterConfig.AGGRESSIVE
    return tf_optimizer.OptimizeGraph(config, meta)


def step_of(function: Callable[..., Any], *specs: Any) -> Step:
    made = tf.function(function, input_signature=specs, autograph=False).get_concrete_function()
    graph = optimized(made)
    variables = {}
    captured = {inner.op.name: outer for outer, inner in made.graph.captures}
    by_handle = {id(v.handle): v for v in made.graph.variables}
    for node in graph.node:
        if node.op == "Placeholder" and node.name in captured:
            variable = by_handle[id(captured[node.name])]
            variables[node.name] = variable.numpy()
            node.op = "VarHandleOp"
            node.attr.clear()
            node.attr["dtype"].type = variable.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            node.attr["shared_name"].s = node.name.encode()
    inputs = [t.name for t in made.inputs if t.dtype != tf.resource]
    return Step(graph, [t.name for t in made.outputs], inputs, variables)


def in_passes(graph: Any) -> Counter[str]:
    """Operations that run in each pass of a loop."""
    found = index(graph)
    return Counter(
        node.op for i, node in enumerate(found.nodes) if found.frames[i] and node.op != "Enter"
    )


def recurrent(trained: bool) -> Callable[..., Any]:
    """A cell over a sequence, stored by time, and its gradient."""
    weight = tf.Variable(CELL)

    def step(x: tf.Tensor, length: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            rows = tf.TensorArray(tf.float32, 6, element_shape=[4, WIDTH]).unstack(x)
            outputs = tf.TensorArray(tf.float32, length, element_shape=[4, WIDTH])

            def body(i: tf.Tensor, h: tf.Tensor, outputs: Any) -> Any:
                gate = tf.sigmoid(tf.concat([rows.read(i), h], 1) @ weight)
                h = gate * tf.tanh(h + rows.read(i)) + h * (1.0 - gate)
                return i + 1, h, outputs.write(i, h * gate)

            start = (0, tf.ones([4, WIDTH]), outputs)
            _, h, outputs = tf.while_loop(lambda i, *_: i < length, body, start)
            loss = tf.reduce_sum(outputs.stack() ** 2) + tf.reduce_sum(h)
        slopes = tape.gradient(loss, [weight, x])
        if trained:
            weight.assign_sub(0.1 * slopes[0])
        return [tf.identity(loss), *map(tf.identity, slopes)]

    return step


SEQUENCE = (tf.TensorSpec([6, 4, WIDTH]), tf.TensorSpec([], tf.int32))


def same(step: Step, *values: Any) -> loops.Rewritten:
    made = step.lean()
    for ours, theirs in zip(
        step.run(made.graph, *values), step.run(step.graph, *values), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    return made


@pytest.mark.parametrize("length", [0, 1, 6])
def test_a_recurrent_cell_and_its_gradient(length: int) -> None:
    """Of a pass little more than half stays: one list, no weights, no constants."""
    step = step_of(recurrent(False), *SEQUENCE)
    made = same(step, STEPS, length)
    before, after = in_passes(step.graph), in_passes(made.graph)
    assert after.total() < 0.6 * before.total(), (before, after)
    assert before["ReadVariableOp"] and not after["ReadVariableOp"] and not after["Const"]
    lists = sum(node.op == "EmptyTensorList" for node in made.graph.node)
    pushed = {n.attr["element_dtype"].type for n in made.graph.node if "PushBack" in n.op}
    fed = [n for n in made.graph.node if n.op == "Enter" and "loop" in n.name]
    assert pushed and fed and lists >= len(pushed)
    assert after["Merge"] < before["Merge"] - 8


def test_a_write_after_the_loop_waits_for_the_read_before_it() -> None:
    """What was read in each pass is read once, and the variable is still updated after that."""
    step = step_of(recurrent(True), *SEQUENCE)
    made = same(step, STEPS, 4)
    nodes = {node.name: node for node in made.graph.node}
    moved = [name for name, node in nodes.items() if name in made.added and "Read" in node.op]
    writes = [node for node in made.graph.node if node.op == "AssignSubVariableOp"]
    assert moved and writes
    assert all(f"^{name}" in write.input for name in moved for write in writes)


def written_in_loop(x: tf.Tensor, weight: Any) -> Any:
    def body(i: tf.Tensor, h: tf.Tensor) -> Any:
        h = tf.tanh(h @ weight[:WIDTH])
        with tf.control_dependencies([h]):
            update = weight.assign_sub(weight * 0.1)
        with tf.control_dependencies([update]):
            return i + 1, tf.identity(h)

    return tf.while_loop(lambda i, _: i < 5, body, (0, x))[1]


def drawn(x: tf.Tensor, weight: Any) -> Any:
    """Random numbers whose operands do not change: each pass draws its own."""

    def body(i: tf.Tensor, h: tf.Tensor) -> Any:
        noise = tf.random.uniform([4, WIDTH], seed=3)
        return i + 1, tf.tanh(h @ weight[:WIDTH]) + noise

    return tf.while_loop(lambda i, _: i < 5, body, (0, x))[1]


def nested(x: tf.Tensor, weight: Any) -> Any:
    def inner(h: tf.Tensor, scale: tf.Tensor) -> Any:
        def body(i: tf.Tensor, y: tf.Tensor) -> Any:
            return i + 1, tf.tanh(y @ weight[:WIDTH]) * scale[0, 0] + tf.reshape(scale, [4, WIDTH])

        return tf.while_loop(lambda i, _: i < 3, body, (0, h))[1]

    def body(i: tf.Tensor, h: tf.Tensor) -> Any:
        return i + 1, tf.cond(i % 2 > 0, lambda: inner(h, x), lambda: h * 2.0 + weight[WIDTH:][:4])

    return tf.while_loop(lambda i, _: i < 5, body, (0, x))[1]


def one_after_another(x: tf.Tensor, weight: Any) -> Any:
    """What the first loop hands on unchanged the second one hands on, too."""

    def body(i: tf.Tensor, h: tf.Tensor, scale: tf.Tensor) -> Any:
        return i + 1, tf.tanh(h * scale), scale

    start = (0, x, tf.exp(weight[0]))
    first = tf.while_loop(lambda i, *_: i < 3, body, start)
    _, h, scale = tf.while_loop(lambda i, *_: i < 6, body, first)
    return h + scale * 2.0


def in_a_branch(x: tf.Tensor, weight: Any) -> Any:
    """A loop that is not always entered."""
    return tf.cond(tf.reduce_sum(x) > 0, lambda: drawn(x, weight), lambda: nested(x, weight))


def checked(x: tf.Tensor, weight: Any) -> Any:
    """What waits for an operation that may fail still does."""

    def body(i: tf.Tensor, h: tf.Tensor) -> Any:
        row = tf.gather(x, i)
        with tf.control_dependencies([row]):
            one = tf.constant(1.0)
        return i + 1, tf.tanh(h @ weight[:WIDTH]) * one + row

    return tf.while_loop(lambda i, _: i < 4, body, (0, x))[1]


LOOPS = [written_in_loop, drawn, nested, one_after_another, in_a_branch, checked]


@pytest.mark.parametrize("function", LOOPS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_a_pass_does_it_still_does(function: Callable[..., Any], sign: float) -> None:
    tf.random.set_seed(7)
    weight = tf.Variable(CELL)
    step = step_of(lambda x: tf.identity(function(x, weight)), tf.TensorSpec([4, WIDTH]))
    made = same(step, np.full((4, WIDTH), sign * 0.1, np.float32))
    assert bool(made.left_out) == (function not in (written_in_loop, drawn))


def test_effects_of_passes_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes overlap: a loop with an effect is left alone, or a later pass would be the earlier."""
    weight = tf.Variable(CELL)
    step = step_of(lambda x: tf.identity(drawn(x, weight)), tf.TensorSpec([4, WIDTH]))
    assert not step.lean().left_out
    monkeypatch.setattr(loop_order, "frames_with", lambda original, marked: set())
    assert step.lean().left_out


def test_what_waited_for_a_constant_waits_for_what_it_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The constant leaves the loop; what may fail, and came before it, does not."""
    weight = tf.Variable(CELL)
    step = step_of(lambda x: tf.identity(checked(x, weight)), tf.TensorSpec([4, WIDTH]))

    def products_wait(graph: Any) -> bool:
        (lookup,) = [node.name for node in graph.node if node.op == "GatherV2"]
        products = [node for node in graph.node if node.op == "Mul"]
        assert products
        return all(f"^{lookup}" in node.input for node in products)

    assert not products_wait(step.graph)
    assert products_wait(step.lean().graph)
    monkeypatch.setattr(loop_order, "after", lambda original, marked: [False] * len(marked))
    assert not products_wait(step.lean().graph)


def test_a_fault_leaves_its_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what keeps a node dead in the last pass TensorFlow's rules are broken: the loop stays
    as it is."""
    step = step_of(recurrent(False), *SEQUENCE)
    monkeypatch.setattr(loops._Rewriting, "_inside", lambda self, tensor, frame: tensor)
    assert in_passes(step.lean().graph)["Merge"] == in_passes(step.graph)["Merge"]


def test_control_edges_that_keep_no_order_are_left_out() -> None:
    """No node of a pass waits for another that has no effect, and none is only a name."""
    step = step_of(recurrent(True), *SEQUENCE)
    before, after = index(step.graph), index(same(step, STEPS, 4).graph)

    def waiting(found: Any) -> int:
        return sum(len(c) for i, c in enumerate(found.control) if found.frames[i])

    assert waiting(before) > 20 and waiting(after) < 10


def test_a_list_that_nothing_pops_is_left_out() -> None:
    """Only one of two results has a gradient: what the other's would pop is not kept."""
    weight = tf.Variable(CELL)

    def step(x: tf.Tensor) -> Any:
        def body(i: tf.Tensor, h: tf.Tensor, kept: Any) -> Any:
            kept = tf.raw_ops.TensorListPushBack(input_handle=kept, tensor=h)
            return i + 1, tf.tanh(h @ weight[:WIDTH]), kept

        unknown = tf.raw_ops.EmptyTensorList(
            element_shape=[4, WIDTH], max_num_elements=-1, element_dtype=tf.float32
        )
        return tf.identity(tf.while_loop(lambda i, *_: i < 5, body, (0, x, unknown))[1])

    made = same(step_of(step, tf.TensorSpec([4, WIDTH])), np.ones((4, WIDTH), np.float32))
    assert not any("PushBack" in node.op for node in made.graph.node)
