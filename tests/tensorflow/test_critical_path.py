"""Regions that share nothing but a launch are merged where that keeps nobody waiting."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from stitchcore.device.records import DEVICES
from stitchcore.tensorflow.critical_path import Window, merged, operations
from stitchcore.tensorflow.graph import index
from stitchcore.tensorflow.partition import Partition, partition
from tests.tensorflow.graphs import pruned
from tests.tensorflow.test_loops import lowered
from tests.tensorflow.test_placement import GPU, placed

CPU = DEVICES["cpu-x86-64-v4"]


def branches(*lengths: tuple[int, int], rows: int = 32, width: int = 256) -> Any:
    """Of each branch so many products of matrices before and after what may become a kernel."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (rows, width))

        def products(value: Any, count: int) -> Any:
            for _ in range(count):
                weights = tf.compat.v1.placeholder(tf.float32, (width, width))
                value = tf.matmul(value, weights)
            return value

        ends = []
        for number, (before, after) in enumerate(lengths):
            here = products(x, before)
            here = tf.exp(here, name=f"exp{number}") + 1.0
            ends.append(tf.reduce_sum(products(here, after)))
        tf.stack(ends, name="out")
    return pruned(graph, ["out"])


def together(cut: Partition) -> set[frozenset[str]]:
    """The exponentials of each region that has one."""
    names = [
        {cut.graph.nodes[i].name.rsplit("/", 1)[-1] for i in region.members}
        for region in cut.regions
    ]
    return {found for one in names if (found := frozenset(n for n in one if n[:3] == "exp"))}


def cut_for(graph: Any, **given: Any) -> set[frozenset[str]]:
    return together(partition(graph, ["out"], **given))


BOTH = {frozenset({"exp0", "exp1"})}
APART = {frozenset({"exp0"}), frozenset({"exp1"})}


def test_a_short_way_before_a_long_one_does_not_wait_for_the_other() -> None:
    """One kernel would make two chains of six products, run side by side, one of ten."""
    graph = branches((1, 5), (5, 1))
    assert cut_for(graph) == BOTH  # of a step that nobody times
    assert cut_for(graph, executor=CPU) == APART


def test_what_has_time_waits() -> None:
    """The second branch ends long before the first, wherever its kernel is."""
    assert cut_for(branches((5, 5), (1, 1)), executor=CPU) == BOTH


def test_a_gpu_runs_one_after_the_other() -> None:
    graph = placed(branches((1, 5), (5, 1)), lambda node: GPU)
    assert cut_for(graph, kind="gpu", executor=DEVICES["sm_90"]) == BOTH


def test_short_calls_run_where_they_become_ready() -> None:
    """Of a few rows: to hand one to another thread would take longer."""
    assert cut_for(branches((1, 30), (30, 1), rows=4, width=64), executor=CPU) == BOTH


def test_one_thread_has_all_the_work_whatever_the_order() -> None:
    graph = branches((1, 5), (5, 1))
    assert cut_for(graph, executor=replace(CPU, units=1)) == BOTH


def test_a_pass_of_a_loop_ends_before_the_next() -> None:
    """Slack is that of the pass, not of a long way after the loop."""
    lengths = (1, 5), (5, 1)
    with lowered() as graph:
        weights = tf.compat.v1.placeholder(tf.float32, (256, 256))

        def products(value: Any, count: int) -> Any:
            return functools.reduce(lambda left, _: tf.matmul(left, weights), range(count), value)

        def body(i: Any, *values: Any) -> tuple[Any, ...]:
            made = []
            for number, (value, (before, after)) in enumerate(zip(values, lengths, strict=True)):
                here = tf.exp(products(value, before), name=f"exp{number}") + 1.0
                made.append(products(here, after))
            return i + 1, *made

        x = tf.compat.v1.placeholder(tf.float32, (32, 256))
        _, first, second = tf.compat.v1.while_loop(lambda i, *_: i < 5, body, (0, x, x))
        tf.add(products(first, 40), second, name="out")
    assert cut_for(pruned(graph, ["out"]), executor=CPU) == APART


