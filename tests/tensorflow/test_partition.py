"""Regions are convex, run in one place, and compute what the graph computes; cutting repeats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, types_pb2

from stitchcore.compiler.regions import compile_regions, program
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.errors import Reason
from stitchcore.tensorflow import partition as partitioning
from stitchcore.tensorflow.graph import Edge
from stitchcore.tensorflow.lower import as_function, lower, subgraph
from stitchcore.tensorflow.partition import Partition, partition
from tests.tensorflow import standing_in
from tests.tensorflow.graphs import pruned, random_graph, training_step

CHOICES = st.lists(
    st.tuples(st.integers(0, 6), *(st.integers(0, 60) for _ in range(3))), min_size=1, max_size=40
)


def owners(cut: Partition) -> dict[int, int]:
    """Region of each member."""
    return {i: number for number, region in enumerate(cut.regions) for i in region.members}


def successors(cut: Partition, node: int) -> list[int]:
    """Consumers in the same pass of a loop; after its last pass comes what leaves the loop."""
    if cut.graph.nodes[node].op == "NextIteration":
        return [exit_ for exit_, sources in cut.graph.ends.items() if node in sources]
    return [consumer for consumer, _ in cut.graph.consumers[node]]


def reenters(cut: Partition, number: int) -> bool:
    """Whether a path leaves a region and comes back. By search, not by levels.

    Clones are copies: what they read the region waits for, but others keep the one outside. The
    same holds for reads of a value older than the region's.
    """
    region = cut.regions[number]
    writes = set(region.updates.values())
    covered = {*region.members, *(r for r in region.reads if cut.variables.before[r] in writes)}
    inside = covered | set(region.clones)
    seen = {c for i in covered for c in successors(cut, i) if c not in inside}
    stack = list(seen)
    while stack:
        for consumer in successors(cut, stack.pop()):
            if consumer in inside:
                return True
            if consumer not in seen:
                seen.add(consumer)
                stack.append(consumer)
    return False


def contracted_is_acyclic(cut: Partition) -> bool:
    """Whether the graph with each region as one node has no cycle.

    Absorbed reads and clones stay nodes of their own, but their region does not wait for them: it
    waits for what it reads.
    """
    owner = {i: f"r{n}" for n, region in enumerate(cut.regions) for i in region.members}
    inner = {(i, f"r{n}") for n, r in enumerate(cut.regions) for i in (*r.reads, *r.clones)}
    edges: dict[Any, set[Any]] = {}
    for i in range(len(cut.graph.nodes)):
        for consumer in successors(cut, i):
            left, right = owner.get(i, i), owner.get(consumer, consumer)
            if left != right and (left, right) not in inner:
                edges.setdefault(left, set()).add(right)
    for number, region in enumerate(cut.regions):
        for tensor in region.tensors:
            edges.setdefault(owner.get(tensor.node, tensor.node), set()).add(f"r{number}")
    waiting: dict[Any, int] = {}
    for targets in edges.values():
        for target in targets:
            waiting[target] = waiting.get(target, 0) + 1
    ready = [n for n in edges if n not in waiting]
    done = 0
    while ready:
        done += 1
        for target in edges.get(ready.pop(), ()):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return done == len({*edges, *waiting})


@settings(max_examples=150)
@given(CHOICES)
def test_random_graphs_are_cut_into_convex_regions(choices: list[Any]) -> None:
    cut = partition(random_graph(choices))
    assert not any(reenters(cut, number) for number in range(len(cut.regions)))
    assert contracted_is_acyclic(cut)
    owner = owners(cut)
    assert len(owner) == sum(len(region.members) for region in cut.regions)
    for node in cut.graph.nodes:
        if node.op in ("MatMul", "CheckNumerics"):
            assert cut.graph.number[node.name] not in owner
    refused = {refusal.subject for refusal in cut.refusals}
    for number, node in enumerate(cut.graph.nodes):
        assert number in owner or node.name in refused or node.op == "Placeholder"


@settings(max_examples=40)
@given(CHOICES)
def test_cutting_twice_gives_the_same(choices: list[Any]) -> None:
    graph = random_graph(choices)
    assert partition(graph).regions == partition(graph).regions


def test_a_real_step_is_convex_and_in_one_place() -> None:
    cut = partition(training_step().definition)
    assert cut.regions
    assert not any(reenters(cut, number) for number in range(len(cut.regions)))
    assert contracted_is_acyclic(cut)
    for region in cut.regions:
        assert len({cut.graph.frames[i] for i in region.members}) == 1
        assert len({cut.graph.deadness[i] for i in region.members}) == 1


@pytest.mark.parametrize("read_elsewhere", [False, True])
def test_a_tensor_whose_shape_alone_is_read_in_its_region_is_no_result(
    read_elsewhere: bool,
) -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 64])
        y = tf.tanh(x, name="y")
        rows = tf.shape(y, name="shape")[0]
        tf.multiply(tf.reshape(tf.exp(y), tf.stack([rows, 8, 8])), 2.0, name="result")
        if read_elsewhere:
            tf.random.stateless_normal([rows], [1, 2], name="opaque")
    definition = graph.as_graph_def(add_shapes=True)
    fetched = ["result", *(node.name for node in definition.node if node.name.endswith("opaque"))]
    cut = partition(tf.compat.v1.graph_util.extract_sub_graph(definition, fetched), fetched)
    [region] = [r for r in cut.regions if cut.graph.number["y"] in r.members]
    results = {cut.graph.nodes[tensor.node].name for tensor in region.results}
    absorbed = {cut.graph.nodes[clone].name for clone in region.absorbed}
    assert ("y" in results) is read_elsewhere
    assert ("shape" in absorbed) is not read_elsewhere
    left = {node.name for node in standing_in.attempted(cut).graph.node}
    assert ("shape" in left) is read_elsewhere


def test_branches_of_a_conditional_share_no_region() -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.disable_control_flow_v2()
        try:
            x = tf.compat.v1.placeholder(tf.float32, [64, 64])
            taken = tf.compat.v1.placeholder(tf.bool, [])
            y = tf.exp(x) + 1.0
            both = tf.cond(taken, lambda: tf.tanh(y) * y, lambda: tf.sqrt(y) + y)
            tf.identity(tf.exp(both) - both, name="result")
        finally:
            tf.compat.v1.enable_control_flow_v2()
    cut = partition(graph.as_graph_def(add_shapes=True), ["result"])
    assert any(node.op == "Switch" for node in cut.graph.nodes)
    owner = owners(cut)
    places = {}
    for operation in ("Tanh", "Sqrt", "Exp"):
        for number, node in enumerate(cut.graph.nodes):
            if node.op == operation and number in owner:
                places.setdefault(operation, set()).add(owner[number])
    assert set(places) == {"Tanh", "Sqrt", "Exp"}
    assert not places["Tanh"] & places["Sqrt"]
    assert not places["Exp"] & (places["Tanh"] | places["Sqrt"])


def test_branches_of_a_switch_case_share_no_region() -> None:
    """`_SwitchN` is what becomes of tf.switch_case: a port for each branch."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [64, 64])
        index = tf.compat.v1.placeholder(tf.int32, [])
        type_ = types_pb2.DT_FLOAT
        attributes = {"T": attr_value_pb2.AttrValue(type=type_)}
        attributes["num_outs"] = attr_value_pb2.AttrValue(i=3)
        branches = graph.create_op(
            "_SwitchN", [tf.exp(x) + 1.0, index], [tf.float32] * 3, attrs=attributes, name="switch"
        ).outputs
        made = [tf.tanh(branches[0]) * 2.0, tf.sqrt(branches[1]) + 1.0, tf.sin(branches[2]) - 1.0]
        merged = tf.raw_ops.Merge(inputs=made).output
        tf.identity(tf.exp(merged) - merged, name="result")
    cut = partition(graph.as_graph_def(add_shapes=True), ["result"])
    assert len(cut.regions) == 5
    for region in cut.regions:
        assert len({cut.graph.deadness[i] for i in region.members}) == 1
    assert len({cut.graph.deadness[region.members[0]] for region in cut.regions}) == 4


