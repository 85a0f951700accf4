"""Lookups in regions: their indices come from before, and are verified before any launch runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.compiler.regions import compile_regions, program
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.errors import Reason
from stitchcore.hlo.ir.dim import symbols_of
from stitchcore.inject import digest, redact
from stitchcore.inject import patch as job_patch
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.partition import Partition, partition
from stitchcore.tensorflow.patch import patch
from tests.tensorflow.graphs import pruned

ROWS, WIDTH = 900, 80


def cut(model: Callable[..., tf.Tensor], *specs: tf.TensorSpec, kind: str = "cpu") -> Partition:
    """The partition of a graph that computes `model` of placeholders."""
    graph = tf.Graph()
    with graph.as_default():
        inputs = [tf.compat.v1.placeholder(one.dtype, one.shape, one.name) for one in specs]
        tf.identity(model(*inputs), name="result")
    return partition(pruned(graph, ["result"]), ["result"], kind=kind)


TABLE = tf.TensorSpec([ROWS, WIDTH], tf.float32, "table")
IDS = tf.TensorSpec([64, 4], tf.int32, "ids")


def looked_up(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.exp(tf.gather(table * 2.0, ids)) + 1.0


def region_of(parts: Partition, name: str) -> int:
    number = parts.graph.number[name]
    [owner] = [n for n, region in enumerate(parts.regions) if number in region.members]
    return owner


def reason(parts: Partition, operation: str = "GatherV2") -> Reason:
    names = {node.name for node in parts.graph.nodes if node.op == operation}
    [refusal] = [one for one in parts.refusals if one.subject in names]
    return refusal.reason


def test_a_lookup_is_a_member() -> None:
    parts = cut(looked_up, TABLE, IDS)
    assert region_of(parts, "GatherV2") == region_of(parts, "add") == region_of(parts, "mul")


def wrapped(ids: tf.Tensor) -> tf.Tensor:
    return tf.where(ids < 0, ids + ROWS, ids)


def doubled(ids: tf.Tensor) -> tf.Tensor:
    """Keeping what this is computed of holds no more than keeping it: it would move (levels.py)."""
    return (ids * 2) + 1


@pytest.mark.parametrize("computed", [wrapped, doubled])
def test_indices_that_the_step_computes_are_of_an_earlier_region(
    computed: Callable[[tf.Tensor], tf.Tensor],
) -> None:
    """They are verified before the region of the lookup starts."""
    parts = cut(lambda table, ids: looked_up(table, computed(ids)), TABLE, IDS)
    [gather] = [n for n, node in enumerate(parts.graph.nodes) if node.op == "GatherV2"]
    indices = parts.graph.nodes[parts.graph.data[gather][1].node].name
    assert region_of(parts, indices) < region_of(parts, "GatherV2")
    function = subgraph(parts, parts.regions[region_of(parts, "GatherV2")])
    assert {"int32", "float32"} == {argument.dtype for argument in function.arguments}


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (looked_up, (tf.TensorSpec([ROWS, 0], tf.float32), IDS), Reason.DATA_DEPENDENT_ERROR),
        (looked_up, (TABLE, tf.TensorSpec([64], tf.int16)), Reason.UNSUPPORTED_TYPE),
        (looked_up, (tf.TensorSpec([2**20 + 1, 15], tf.float32), IDS), Reason.MEMORY),
    ],
    ids=["empty rows", "type", "table too large"],
)  # fmt: skip
def test_what_cannot_be_verified_stays(
    model: Callable[..., tf.Tensor], given: tuple[tf.TensorSpec, ...], expected: Reason
) -> None:
    assert reason(cut(model, *given)) is expected


def test_a_large_table_is_taken_where_its_rows_are_larger() -> None:
    parts = cut(looked_up, tf.TensorSpec([2**20 + 1, 16], tf.float32), IDS)
    assert region_of(parts, "GatherV2") == region_of(parts, "add")


def test_a_lookup_that_its_indices_do_not_wait_for_stays() -> None:
    """In a branch that is not taken TensorFlow looks at no index."""

    def model(table: tf.Tensor, ids: tf.Tensor, taken: tf.Tensor) -> tf.Tensor:
        no, yes = tf.raw_ops.Switch(data=table * 2.0, pred=taken)
        chosen = tf.gather(yes, ids) * 2.0
        return tf.raw_ops.Merge(inputs=[chosen + 1.0, tf.gather(no, ids)])[0]

    parts = cut(model, TABLE, IDS, tf.TensorSpec([], tf.bool, "taken"))
    names = {node.name for node in parts.graph.nodes if node.op == "GatherV2"}
    refused = {one.subject: one.reason for one in parts.refusals if one.subject in names}
    assert refused == dict.fromkeys(names, Reason.CONTROL_FLOW)


def test_a_gpu_has_another_rule() -> None:
    graph = cut(looked_up, TABLE, IDS).request
    for node in graph.node:
        node.device = "/job:localhost/replica:0/task:0/device:GPU:0"
    assert reason(partition(graph, ["result"], kind="gpu")) is Reason.DATA_DEPENDENT_ERROR


VALUES = tf.TensorSpec([300, WIDTH], tf.float32, "values")
GROUPS = tf.TensorSpec([300], tf.int32, "groups")


def summed(values: tf.Tensor, groups: tf.Tensor, count: Any = 90) -> tf.Tensor:
    sums = tf.raw_ops.UnsortedSegmentSum(
        data=values * 2.0, segment_ids=groups, num_segments=count, name="sums"
    )
    return tf.exp(sums) + 1.0


@pytest.mark.parametrize(
    "given",
    [(VALUES, GROUPS), (VALUES, tf.TensorSpec([300], tf.int64)),
     (tf.TensorSpec([20, 15, WIDTH], tf.float32), tf.TensorSpec([20, 15], tf.int32))],
    ids=["int32", "int64", "two axes"],
)  # fmt: skip
def test_a_sum_by_segments_is_a_member(given: tuple[tf.TensorSpec, ...]) -> None:
    parts = cut(summed, *given)
    assert region_of(parts, "sums") == region_of(parts, "Exp") == region_of(parts, "mul")
    whole, [verifier] = patched(parts)
    assert verifier.op == "UnsortedSegmentSum"
    assert [node.name for node in whole.node if node.op == verifier.op] == [verifier.name]


def test_how_many_segments_there_are_may_be_of_either_type() -> None:
    """What verifies a sum is handed as many, of the sum's own type."""

    def model(values: tf.Tensor, groups: tf.Tensor) -> tf.Tensor:
        return summed(values, groups, tf.constant(90, tf.int64))

    whole, [verifier] = patched(cut(model, VALUES, GROUPS))
    assert verifier.attr["Tnumsegments"].type == tf.int64.as_datatype_enum
    made = {node.name: node for node in whole.node}
    assert made[verifier.input[2]].attr["dtype"].type == tf.int64.as_datatype_enum


