"""A launch whose kernel cannot run is done by the region's own operations: any launch, alone.

Regions are cut into one kernel for each instruction, so that most of what launches hand on is no
tensor of the graph; each kernel fails once, at its first call and in a later one.
"""

from __future__ import annotations

import base64
import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.core.framework import function_pb2

from stitchcore.artifact import package
from stitchcore.compiler.regions import compile_regions
from stitchcore.compiler.regions import program as program_of
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.errors import Refusal
from stitchcore.inject import client, digest, patch, plugin, program, reasons
from stitchcore.launch.place import Temporary
from stitchcore.tensorflow import rehearsal
from stitchcore.tensorflow.fallback import library, with_fallbacks
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.partition import partition
from stitchcore.tensorflow.patch import patch as patch_of
from stitchcore.verify.tolerance import between, input_units

STEPS = 3
KEPT = ("result", "kept", "update")


def step(batch: int | None, left: bool = False) -> Any:
    """Softmax, a value that the graph reads in the middle, a loss, and an update of a variable;
    behind an operation that stays TensorFlow's, if it is to be `left`."""
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.ones([64]), name="v", shape=[64])
        x = tf.compat.v1.placeholder(tf.float32, [batch, 64], "x")
        x = tf.raw_ops.CheckNumerics(tensor=x, message="") if left else x
        power = tf.exp(x - tf.reduce_max(x, 1, keepdims=True))
        share = power / tf.reduce_sum(power, 1, keepdims=True)
        moved = tf.tanh(share * 8.0 + variable)
        tf.identity(share, name="kept")
        tf.reduce_mean(moved * moved, name="result")
        change = 0.1 * tf.reduce_sum(moved, 0)
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change, name="update")
    definition = graph.as_graph_def(add_shapes=True)
    return tf.compat.v1.graph_util.extract_sub_graph(definition, list(KEPT))


@dataclass(frozen=True)
class Stitched:
    """A patched graph, its kernels' keys, and the plug-in that has them."""

    graph: Any
    keys: tuple[str, ...]
    handed_on: int
    native: plugin.Plugin
    refused: Mapping[str, Refusal]
    functions: Any


def limits_of(region: Any) -> tuple[list[float], list[float], list[float]]:
    module, patterns = region.module, region.plan.patterns
    made = [value for pattern in patterns for value in pattern.outputs]
    return between(module), input_units(module), between(module, made)


def stitched(graph: Any, some: bool = False) -> Stitched:
    """Of all regions, or of those that are not refused."""
    cut = partition(graph, KEPT)
    functions = {region.name: subgraph(cut, region) for region in cut.regions}
    modules = {name: lower(function).module for name, function in functions.items()}
    compiled = compile_regions(modules, host_device(), BuildOptions(planner="single"))
    programs = {
        region.name: with_fallbacks(
            functions[region.name],
            program_of(compiled, region.name, host_device()),
            len(region.updates),
            *limits_of(compiled.regions[region.name]),
        )
        for region in cut.regions
    }
    chosen = [(region, functions[region.name], programs[region.name]) for region in cut.regions]
    written, refused = patch_of(cut, chosen)
    assert not refused or (some and written.regions)
    native = rehearsal._native()
    assert isinstance(native, plugin.Plugin), native
    manifest = {
        "target": "cpu",
        "kernels": msgspec.to_builtins(list(package.kernel_entries(programs.values()))),
        "functions": package.packed_functions(library(programs.values())),
    }
    functions = function_pb2.FunctionDefLibrary.FromString(library(programs.values()))
    libraries = tuple(one.data for one in compiled.libraries)
    keys = program.load_kernels(native, client.Artifact(manifest, libraries))
    native.retire(keys, False)  # another test of this process may have had them fail
    numbering = digest.number(graph, KEPT)
    types = rehearsal.types_of(graph)
    document = msgspec.to_builtins(written)
    done = patch.apply(graph, numbering, document, "abc", KEPT, types)
    assert not done.taken_back
    launches = [launch for one in programs.values() for launch in one.launches]
    handed_on = sum(-1 in launch.fallback.results for launch in launches if launch.fallback)
    return Stitched(
        done.graph,
        tuple(sorted(k for k in keys if ":" in k)),
        handed_on,
        native,
        refused,
        functions,
    )