def test_equal_layers_have_equal_keys() -> None:
    cut = partition(training_step(layers=5).definition)
    keys = [subgraph(cut, region).key for region in cut.regions]
    assert len(set(keys)) < len(keys)


def test_excluded_nodes_stay_outside_for_the_given_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is cut again is not searched for its sizes again."""
    step = training_step()
    first = partition(step.definition)
    name = first.graph.nodes[first.regions[0].members[0]].name
    again = partition(step.definition, excluded={name: Reason.UNSUPPORTED_OPCODE})
    assert again.graph.number[name] not in owners(again)
    assert (name, Reason.UNSUPPORTED_OPCODE) in {(r.subject, r.reason) for r in again.refusals}
    monkeypatch.delattr(partitioning, "resolve")
    recut = partition(
        step.definition, excluded={name: Reason.UNSUPPORTED_OPCODE}, sizes=first.sizes
    )
    assert (recut.regions, recut.refusals) == (again.regions, again.refusals)


def test_a_number_of_sizes_is_no_region_s_result() -> None:
    """Half a batch, and one as an unsigned integer (the count of a random generator's numbers): no
    tensor enters a kernel that would make it, and all that shares its region would be lost."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 64], name="x")
        size = tf.shape(x)[0]
        tf.multiply(tf.cast(size, tf.float32), 0.5, name="half")
        tf.cast(size, tf.uint64, name="count")
        tf.multiply(tf.tanh(x), 0.5 / tf.cast(size, tf.float32), name="result")
        tf.exp(tf.tanh(tf.reshape(x[0, 0], [])), name="small")
    names = ["half", "count", "result", "small"]
    cut = partition(pruned(graph, names), names)
    made = {
        cut.graph.nodes[tensor.node].name for region in cut.regions for tensor in region.results
    }
    assert made.isdisjoint({"half", "count"})
    functions = {region.name: subgraph(cut, region) for region in cut.regions}
    modules = {name: lower(function).module for name, function in functions.items()}
    compiled = compile_regions(modules, host_device(), BuildOptions())
    for name in modules:
        assert program(compiled, name, host_device()).launches


def test_unordered_reads_and_writes_refuse_the_variable() -> None:
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.Variable(np.ones((64, 64), np.float32))
        x = tf.compat.v1.placeholder(tf.float32, [64, 64])
        result = tf.exp(variable.read_value()) * x
        update = variable.assign_add(tf.tanh(x) * x, read_value=False)
    cut = partition(pruned(graph, [result.op.name, update.name]))
    assert Reason.UNORDERED_VARIABLE in {refusal.reason for refusal in cut.refusals}
    assert not any(region.updates for region in cut.regions)


def _inputs(cut: Partition, values: dict[str, Any], before: dict[str, Any], function: Any) -> Any:
    inputs = []
    for argument in function.arguments:
        name = cut.graph.nodes[argument.tensor.node].name
        inputs.append(
            before[name] if argument.variable else values[f"{name}:{argument.tensor.port}"]
        )
    return inputs


@pytest.mark.parametrize("lowered", [False, True], ids=["tensorflow", "hlo"])
def test_regions_compute_what_the_step_computes(lowered: bool) -> None:
    """Variables as values, numerically: one step is run by TensorFlow; every region, given what it
    read there, must give the tensors and the variables' new values that the step gave."""
    from stitchcore.hlo.evaluator.evaluate import evaluate

    step = training_step()
    cut = partition(step.definition, [step.train])
    handles = [n.name for n in cut.graph.nodes if n.op == "VarHandleOp"]
    functions = [subgraph(cut, region) for region in cut.regions]
    wanted = {cut.graph.nodes[t.node].name + f":{t.port}"
              for region in cut.regions for t in (*region.tensors, *region.results)}  # fmt: skip
    with step.graph.as_default(), tf.compat.v1.Session() as session:
        session.run(step.initializer)
        reads = {h: tf.raw_ops.ReadVariableOp(resource=step.graph.get_tensor_by_name(f"{h}:0"),
                                              dtype=tf.float32) for h in handles}  # fmt: skip
        before = session.run(reads)
        values, _ = session.run([{name: name for name in wanted}, step.train])
        after = session.run(reads)
    assert sum(len(region.updates) for region in cut.regions) == len(handles)
    for region, function in zip(cut.regions, functions, strict=True):
        arrays = _inputs(cut, values, before, function)
        if lowered:
            results = evaluate(lower(function, region.name).module, arrays)
        else:
            results = [np.asarray(r) for r in as_function(function, jit=False)(*arrays)]
        expected = [values[f"{cut.graph.nodes[t.node].name}:{t.port}"] for t in region.results]
        expected += [after[cut.graph.nodes[handle.node].name] for handle in region.updates]
        for want, have in zip(expected, results, strict=True):
            np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)
    changed = [h for h in handles if not np.array_equal(before[h], after[h])]
    assert changed == handles


