"""Relations among unknown sizes: what TensorFlow demands is taken as it is, what it does not demand
is marked as assumed, and what fits nowhere stays unknown: no graph is refused for its sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from stitchcore.errors import Reason
from stitchcore.hlo.ir.dim import Dim, symbols_of
from stitchcore.tensorflow import equal_sizes, symbolic_sizes

v1 = tf.compat.v1

Point = Mapping[str, int]
MOST = 400


def inference(*rules: Callable[..., bool]) -> equal_sizes.Accepts:
    """Shape inference by rules over the sizes that their parameters name; a rule is asked once all
    of them are known."""

    def accepts(point: Point) -> bool:
        for rule in rules:
            names = rule.__code__.co_varnames[: rule.__code__.co_argcount]
            if all(name in point for name in names) and not rule(*map(point.get, names)):
                return False
        return True

    return accepts


def meets(*sizes: int) -> bool:
    """Sizes that broadcast against each other."""
    return len({*sizes} - {1}) < 2


def written(dims: Mapping[str, Dim]) -> str:
    return " ".join(f"{name}={dim}" for name, dim in dims.items())


@pytest.mark.parametrize(
    ("rules", "expected", "assumed"),
    [
        ((), "a=a b=b c=c d=d", ""),
        ((lambda a, b: a == b,), "a=a b=a c=c d=d", ""),
        ((lambda a, b: a == b, lambda c, d: c == d), "a=a b=a c=c d=c", ""),
        ((lambda a, c: a == c, lambda b, d: b == d), "a=a b=b c=a d=b", ""),
        ((lambda a, b: a == b, lambda a, d: a == d), "a=a b=a c=c d=a", ""),
        ((lambda a, b: meets(a, b),), "a=a b=a c=c d=d", "a"),
        ((lambda a, b: b in (1, a),), "a=a b=a c=c d=d", "a"),  # one broadcasts, not the other
        ((lambda a, b: a in (1, b),), "a=a b=a c=c d=d", "a"),
        ((lambda a, b: a == b, lambda b, c: meets(b, c)), "a=a b=a c=a d=d", "a"),
        ((lambda a, b, c: a == b == c,), "a=a b=a c=a d=d", "a"),  # seen only when all are there
        # two that meet in what waits for a third
        ((lambda a, b, c: a == b,), "a=a b=a c=c d=d", "a"),
        ((lambda a, b, c, d: a == b,), "a=a b=a c=c d=d", "a"),
        ((lambda a, b, c, d: a == c and b == d,), "a=a b=b c=a d=b", "ab"),
        ((lambda a, b, c, d: a == d and b == c,), "a=a b=b c=b d=a", "ab"),
        ((lambda a, b: b == 2 * a,), "a=a b=2*a c=c d=d", "a"),
        ((lambda a, b: a == 3 * b,), "a=3*a b=a c=c d=d", "a"),
        ((lambda a, b, c: c == a + b,), "a=a b=b c=a+b d=d", "ab"),
        ((lambda a, b, c: a == b + c,), "a=b+c b=b c=c d=d", "bc"),
        ((lambda a, b: b == a + 1,), "a=a b=1+a c=c d=d", "a"),
        ((lambda a, b: b == a - 1, lambda b, d: b == d), "a=a b=-1+a c=c d=-1+a", "a"),
        # the splits of ragged rows, a batch, and the rows as a tensor, which is both
        ((lambda a, c: c == a - 1, lambda b, c: b == c), "a=1+b b=b c=b d=d", "b"),
        ((lambda a: a % 8 == 0,), "a=8*a b=b c=c d=d", "a"),
        ((lambda a: a % 8 == 0, lambda a, b: a == b), "a=8*a b=8*a c=c d=d", "a"),
        ((lambda a: a % 8 == 0, lambda b: b % 6 == 0), "a=8*a b=6*b c=c d=d", "ab"),
        ((lambda a: a % 8 == 0, lambda a, b: a == 2 * b), "a=8*a b=4*a c=c d=d", "a"),
    ],
)
def test_relations(rules: Sequence[Callable[..., bool]], expected: str, assumed: str) -> None:
    constraints = equal_sizes.infer("abcd", inference(*rules), MOST)
    assert written(constraints.dims) == expected
    assert constraints.assumed == frozenset(assumed)
    assert inference(*rules)(constraints.sizes(constraints.point))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ((lambda a: a == 4,), "a=4 b=b c=c d=d"),
        ((lambda a: meets(a, 4),), "a=4 b=b c=c d=d"),  # 1 would do too
        ((lambda a: a == 1,), "a=1 b=b c=c d=d"),
        ((lambda a: a == 4, lambda b: meets(b, 16)), "a=4 b=16 c=c d=d"),
        ((lambda a: a == 4, lambda a, b: a == b), "a=4 b=4 c=c d=d"),
        ((lambda a: a == 4, lambda b, d: b == d), "a=4 b=b c=c d=b"),
        # not the prime that b would have had
        ((lambda b: meets(b, 23),), "b=23 a=a c=c d=d"),
        ((lambda a: a % 8 == 0,), "a=8*a b=b c=c d=d"),
        ((lambda a: a % 23 == 0,), "a=23*a b=b c=c d=d"),
        ((lambda a: a == 5,), "b=b c=c d=d"),
    ],
)
def test_sizes_that_are_numbers(rules: Sequence[Callable[..., bool]], expected: str) -> None:
    """All of them are assumed."""
    accepts = inference(*rules)
    constraints = equal_sizes.infer("abcd", accepts, MOST, (16, 4, 23, 1))
    assert written(constraints.dims) == expected
    assert accepts(constraints.sizes(constraints.point))
    proven = {name for name in "abcd" if f"{name}={name}" in expected.split()}
    assert set(constraints.proven()) >= proven
    assert not [name for name in constraints.proven() if isinstance(constraints.dims[name], int)]


@pytest.mark.parametrize("most", [13, 16])
def test_a_size_that_may_be_small_alone(most: int) -> None:
    """So many places at most, of whatever has as many."""
    rules = (lambda a: a <= most, lambda a, c: a == c, lambda b: b == 4)
    constraints = equal_sizes.infer("abcd", inference(*rules), MOST, (11, 4))
    assert written(constraints.dims) == "b=4 a=a c=a d=d"
    assert constraints.bounded == {"a"} and not constraints.assumed


@pytest.mark.parametrize("number", range(2, 80, 2))
def test_a_number_is_no_difference_of_two_sizes_by_chance(number: int) -> None:
    """Sizes are tried with primes, and each even number is the difference of some."""
    constraints = equal_sizes.infer("abcdef", inference(lambda e: e == number), MOST, (number, 1))
    assert written(constraints.dims) == f"e={number} a=a b=b c=c d=d f=f"


def test_names_are_asked_about_in_the_same_words_whatever_comes_after_them() -> None:
    """Answers are kept while sizes that begin within the graph are looked for."""
    few, many = (equal_sizes.infer(names, inference(), MOST).point for names in ("ab", "abcdef"))
    assert few.items() <= many.items()


def test_numbers_are_among_the_questions_that_are_bounded() -> None:
    questions = 0

    def accepts(point: Point) -> bool:
        nonlocal questions
        questions += 1
        return not point

    names = [f"s{k}" for k in range(40)]
    constraints = equal_sizes.infer(names, accepts, 50, range(100, 200))
    assert questions <= 50 and not constraints.dims


def test_equal_sizes_of_many_inputs_take_few_questions() -> None:
    """A recommender's features: every subset of 26 could not be tried."""
    names, questions = [f"s{k}" for k in range(27)], 0

    def accepts(point: Point) -> bool:
        nonlocal questions
        questions += 1
        return len({size for name, size in point.items() if name != "s26"}) < 2

    constraints = equal_sizes.infer(names, accepts, MOST)
    assert {name for name, dim in constraints.dims.items() if dim == constraints.dims["s0"]} == {
        *names[:26]
    }
    assert constraints.dims["s26"] != constraints.dims["s0"] and not constraints.assumed
    assert questions < 4 * len(names)


