"""What an operation is taken for where a constant says that it neither raises an error nor means
something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("tensorflow", reason="pip install tensorflow-cpu")

import tensorflow as tf

from stitchcore.errors import Reason
from tests.tensorflow.test_lookups import cut, reason, region_of

NUMBERS = tf.TensorSpec([300, 80], tf.int64, "numbers")
OTHERS = tf.TensorSpec([300, 80], tf.int64, "others")
Divided = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def by(divisor: object) -> Divided:
    return lambda x, _: tf.math.floormod(x * 3, tf.constant(divisor, tf.int64)) + 1


def test_integers_are_divided_by_a_constant() -> None:
    parts = cut(by(2**31 - 1), NUMBERS, OTHERS)
    assert region_of(parts, "FloorMod") == region_of(parts, "add")


@pytest.mark.parametrize(
    "model",
    [by(0), by(-1), by([3] * 79 + [0]), lambda x, y: tf.math.floormod(x * 3, y) + 1],
    ids=["zero", "no quotient", "a zero among others", "no constant"],
)
def test_a_division_that_may_be_an_error_stays(model: Divided) -> None:
    assert reason(cut(model, NUMBERS, OTHERS), "FloorMod") is Reason.DATA_DEPENDENT_ERROR


def test_the_largest_has_a_place_where_there_is_an_element() -> None:
    def model(x: tf.Tensor) -> tf.Tensor:
        return tf.argmax(tf.tanh(x), 1, output_type=tf.int32) + 1

    parts = cut(model, tf.TensorSpec([None, 80, 3], tf.float32, "x"))
    assert region_of(parts, "ArgMax") == region_of(parts, "Tanh") == region_of(parts, "add")
    for sizes in ([64, None, 3], [64, 0, 3]):
        parts = cut(model, tf.TensorSpec(sizes, tf.float32, "x"))
        assert reason(parts, "ArgMax") is Reason.DATA_DEPENDENT_ERROR


@pytest.mark.parametrize(
    ("sizes", "rows", "taken"),
    [([None, 80], None, True), ([7, None], None, True), ([7, None], 8, False)],
)
def test_a_shape_that_is_known_needs_no_check(
    sizes: list[int | None], rows: int | None, taken: bool
) -> None:
    """Or one that is taken to be as it is demanded, which launches check. Where `rows` are demanded
    too, none is."""

    def model(x: tf.Tensor) -> tf.Tensor:
        y = tf.tanh(x) if rows is None else tf.ensure_shape(tf.sinh(x), [rows, None])
        return tf.exp(tf.raw_ops.EnsureShape(input=tf.tanh(x), shape=sizes)) * 2.0 + y[0]

    parts = cut(model, tf.TensorSpec([None, 80], tf.float32, "x"))
    if taken:
        assert (
            region_of(parts, "EnsureShape") == region_of(parts, "Tanh") == region_of(parts, "mul")
        )
    else:
        ensured = {node.name for node in parts.graph.nodes if node.op == "EnsureShape"}
        reasons = {one.subject: one.reason for one in parts.refusals if one.subject in ensured}
        expected = {Reason.DATA_DEPENDENT_ERROR, Reason.DOES_NOT_UNIFY}  # as sizes are tried or not
        assert len(reasons) == 2 and {*reasons.values()} <= expected


@pytest.mark.parametrize(("target", "taken"), [(tf.int32, True), (tf.int16, False)])
def test_bits_of_one_width_become_others(target: tf.DType, taken: bool) -> None:
    def model(x: tf.Tensor) -> tf.Tensor:
        return tf.bitwise.bitwise_and(tf.bitcast(tf.tanh(x) * 2.0, target), 1)

    parts = cut(model, tf.TensorSpec([300, 80], tf.float32, "x"))
    if taken:
        assert region_of(parts, "Bitcast") == region_of(parts, "Tanh")
    else:
        assert reason(parts, "Bitcast") is Reason.UNSUPPORTED_TYPE


IMAGE, MATRIX = [None, 8, 6, 4], [None, None]
BORDER = [[0, 0], [1, 2], [0, 1], [0, 0]]
BATCHED = {"block_shape": [2, 3], "paddings": [[0, 0], [0, 0]]}


@pytest.mark.parametrize(
    ("operation", "sizes", "taken", "operands"),
    [
        ("MirrorPad", IMAGE, True, {"paddings": BORDER, "mode": "REFLECT"}),
        ("MirrorPad", [3, None, 6, 4], False, {"paddings": BORDER, "mode": "REFLECT"}),
        ("SpaceToDepth", IMAGE, True, {"block_size": 2}),
        ("SpaceToDepth", [3, None, 6, 4], False, {"block_size": 2}),
        ("SpaceToBatchND", [3, 8, 6, 4], True, BATCHED),
        ("SpaceToBatchND", [3, 8, None, 4], False, BATCHED),
        ("MatrixBandPart", MATRIX, True, {"num_lower": -1, "num_upper": 0}),
        ("MatrixBandPart", [None, 7], True, {"num_lower": 0, "num_upper": 3}),
        ("MatrixBandPart", MATRIX, False, {"num_lower": 2, "num_upper": 0}),
        ("MatrixDiagPartV3", [None, 7, 9], True, {"k": 0, "padding_value": 0.0}),
        ("MatrixDiagPartV3", MATRIX, False, {"k": 0, "padding_value": 0.0}),
        ("MatrixDiagPartV3", MATRIX, False, {"k": 1, "padding_value": 0.0}),
        ("Roll", [None, 8], True, {"shift": [3], "axis": [1]}),
    ],
)  # fmt: skip
def test_what_sizes_may_make_an_error_is_taken_where_they_are_known(
    operation: str, sizes: list[int | None], taken: bool, operands: dict[str, object]
) -> None:
    def model(x: tf.Tensor) -> tf.Tensor:
        return tf.exp(getattr(tf.raw_ops, operation)(input=tf.tanh(x), **operands)) * 2.0

    parts = cut(model, tf.TensorSpec(sizes, tf.float32, "x"))
    if taken:
        assert region_of(parts, operation) in (region_of(parts, "Tanh"), region_of(parts, "mul"))
    else:
        reasons = (Reason.DATA_DEPENDENT_ERROR, Reason.DOES_NOT_UNIFY)
        assert reason(parts, operation) in reasons