def runs(graph: Any, batches: list[int]) -> list[Any]:
    """What each step gives, and the variable after it."""
    handle = next(node.name for node in graph.node if node.op == "VarHandleOp")
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as whole, tf.compat.v1.Session(config=config) as session:
        tf.import_graph_def(graph, name="")
        resource = whole.get_tensor_by_name(f"{handle}:0")
        start = np.linspace(-1, 1, 64).astype(np.float32)
        session.run(tf.raw_ops.AssignVariableOp(resource=resource, value=start))
        value = tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.float32)
        update = whole.get_operation_by_name("update")
        results = []
        for number, batch in enumerate(batches):
            data = np.random.default_rng(number).normal(size=(batch, 64)).astype(np.float32)
            values = session.run(["result:0", "kept:0", update], {"x:0": data})
            results.append((*values[:2], session.run(value)))
        return results


def same(graph: Any, other: Any, batches: list[int]) -> None:
    for ours, theirs in zip(runs(graph, batches), runs(other, batches), strict=True):
        for mine, wanted in zip(ours, theirs, strict=True):
            assert mine.shape == wanted.shape
            np.testing.assert_allclose(mine, wanted, rtol=2e-5, atol=1e-6)


def test_what_passes_between_launches_may_be_off_by_more_than_a_unit() -> None:
    """The function makes it anew: only a tensor of the graph is one value for both."""
    cut = partition(step(32), KEPT)
    [region] = [region for region in cut.regions if cut.graph.number["Exp"] in region.members]
    function = subgraph(cut, region)
    modules = {"r": lower(function).module}
    compiled = compile_regions(modules, host_device(), BuildOptions(planner="single"))
    made = program_of(compiled, "r", host_device())
    limits = limits_of(compiled.regions["r"])
    whole = with_fallbacks(function, made, len(region.updates), *limits)
    given = len(region.results)
    tensors = {output.place for output in whole.outputs[:given]}
    seen: dict[bool, set[float]] = {True: set(), False: set()}
    for launch in whole.launches:
        assert launch.fallback is not None
        for place, unit in zip(launch.inputs, launch.fallback.units, strict=True):
            if isinstance(place, Temporary):
                seen[place in tensors].add(unit)
    assert seen[True] == {0.0}
    assert len(seen[False]) > 1 and min(seen[False]) > 2.0**-23


@pytest.mark.slow
@pytest.mark.parametrize("batch", [32, None])
def test_any_launch_may_fail(batch: int | None) -> None:
    graph = step(batch)
    batches = [32] * STEPS if batch else [32, 7, 19]
    program = stitched(graph)
    assert len(program.keys) > 4 and program.handed_on > 2
    same(program.graph, graph, batches)
    before = failures(program)
    for key in program.keys:
        for point in ("launch", "guard", "throw"):
            for occasion in (1, 2):
                # All of them: one whose input is another's own value fails with that one, and would
                # not come to its own fault.
                program.native.retire(program.keys, False)
                program.native.arm_fault(point, key, occasion)
                same(program.graph, graph, batches)
    failed = failures(program)
    assert all(failed[key] >= before[key] + 6 for key in program.keys)
    program.native.retire(program.keys, False)
    same(program.graph, graph, batches)
    assert failures(program) == failed, "each fault has come"


def gradients(x: Any, state: Any) -> Any:
    """Of both operands of a sum: one value where neither is broadcast."""
    return tf.concat(tf.gradients(tf.reduce_sum(tf.sin(x + state)), [x, state]), 0)