def test_questions_are_bounded() -> None:
    """What there was no question left for is assumed to be as most others are, or unknown."""
    names, questions = [f"s{k}" for k in range(40)], 0

    def accepts(point: Point) -> bool:
        nonlocal questions
        questions += 1
        return len({size for name, size in point.items() if name != "s39"}) < 2

    constraints = equal_sizes.infer(names, accepts, 50)
    assert (
        questions <= 50 and len(constraints.dims) == 40 and len({*constraints.dims.values()}) == 1
    )
    assert constraints.assumed == {"s0"}
    constraints = equal_sizes.infer(names, lambda point: accepts(point) and "s38" not in point, 50)
    assert 10 < len(constraints.dims) < 38 and len({*constraints.dims.values()}) == 1


def test_what_fits_nowhere_is_unknown() -> None:
    constraints = equal_sizes.infer(
        "abc", inference(lambda a: a == 10007, lambda b, c: b == c), MOST
    )
    assert written(constraints.dims) == "b=b c=b"


def resolve(build: Callable[..., Any], *ranks: int) -> symbolic_sizes.Sizes:
    """Of a graph whose inputs p0, p1, ... have unknown leading sizes."""
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.compat.v1.placeholder(tf.float32, [None] + [8] * (rank - 1), name=f"p{k}")
            for k, rank in enumerate(ranks)
        ]
        build(*inputs)
        definition = graph.as_graph_def(add_shapes=True)
    return symbolic_sizes.resolve(definition)