def summed_by_id(values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """As an optimizer sums the rows that an embedding's gradient has of one id."""
    unique, groups = tf.unique(ids)
    return summed(values, groups, tf.shape(unique)[0])


def test_a_sum_of_as_many_segments_as_there_are_ids_is_a_member() -> None:
    """How many the data has is a size that begins there; its verifier asks the graph for it."""
    parts = cut(summed_by_id, VALUES, GROUPS)
    node = parts.graph.nodes[parts.graph.number["sums"]]
    rows = parts.sizes.dim(node.attr["_output_shapes"].list.shape[0].dim[0].size)
    assert rows is not None and symbols_of(rows) <= parts.sizes.assumed
    assert region_of(parts, "sums") == region_of(parts, "Exp") == region_of(parts, "mul")
    whole, [verifier] = patched(parts)
    assert verifier.input[2] == "strided_slice" in [node.name for node in whole.node]


def test_a_verifier_counts_segments_in_the_sums_own_type() -> None:
    """A ragged tensor's rows are counted in int64."""

    def model(values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        unique, groups = tf.unique(ids)
        return summed(values, groups, tf.size(unique, tf.int64))

    parts = cut(model, VALUES, GROUPS)
    whole, [verifier] = patched(parts)
    count = next(node for node in whole.node if node.name == verifier.input[2])
    kept = tf.dtypes.as_dtype(count.attr["out_type"].type)
    assert tf.dtypes.as_dtype(verifier.attr["Tnumsegments"].type) == kept == tf.int64


def test_a_sum_whose_count_waits_for_its_region_stays() -> None:
    """Grappler's constants carry control edges: a region may copy one that waits for itself, but
    its verifiers run before it."""

    def model(values: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        unique, groups = tf.unique(ids)
        doubled = tf.exp(values) * 2.0
        with tf.control_dependencies([doubled]):
            first = tf.constant([0])
        count = tf.strided_slice(tf.shape(unique), first, [1], shrink_axis_mask=1)
        return summed(doubled, groups, count)

    parts = cut(model, VALUES, GROUPS)
    assert reason(parts, "UnsortedSegmentSum") is Reason.CYCLE
    _, verifiers = patched(parts)
    assert not verifiers and parts.regions


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (summed, (VALUES, GROUPS, tf.TensorSpec([], tf.int32)), Reason.UNKNOWN_RANK),
        (summed, (tf.TensorSpec([300, None], tf.float32), GROUPS), Reason.DATA_DEPENDENT_ERROR),
        (lambda v, g: summed(v, g, 0), (VALUES, GROUPS), Reason.DATA_DEPENDENT_ERROR),
        (summed, (tf.TensorSpec([300, WIDTH], tf.float16), GROUPS), Reason.UNSUPPORTED_TYPE),
        (lambda v, g: summed(v, g, 2**19), (VALUES, tf.TensorSpec([300], tf.int64)),
         Reason.MEMORY),
    ],
    ids=["segments unknown", "width unknown", "no segment", "half", "verifier too large"],
)  # fmt: skip
def test_what_sum_cannot_be_verified_stays(
    model: Callable[..., tf.Tensor], given: tuple[tf.TensorSpec, ...], expected: Reason
) -> None:
    assert reason(cut(model, *given), "UnsortedSegmentSum") is expected


def patched(parts: Partition, more: Mapping[str, list[int]] = {}) -> tuple[Any, list[Any]]:
    """The graph with all regions' launches, by the job's own code, and its verifiers."""
    functions = [subgraph(parts, region) for region in parts.regions]
    modules = {f.key: lower(f).module for f in functions}
    device = host_device()
    compiled = compile_regions(modules, device, BuildOptions())
    chosen = [
        (region, function, program(compiled, function.key, device))
        for region, function in zip(parts.regions, functions, strict=True)
    ]
    numbering = digest.number(parts.request, parts.preserve)
    plain = as_plain(patch(parts, chosen)[0])
    types = {"result": [tf.float32.as_datatype_enum], "scatter": [], **more}
    applied = job_patch.apply(parts.request, numbering, plain, "test", parts.preserve, types)
    assert not applied.taken_back
    whole = applied.graph
    return whole, [node for node in whole.node if "_verify" in node.name]


def as_plain(message: Any) -> dict[str, Any]:
    return dict(msgspec.json.decode(msgspec.json.encode(message)))


def test_every_launch_waits_for_the_verifiers_of_its_region() -> None:
    def model(table: tf.Tensor, ids: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        first = tf.gather(table, ids) + tf.gather(table * 3.0, ids)
        return tf.nn.softmax(first + tf.gather(table, others)) * 2.0

    parts = cut(model, TABLE, IDS, tf.TensorSpec([64, 4], tf.int64, "others"))
    assert len(parts.regions) == 1
    whole, verifiers = patched(parts)
    assert len(verifiers) == 2, "one for each tensor of indices"
    launches = [node for node in whole.node if node.op == "StitchedFusion"]
    assert launches
    for launch in launches:
        assert {f"^{one.name}" for one in verifiers} <= set(launch.input)
    assert {node.op for node in whole.node} & {"Exp", "Softmax", "AddV2"} == set()


def with_verifier(parts: Partition) -> tuple[tf.Graph, str]:
    """A graph of the verifier and what it is made of alone, and what it is called."""
    whole, [verifier] = patched(parts)
    alone = tf.compat.v1.graph_util.extract_sub_graph(whole, [verifier.name])
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(alone, name="")
    return graph, verifier.name + ":0"


def test_a_verifier_of_sums_fails_as_they_do() -> None:
    graph, verifier = with_verifier(cut(summed, VALUES, GROUPS))
    groups = np.full(300, -1, np.int32)
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(verifier, {"groups:0": groups})  # of no segment: dropped
        session.run(verifier, {"groups:0": groups + 90})
        groups[7] = 90
        with pytest.raises(tf.errors.InvalidArgumentError) as ours:
            session.run(verifier, {"groups:0": groups})
    with pytest.raises(tf.errors.InvalidArgumentError) as theirs:
        tf.math.unsorted_segment_sum(np.zeros((300, WIDTH)), groups, 90)
    message = "segment_ids[7] = 90 is out of range [0, 90)"
    assert message in ours.value.message and message in theirs.value.message


def test_a_verifier_fails_as_the_lookup_does() -> None:
    """The nodes of the patch, run by TensorFlow itself on the lookup's own indices."""
    graph, verifier = with_verifier(cut(looked_up, TABLE, IDS))
    assert len(graph.as_graph_def().SerializeToString()) < ROWS, "the table is one value"
    ids = np.zeros((64, 4), np.int32)
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(verifier, {"ids:0": ids + ROWS - 1})
        ids[63, 2] = ROWS
        with pytest.raises(tf.errors.InvalidArgumentError) as ours:
            session.run(verifier, {"ids:0": ids})
    with pytest.raises(tf.errors.InvalidArgumentError) as theirs:
        tf.raw_ops.GatherV2(params=np.zeros((ROWS, WIDTH)), indices=ids, axis=0)
    message = "indices[63,2] = 900 is not in [0, 900)"
    assert message in ours.value.message and message in theirs.value.message


@pytest.mark.parametrize(
    ("shape", "axis", "batch", "given", "message"),
    [
        ([None, WIDTH], 0, 0, (5, WIDTH), "indices[63,2] = 5 is not in [0, 5)"),
        ([5, None], 0, 0, (5, 3), "indices[63,2] = 5 is not in [0, 5)"),
        ([4, None, None], 1, 0, (4, 5, 2), "indices[63,2] = 5 is not in [0, 5)"),
        ([64, 2, None], 2, 1, (64, 2, 5), "indices[63,2] = 5 is not in [0, 5)"),
    ],
    ids=["rows", "width", "along another axis", "of a batch"],
)
def test_a_table_of_unknown_sizes_tells_its_verifier(
    shape: list[int | None], axis: int, batch: int, given: tuple[int, ...], message: str
) -> None:
    """Rows that are computed are there before: the verifier runs before the region does."""

    def model(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        chosen = tf.gather(table, ids, axis=axis, batch_dims=batch)
        return tf.exp(chosen) + tf.reduce_sum(tf.tanh(table) * 2.0)

    spec = tf.TensorSpec(shape, tf.float32, "table")
    parts = cut(model, spec, IDS)
    assert region_of(parts, "GatherV2") == region_of(parts, "Exp")
    made = cut(lambda table, ids: model(tf.sin(table) * 3.0, ids), spec, IDS)
    assert region_of(made, "mul") < region_of(made, "GatherV2")
    graph, verifier = with_verifier(parts)
    ids, table = np.full((64, 4), 4, np.int32), np.ones(given, np.float32)
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(verifier, {"ids:0": ids, "table:0": table})
        ids[63, 2] = 5
        with pytest.raises(tf.errors.InvalidArgumentError) as ours:
            session.run(verifier, {"ids:0": ids, "table:0": table})
    with pytest.raises(tf.errors.InvalidArgumentError) as theirs:
        tf.gather(table, ids, axis=axis, batch_dims=batch)
    assert message in ours.value.message and message in theirs.value.message


def test_of_a_table_without_columns_no_index_is_looked_at() -> None:
    def model(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        return tf.exp(tf.gather(table, ids)) + 1.0

    graph, verifier = with_verifier(cut(model, tf.TensorSpec([5, None], tf.float32, "table"), IDS))
    ids = np.full((64, 4), 5, np.int32)
    assert not tf.gather(np.ones((5, 0)), ids).numpy().size
    with tf.compat.v1.Session(graph=graph) as session:
        for width in (0, 1):
            table = np.ones((5, width), np.float32)
            session.run(verifier, {"ids:0": ids - width, "table:0": table})


def test_a_verifier_waits_for_what_its_region_waits_for() -> None:
    """An error that TensorFlow raises before the lookup stays the one that the job sees."""

    def model(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        asserted = tf.debugging.Assert(tf.reduce_max(table) < 9.0, ["too large"], name="first")
        with tf.control_dependencies([asserted]):
            return looked_up(table, ids)

    _, [verifier] = patched(cut(model, TABLE, IDS))
    assert any(name.startswith("^first") for name in verifier.input)


def of_variable(ordered: bool) -> Partition:
    """Rows of a variable, from which a sparse update of the same variable is computed; one that
    needs them, and one that does not."""
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.compat.v1.placeholder(tf.int32, [64], "ids")
        table = tf.Variable(tf.zeros([ROWS, WIDTH]), name="table")
        rows = tf.raw_ops.ResourceGather(
            resource=table.handle, indices=ids, dtype=tf.float32, name="rows"
        )
        tf.identity(tf.nn.softmax(rows) * 2.0, name="result")
        change = tf.tanh(rows) + 1.0 if ordered else tf.ones([64, WIDTH])
        tf.raw_ops.ResourceScatterAdd(
            resource=table.handle, indices=ids, updates=change, name="scatter"
        )
    names = ["result", "scatter"]
    return partition(pruned(graph, names), names)


def test_a_lookup_in_a_variable_reads_it_where_it_is() -> None:
    parts = of_variable(ordered=True)
    assert [node.op for node in parts.graph.nodes].count("ResourceGather") == 1
    region = parts.regions[region_of(parts, "rows")]
    [argument] = [a for a in subgraph(parts, region).arguments if a.variable]
    assert argument.dims == (ROWS, WIDTH)
    whole, [verifier] = patched(parts)
    readers = {n.name for n in whole.node if n.op == "StitchedUpdate" and "table" in n.input}
    assert readers
    [scatter] = [node for node in whole.node if node.name == "scatter"]
    assert {f"^{name}" for name in readers} <= set(scatter.input), "it reads before the update"
    assert "ids" in verifier.input


def test_a_lookup_that_an_update_does_not_wait_for_stays() -> None:
    assert reason(of_variable(ordered=False), "ResourceGather") is Reason.UNORDERED_VARIABLE


def test_a_lookup_in_a_variable_of_unknown_size_stays() -> None:
    parts = of_variable(ordered=True).request
    [handle] = [node for node in parts.node if node.op == "VarHandleOp"]
    handle.attr["shape"].shape.dim[0].size = -1
    again = partition(parts, ["result", "scatter"])
    assert reason(again, "ResourceGather") is Reason.DATA_DEPENDENT_ERROR


def test_indices_that_are_a_variables_value_are_read_before_it_is_updated() -> None:
    """A read that the region's kernels do not need is kept for the verifier."""
    graph = tf.Graph()
    with graph.as_default():
        table = tf.compat.v1.placeholder(tf.float32, [ROWS, WIDTH], "table")
        ids = tf.Variable(tf.zeros([20_000], tf.int32), name="ids")
        read = tf.raw_ops.ReadVariableOp(resource=ids.handle, dtype=tf.int32)
        rows = tf.gather(tf.tanh(table), read)
        with tf.control_dependencies([read]):
            moved = ids.assign(read * 2, read_value=False)
        tf.exp(rows, name="result")
    names = ["result", moved.name]
    parts = partition(pruned(graph, names), names)
    assert region_of(parts, "GatherV2") == region_of(parts, moved.name)
    whole, [verifier] = patched(parts, {moved.name: []})
    indices = {node.name: node for node in whole.node}[verifier.input[1]]
    assert indices.op == "ReadVariableOp"
    writers = [n for n in whole.node if n.op in ("StitchedUpdate", "AssignVariableOp")]
    assert writers and all(f"^{verifier.name}" in node.input for node in writers)


def test_a_verifier_has_as_many_rows_as_the_axis() -> None:
    def model(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(table * 2.0, ids, axis=-1) + 1.0

    whole, [verifier] = patched(cut(model, TABLE, tf.TensorSpec([7], tf.int32, "ids")))
    [table] = [node for node in whole.node if node.name == verifier.input[0]]
    assert tf.make_ndarray(table.attr["value"].tensor).shape == (WIDTH,)


def test_indices_that_are_rows_whatever_they_are_computed_of_need_no_verifier() -> None:
    def model(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        return looked_up(table, tf.math.floormod(ids * 7, ROWS))

    parts = cut(model, TABLE, IDS)
    assert region_of(parts, "FloorMod") < region_of(parts, "GatherV2")
    _, verifiers = patched(parts)
    assert not verifiers


@pytest.mark.parametrize("most", [ROWS - 1, ROWS])
def test_a_constant_whose_values_were_taken_out_still_tells_its_range(most: int) -> None:
    """What the worker is given: a Placeholder with the least and the greatest."""
    places = np.linspace(0, most, 300).astype(np.int32)

    def model(table: tf.Tensor) -> tf.Tensor:
        return looked_up(table, tf.broadcast_to(tf.constant(places), [5, 300]))

    graph = redact.structure(cut(model, TABLE).request)
    assert "Placeholder" in {node.op for node in graph.node}
    parts = partition(graph, ["result"])
    _, verifiers = patched(parts)
    if most < ROWS:
        assert region_of(parts, "BroadcastTo") == region_of(parts, "GatherV2")
        assert not verifiers
    else:
        assert region_of(parts, "GatherV2") == region_of(parts, "add") and len(verifiers) == 1


def test_what_a_proof_would_draw_need_be_no_row_after_arithmetic() -> None:
    """A region's inputs are drawn as rows; what it adds to one need be none, so sums are known
    before."""

    def model(table: tf.Tensor) -> tf.Tensor:
        offsets = tf.constant(np.arange(-80, 80, dtype=np.int32).reshape(80, 2))
        return looked_up(table, offsets + 81)

    parts = partition(redact.structure(cut(model, TABLE).request), ["result"])
    indices = parts.graph.data[parts.graph.number["GatherV2"]][1]
    assert indices.node not in parts.regions[region_of(parts, "GatherV2")].members
    assert not patched(parts)[1]


@pytest.mark.parametrize("batch", [6, None])
def test_a_lookup_in_the_table_of_its_own_batch_is_a_member(batch: int | None) -> None:
    def model(tables: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        return tf.exp(tf.gather(tables * 2.0, ids, axis=2, batch_dims=1)) + 1.0

    tables = tf.TensorSpec([batch, 3, 40, 9], tf.float32, "tables")
    parts = cut(model, tables, tf.TensorSpec([batch, 70], tf.int32, "ids"))
    assert region_of(parts, "GatherV2") == region_of(parts, "add") == region_of(parts, "mul")
    graph, verifier = with_verifier(parts)
    ids = np.full((6, 70), 39, np.int32)
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(verifier, {"ids:0": ids})
        ids[4, 2] = -1
        with pytest.raises(tf.errors.InvalidArgumentError) as ours:
            session.run(verifier, {"ids:0": ids})
    with pytest.raises(tf.errors.InvalidArgumentError) as theirs:
        tf.gather(np.zeros((6, 3, 40, 9)), ids, axis=2, batch_dims=1)
    message = "indices[4,2] = -1 is not in [0, 40)"
    assert message in ours.value.message and message in theirs.value.message
