"""What a patch does not show from outside: the order of launches around a variable, and which
sizes a launch checks."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from stitchcore.artifact.manifest import AddedNode, Patch
from stitchcore.compiler.regions import compile_regions, program
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.hlo.ir.dim import parse, substitute, symbol
from stitchcore.inject import digest
from stitchcore.launch.place import Input, Launch, Place, Temporary
from stitchcore.tensorflow.control_edges import after_checks, dependents
from stitchcore.tensorflow.graph import Edge
from stitchcore.tensorflow.lower import Argument, Subgraph, lower, subgraph, with_own_sizes
from stitchcore.tensorflow.partition import Partition, is_view, partition
from stitchcore.tensorflow.patch import patch


def launch(output: int, *inputs: Place, checks: bool = False) -> Launch:
    kernel: Any = SimpleNamespace(errors=("wrong",) if checks else ())
    return Launch(kernel, inputs, (Temporary(output),))


def test_launches_after_another_are_found_through_others() -> None:
    launches = [
        launch(0, Input(0)),
        launch(1, Temporary(0)),
        launch(2, Input(1)),
        launch(3, Temporary(2), Temporary(1)),
    ]
    assert dependents(launches, 0) == {1, 3}
    assert dependents(launches, 1) == {3}
    assert dependents(launches, 2) == {3}
    assert dependents(launches, 3) == frozenset()


VARIABLE, OTHER = Edge(7, 0), Edge(8, 0)


def test_what_a_check_does_not_need_waits_for_it() -> None:
    launches = [
        launch(0, Input(0)),  # what the check reads
        launch(1, Temporary(0), checks=True),
        launch(2, Temporary(1)),  # waits for its tensor anyway
        launch(3, Input(1)),
    ]
    names = ["a", "check", "b", "c"]
    stores = {"store": Temporary(3)}
    edges = after_checks(names, launches, stores, {}, {VARIABLE: "store"})
    assert edges == [("+c", "^+check"), ("+store", "^+check")]
    assert after_checks(names[2:], launches[2:], {}, {}, {}) == []


def test_a_reader_that_a_checking_writer_waits_for_does_not_wait_for_it() -> None:
    launches = [launch(0, Input(0)), launch(1, Input(1), checks=True), launch(2, Temporary(0))]
    readers = {VARIABLE: ["reads"], OTHER: ["follows"]}
    edges = after_checks(
        ["reads", "check", "follows"], launches, {}, readers, {VARIABLE: "check", OTHER: "follows"}
    )
    assert edges == [("+follows", "^+check")]


def checked_inputs(table: Iterator[int]) -> set[int]:
    """Op inputs whose shape a launch table has checked."""

    def skip(count: int) -> None:
        for _ in range(count):
            next(table)

    def skip_shape() -> None:
        for _ in range(next(table)):
            skip(next(table))

    skip(1)
    skip(4 * next(table))
    skip(2 * next(table))
    for _ in range(next(table)):
        skip(2)
        skip_shape()
    skip(2 * next(table))
    positions = set()
    for _ in range(next(table)):
        positions.add(next(table))
        skip_shape()
    return positions


def patched(cut: Partition) -> tuple[Patch, Subgraph]:
    """The patch of a graph's one region, and the function of that."""
    (region,) = cut.regions
    function = subgraph(cut, region)
    compiled = compile_regions({"r": lower(function).module}, host_device(), BuildOptions())
    done, refused = patch(cut, [(region, function, program(compiled, "r", host_device()))])
    assert not refused
    return done, function


def added(written: Patch) -> list[AddedNode]:
    return [node for region in written.regions for node in region.add]