def dims_of(sizes: symbolic_sizes.Sizes) -> dict[str, tuple[Dim | None, ...]]:
    """Sizes of the first output of every node."""
    return {
        node.name: tuple(sizes.dim(d.size) for d in node.attr["_output_shapes"].list.shape[0].dim)
        for node in sizes.graph.node
        if len(node.attr["_output_shapes"].list.shape)
    }


def resolved(build: Callable[..., Any], *ranks: int) -> dict[str, tuple[Dim | None, ...]]:
    return dims_of(resolve(build, *ranks))


def leading(sizes: Mapping[str, tuple[Dim | None, ...]], name: str) -> Dim | None:
    return sizes[name][0]


def test_inputs_that_never_meet_are_two_symbols() -> None:
    sizes = resolved(lambda x, y: (tf.tanh(x, name="t"), tf.exp(y, name="e")), 2, 2)
    assert leading(sizes, "t") == leading(sizes, "p0") != leading(sizes, "p1")
    assert leading(sizes, "e") == leading(sizes, "p1")


def test_what_an_operation_demands_is_one_symbol() -> None:
    """The sparse loss of a label for each row: TensorFlow raises for any other number."""

    def build(x: Any, y: Any) -> None:
        labels = tf.cast(y, tf.int32)
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x, name="loss")

    sizes = resolved(build, 2, 1)
    assert leading(sizes, "p0") == leading(sizes, "p1") is not None


def test_a_broadcast_is_assumed_to_be_none() -> None:
    """[n, 8] - [1, 8] is legal: that both have n rows is checked by whoever relies on it."""
    sizes = resolve(lambda x, y: (tf.subtract(x, y, name="d"), tf.tanh(x, name="t")), 2, 2)
    known = dims_of(sizes)
    assert leading(known, "d") == leading(known, "t") == leading(known, "p1") is not None
    assert sizes.assumed == symbols_of(leading(known, "d") or 0)


def test_a_demand_is_not_assumed() -> None:
    sizes = resolve(lambda x, y: tf.concat([x, y], 1), 2, 2)
    assert len(sizes.symbols) == 1 and not sizes.assumed


