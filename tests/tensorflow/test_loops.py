"""In loops and branches all that a patch adds runs where its region runs; variables keep their
order from pass to pass. TensorFlow runs the patched graphs, with constants for the regions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from stitchcore.errors import Reason
from stitchcore.inject import reasons
from stitchcore.tensorflow.graph import GraphIndex, index
from stitchcore.tensorflow.partition import Partition, Region, partition
from stitchcore.tensorflow.patch import _RegionPatch
from stitchcore.tensorflow.shape_inference import infer_shapes
from tests.tensorflow.graphs import pruned
from tests.tensorflow.standing_in import attempted, stood_in

v1 = tf.compat.v1
SHAPE = (64, 128)


def square(name: str) -> Any:
    return v1.get_variable(name, initializer=np.ones(SHAPE, np.float32), use_resource=True)


@contextlib.contextmanager
def lowered() -> Iterator[Any]:
    """A graph whose loops and conditionals are Enter, Merge and Switch, as Grappler shows them."""
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            yield graph
    finally:
        v1.enable_control_flow_v2()


def looped(body: Callable[..., Any], *names: str) -> Any:
    """A graph with a while loop over `body(pass, value, *variables)`, and its result."""
    with lowered() as graph:
        variables = [square(name) for name in names]
        x = v1.placeholder(tf.float32, SHAPE, name="x")

        def step(i: tf.Tensor, y: tf.Tensor) -> Any:
            value = body(i, y, *variables)
            with tf.control_dependencies([value]):
                return i + 1, value

        tf.identity(v1.while_loop(lambda i, _: i < 3, step, [0, x])[1], name="out")
    return graph


def cut_of(graph: Any) -> Partition:
    return partition(pruned(graph, ["out"]), ["out"])


def floats(cut: Partition) -> Callable[[Region], bool]:
    """Regions that do not count a loop's passes."""

    def chosen(region: Region) -> bool:
        return all(cut.graph.dtype(result) == "float32" for result in region.results)

    return chosen


def ran(cut: Partition, value: float = 0.5) -> tuple[Any, list[Any]]:
    """The result and the variables after one run of the patched graph."""
    patched = stood_in(cut, value, floats(cut))
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(patched, name="")
        names = sorted(node.name for node in patched.node if node.op == "VarHandleOp")
        ones = tf.ones(SHAPE)
        handles = [graph.get_tensor_by_name(f"{name}:0") for name in names]
        reads = [tf.raw_ops.ReadVariableOp(resource=h, dtype=tf.float32) for h in handles]
        initialize = [tf.raw_ops.AssignVariableOp(resource=h, value=ones) for h in handles]
    options = v1.ConfigProto()  # as Grappler left it
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    with v1.Session(graph=graph, config=options) as session:
        session.run(initialize)
        result = session.run("out:0", {"x:0": np.zeros(SHAPE, np.float32)})
        return result, session.run(reads)


def bodies(cut: Partition) -> list[Region]:
    return [r for r in cut.regions if cut.graph.frames[r.members[0]] and floats(cut)(r)]


def misplaced(cut: Partition) -> set[str]:
    """Regions of which something was added in another frame, or that is dead elsewhere; those that
    the job's check of the whole takes back among them."""
    done = attempted(cut, chosen=floats(cut))
    patched = index(done.graph)

    def place(graph: GraphIndex, i: int) -> Any:
        taken = {(graph.nodes[p[0]].name, *p[1:]) for p in graph.deadness[i]}
        return graph.frames[i], taken

    places = {region.name: place(cut.graph, region.members[0]) for region in cut.regions}
    added = [(i, n.name.split("/")[-1]) for i, n in enumerate(patched.nodes) if "stitch/" in n.name]
    return set(done.taken_back) | {
        region
        for i, name in added
        for region, wanted in places.items()
        if name.startswith(f"{region}_") and place(patched, i) != wanted
    }


def training(i: tf.Tensor, y: tf.Tensor, variable: Any) -> tf.Tensor:
    del i
    z = tf.tanh(y) * variable.read_value()
    with tf.control_dependencies([z]):
        update = variable.assign_sub(tf.exp(z) * 0.1, read_value=False)
    with tf.control_dependencies([update]):
        return tf.matmul(z, z, transpose_a=True)[:64]


def test_a_variable_is_updated_in_a_loop() -> None:
    """Constants, handles and control edges are in the loop's frame."""
    cut = cut_of(looped(training, "weight"))
    assert any(region.updates for region in bodies(cut))
    assert misplaced(cut) == set()
    _, variables = ran(cut, 0.25)
    np.testing.assert_array_equal(variables[0], np.full(SHAPE, 0.25, np.float32))


