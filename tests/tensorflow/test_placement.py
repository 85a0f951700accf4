"""Regions for a GPU hold what TensorFlow runs there on data that is there, and for a CPU the same:
nothing that stands on the other, nor what a GPU's kernels keep in host memory."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from stitchcore.compiler.regions import compile_regions, program
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.errors import Reason
from stitchcore.tensorflow import placement
from stitchcore.tensorflow.graph import Edge
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.partition import Partition, partition
from stitchcore.tensorflow.patch import patch
from tests.tensorflow.graphs import Step, pruned, training_step

PLACE = "/job:localhost/replica:0/task:0/device:"
GPU, CPU = f"{PLACE}GPU:0", f"{PLACE}CPU:0"


@pytest.fixture(scope="module")
def step() -> Step:
    return training_step()


def placed(graph: Any, where: Callable[[Any], str]) -> Any:
    """A copy with a device on every node."""
    copy = type(graph)()
    copy.CopyFrom(graph)
    for node in copy.node:
        node.device = where(node)
    return copy


def shape_of(cut: Partition) -> list[tuple[str, ...]]:
    return [tuple(cut.graph.nodes[i].name for i in region.members) for region in cut.regions]


def test_a_step_on_a_gpu_is_cut_as_on_a_cpu(step: Step) -> None:
    """Where its data is floats."""
    on_gpu = placed(step.definition, lambda node: GPU)
    assert shape_of(partition(on_gpu, [step.train], kind="gpu")) == shape_of(
        partition(placed(step.definition, lambda node: CPU), [step.train])
    )


@pytest.mark.parametrize(("where", "kind"), [(GPU, "cpu"), (CPU, "gpu"), ("", "gpu")])
def test_nothing_is_taken_on_another_device(step: Step, where: str, kind: str) -> None:
    """Variables' updates too: a kernel of one cannot write what the other holds."""
    cut = partition(placed(step.definition, lambda node: where), [step.train], kind=kind)
    assert cut.regions == ()
    assert {r.reason for r in cut.refusals} >= {Reason.DEVICE_BOUNDARY, Reason.LIBRARY_CALL}
    assert not any(r.reason is Reason.REGION_TOO_SMALL for r in cut.refusals)


def test_a_region_is_on_one_device(step: Step) -> None:
    numbers = {node.name: n for n, node in enumerate(step.definition.node)}
    mixed = placed(step.definition, lambda node: f"{PLACE}GPU:{numbers[node.name] // 60 % 2}")
    cut = partition(mixed, [step.train], kind="gpu")
    devices = [{cut.graph.nodes[i].device for i in region.members} for region in cut.regions]
    assert len(cut.regions) > 2 and all(len(one) == 1 for one in devices)
    assert len(set.union(*devices)) == 2


def integers() -> tuple[Any, list[str]]:
    """Arithmetic of int32 data, and of floats made of it; a one-hot of int32 labels."""
    graph = tf.Graph()
    with graph.as_default():
        labels = tf.compat.v1.placeholder(tf.int32, [64, 256], name="labels")
        moved = tf.add(labels, labels * 3, name="moved")
        floats = tf.cast(moved, tf.float32, name="floats")
        hot = tf.one_hot(labels[:, 0], 256, name="hot")
        out = tf.tanh(floats * hot, name="out")
    return pruned(graph, ["out", "moved"]), [out.op.name, moved.op.name]


def test_data_in_host_memory_stays_there() -> None:
    """memory_types.cc, and the kernels' registrations: int32 sums are computed on the host, casts
    and one-hots of int32 read device memory."""
    graph, names = integers()
    cut = partition(placed(graph, lambda node: GPU), names, kind="gpu")
    inside = {cut.graph.nodes[i].name for region in cut.regions for i in region.members}
    assert {"floats", "hot", "out"} <= inside
    assert not inside & {"moved", "mul", "strided_slice"}
    left = {refusal.subject: refusal.reason for refusal in cut.refusals}
    assert left["moved"] is Reason.DEVICE_BOUNDARY
    on_cpu = partition(placed(graph, lambda node: CPU), names)
    assert "moved" in {on_cpu.graph.nodes[i].name for r in on_cpu.regions for i in r.members}

    def host(name: str) -> bool:
        return placement.in_host_memory(cut.graph, Edge(cut.graph.number[name], 0))

    assert host("moved") and host("labels") and not host("hot") and not host("floats")


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_an_input_of_which_only_the_shape_is_looked_at_stays_on_the_host(kind: str) -> None:
    """The size of the batch is that of int32 labels, which a GPU's step keeps on the host."""
    graph = tf.Graph()
    with graph.as_default():
        labels = tf.compat.v1.placeholder(tf.int32, [None], name="labels")
        scale = tf.compat.v1.placeholder(tf.float32, [16], name="scale")
        rows = tf.fill([tf.shape(labels)[0], 16], 2.0)
        tf.tanh(rows * tf.exp(scale), name="out")
    where = GPU if kind == "gpu" else CPU
    cut = partition(placed(pruned(graph, ["out"]), lambda node: where), ["out"], kind=kind)
    [region] = cut.regions
    function = subgraph(cut, region)
    device = host_device()
    compiled = compile_regions({"r": lower(function).module}, device, BuildOptions())
    [added] = [
        one
        for one in patch(cut, [(region, function, program(compiled, "r", device))])[0]
        .regions[0]
        .add
        if one.op == "StitchedFusion"
    ]
    node = node_def_pb2.NodeDef.FromString(base64.b64decode(added.attr))
    types, host = (list(node.attr[name].list.type) for name in ("Tin", "Thost"))
    number = tf.int32.as_datatype_enum
    assert (number in host, number in types) == (kind == "gpu", kind == "cpu")
    assert sum(not one.startswith("^") for one in added.inputs) == len(types) + len(host)
    version, symbols, position = list(node.attr["table"].list.i)[:3]
    assert (version, symbols) == (1, 1)
    assert (types + host)[position] == number, "the symbol is read off the labels"
    assert host == [] or position == len(types), "after the others"