def test_rows_of_batch_times_length_are_one_size() -> None:
    """The region sees the product alone: neither factor could be read off its input."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 64], name="x")
        w = tf.compat.v1.placeholder(tf.float32, [64, 256], name="w")
        rows = tf.matmul(tf.reshape(x, [-1, 64]), w)
        tf.tanh(tf.tanh(rows) * 2.0, name="result")
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, ["result"])
    assert len(cut.sizes.symbols) == 2
    written, function = patched(cut)
    assert function.symbols == ("size0",)
    assert any(node.op == "StitchedFusion" for node in added(written))


def test_a_view_of_two_unknown_sizes_stays() -> None:
    """Rows are batch and length again, for the region and for others. No Reshape of ours could make
    that of the region's input: it takes one unknown size."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 64], name="x")
        w = tf.compat.v1.placeholder(tf.float32, [64, 256], name="w")
        rows = tf.matmul(tf.reshape(x, [-1, 64]), w)
        sizes = tf.concat([tf.shape(x)[:2], [256]], 0)
        rows = tf.reshape(rows, sizes, name="seen")
        sizes = tf.concat([tf.shape(rows)[:2], [16, 16]], 0)
        viewed = tf.reshape(rows, sizes, name="viewed")
        tf.tanh(tf.tanh(viewed) * 2.0, name="result")
        tf.identity_n([viewed])
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, ["result", "IdentityN"])
    cut = replace(cut, regions=tuple(r for r in cut.regions if "seen" in r.name))
    [region] = patched(cut)[0].regions
    ids = digest.number(cut.request, cut.preserve).ids
    assert ids["result"] in region.remove and ids["viewed"] not in region.remove
    read = ("seen", "Shape_1", "strided_slice_1", "concat_1")
    assert not {ids[name] for name in read} & {*region.remove}, "it reads them"
    assert [edge[0] for edge in region.rewire if ":" in edge[0]] == [f"{ids['result']}:0"]


def test_an_axis_added_to_two_unknown_sizes_is_a_view() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, None], name="x")
        tf.identity(x[:, None], name="wide")
        tf.tanh(x[:, None] * 2.0 + tf.tanh(x)[..., None], name="result")
        tf.tanh(x[:, 1:], name="part")
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, ["wide", "result", "part"])
    views = {node.name: is_view(cut.graph, i) for i, node in enumerate(cut.graph.nodes)}
    slices = [views[f"strided_slice{end}"] for end in ("", "_1", "_2", "_3")]
    assert slices == [True, True, True, False]
    assert any(node.op == "StitchedFusion" for node in added(patched(cut)[0]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a*b", "2*a*b+1"], "size0 1+2*size0"),
        (["a*b-a", "3*a*b-3*a"], "size0 3*size0"),  # rows of a sentence without its last word
        (["a*b", "2*a"], "size0 2*a"),
        (["a*b", "b*c", "a*c"], "a*b b*c a*c"),  # no size of which can be read off: refused
        (["a", "b*c", "a*b*c"], "a size0 a*size0"),  # rows and columns of pictures
        (["b*c+2", "3*b^2*c^2", "b*c*d"], "2+size0 3*size0^2 size1"),
        (["a*b*c", "2*a"], "size1 2*a"),
        (["a*b*c", "b"], "size1 b"),
        (["a^2"], "size0"),
        (["a*b", "b*c"], "size0 size1"),
        (["5-a", "2*a"], "5-1*a 2*a"),
        (["a", "4"], "a 4"),
        (["b", "a-b", "c", "a*c-b*c", "a"], "b a-b c a*c-b*c a"),
        (["b", "a-b", "c", "a*c-b*c"], "b size0 c c*size0"),  # a cache and what is added to it
        (["b", "2*a-2*b", "a*b"], "b 2*size0 b*size0+b^2"),
        (["b", "a-b", "c-a", "a*c"], "b size0 size1 b^2+2*b*size0+b*size1+size0^2+size0*size1"),
        (["b", "b-a", "a*b"], "b size0 b^2-b*size0"),
    ],
)
def test_sizes_that_can_be_read_off(given: list[str], expected: str) -> None:
    arguments = [Argument(Edge(n, 0), False, "float", (parse(t),)) for n, t in enumerate(given)]
    renamed, own, solved = with_own_sizes(arguments)
    assert [one.dims[0] for one in renamed] == [parse(text) for text in expected.split()]
    assert [substitute(one.dims[0], own) for one in renamed] == [parse(text) for text in given]
    assert all(substitute(value, own) == symbol(name) for name, value in solved.items())