def test_a_number_that_rests_on_an_assumption_is_told() -> None:
    """[a, 8] in rows of [b]: 8 columns where a and b are equal."""

    def build(x: Any, y: Any) -> None:
        tf.subtract(x, y)
        tf.reshape(x, tf.stack([tf.shape(y)[0], -1]), name="r")
        tf.reshape(x, [-1, 2, 4], name="s")

    sizes = resolve(build, 2, 2)
    assert dims_of(sizes)["r"][1:] == (8,) and dims_of(sizes)["s"][1:] == (2, 4)
    assert sizes.supposed == {("r", 0)}


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_batch_that_meets_a_state_of_fixed_size_is_a_number(
    in_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recurrent step by hand: its batch is what its state was made for, or 1."""
    monkeypatch.setattr(control_flow_util, "ENABLE_CONTROL_FLOW_V2", False)

    def build(x: Any, y: Any) -> None:
        h = tf.fill([4, 8], 0.5)
        if in_loop:
            h = v1.while_loop(lambda h: h[0, 0] > 0, lambda h: tf.tanh(h + x), [h])
        else:
            h = tf.tanh(h + x)
        tf.multiply(h, y, name="product")
        tf.tanh(x, name="own")

    sizes = resolve(build, 2, 2)
    known = dims_of(sizes)
    assert known["product"] == known["own"] == known["p0"] == known["p1"] == (4, 8)
    assert sizes.symbols == () and not sizes.refusals
    assert {("p0", 0), ("p1", 0), ("own", 0)} <= sizes.supposed


@pytest.mark.parametrize("places", [14, 50])
def test_places_in_a_table_are_known_where_they_are_few(places: int) -> None:
    """Of 14, which no size that is tried first has, and of 50, which some points have not."""

    def build(x: Any, y: Any) -> None:
        tf.tanh(x + tf.ones([places, 8])[: tf.shape(x)[0]], name="sum")
        tf.tanh(y, name="other")

    sizes = resolve(build, 2, 2)
    known = dims_of(sizes)
    assert leading(known, "sum") == leading(known, "p0") is not None
    assert sizes.bounded == symbols_of(leading(known, "sum") or 0) and not sizes.refusals
    assert leading(known, "other") == leading(known, "p1") is not None
    assert max(point[name] for point in sizes.points for name in sizes.bounded) <= 14


def test_many_inputs_of_one_batch_are_one_symbol() -> None:
    def build(*inputs: Any) -> None:
        tf.concat(inputs, 1, name="all")

    sizes = resolved(build, *(2,) * 12)
    assert sizes["all"] == (leading(sizes, "p11"), 96) and leading(sizes, "p0") is not None


def test_of_too_many_independent_sizes_the_most_used_are_known() -> None:
    def build(*inputs: Any) -> None:
        for k, one in enumerate(inputs):
            for _ in range(1 if k == 3 else 2):
                one = tf.tanh(one)
            tf.identity(one, name=f"o{k}")

    count = symbolic_sizes.MOST_SYMBOLS + 1
    sizes = resolve(build, *(2,) * count)
    known = dims_of(sizes)
    assert [leading(known, f"o{k}") is None for k in range(count)] == [k == 3 for k in range(count)]
    (refusal,) = sizes.refusals
    assert (refusal.subject, refusal.reason) == ("p3", Reason.STEP_LIMIT)


def test_sizes_that_are_numbers_leave_questions_for_others() -> None:
    """Each would cost a hundred, were it asked first what of the batches it may be."""

    def build(*inputs: Any) -> None:
        for own, one, batch in zip(inputs[:6], inputs[6:12], inputs[12:], strict=True):
            tf.tanh(one + tf.ones([150, 8]))
            tf.tanh(batch + own)

    known = resolved(build, *(2,) * 18)
    sizes = [leading(known, f"p{k}") for k in range(18)]
    assert sizes[6:12] == [150] * 6
    assert sizes[:6] == sizes[12:] and len({*sizes}) == 7 and None not in sizes


def test_products_of_sizes_are_fitted_beside_constraints() -> None:
    def build(x: Any, y: Any, z: Any) -> None:
        tf.matmul(x, y, name="m")  # [a, 8, 8] x [b, 8, 8]: broadcasts
        tf.reshape(z, [-1], name="r")

    sizes = resolved(build, 3, 3, 2)
    assert leading(sizes, "m") == leading(sizes, "p0") == leading(sizes, "p1")
    assert leading(sizes, "r") == 8 * leading(sizes, "p2")  # type: ignore[operator]


def test_a_batch_in_parts_is_a_multiple() -> None:
    sizes = resolved(lambda x: tf.reshape(x, [-1, 5, 8, 8], name="r"), 2)
    assert sizes["r"][1:] == (5, 8, 8)
    assert 40 * leading(sizes, "r") == leading(sizes, "p0")  # type: ignore[operator]


def test_one_batch_twice_another() -> None:
    sizes = resolved(lambda x, y: tf.add(tf.reshape(x, [-1, 2, 8]), y[:, None], name="a"), 2, 2)
    assert leading(sizes, "p0") == 2 * leading(sizes, "p1")  # type: ignore[operator]
    assert leading(sizes, "a") == leading(sizes, "p1")


def test_rows_and_columns_are_as_many_as_those_of_another() -> None:
    """Caches of beams in rows: either equality alone leaves the other to be refused."""
    accepts = inference(lambda a, b, c, d, e: a * b == c * d)
    found = equal_sizes.infer("abcde", accepts, MOST)
    assert written(found.dims) == "a=a b=b c=a d=b e=e" and found.assumed == {"a", "b"}

    def build(words: Any, caches: Any) -> None:
        (count, beams), size = tf.unstack(tf.shape(words)), tf.shape(caches)[2]
        tf.reshape(caches, [count * beams, 4, size, 8], name="rows")

    with tf.Graph().as_default() as graph:
        build(v1.placeholder(tf.int32, [None] * 2, "p0"),
              v1.placeholder(tf.float32, [None, None, None, 4, 8], "p1"))  # fmt: skip
        definition = graph.as_graph_def(add_shapes=True)
    sizes = symbolic_sizes.resolve(definition)
    assert len(sizes.symbols) == 3 and len(sizes.assumed) == 2 and not sizes.refusals


def test_two_batches_beside_each_other() -> None:
    def build(x: Any, y: Any, z: Any) -> None:
        tf.concat([tf.concat([x, y], 0), z], 1, name="all")

    sizes = resolved(build, 2, 2, 2)
    both = leading(sizes, "p0") + leading(sizes, "p1")  # type: ignore[operator]
    assert leading(sizes, "p2") == leading(sizes, "all") == both


def test_a_size_that_no_value_fits_leaves_the_rest() -> None:
    """Rows that are ten with three others: no size that is tried is seven."""

    def build(x: Any, y: Any) -> None:
        tf.add(tf.concat([x, tf.ones([3, 8])], 0), tf.fill([10, 8], 0.5))
        tf.tanh(x, name="r")
        tf.tanh(y, name="t")

    sizes = resolve(build, 2, 2)
    known = dims_of(sizes)
    assert leading(known, "r") is None and leading(known, "t") == leading(known, "p1") is not None
    (refusal,) = sizes.refusals
    assert (refusal.subject, refusal.reason) == ("p0", Reason.DOES_NOT_UNIFY)


def test_inference_that_always_fails_leaves_sizes_unknown() -> None:
    """An operation whose import fails whatever the sizes are, as a damaged attribute makes it."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
        tf.tanh(x, name="t")
        tf.squeeze(tf.ones([1, 8]), 0, name="s")
        definition = graph.as_graph_def(add_shapes=True)
    (squeezed,) = (node for node in definition.node if node.name == "s")
    squeezed.attr["squeeze_dims"].list.i[:] = [1]
    sizes = symbolic_sizes.resolve(definition)
    known = dims_of(sizes)
    assert known["t"] == (None, 8) and known["s"] == (8,) and sizes.symbols == ()
    assert "1" in sizes.refusals[0].detail


def test_what_takes_a_reference_keeps_its_shape() -> None:
    """A reference variable's update: no placeholder can stand for the variable there."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
        mean = tf.compat.v1.get_variable("mean", [8], use_resource=False)
        moved = tf.compat.v1.assign_sub(mean, tf.reduce_mean(x, 0), use_locking=True, name="moved")
        tf.add(x, moved, name="sum")
        tf.compat.v1.scatter_add(mean, tf.constant([1]), tf.constant([1.0]), name="some")
        definition = graph.as_graph_def(add_shapes=True)
    known = dims_of(symbolic_sizes.resolve(definition))
    assert known["moved"] == known["some"] == (8,)
    assert leading(known, "sum") == leading(known, "x") is not None


def test_parts_of_a_list_have_sizes_of_their_own() -> None:
    """Their shape function makes one unknown size for all of them, which Grappler takes for one."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [40, 8], name="x")
        which = tf.compat.v1.placeholder(tf.int32, [40], name="which")
        for number, part in enumerate(tf.dynamic_partition(x, which, 2, name="parts")):
            tf.exp(part, name=f"e{number}")
        definition = graph.as_graph_def(add_shapes=True)
    for node in definition.node:
        for shape in node.attr["_output_shapes"].list.shape:
            for dim in shape.dim:
                dim.size = dim.size if dim.size >= 0 else -7
    sizes = symbolic_sizes.resolve(definition)
    dims = dims_of(sizes)
    assert None not in (*dims["e0"], *dims["e1"]) and dims["e0"][0] != dims["e1"][0]
    assert {dims["e0"][0], dims["e1"][0]} == {*sizes.dims}
