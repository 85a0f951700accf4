"""Live bytes of a step: exact on small graphs, and regions that would hold more are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.compiler.regions import compile_regions, program
from stitchcore.compiler.stages import BuildOptions
from stitchcore.device.host import host_device
from stitchcore.errors import Reason
from stitchcore.tensorflow.graph import NOMINAL_SIZE, Edge
from stitchcore.tensorflow.live_bytes import Chosen, limited, peak
from stitchcore.tensorflow.lower import lower, subgraph
from stitchcore.tensorflow.partition import Partition, partition
from tests.tensorflow.graphs import pruned, training_step

MEGABYTE = 2**20
SIDE = 512
"""A square of this side in float32 is one megabyte."""


def partitioned(last: str) -> Partition:
    """x -> matmul a -> tanh b -> (transpose or tanh) c -> matmul d, all one megabyte."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (SIDE, SIDE))
        b = tf.tanh(tf.matmul(x, x))
        c = tf.transpose(b) if last == "transpose" else tf.tanh(b)
        out = tf.identity(tf.matmul(c, x), name="out")
    return partition(pruned(graph, [out.op.name]))


def test_an_elementwise_chain_holds_one_tensor_and_a_library_call_two() -> None:
    """Tanh writes over its input; the second matmul's result stands beside what it reads. The
    caller holds the placeholder."""
    assert peak(partitioned("tanh"), ()).bytes == 2 * MEGABYTE


def test_a_transpose_needs_memory_of_its_own() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (SIDE, SIDE))
        y = tf.transpose(tf.tanh(tf.tanh(x)))
        tf.reduce_sum(y, name="out")
    live = peak(partition(pruned(graph, ["out"])), ())
    assert live.bytes == 2 * MEGABYTE


def test_a_tensor_of_unknown_sizes_holds_what_it_is_made_of() -> None:
    """A megabyte, of which one size is unknown, brought to a shape of which two are. One that is
    filled may be larger than the number it is filled with."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, SIDE, SIDE, None))
        rows = tf.concat([tf.zeros([3, SIDE]), x[:, :, 0, 0]], 0)
        tf.add(rows, tf.zeros([10, SIDE]), name="ten")  # no size that is tried is seven
        part = x[0, :64, :64]  # and 64 by the nominal size
        view = tf.reshape(tf.tanh(part), tf.shape(x), name="view")
        tf.transpose(tf.tanh(view), name="result")
        tf.fill(tf.shape(x), 1.0, name="filled")
    cut = partition(pruned(graph, ["ten", "result", "filled"]), ["ten", "result", "filled"])
    sizes = {
        node.name: cut.graph.byte_size(Edge(number, 0))
        for number, node in enumerate(cut.graph.nodes)
    }
    assert sizes["view"] == sizes["Tanh_1"] == sizes["result"] == MEGABYTE
    assert sizes["filled"] >= 4 * NOMINAL_SIZE**4
    assert peak(cut, ()).bytes - sizes["filled"] < 5 * MEGABYTE


def test_sizes_that_a_region_sees_together_alone_have_a_number() -> None:
    """Rows of batch times length: neither is a symbol of the region that is given the rows."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, None, 64], name="x")
        w = tf.compat.v1.placeholder(tf.float32, [64, 256], name="w")
        rows = tf.matmul(tf.reshape(x, [-1, 64]), w)
        tf.tanh(tf.tanh(rows) * 2.0, name="result")
    cut = partition(pruned(graph, ["result"]), ["result"])
    chosen = chosen_of(cut)
    assert [function.symbols for _, function, _ in chosen] == [("size0",)]
    rows_bytes = NOMINAL_SIZE**2 * 256 * 4
    assert rows_bytes <= peak(cut, chosen).bytes <= 2 * rows_bytes


def chosen_of(cut: Partition) -> list[Chosen]:
    functions = {region.name: subgraph(cut, region) for region in cut.regions}
    modules = {function.key: lower(function).module for function in functions.values()}
    compiled = compile_regions(modules, host_device(), BuildOptions())
    programs = {key: program(compiled, key, host_device()) for key in compiled.regions}
    return [
        (region, functions[region.name], programs[key])
        for region in cut.regions
        if (key := functions[region.name].key) in programs
    ]


@pytest.mark.slow
def test_a_stitched_step_holds_no_more() -> None:
    step = training_step()
    cut = partition(step.definition, [step.train])
    chosen = chosen_of(cut)
    assert len(chosen) >= 3
    refused, before, after = limited(cut, chosen)
    assert not refused
    assert 0 < after.bytes <= before.bytes + MEGABYTE


@pytest.mark.slow
def test_the_region_that_holds_more_is_refused_and_no_other() -> None:
    """One region's launches are given a scratch block that the untouched step knows nothing of."""
    step = training_step()
    cut = partition(step.definition, [step.train])
    chosen = chosen_of(cut)
    region, function, program = chosen[1]
    launches = tuple(
        replace(one, kernel=replace(one.kernel, scratch_bytes=64 * MEGABYTE))
        for one in program.launches
    )
    chosen[1] = (region, function, replace(program, launches=launches))
    refused, before, after = limited(cut, chosen)
    assert list(refused) == [region.name]
    assert refused[region.name].reason is Reason.MEMORY
    assert f"{before.bytes:,} in the untouched" in refused[region.name].detail
    assert after.bytes < 64 * MEGABYTE


def test_a_launch_that_checks_takes_new_values_of_variables_elsewhere() -> None:
    step = training_step()
    cut = partition(step.definition, [step.train])
    chosen = chosen_of(cut)
    checking = []
    for region, function, region_program in chosen:
        kernels = [replace(one.kernel, errors=("wrong",)) for one in region_program.launches]
        pairs = zip(region_program.launches, kernels, strict=True)
        launches = tuple(replace(one, kernel=kernel) for one, kernel in pairs)
        checking.append((region, function, replace(region_program, launches=launches)))
    assert peak(cut, checking).bytes > peak(cut, chosen).bytes
