"""Values and sizes that are something else at other sizes than those at which they were fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.errors import Reason
from stitchcore.hlo.ir.instruction import topological
from stitchcore.tensorflow import size_points
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.node_roles import Part
from stitchcore.tensorflow.partition import Partition, partition
from tests.tensorflow.test_fallback import KEPT, failures, same, stitched

SIZES = [20, 40, 96, 100, 128, 130, 301, 64, 5, 8, 2]

Made = Callable[[Any, Any], Any]


def number(value: Any) -> Any:
    return tf.cast(value, tf.float32)


NUMBERS: Mapping[str, Made] = {
    "at most": lambda x, n: x * number(tf.minimum(n, 128)),
    "at least": lambda x, n: x * number(tf.maximum(n, 10)),
    "modulo": lambda x, n: x * number(n % 8),
    "divided": lambda x, n: x * number(n // 8),
    "above": lambda x, n: tf.where(n > 128, x, 2.0 * x),
    "sign": lambda x, n: x * number(tf.sign(n - 100)),
    "above what constants make": lambda x, n: tf.where(n > tf.constant(60) * 2, x, 2.0 * x),
    "root": lambda x, n: x * tf.sqrt(number(n)),
    "one of several": lambda x, n: x * number(tf.stack([n, n % 3, 7])[1]),
}
"""Numbers that sizes decide, in what is made of x with n rows."""

SHAPES: Mapping[str, Made] = {
    "cut": lambda x, n: x[:128],
    "cut by a value": lambda x, n: x[: tf.minimum(n, 128)],
    "the last rows": lambda x, n: x[tf.maximum(n - 200, 0) :],
    "rounded up": lambda x, n: tf.pad(x, ((0, -n % 8), (0, 0))),
    "rounded down": lambda x, n: x[: n // 4 * 4],
    "filled up": lambda x, n: tf.pad(x, ((0, tf.maximum(64 - n, 0)), (0, 0))),
    "repeated": lambda x, n: tf.tile(x, [tf.minimum(2, n // 120 + 1), 1]),
    "every third": lambda x, n: x[::3],
    "every third but one": lambda x, n: x[1::3],
    "halves of what is cut": lambda x, n: x[:128][::2],
}
"""Rows that are no polynomial of n, or one where n is small alone."""


def apart(n: Any) -> Any:
    """How far places are from each other."""
    return tf.range(n)[:, None] - tf.range(n)[None]


TABLES: Mapping[str, Made] = {
    "within a window": lambda x, n: tf.matmul(number(tf.abs(apart(n)) <= 90), x) * 1e-2,
    "within a small window": lambda x, n: tf.matmul(number(tf.abs(apart(n)) <= 3), x) * 1e-2,
    "places cut": lambda x, n: x * tf.minimum(tf.range(number(n)), 100.0)[:, None],
    "how far apart, cut": lambda x, n: tf.matmul(
        number(tf.clip_by_value(apart(n), -70, 70)), x * 1e-3
    ),
    "blocks": lambda x, n: tf.matmul(number(apart(n) // 64 >= 0), x) * 1e-2,
    "one of few": lambda x, n: x + tf.one_hot(tf.minimum(tf.range(n), 30), 64),
    "a matrix of each row": lambda x, n: x * tf.reshape(tf.eye(8, batch_shape=[n]), [n, 64]),
    "places from the end": lambda x, n: (
        x * tf.reverse(tf.pad(number(tf.minimum(tf.range(n - 1), 50)), [[1, 0]]), [0])[:, None]
    ),
    "the last place, cut": lambda x, n: (
        x * number(tf.reduce_max(tf.minimum(tf.range(n), 100))) * 1e-2
    ),
    "chosen, and compared": lambda x, n: tf.where(
        tf.abs(tf.where(tf.constant(1) > 150, 1, n) - 8) > n, x, 2.0 * x
    ),
    "thresholds": lambda x, n: (
        x + tf.reduce_sum(tf.tile(CUTS[:, None], [1, n]) * x[:, 0], 0)[:, None]
    ),
}
"""Tables that are made of sizes: at small ones all places are within 90 of each other."""
CUTS = np.linspace(0, 1, 7, dtype=np.float32)


def step(made: Made) -> Any:
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.ones([64]), name="v", shape=[64])
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        rows = made(tf.tanh(x * variable) * 2.0, tf.shape(x)[0])
        done = tf.sin(0.01 * rows) + tf.tanh(0.1 * rows) * 0.5
        tf.identity(done, name="kept")
        tf.reduce_sum(done * done, name="result")
        change = 1e-3 * tf.reduce_sum(tf.cos(done), 0)
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change, name="update")
    definition = graph.as_graph_def(add_shapes=True)
    return tf.compat.v1.graph_util.extract_sub_graph(definition, list(KEPT))


@pytest.mark.parametrize("kind", [*NUMBERS, *SHAPES, *TABLES])
def test_a_step_is_the_same_at_all_sizes(kind: str) -> None:
    """Whatever was true of those at which it was lowered; and a kernel is the one that does it."""
    graph = step({**NUMBERS, **SHAPES, **TABLES}[kind])
    program = stitched(graph)
    before = failures(program)
    same(program.graph, graph, SIZES)
    assert failures(program) == before
    assert any(node.op == "StitchedFusion" for node in program.graph.node)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_sizes_is_no_constant(kind: str) -> None:
    cut = partition(step(TABLES[kind]), KEPT)
    assert {r.reason for r in cut.refusals} <= {Reason.REGION_TOO_SMALL, Reason.LIBRARY_CALL}
    modules = [lower(subgraph(cut, region)).module for region in cut.regions]
    sizes = {dim for m in modules for v in topological(m.outputs) for dim in v.shape.dims}
    assert any(not isinstance(dim, int) for dim in sizes)


@pytest.mark.parametrize("kind", NUMBERS)
def test_what_makes_a_number_is_left_and_what_takes_it_is_not(kind: str) -> None:
    cut = partition(step(NUMBERS[kind]), KEPT)
    left = [refusal for refusal in cut.refusals if refusal.reason is Reason.DOES_NOT_UNIFY]
    assert len(left) == 1
    members = {cut.graph.nodes[i].op for region in cut.regions for i in region.members}
    assert {"Mul", "Tanh", "Sin"} <= members


KEEP: Mapping[str, Made] = {
    "mean": lambda x, n: x / number(tf.maximum(n * 64, 1)),
    "share": lambda x, n: x * (1.0 / number(n)),
    "exact": lambda x, n: x / number(n * 64 // tf.maximum(n, 1)),
    "size": lambda x, n: x / number(tf.reduce_prod([n, 64])),
    "rows": lambda x, n: tf.reshape(tf.reshape(x, [n * 2, 32]), [-1, 64]),
    "turned": lambda x, n: tf.reshape(x, tf.reshape(tf.transpose([[n], [64]]), [-1])),
    "without some": lambda x, n: x[2:] + x[:-2],
}
"""What is one polynomial, or one quotient, of all sizes."""


@pytest.mark.parametrize("kind", KEEP)
def test_what_is_one_function_of_all_sizes_is_copied(kind: str) -> None:
    graph = step(KEEP[kind])
    cut = partition(graph, KEPT)
    assert {refusal.reason for refusal in cut.refusals} <= {Reason.REGION_TOO_SMALL}
    same(stitched(graph).graph, graph, [size for size in SIZES if size > 2])


def test_a_dimension_that_is_a_number_wherever_it_was_looked_at_is_known_as_such() -> None:
    """The first 20 rows are 20 there; of 7 there are 7. Rows of 16 are that whatever comes."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        part = tf.exp(tf.tanh(x[:20]), name="part")
        rows = tf.exp(tf.reshape(tf.tanh(x), tf.stack([-1, 4 * 4])), name="rows")
        tf.identity(tf.reduce_sum(part) + tf.reduce_sum(rows), name="result")
        definition = graph.as_graph_def(add_shapes=True)
    for node in definition.node:  # as Grappler leaves it
        for shape in node.attr["_output_shapes"].list.shape:
            if node.name in ("part", "rows"):
                shape.dim[0].size = shape.dim[1].size = -1
    cut = partition(definition, ["result"])
    assert ("part", 0) in cut.sizes.fitted and ("rows", 0) not in cut.sizes.fitted