KINDS: Mapping[str, Callable[[Any, Any], Any]] = {
    "computed": lambda x, rows: tf.tanh(2.0 * x),
    "ensured": lambda x, rows: tf.tanh(2.0 * tf.ensure_shape(x, [4, None])),
    "ensured and given on": lambda x, rows: tf.ensure_shape(x, [4, None]),
    "given on": lambda x, rows: tf.reshape(x, [-1, rows, 64]),
    "in another shape": lambda x, rows: tf.reshape(tf.tanh(2.0 * x), [rows, 8, 8]),
    "in two shapes": lambda x, rows: tf.reshape(tf.exp(tf.tanh(x)), [8, rows, -1]),
    "a constant": lambda x, rows: tf.one_hot(0, rows),
    "of the number": lambda x, rows: tf.stack([rows, 2 * rows]),
    "as long as it": lambda x, rows: tf.range(rows) + 1,
    "looked up": lambda x, rows: tf.gather(tf.tanh(x), tf.minimum(rows, 5) - 1),
    "gradients": lambda x, rows: gradients(x, tf.fill([4, 64], 0.5)),
    "summed by rows": lambda x, rows: tf.math.unsorted_segment_sum(x, tf.range(rows), rows),
}
"""What else a step gives of a batch x that is taken for four rows."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_not_the_number_it_was_taken_for(kind: str) -> None:
    """The state has four rows. One row meets them as well, unless four are ensured; any other
    number is TensorFlow's error."""
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.ones([64]), name="v", shape=[64])
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        rows = tf.shape(x)[0]
        state = tf.tanh(tf.fill([4, 64], 0.5) + x * variable)
        tf.identity(KINDS[kind](x, rows), name="kept")
        tf.reduce_mean(state * state / tf.cast(rows, tf.float32), name="result")
        change = 0.1 * tf.reduce_sum(state, 0)
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change, name="update")
    definition = graph.as_graph_def(add_shapes=True)
    step = tf.compat.v1.graph_util.extract_sub_graph(definition, list(KEPT))
    cut = partition(step, KEPT)
    assert ("x", 0) in cut.sizes.supposed
    program = stitched(step, some=True)
    # A verifier of indices runs before the region, whatever then becomes of that.
    assert bool(program.refused) is (kind == "looked up")
    before = failures(program)
    same(program.graph, step, [4, 4])
    assert failures(program) == before
    ensured = "ensured" in kind
    if not ensured:
        same(program.graph, step, [4, 1, 4])
        assert failures(program) != before or program.refused
    demands = "is not compatible with expected shape"
    errors = {1: demands, 3: f"{demands}|Incompatible shapes"} if ensured else {}
    for other, error in (errors or {3: "Incompatible shapes"}).items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=error):
            runs(step, [4, other])
        with pytest.raises(tf.errors.InvalidArgumentError, match=error):
            runs(program.graph, [4, other])


def checked(x: Any) -> Any:
    """An operation that stays TensorFlow's."""
    return tf.raw_ops.CheckNumerics(tensor=x, message="")


HALVES: Mapping[str, Callable[[Any, Any], Any]] = {
    "a part": lambda evens, odds: checked(tf.tanh(evens)[: tf.shape(odds)[0]]) + checked(odds),
    "a part of what is given": lambda evens, odds: (
        checked(evens[: tf.shape(odds)[0]]) + tf.tanh(checked(odds))
    ),
    "gradients": lambda evens, odds: tf.concat(
        tf.gradients(tf.reduce_sum(tf.sin(evens + odds)), [evens, odds]), 0
    ),
    "each gradient": lambda evens, odds: tf.concat(
        [checked(g) for g in tf.gradients(tf.reduce_sum(tf.sin(evens + odds)), [evens, odds])], 0
    ),
    "of one shape": lambda evens, odds: checked(tf.tanh(evens) * 2.0) + tf.zeros_like(odds),
}
"""What meets the other half of a batch: as many rows, it is assumed."""


@pytest.mark.parametrize("kind", HALVES)
def test_halves_of_which_one_has_a_row_more(kind: str) -> None:
    """Two rows meet one all the same: it is broadcast."""
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.ones([64]), name="v", shape=[64])
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        evens, odds = checked(x[::2]), checked(x[1::2])
        made = HALVES[kind](evens * variable, odds)
        tf.identity(made, name="kept")
        tf.reduce_sum(tf.sin(made) * made, name="result")
        change = 1e-3 * tf.reduce_sum(made, 0)
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change, name="update")
    definition = graph.as_graph_def(add_shapes=True)
    step = tf.compat.v1.graph_util.extract_sub_graph(definition, list(KEPT))
    program = stitched(step, some=True)
    same(program.graph, step, [20, 3, 20, 2])
    if "part" in kind:
        same(program.graph, step, [7, 20, 1])