seconds = st.floats(0.0, 1.0)
windows = st.lists(st.builds(Window, seconds, seconds, seconds), max_size=12)


@given(windows, seconds)
def test_each_that_joins_delays_by_no_more_than_is_allowed(
    given: list[Window], allowed: float
) -> None:
    parts = merged(given, allowed)
    assert sorted(position for part in parts for position in part) == list(range(len(given)))
    for part in parts:
        now = given[part[0]]
        for position in part[1:]:
            joined = now.with_(given[position])
            assert joined.delay - max(now.delay, given[position].delay) <= allowed
            now = joined


def test_with_leave_enough_all_are_one() -> None:
    given = [Window(float(n), n + 1.0, 0.5) for n in range(9)]
    assert merged(given, math.inf) == [list(range(9))]
    assert merged(given, 0.0) == [[n] for n in range(9)]


def convolution(op: str, output: tuple[int, ...], *inputs: Any) -> Callable[[], Any]:
    def make() -> Any:
        every = [
            tf.constant(given, tf.int32) if isinstance(given, list)
            else tf.compat.v1.placeholder(tf.float32, given)
            for given in inputs
        ]  # fmt: skip
        found = getattr(tf.raw_ops, op)(**arguments(op, every), strides=[1] * 4, padding="SAME")
        assert tuple(found.shape) == output
        return found

    return make


def arguments(op: str, inputs: list[Any]) -> dict[str, Any]:
    if op.endswith("BackpropInput"):
        return dict(zip(("input_sizes", "filter", "out_backprop"), inputs, strict=True))
    if op.endswith("BackpropFilter"):
        return dict(zip(("input", "filter_sizes", "out_backprop"), inputs, strict=True))
    return dict(zip(("input", "filter"), inputs, strict=True))


IMAGE, DEEPER, FILTER, BY_CHANNEL = (2, 8, 8, 3), (2, 8, 8, 5), (3, 3, 3, 5), (3, 3, 3, 1)
CONVOLVED, CHANNELWISE = 2 * 2 * 8 * 8 * 5 * 3 * 3 * 3, 2 * 2 * 8 * 8 * 3 * 3 * 3
DEPTHWISE = "DepthwiseConv2dNative"


@pytest.mark.parametrize(
    ("make", "expected"),
    [(convolution("Conv2D", DEEPER, IMAGE, FILTER), CONVOLVED),
     (convolution("Conv2DBackpropInput", IMAGE, [*IMAGE], FILTER, DEEPER), CONVOLVED),
     (convolution("Conv2DBackpropFilter", FILTER, IMAGE, [*FILTER], DEEPER), CONVOLVED),
     (convolution(DEPTHWISE, IMAGE, IMAGE, BY_CHANNEL), CHANNELWISE),
     (convolution(f"{DEPTHWISE}BackpropInput", IMAGE, [*IMAGE], BY_CHANNEL, IMAGE), CHANNELWISE),
     (lambda: tf.matmul(tf.zeros((4, 7)), tf.zeros((5, 7)), transpose_b=True), 2 * 4 * 7 * 5),
     (lambda: tf.matmul(tf.zeros((6, 4, 7)), tf.zeros((6, 7, 5))), 2 * 6 * 4 * 7 * 5),
     (lambda: tf.nn.max_pool2d(tf.zeros(IMAGE), 2, 2, "SAME"), 0)],
)  # fmt: skip
def test_operations_of_a_call(make: Callable[[], Any], expected: int) -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.identity(make(), name="out")
    found = index(pruned(graph, ["out"]))
    (out,) = (i for i, node in enumerate(found.nodes) if node.name == "out")
    assert operations(found, found.data[out][0].node) == pytest.approx(expected)