def test_a_number_made_of_a_part_is_no_constant() -> None:
    """Launches check what they read; what no launch makes has to be right for 7 rows as well."""

    def left(x: Any) -> Any:
        return tf.raw_ops.CheckNumerics(tensor=x, message="")

    def made(x: Any, n: Any) -> Any:
        weight = tf.reshape(1.0 / number(tf.size(left(left(x)[:20]))), [1, 1])
        return x * left(weight) * 700.0 + left(tf.exp(weight) * tf.sin(weight))

    graph = step(made)
    same(stitched(graph, some=True).graph, graph, [150, 7, 20, 1])


def test_an_overflow_says_nothing() -> None:
    """Of two large sizes and 4096 the product is no int32; of either alone it is."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 4096], "x")
        tf.identity(tf.tanh(x) / number(tf.size(x)), name="kept")
        y = tf.compat.v1.placeholder(tf.float32, [None], "y")
        tf.identity(tf.tanh(y) * number(tf.size(x) % 1000), name="result")
    cut = partition(graph.as_graph_def(add_shapes=True), KEPT)
    left = [r.subject for r in cut.refusals if r.reason is Reason.DOES_NOT_UNIFY]
    assert left == ["mod"]


def rows_of(cut: Partition, name: str) -> Any:
    node = cut.graph.nodes[cut.graph.number[name]]
    return cut.sizes.dim(node.attr["_output_shapes"].list.shape[0].dim[0].size)


@pytest.mark.parametrize("most", [128, 500, 3000])
def test_a_size_that_is_cut_is_one_of_its_own(most: int) -> None:
    """And is told from the whole at a point at which regions are lowered."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        tf.exp(tf.tanh(x[:most]), name="kept")
        tf.exp(tf.sin(x), name="result")
    cut = partition(graph.as_graph_def(add_shapes=True), KEPT)
    whole, part = rows_of(cut, "x"), rows_of(cut, "kept")
    assert part is not None and part != whole
    told = [(point[str(whole)], point[str(part)]) for point in cut.sizes.points]
    assert all(size == min(other, most) for other, size in told)
    assert max(size for size, _ in told) <= max(2 * most + 100, size_points.LARGE[0] + 100)
    assert any(size != other for size, other in told)


def test_what_no_table_bounds_is_one_size() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        table = tf.constant(np.ones([200, 64], np.float32))
        tf.exp(tf.tanh(x + table[: tf.shape(x)[0]]), name="kept")
    cut = partition(graph.as_graph_def(add_shapes=True), ("kept",))
    assert rows_of(cut, "kept") == rows_of(cut, "x")
    assert not cut.sizes.derived
    assert Part.CLONE in cut.classes.parts
