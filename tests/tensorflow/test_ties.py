"""Sizes are tied only where TensorFlow refuses them to differ; nothing unproven is checked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf

from stitchcore.errors import Reason, Refused
from stitchcore.hlo.dim import Dim, symbols_of
from stitchcore.tensorflow import sizes, ties

Point = Mapping[str, int]


def groups(found: ties.Ties) -> set[frozenset[str]]:
    members: dict[str, set[str]] = {}
    for name, leader in found.leader.items():
        members.setdefault(leader, set()).add(name)
    return {frozenset(group) for group in members.values()}


def inference(rule: Callable[[Point], bool], names: str) -> ties.Accepts:
    """Shape inference by a rule over all sizes: what is unknown may be anything."""

    def accepts(point: Point) -> bool:
        unknown = [name for name in names if name not in point]
        choices = itertools.product((1, ties.BASE, ties.OTHER), repeat=len(unknown))
        return any(rule({**point, **dict(zip(unknown, sizes, strict=True))}) for sizes in choices)

    return accepts


@pytest.mark.parametrize(
    ("rule", "expected", "broadcast"),
    [
        (lambda p: True, "a b c d", ""),
        (lambda p: p["a"] == p["b"], "ab c d", ""),
        (lambda p: p["a"] == p["b"] and p["c"] == p["d"], "ab cd", ""),
        (lambda p: p["a"] == p["c"] and p["b"] == p["d"], "ac bd", ""),
        (lambda p: p["a"] == p["b"] == p["d"], "abd c", ""),
        (lambda p: len({p["a"], p["b"]} - {1}) < 2, "a b c d", "ab"),
        (lambda p: p["a"] == p["b"] and len({p["b"], p["c"]} - {1}) < 2, "ab c d", "ac"),
    ],
)
def test_groups(rule: Callable[[Point], bool], expected: str, broadcast: str) -> None:
    found = ties.tie("abcd", inference(rule, "abcd"))
    assert groups(found) == {frozenset(group) for group in expected.split()}
    assert found.broadcast == frozenset(broadcast)


def test_equal_sizes_of_many_inputs_take_few_questions() -> None:
    """A recommender's features: every subset of 26 could not be tried."""
    names, asked = [f"s{k}" for k in range(27)], 0

    def accepts(point: Point) -> bool:
        nonlocal asked
        asked += 1
        return len({size for name, size in point.items() if name != "s26"}) < 2

    found = ties.tie(names, accepts)
    assert groups(found) == {frozenset(names[:26]), frozenset(["s26"])}
    assert asked < 4 * len(names)


def test_what_is_no_equality_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        ties.tie("ab", inference(lambda p: p["a"] == p["b"] == 24, "ab"))
    assert caught.value.refusal.reason is Reason.GUARD_FAILED


def resolved(build: Callable[..., Any], *ranks: int) -> dict[str, tuple[Dim | None, ...]]:
    """Sizes of every tensor of a graph whose inputs p0, p1, ... have unknown leading sizes."""
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.compat.v1.placeholder(tf.float32, [None] + [8] * (rank - 1), name=f"p{k}")
            for k, rank in enumerate(ranks)
        ]
        build(*inputs)
        definition = graph.as_graph_def(add_shapes=True)
    found = sizes.resolve(definition)
    return {
        node.name: tuple(found.dim(d.size) for d in node.attr["_output_shapes"].list.shape[0].dim)
        for node in found.graph.node
        if len(node.attr["_output_shapes"].list.shape)
    }


def leading(found: Mapping[str, tuple[Dim | None, ...]], name: str) -> Dim | None:
    return found[name][0]


def test_inputs_that_never_meet_are_two_symbols() -> None:
    found = resolved(lambda x, y: (tf.tanh(x, name="t"), tf.exp(y, name="e")), 2, 2)
    assert leading(found, "t") == leading(found, "p0") != leading(found, "p1")
    assert leading(found, "e") == leading(found, "p1")


def test_what_an_operation_demands_is_one_symbol() -> None:
    """The sparse loss of a label for each row: TensorFlow raises for any other number."""

    def build(x: Any, y: Any) -> None:
        labels = tf.cast(y, tf.int32)
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x, name="loss")

    found = resolved(build, 2, 1)
    assert leading(found, "p0") == leading(found, "p1") is not None


def test_a_broadcast_proves_nothing() -> None:
    """[n, 8] - [1, 8] is legal: the difference has no known size, its inputs keep theirs."""
    found = resolved(lambda x, y: (tf.subtract(x, y, name="d"), tf.tanh(x, name="t")), 2, 2)
    assert leading(found, "d") is None
    one, other = leading(found, "t"), leading(found, "p1")
    assert one is not None and other is not None and symbols_of(one) != symbols_of(other)


def test_many_inputs_of_one_batch_are_one_symbol() -> None:
    def build(*inputs: Any) -> None:
        tf.concat(inputs, 1, name="all")

    found = resolved(build, *(2,) * 12)
    assert found["all"] == (leading(found, "p11"), 96) and leading(found, "p0") is not None


def test_too_many_independent_sizes_are_refused() -> None:
    with pytest.raises(Refused) as caught:
        resolved(lambda *inputs: [tf.tanh(one) for one in inputs], *(2,) * 9)
    assert caught.value.refusal.reason is Reason.STEP_LIMIT


def test_products_of_sizes_are_fitted_beside_ties() -> None:
    def build(x: Any, y: Any, z: Any) -> None:
        tf.matmul(x, y, name="m")  # [a, 8, 8] x [b, 8, 8]: broadcasts
        tf.reshape(z, [-1], name="r")

    found = resolved(build, 3, 3, 2)
    assert leading(found, "m") is None
    assert leading(found, "r") == 8 * leading(found, "p2")  # type: ignore[operator]


def test_inference_that_always_fails_says_why() -> None:
    with pytest.raises(Refused) as caught:
        resolved(lambda x, y: tf.reshape(x, [-1, 5]), 2, 2)
    assert caught.value.refusal.reason is Reason.PARSE_ERROR