TABLE = np.random.default_rng(0).normal(size=(200, 64)).astype(np.float32)
PARTS: Mapping[str, tuple[Callable[[Any, Any], Any], list[int]]] = {
    "of a table": (lambda x, n: x + tf.exp(TABLE)[:n], [230]),
    "of a small table": (lambda x, n: x + tf.exp(TABLE[:20])[:n], [23]),
    "but for the first": (lambda x, n: tf.tanh(x)[7:], [3]),
    "but for the last": (lambda x, n: tf.tanh(x)[:-7], [3]),
    "the last": (lambda x, n: tf.tanh(x)[-7:], [3]),
    "from a place on": (lambda x, n: tf.tanh(x) + tf.exp(TABLE)[5 : n + 5], [198]),
    "windows": (lambda x, n: tf.tanh(x)[2:] - tf.tanh(x)[:-2], [1, 2]),
}
"""What a step reads of parts of tensors, and sizes of the batch where these are cut short."""


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_that_does_not_lie_within_its_tensor(kind: str) -> None:
    """A kernel would read what lies behind it, where TensorFlow raises an error or takes less."""
    part, sizes = PARTS[kind]
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.ones([64]), name="v", shape=[64])
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        made = tf.tanh(part(x * variable, tf.shape(x)[0]) * 2.0)
        tf.identity(made, name="kept")
        tf.reduce_sum(made * made, name="result")
        change = 1e-3 * tf.reduce_sum(made, 0)
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change, name="update")
    definition = graph.as_graph_def(add_shapes=True)
    step = tf.compat.v1.graph_util.extract_sub_graph(definition, list(KEPT))
    program = stitched(step)
    before = failures(program)
    same(program.graph, step, [20, 20 if kind == "of a small table" else 190, 11])
    assert failures(program) == before
    for size in sizes:
        if size < 20:
            same(program.graph, step, [20, size, 20])
            continue
        for either in (step, program.graph):
            with pytest.raises(tf.errors.InvalidArgumentError, match="Incompatible shapes"):
                runs(either, [20, size])


FOLLOWING: Mapping[str, Callable[[Any, Any], Any]] = {
    "given": lambda x, mean: tf.identity(mean),
    "given in another shape": lambda x, mean: tf.reshape(mean, [8, 8]),
    "made by the writer": lambda x, mean: tf.sin(mean) * 2.0,
    "made beside it": lambda x, mean: tf.cos(x) + tf.exp(x),
    "a constant": lambda x, mean: tf.constant([1.0, 2.0]) * 3.0,
    "the new value": lambda x, mean: None,
}
"""What a step gives once it has written a variable."""


@pytest.mark.parametrize("kind", FOLLOWING)
def test_who_asks_for_what_follows_a_write_asks_for_the_write(kind: str) -> None:
    """Moving averages by hand, as in TensorFlow 1: nothing but a control edge asks for them."""
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.zeros([64]), name="v", shape=[64])
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        mean = tf.raw_ops.CheckNumerics(tensor=tf.reduce_mean(tf.sin(x), 0), message="")
        change = 0.1 * (variable - mean * tf.cos(mean))
        write = tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change)
        with tf.control_dependencies([write]):
            found = FOLLOWING[kind](x, mean)
            read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
            found = 2.0 * read if found is None else found
            tf.raw_ops.CheckNumerics(tensor=found, message="", name="kept")
        tf.identity(tf.tanh(mean) * 2.0, name="result")
        tf.no_op(name="update")
    definition = graph.as_graph_def(add_shapes=True)
    step = tf.compat.v1.graph_util.extract_sub_graph(definition, list(KEPT))

    def after(graph: Any) -> tuple[Any, Any]:
        with tf.Graph().as_default() as whole, tf.compat.v1.Session() as session:
            tf.import_graph_def(graph, name="")
            handle = next(node.name for node in graph.node if node.op == "VarHandleOp")
            resource = whole.get_tensor_by_name(f"{handle}:0")
            zeros = np.zeros(64, np.float32)
            session.run(tf.raw_ops.AssignVariableOp(resource=resource, value=zeros))
            data = np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32)
            kept = session.run("kept:0", {"x:0": data})
            value = tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.float32)
            return kept, session.run(value)

    for ours, wanted in zip(after(stitched(step).graph), after(step), strict=True):
        assert np.abs(wanted).max() > 0
        np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=1e-6)