def test_a_region_that_is_not_convex_is_found() -> None:
    """exp -> matmul -> exp as one region: the searches above must object."""
    cut = partition(random_graph([(2, 0, 0, 1), (0, 1, 1, 1), (4, 2, 2, 1), (2, 3, 0, 1)]))
    (region,) = cut.regions
    bad = replace(region, members=(*region.members, cut.graph.number["n3"]))
    assert reenters(replace(cut, regions=(bad,)), 0)
    assert not contracted_is_acyclic(replace(cut, regions=(bad,)))


def attention_inputs(biases: int) -> Any:
    """Projections whose biases are alone between library calls."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (512, 512), name="x")
        sums = [
            tf.nn.bias_add(tf.matmul(x, x), tf.constant(np.arange(512.0, dtype=np.float32)))
            for _ in range(biases)
        ]
        for k, value in enumerate(sums):
            tf.matmul(value, x, name=f"out{k}")
    return pruned(graph, [f"out{k}" for k in range(biases)])


def test_lone_operations_of_one_level_share_a_region() -> None:
    cut = partition(attention_inputs(3))
    assert [[cut.graph.nodes[i].op for i in region.members] for region in cut.regions] == [
        ["BiasAdd"] * 3
    ]
    assert not any(reenters(cut, number) for number in range(len(cut.regions)))


def test_an_operation_without_company_stays() -> None:
    cut = partition(attention_inputs(1))
    assert cut.regions == ()
    assert [r.reason for r in cut.refusals if "BiasAdd" in r.subject] == [Reason.REGION_TOO_SMALL]


def test_a_lookup_has_a_rank_by_its_variables_handle() -> None:
    """The batch is unknown and Grappler gives no rank: the handle's shape does."""
    graph = tf.Graph()
    with graph.as_default():
        tokens = tf.compat.v1.placeholder(tf.int32, (None, 16), name="tokens")
        table = tf.Variable(np.zeros((100, 64), np.float32), name="table")
        rows = tf.raw_ops.ResourceGather(
            resource=table.handle, indices=tokens, dtype=tf.float32, name="rows"
        )
        tf.identity(tf.nn.softmax(tf.tanh(rows) * 2.0), name="out")
    definition = pruned(graph, ["out"])
    for node in definition.node:
        if node.name != "tokens":
            for shape in node.attr["_output_shapes"].list.shape:
                for dim in shape.dim:
                    dim.size = dim.size if dim.size > 0 else -7
    cut = partition(definition)
    (region,) = cut.regions
    operations = ["ResourceGather", "Tanh", "Mul"]
    assert [cut.graph.nodes[i].op for i in region.members][:3] == operations
    rows = Edge(region.members[0], 0)
    dims = [cut.sizes.dim(size) for size in cut.graph.shape(rows) or ()]
    assert None not in dims
    assert dims[1:] == [16, 64]