def test_what_a_cache_has_more_than_another_is_told_by_both() -> None:
    """How many words were added stands in no shape that the region is given."""
    with tf.Graph().as_default() as graph:
        mask = tf.compat.v1.placeholder(tf.float32, [None, None], name="mask")
        cache = tf.compat.v1.placeholder(tf.float32, [None, None, 64], name="cache")
        words = tf.compat.v1.placeholder(tf.float32, [None, None, 64], name="words")
        w = tf.compat.v1.placeholder(tf.float32, [64, 64], name="w")
        longer = tf.concat([cache, words], 1, name="longer")
        rows = tf.matmul(tf.reshape(longer, [-1, 64]), w)
        made = tf.tanh(tf.reshape(rows, tf.shape(longer)) + mask[..., None])
        tf.multiply(made[:, tf.shape(cache)[1] :], 2.0, name="result")
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, ["result"])
    written, function = patched(cut)
    assert len(cut.sizes.symbols) == len(function.symbols) == 3
    assert list(map(str, function.own.values())) == ["s3+s5"]
    assert {name: str(value) for name, value in function.solved.items()} == {"s5": "-1*s3+size0"}
    assert any(node.op == "StitchedFusion" for node in added(written))


def test_what_rests_on_a_size_taken_for_a_number_has_no_such_size() -> None:
    """Nobody may fold into the graph what a launch gives where that size is another."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], name="x")
        tf.tanh(tf.fill([4, 64], 0.5) + tf.exp(x), name="known")
        tf.tanh(tf.exp(x) * 2.0, name="taken")
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, ["known", "taken"])
    written, _ = patched(cut)
    [node] = [node for node in added(written) if node.op == "StitchedFusion"]
    attributes = node_def_pb2.NodeDef.FromString(base64.b64decode(node.attr)).attr
    shapes = [[dim.size for dim in s.dim] for s in attributes["_output_shapes"].list.shape]
    assert sorted(shapes) == [[-1, -1], [4, 64]]


def test_gradients_of_a_batch_and_of_a_state_of_fixed_size_are_two_values() -> None:
    """Under the assumption they are one, and one alone can be left to TensorFlow where it fails."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], name="x")
        state = tf.compat.v1.placeholder(tf.float32, [4, 64], name="state")
        both = [tf.exp(x), tf.exp(state)]
        change = tf.gradients(tf.reduce_sum(tf.sin(tf.add(*both))), both)
        names = [tf.tanh(one, name=f"of{n}").op.name for n, one in enumerate(change)]
        names += [tf.identity(one, name=f"as{n}").op.name for n, one in enumerate(change)]
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, names)
    functions = {region.name: subgraph(cut, region) for region in cut.regions}
    modules = {name: lower(function).module for name, function in functions.items()}
    made = compile_regions(modules, host_device(), BuildOptions())
    chosen = [
        (region, functions[region.name], program(made, region.name, host_device()))
        for region in cut.regions
    ]
    assert chosen and patch(cut, chosen)[1] == {}


@pytest.mark.parametrize(
    ("batch", "broadcasts", "checks"),
    [(None, True, {"x", "y"}), (None, False, {"x"}), (4, True, {"x", "y"})],
)
def test_a_launch_checks_whatever_an_assumption_is_known_from(
    batch: int | None, broadcasts: bool, checks: set[str]
) -> None:
    """A kernel reads x alone; of y its region looks at the batch, by shape arithmetic. Both have
    one batch because a product demands it, or because it broadcasts and that is assumed: they are
    equal, or that of y is the number that x has."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [batch, 64, 64], name="x")
        y = tf.compat.v1.placeholder(tf.float32, [None, 64, 32], name="y")
        product = tf.raw_ops.BatchMatMulV2 if broadcasts else tf.raw_ops.BatchMatMul
        product(x=x, y=y, name="product")
        tf.multiply(tf.tanh(x), tf.cast(tf.shape(y)[0], tf.float32), name="result")
        definition = graph.as_graph_def(add_shapes=True)
    cut = partition(definition, ["result", "product"])
    assert bool(cut.sizes.assumed or cut.sizes.supposed) is broadcasts
    written, _ = patched(cut)
    names = digest.number(cut.request, cut.preserve).ids
    ids = {f"{number}:0": name for name, number in names.items()}
    for node in added(written):
        if node.op == "StitchedFusion":
            attributes = node_def_pb2.NodeDef.FromString(base64.b64decode(node.attr)).attr
            inputs = checked_inputs(iter(attributes["table"].list.i))
            assert {ids[node.inputs[number]] for number in inputs} == checks