def test_a_fallback_takes_tensors_of_any_size() -> None:
    """It is called where sizes are others than they were taken for."""
    program = stitched(step(32))
    sizes = [
        dim.size
        for function in program.functions.function
        for argument in function.arg_attr.values()
        for shape in argument.attr["_output_shapes"].list.shape
        for dim in shape.dim
    ]
    assert sizes and {*sizes} == {-1}


def failures(program: Stitched) -> Counter[str]:
    """How often each kernel has failed."""
    times: Counter[str] = Counter()
    for failure in program.native.failures():
        times[failure.kernel] += failure.times
    return times


def test_all_launches_may_be_put_aside() -> None:
    graph = step(None)
    program = stitched(graph)
    left = program.native.counters()["left_to_functions"]
    program.native.retire(program.keys)
    same(program.graph, graph, [32, 7, 19])
    program.native.retire(program.keys, False)
    assert program.native.counters()["left_to_functions"] >= left + 3 * len(program.keys)


def test_a_shape_function_may_not_take_an_unknown_size() -> None:
    """That of a matrix of given size with a given diagonal; its kernel does."""
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(tf.ones([64]), name="v", shape=[64])
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], "x")
        square = tf.linalg.diag(tf.tanh(variable), num_rows=64, num_cols=64) + tf.eye(64)
        tf.identity(tf.sin(x) * tf.reduce_sum(square, 0), name="kept")
        tf.reduce_sum(square * square, name="result")
        change = 0.1 * tf.reduce_sum(square, 1)
        tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=change, name="update")
    definition = graph.as_graph_def(add_shapes=True)
    step = tf.compat.v1.graph_util.extract_sub_graph(definition, list(KEPT))
    program = stitched(step)
    same(program.graph, step, [32, 7])
    for function in program.functions.function:
        told = [*function.arg_attr.values(), *function.node_def]
        shapes = [one.attr["_output_shapes"].list.shape for one in told]
        assert all(dim.size < 0 for shape in shapes for one in shape for dim in one.dim)
    try:
        program.native.retire(program.keys)
        same(program.graph, step, [32, 7])
    finally:
        program.native.retire(program.keys, False)


@pytest.mark.parametrize("left", [False, True])
def test_what_enters_may_have_other_sizes_than_grappler_says(left: bool) -> None:
    """Grappler takes for true what some operation demands: that one may be in a region, or may
    never run. It says so of what comes out of an operation that is left to TensorFlow too."""
    graph = step(32, left)
    program = stitched(graph)
    given = [copy.deepcopy(one) for one in (program.graph, graph)]
    for one in given:
        for node in one.node:
            node.attr.pop("_output_shapes", None)
            if node.name == "x":
                node.attr["shape"].shape.dim[0].size = -1
    same(*given, [32, 7, 45])


@pytest.mark.parametrize("spoiled", ["###", "garbage", "cut", "no_library"])
def test_functions_that_are_damaged_are_refused_before_a_kernel_is_loaded(spoiled: str) -> None:
    native = rehearsal._native()
    assert isinstance(native, plugin.Plugin), native
    whole = package.packed_functions(b"\x0a\x04" + b"word" * 100)
    texts = {"###": "###", "garbage": base64.b64encode(b"no zlib").decode(), "no_library": whole}
    texts["cut"] = base64.b64encode(base64.b64decode(whole)[:-6]).decode()
    manifest = {"target": "cpu", "kernels": [], "functions": texts[spoiled]}
    with pytest.raises(reasons.Refused, match="functions") as refused:
        program.load_kernels(native, client.Artifact(manifest, ()))
    assert refused.value.reason == reasons.BAD_ARTIFACT