def test_fused_batch_normalization_is_stitched_with_its_activation() -> None:
    """What Grappler's remapper fused is work enough for a region; its workspace is empty."""
    definition = graph_pb2.GraphDef()
    for name, sizes in (("x", (8, 4, 4, 16)), *((n, (16,)) for n in "sbmv")):
        node = definition.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["_output_shapes"].list.shape.add().CopyFrom(tf.TensorShape(sizes).as_proto())
    node = definition.node.add(name="norm", op="_FusedBatchNormEx", input=list("xsbmv"))
    for name in "TU":
        node.attr[name].type = tf.float32.as_datatype_enum
    node.attr["activation_mode"].s = b"Relu"
    node.attr["data_format"].s = b"NHWC"
    node.attr["is_training"].b = True
    for sizes in ((8, 4, 4, 16), *((16,),) * 4):
        node.attr["_output_shapes"].list.shape.add().CopyFrom(tf.TensorShape(sizes).as_proto())
    node.attr["_output_shapes"].list.shape.add().unknown_rank = True
    cut = partition(definition, ["norm"])
    (region,) = cut.regions
    assert cut.graph.shape(region.results[5]) == (0,)
    module = lower(subgraph(cut, region)).module
    assert len(module.outputs) == 6


def test_what_leaves_a_loop_follows_all_its_passes() -> None:
    """`scale` enters the loop as an invariant and only its passes read it: no forward path leads
    from it to the loop's exit. Joined with what follows the loop, each would wait for the other."""
    graph = tf.Graph()
    with graph.as_default(), tf.control_dependencies(None):
        tf.compat.v1.disable_control_flow_v2()
        try:
            x = tf.compat.v1.placeholder(tf.float32, (256, 256), name="x")
            scale = tf.tanh(tf.matmul(tf.exp(x), x), name="scale")
            _, last = tf.compat.v1.while_loop(
                lambda i, y: i < 3, lambda i, y: (i + 1, tf.matmul(y, scale)), [0, x]
            )
        finally:
            tf.compat.v1.enable_control_flow_v2()
        tf.matmul(tf.sigmoid(last, name="after"), x, name="out")
    cut = partition(pruned(graph, ["out"]))
    together = [{cut.graph.nodes[i].name for i in region.members} for region in cut.regions]
    assert not any({"scale", "after"} <= names for names in together)
    assert contracted_is_acyclic(cut)
    order = {i: position for position, i in enumerate(cut.graph.order)}
    assert order[cut.graph.number["scale"]] < order[cut.graph.number["after"]]