@pytest.mark.parametrize(
    ("broken", "instead"),
    [
        ("_own_handles", lambda self: {edge: edge for edge in self.region.variables}),
        ("_in_place", lambda self, controls: []),
    ],
)
def test_without_either_the_frames_are_mixed(
    broken: str, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = cut_of(looped(training, "weight"))
    monkeypatch.setattr(_RegionPatch, broken, instead)
    monkeypatch.setattr(_RegionPatch, "_controls_in", lambda self, removed: [])
    with pytest.raises((tf.errors.InvalidArgumentError, reasons.Refused)):
        ran(cut)


def test_what_a_region_makes_of_constants_alone_runs_in_each_pass() -> None:
    """Zeros like a tensor of the loop need nothing of it but its frame."""

    def body(i: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        del i
        product = tf.matmul(y, y, transpose_a=True)[:64]
        return tf.matmul(tf.exp(tf.zeros_like(product)) + 1.0, product, transpose_b=True) @ product

    cut = cut_of(looped(body))
    assert bodies(cut)
    result, _ = ran(cut)
    assert result.shape == SHAPE


def branched(i: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    taken = lambda: tf.tanh(tf.zeros_like(y)) + 1.0  # noqa: E731
    other = lambda: tf.exp(y) * 2.0  # noqa: E731
    return tf.cond(tf.equal(i % 2, 0), taken, other)


def test_a_branch_in_a_loop_is_dead_where_it_is_not_taken() -> None:
    """Else a Merge would get two values that are both alive."""
    cut = cut_of(looped(branched))
    dead = [region for region in bodies(cut) if len(cut.graph.deadness[region.members[0]]) > 1]
    assert len(dead) == 2
    assert misplaced(cut) == set()
    assert ran(cut)[0].shape == SHAPE


def cases() -> Any:
    """One of three, as an index says."""
    spec = [tf.TensorSpec(SHAPE, name="x"), tf.TensorSpec([], tf.int32, name="which")]

    @tf.function(input_signature=spec, autograph=False)
    def chosen(x: tf.Tensor, which: tf.Tensor) -> tf.Tensor:
        functions = (tf.tanh, tf.exp, tf.sin)
        branches = [lambda f=f: tf.sqrt(f(x) + 2.0) for f in functions]
        return tf.identity(tf.switch_case(which, branches), name="out")

    frozen = convert_variables_to_constants_v2(
        chosen.get_concrete_function(), lower_control_flow=True
    )
    return frozen.graph


def placed() -> tuple[Partition, list[Region]]:
    cut = partition(cases().as_graph_def(add_shapes=True), ["Identity"])
    assert any(node.op == "_SwitchN" for node in cut.graph.nodes)
    return cut, [region for region in cut.regions if floats(cut)(region)]


def test_each_of_several_cases_is_dead_where_it_is_not_taken() -> None:
    cut, regions = placed()
    assert len(regions) == 3
    assert all(len(cut.graph.deadness[member]) == 1 for r in regions for member in r.members)
    done = attempted(cut, chosen=lambda region: region in regions)
    assert not done.taken_back


def test_a_merge_is_alive_whichever_branch_it_waits_for() -> None:
    """What follows a branch with effects waits for those of all branches."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [8], name="x")
        off, on = tf.raw_ops.Switch(data=x, pred=v1.placeholder(tf.bool, []))
        ends = [tf.raw_ops.CheckNumerics(tensor=way, message="") for way in (off, on)]
        made = [tf.exp(off), tf.sin(on)]
        with tf.control_dependencies(ends):
            merged = tf.raw_ops.Merge(inputs=made).output
        tf.tanh(merged, name="after")
    found = index(graph.as_graph_def(add_shapes=True))
    taken = {node.name: found.deadness[i] for i, node in enumerate(found.nodes)}
    assert not taken["Merge"] and not taken["after"]
    assert taken["Exp"] and taken["Sin"] and taken["Exp"] != taken["Sin"]


def test_else_regions_of_several_cases_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stitchcore.tensorflow.graph.SWITCHES", frozenset({"Switch"}))
    assert len(placed()[1]) == 1


def test_a_region_that_is_not_dead_with_its_branch_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = cut_of(looped(branched))

    def anywhere(self: _RegionPatch, controls: Any) -> list[str]:
        """In the loop's frame, but where its counter is alive."""
        counter = self.graph.number["while/Merge"]
        return [f"^{self.builder.id(counter)}", *controls]

    monkeypatch.setattr(_RegionPatch, "_in_place", anywhere)
    monkeypatch.setattr(_RegionPatch, "_controls_in", lambda self, removed: [])
    with pytest.raises(reasons.Refused, match="is not alive in the branches in which it was"):
        attempted(cut, chosen=lambda region: region in bodies(cut))


def test_a_loop_in_a_loop_reads_what_the_outer_one_writes() -> None:
    def body(i: tf.Tensor, y: tf.Tensor, variable: Any) -> tf.Tensor:
        del i

        def refine(k: tf.Tensor, z: tf.Tensor) -> Any:
            z = tf.tanh(z * variable.read_value()) + 0.5
            with tf.control_dependencies([z]):
                return k + 1, tf.matmul(z, z, transpose_a=True)[:64]

        z = v1.while_loop(lambda k, _: k < 2, refine, [0, y])[1]
        with tf.control_dependencies([z]):
            change = tf.exp(z) * 0.1
            update = variable.assign_sub(change, read_value=False)
        with tf.control_dependencies([update]):
            return tf.matmul(z, change, transpose_a=True)[:64]

    cut = cut_of(looped(body, "weight"))
    depths = {cut.graph.frames[region.members[0]].count("/") for region in bodies(cut)}
    assert len(depths) == 2
    (update,) = (region for region in bodies(cut) if region.updates)
    assert not update.reads
    assert misplaced(cut) == set()
    _, variables = ran(cut, 0.25)
    np.testing.assert_array_equal(variables[0], np.full(SHAPE, 0.25, np.float32))


def variable_reasons(cut: Partition) -> set[Reason]:
    return {r.reason for r in cut.refusals if r.subject == "weight"}


def test_writes_that_the_next_pass_does_not_wait_for_refuse_the_variable() -> None:
    """Only the counter says when the next pass begins: it may read before the last has written."""

    def graph(waits: bool) -> Any:
        with lowered() as lowered_graph:
            variable = square("weight")
            x = v1.placeholder(tf.float32, SHAPE, name="x")

            def step(i: tf.Tensor, y: tf.Tensor) -> Any:
                value = variable.read_value()
                changed = tf.exp(value) + tf.tanh(y)
                update = variable.assign(changed, read_value=False)
                with tf.control_dependencies([update]):
                    y = tf.identity(y)
                with tf.control_dependencies([update] if waits else []):
                    return i + 1, y

            tf.identity(v1.while_loop(lambda i, _: i < 3, step, [0, x])[1], name="out")
        return lowered_graph

    assert variable_reasons(cut_of(graph(waits=True))) == set()
    assert variable_reasons(cut_of(graph(waits=False))) == {Reason.UNORDERED_VARIABLE}


def test_a_read_in_a_loop_that_a_later_write_waits_for_is_ordered() -> None:
    """The loop's result is what the write waits for; without that the two have no order."""

    def graph(waits: bool) -> Any:
        with lowered() as lowered_graph:
            variable = square("weight")
            x = v1.placeholder(tf.float32, SHAPE, name="x")

            def step(i: tf.Tensor, y: tf.Tensor) -> Any:
                return i + 1, tf.tanh(y * variable.read_value()) + 0.5

            last = v1.while_loop(lambda i, _: i < 3, step, [0, x])[1]
            change = tf.exp(last if waits else x) * 0.1
            with tf.control_dependencies([variable.assign_sub(change, read_value=False)]):
                tf.identity(last, name="out")
        return lowered_graph

    assert variable_reasons(cut_of(graph(waits=True))) == set()
    assert variable_reasons(cut_of(graph(waits=False))) == {Reason.UNORDERED_VARIABLE}


def test_the_shape_of_a_variable_in_a_loop_is_a_constant_of_its_frame() -> None:
    def shaped(i: tf.Tensor, y: tf.Tensor, variable: Any) -> tf.Tensor:
        del i
        sizes = tf.raw_ops.VariableShape(input=variable.handle, out_type=tf.int32)
        return y + tf.exp(tf.fill(sizes, 0.5))

    definition = pruned(looped(shaped, "weight"), ["out"])
    (before,) = (node for node in definition.node if node.op == "VariableShape")
    (after,) = (node for node in infer_shapes(definition).node if node.name == before.name)
    assert after.op == "Const"
    assert f"^{before.input[0]}" in after.input
    cut = partition(definition, ["out"])
    assert bodies(cut)
    assert ran(cut)[0].shape == SHAPE


def test_a_loop_that_another_ones_pass_closes_ends_nothing() -> None:
    """TensorFlow makes none; a damaged request may hold one."""
    with lowered() as graph:
        variable, y = square("a"), v1.placeholder(tf.float32, SHAPE, name="x")

        def step(i: Any, y: Any) -> Any:
            value = tf.tanh(y) * variable.read_value()
            with tf.control_dependencies([variable.assign(value)]):
                return i + 1, tf.identity(value)

        for _ in range(2):
            _, y = v1.while_loop(lambda i, _: i < 3, step, [0, y])
        tf.identity(y, name="out")
    damaged = pruned(graph, ["out"])
    merges = [node for node in damaged.node if node.op == "Merge"]
    back = {merge.name: merge.input[1] for merge in merges}
    for merge in merges:
        if merge.name.startswith("while/"):
            merge.input[1] = back[merge.name.replace("while/", "while_1/")]
    assert partition(damaged, ["out"]).graph.frames
