"""Nothing that a user wrote or trained leaves the job: canaries in every place a graph has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="pip install 'stitchcore[tensorflow]' tensorflow-cpu")

from stitchcore.inject import digest, redact  # noqa: E402

CANARY = b"canary"
WEIGHT = np.frombuffer(b"canarycanarycana", np.float32)  # 4 values whose bytes are a canary


def step() -> Any:
    """A graph with a function in it, and canaries in names, text, constants and attributes."""

    @tf.function
    def canary_function(canary_argument: Any) -> Any:
        weights = tf.constant(np.tile(WEIGHT, 100), name="canary_inner")
        return tf.reduce_sum(weights) * canary_argument

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [400], name="canary_input")
        v = tf.compat.v1.get_variable("canary_variable", [400], use_resource=True)
        weights = tf.constant(np.tile(WEIGHT, 100), name="canary_weights")
        text = tf.constant(["canary text", "another canary"])
        with tf.control_dependencies([tf.strings.length(text)]):
            y = tf.debugging.check_numerics(x * weights + v, "canary message")
        loss = tf.while_loop(
            lambda i, z: i < 3, lambda i, z: (i + 1, tf.tanh(z)), (0, y), name="canary_loop"
        )[1]
        with graph.colocate_with(v.op):
            small = tf.einsum("ab,bc->ac", tf.reshape(loss, [20, 20]), tf.ones([20, 20]))
        canary_function(tf.reduce_sum(small))
        definition = graph.as_graph_def(add_shapes=True)
    for node in definition.node:
        node.experimental_debug_info.original_node_names.append("canary")
        node.attr["_user_specified_name"].s = CANARY
        node.attr["invented_by_canary"].s = CANARY
        if node.op == "VarHandleOp":
            node.attr["container"].s = CANARY
    definition.node[0].device = "/job:canary with spaces"
    return definition


@pytest.fixture(scope="module")
def graph() -> Any:
    return step()


def messages(graph: Any) -> Iterator[bytes]:
    """Everything in a GraphDef, in both forms in which a string may be found."""
    yield graph.SerializeToString()
    yield str(graph).encode()


def test_the_canaries_are_there(graph: Any) -> None:
    text = graph.SerializeToString()
    assert text.count(CANARY) > 100 and WEIGHT.tobytes() in text


def test_nothing_of_the_users_leaves(graph: Any) -> None:
    handed = redact.structure(graph)
    ids = digest.number(handed, ["canary_input"]).ids
    sent, preserve = redact.renamed(handed, ids, ["canary_input"])
    # The name of an attribute is TensorFlow's; one that TensorFlow does not know comes from no
    # program, and its value is what must go.
    for node in sent.node:
        node.attr.pop("invented_by_canary", None)
    for text in messages(sent):
        assert CANARY not in text
    (kept,) = preserve
    assert kept == f"Placeholder_{ids['canary_input']}"


def test_a_local_request_keeps_the_names_of_nodes_only(graph: Any) -> None:
    handed = redact.structure(graph)
    names = {node.name for node in handed.node}
    assert names == {node.name for node in graph.node}
    for node in handed.node:
        node.name = ""
        node.attr.pop("_class", None)
        node.attr.pop("invented_by_canary", None)
        del node.input[:]
    for text in messages(handed):
        assert CANARY not in text


def test_the_digest_is_the_same_with_and_without_names(graph: Any) -> None:
    handed = redact.structure(graph)
    numbering = digest.number(handed, ["canary_input"])
    sent, preserve = redact.renamed(handed, numbering.ids, ["canary_input"])
    again = digest.number(sent, preserve)
    assert again.digest == numbering.digest
    assert {f"{n.op}_{numbering.ids[n.name]}" for n in handed.node} == set(again.ids)
    assert all(name.endswith(f"_{number}") for name, number in again.ids.items())


def test_weights_do_not_matter_to_the_digest(graph: Any) -> None:
    other = type(graph)()
    other.CopyFrom(graph)
    changed = [node for node in other.node if node.name == "canary_weights"]
    changed[0].attr["value"].tensor.tensor_content = bytes(1600)
    one, two = (digest.number(redact.structure(g)).digest for g in (graph, other))
    assert one == two != digest.number(graph).digest


def test_structure_stays(graph: Any) -> None:
    """Shapes inference sees the same: equations, frames, functions, small constants."""
    handed = redact.structure(graph)
    sent, _ = redact.renamed(handed, digest.number(handed).ids, [])
    by_op = {node.op: node for node in sent.node}
    assert by_op["Einsum"].attr["equation"].s == b"ab,bc->ac"
    frames = {node.attr["frame_name"].s for node in graph.node if node.op == "Enter"}
    sent_frames = {node.attr["frame_name"].s for node in sent.node if node.op == "Enter"}
    assert len(frames) == len(sent_frames)
    for node in sent.node:
        node.attr.pop("invented_by_canary", None)
    with tf.Graph().as_default() as again:
        tf.graph_util.import_graph_def(sent, name="")
        shapes = {o.name: [t.shape.as_list() for t in o.outputs if t.shape.rank is not None]
                  for o in again.get_operations()}  # fmt: skip
    assert shapes and any([400] in found for found in shapes.values())


@pytest.mark.parametrize(("elements", "kept"), [(64, True), (65, False)])
def test_constants_above_the_limit_become_inputs(elements: int, kept: bool) -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(np.arange(elements, dtype=np.float32), name="c")
    (node,) = redact.structure(graph.as_graph_def(add_shapes=True)).node
    assert node.op == ("Const" if kept else "Placeholder")
    if not kept:
        assert [d.size for d in node.attr["shape"].shape.dim] == [elements]
        assert "value" not in node.attr


def test_the_range_of_large_integers_is_kept_and_is_of_the_digest() -> None:
    """Whether a lookup of them can fail; an artifact for others is none for these."""
    digests = set()
    for places in (np.arange(100) - 7, np.arange(100)[::-1] - 7, np.arange(100) - 8):
        with tf.Graph().as_default() as graph:
            tf.constant(places.astype(np.int64), name="c")
        handed = redact.structure(graph.as_graph_def(add_shapes=True))
        (node,) = handed.node
        assert node.op == "Placeholder" and "value" not in node.attr
        ends = (node.attr[redact.LEAST].i, node.attr[redact.GREATEST].i)
        assert ends == (places.min(), places.max())
        digests.add(digest.number(handed, ["c"]).digest)
    assert len(digests) == 2


def test_every_string_that_an_operation_of_a_region_needs_is_kept() -> None:
    """An emptied one would make tf2xla refuse the region, or worse, mean something else."""
    from tensorflow.python.framework import op_def_registry

    from stitchcore.tensorflow import op_allowlist

    listed: set[str] = set()
    for value in vars(op_allowlist).values():
        if isinstance(value, (frozenset, set, dict, tuple)):
            listed |= {one for one in value if isinstance(one, str)}
    found = {}
    for name in listed | {"_FusedMatMul", "_FusedConv2D", "_FusedBatchNormGradEx"}:
        definition = op_def_registry.get(name)
        for one in definition.attr if definition is not None else ():
            if one.type in ("string", "list(string)") and not one.allowed_values.list.s:
                found[one.name] = name
    assert {"op_names", "activation_mode", "fused_ops"} <= set(found)
    # Text for people only: what the operation computes does not depend on it.
    assert set(found) - {"message"} <= set(redact.KEPT_STRINGS)