def contraction(left: list[int | None], right: list[int | None], **transposed: bool) -> Partition:
    """exp(left) and exp(right) contracted, and the exponential of the result."""
    graph = tf.Graph()
    with graph.as_default():
        x, y = (tf.compat.v1.placeholder(tf.float32, dims) for dims in (left, right))
        product = tf.matmul(tf.exp(x), tf.exp(y), name="product", **transposed)
        tf.identity(tf.exp(product), name="result")
    return partition(graph.as_graph_def(add_shapes=True), ["result"])


@pytest.mark.parametrize(
    ("left", "right", "transposed", "small"),
    [
        ([1, 64], [64, 32], {}, True),  # one row
        ([None, 64], [64, 1], {}, True),  # one column, of an unknown number of rows
        ([64, 1], [1, 32], {}, True),  # one contracted element
        ([64, 1], [64, 32], {"transpose_a": True}, True),
        ([64, 32], [1, 32], {"transpose_b": True}, True),
        ([8, 4, 1, 16], [8, 4, 16, 32], {}, True),  # attention with one query
        ([2, 64], [64, 32], {}, False),
        ([8, 4, 2, 16], [8, 4, 16, 32], {}, False),
        ([8, 1, 1, 16], [1, 4, 16, 32], {}, False),  # a batch that is broadcast
    ],
)
def test_small_contractions_join_regions(
    left: list[int | None], right: list[int | None], transposed: dict[str, bool], small: bool
) -> None:
    cut = contraction(left, right, **transposed)
    inside = {cut.graph.nodes[i].name for region in cut.regions for i in region.members}
    reasons = {refusal.subject: refusal.reason for refusal in cut.refusals}
    assert ("product" in inside) is small
    assert reasons.get("product") is (None if small else Reason.LIBRARY_CALL)
