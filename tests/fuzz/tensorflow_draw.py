"""Random TensorFlow programs as data: statements over typed values, and their text.

A program is a training step of a drawn forward pass: a list of statements, each a line of Python
that makes one value of a known type and shape. Dropping a statement, or using another value of the
same type in its place, leaves a program: that is how a finding is reduced (tensorflow_reduce.py).
Nothing is drawn that a rounding can turn: comparisons look at the data only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

FLOATS = ("float32", "float32", "float32", "float32", "float16", "bfloat16", "float64")
WIDTHS = (3, 8, 12, 16, 24, 40)
OPTIMIZERS = (
    "SGD(0.05)", "SGD(0.05, momentum=0.9, nesterov=True)", "Adam(0.01)", "AdamW(0.01)",
    "RMSprop(0.005, centered=True)", "Adagrad(0.05)", "Adamax(0.01)", "Nadam(0.01)",
    "Adadelta(0.5)", "Lamb(0.01)", "Ftrl(0.05)", "Adam(0.01, clipnorm=1.0)",
    "SGD(0.05, global_clipnorm=0.5, use_ema=True)", "Adam(0.01, gradient_accumulation_steps=2)",
)  # fmt: skip
UNARY = (
    "tf.nn.gelu({0})", "tf.tanh({0})", "tf.sigmoid({0})", "tf.exp(-tf.abs({0}))", "tf.sin({0})",
    "tf.sqrt(tf.abs({0}) + 0.1)", "tf.math.log1p(tf.abs({0}))", "tf.nn.relu({0})",
    "tf.nn.elu({0})", "tf.nn.softplus({0})", "tf.math.erf({0})", "tf.square({0}) * 0.3",
    "tf.math.rsqrt(tf.square({0}) + 0.2)", "tf.nn.leaky_relu({0}, 0.1)", "tf.nn.silu({0})",
    "tf.clip_by_value({0}, -1.5, 1.5)", "-{0} * 0.7 + 0.25", "tf.nn.selu({0})", "tf.atan({0})",
    "tf.stop_gradient({0}) * 0.5 + {0}", "tf.nn.relu6({0} * 2.0)", "tf.math.softsign({0})",
)  # fmt: skip
BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "tf.maximum({0}, {1})", "tf.minimum({0}, {1})",
    "{0} / (tf.abs({1}) + 1.0)", "tf.math.squared_difference({0}, {1}) * 0.3",
    "tf.math.divide_no_nan({0}, tf.exp({1} * 0.1))", "tf.atan2({0}, tf.abs({1}) + 1.0)",
)  # fmt: skip
ROWS = (
    "tf.nn.softmax({0})", "tf.nn.log_softmax({0}) * 0.3",
    "{0} - tf.reduce_mean({0}, -1, keepdims=True)",
    "{0} * tf.math.rsqrt(tf.reduce_mean(tf.square({0}), -1, keepdims=True) + 0.01)",
    "({0} - tf.reduce_mean({0}, 0)) * tf.math.rsqrt(tf.math.reduce_variance({0}, 0) + 0.1)",
    "tf.cumsum({0}, -1) * 0.2", "tf.reverse({0}, [-1])", "tf.roll({0}, 1, -1)",
    "{0} - tf.reduce_max({0} + {ramp}, -1, keepdims=True)",
    "tf.concat([{0}, {0}[..., :1]], -1)[..., 1:]",
    "tf.pad({0}[..., 1:], [[0, 0]] * ({rank} - 1) + [[1, 0]])", "tf.math.l2_normalize({0}, -1)",
    "tf.reduce_logsumexp({0}, -1, keepdims=True) * 0.1 + {0}",
    "tf.einsum('...i->...i', {0} * 1.5)", "tf.concat(tf.split({0}, [1, -1], -1)[::-1], -1)",
    "tf.reduce_sum({0}, 0, keepdims=True) * 0.05 + {0}", "tf.cumsum({0}, 0, reverse=True) * 0.1",
)  # fmt: skip
MASKED = (
    "tf.where(mask, {0}, 0.5 * {0})", "{0} * tf.cast(mask, {0}.dtype)",
    "tf.where(ids[:, None] > 3, {0}, tf.zeros_like({0}))",
    "{0} * tf.cast(tf.sequence_mask(ids % 8 + 1, tf.shape({0})[1]), {0}.dtype)",
    "{0} + tf.one_hot(ids % {width}, {width}, dtype={0}.dtype)",
    "tf.where(tf.logical_and(mask, ids[:, None] % 2 == 0), {0}, -{0})",
    "{0} / tf.cast(1 + tf.reduce_sum(tf.cast(mask, tf.int32), -1, keepdims=True), {0}.dtype)",
    "tf.gather(tf.math.unsorted_segment_sum({0}, ids % 5, 5), ids % 5) * 0.2",
    "tf.gather({0}, (ids[:, None] * 7 + tf.range({width})) % {width}, batch_dims=1)",
    "tf.gather({0}, tf.broadcast_to(tf.range({width})[::-1], tf.shape({0})), batch_dims=1)",
    "tf.gather({0}, tf.minimum(ids[:, None] + tf.range({width}), {width} - 1), batch_dims=1) * 0.3",
    "tf.tensor_scatter_nd_add({0} * 0.5, tf.range(tf.shape({0})[0])[:, None], {0})",
    "tf.gather({0}, tf.argsort(ids, stable=True))", "tf.boolean_mask({0}, ids >= 0)",
    "tf.scan(lambda a, b: 0.5 * a + b, {0})", "tf.map_fn(lambda row: row * 0.5 + 0.1, {0})",
)  # fmt: skip
CONTROL = (
    "tf.cond(tf.reduce_sum(x) > 0.0, lambda: {0} * 0.5, lambda: tf.tanh({0}))",
    "tf.cond(tf.reduce_any(mask), lambda: {0} - 0.1, lambda: {0})",
    "tf.while_loop(lambda n, h: n < 3, lambda n, h: (n + 1, tf.tanh(h * 0.5 + {0})), "
    "(0, {0}))[1]",
    "tf.while_loop(lambda n, h: n < ids[0] % 4, lambda n, h: (n + 1, h * 0.9 + 0.05), "
    "(0, {0}))[1]",
    "tf.switch_case(ids[0] % 3, [lambda: {0}, lambda: -{0}, lambda: tf.nn.softplus({0})])",
    "tf.recompute_grad(lambda h: tf.nn.gelu(h) * tf.sigmoid(h))({0})",
    "tf.function(lambda h: tf.sqrt(tf.square(h) + 0.1))({0})",
    "tf.nn.experimental.stateless_dropout({0}, 0.2, [1, 2])",
    "{0} + tf.random.stateless_normal(tf.shape({0}), [1, 2], dtype={0}.dtype) * 0.1",
    "tf.numpy_function(lambda h: h, [{0}], {0}.dtype) * 0.0 + {0}",
)  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A value's name, type and width; it is [batch, width] or, of `rank` 3, [batch, 2, width]."""

    name: str
    dtype: str
    width: int
    rank: int = 2

    def like(self, other: Value) -> bool:
        return replace(self, name="") == replace(other, name="")


@dataclass(frozen=True)
class Statement:
    """`text` over `uses`, by position, makes `value`. `weights` are the shapes of its variables."""

    value: Value
    text: str
    uses: tuple[Value, ...]
    weights: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Program:
    """A training step. `batches`: rows of each step's batch; `unknown`: one graph for all."""

    statements: tuple[Statement, ...]
    results: tuple[Value, ...]
    optimizer: str
    batches: tuple[int, ...]
    unknown: bool
    width: int
    jit: bool = False

    @property
    def short(self) -> str:
        """The shortest type that a value has."""
        found = {statement.value.dtype for statement in self.statements}
        return next((name for name in ("bfloat16", "float16") if name in found), "float32")


# ---- drawing -------------------------------------------------------------------------------------
def draw(seed: int, number: int) -> Program:
    """Program `number` of a run: a function of its arguments alone."""
    rng = np.random.default_rng((seed, number))
    width = int(rng.choice(WIDTHS))
    values = [Value("x", "float32", width)]
    statements: list[Statement] = []
    kinds: Sequence[Callable[..., Statement]] = (
        _unary, _unary, _unary, _binary, _binary, _rows, _rows, _masked, _control, _matmul,
        _matmul, _cast, _table, _reshape, _broadcast, _scaled,
    )  # fmt: skip
    for position in range(int(rng.integers(3, 13))):
        kind = kinds[int(rng.integers(len(kinds)))] if statements else _matmul
        made = kind(rng, f"v{position}", values)
        statements.append(made)
        values.append(made.value)
    results = tuple(values[-min(2, len(values)) :])
    unknown = bool(rng.random() < 0.5)
    batch = int(rng.choice((1, 4, 7, 16, 32)))
    batches = (batch, batch + 3, batch, max(1, batch - 1)) if unknown else (batch,) * 4
    optimizer = str(rng.choice(OPTIMIZERS))
    return Program(tuple(statements), results, optimizer, batches, unknown, width)


def _pick(rng: np.random.Generator, values: Sequence[Value], rank: int = 0) -> Value:
    """One of them, a late one rather, of this rank if it is not 0. `x` has rank 2."""
    fit = [value for value in values if rank in (0, value.rank)]
    weights = np.arange(1, len(fit) + 1, dtype=float) ** 2
    return fit[int(rng.choice(len(fit), p=weights / weights.sum()))]


def _of(rng: np.random.Generator, texts: Sequence[str]) -> str:
    return texts[int(rng.integers(len(texts)))]


def _unary(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values)
    return Statement(replace(value, name=name), _of(rng, UNARY), (value,))


def _binary(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values)
    other = _pick(rng, [one for one in values if one.like(value)])
    text = _of(rng, BINARY)
    if other == value and ("-" in text or "difference" in text):
        text = "{0} + {1}"  # gradients that cancel leave what AddN's order leaves, any of them
    return Statement(replace(value, name=name), text, (value, other))


def _rows(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values)
    text = _of(rng, ROWS).replace("{rank}", str(value.rank)).replace("{ramp}", _ramp(value))
    return Statement(replace(value, name=name), text, (value,))


def _masked(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values, 2)
    text = _of(rng, MASKED).replace("{width}", str(value.width))
    if "mask" in text.replace("mask(", "") and value.width != values[0].width:
        text = "tf.where(mask[:, :1], {0}, 0.3 * {0})"
    return Statement(replace(value, name=name), text, (value,))


def _control(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values)
    text = _of(rng, CONTROL)
    if "stateless" in text and value.dtype == "bfloat16" or "numpy_f" in text and value.rank == 3:
        text = "tf.identity({0})"
    return Statement(replace(value, name=name), text, (value,))


def _matmul(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values)
    width = int(rng.choice(WIDTHS))
    text = f"tf.linalg.matmul({{0}}, tf.cast({{w0}}, '{value.dtype}'))"
    weights: tuple[tuple[int, ...], ...] = ((value.width, width),)
    if rng.random() < 0.6:
        text, weights = f"{text} + tf.cast({{w1}}, '{value.dtype}')", (*weights, (width,))
    return Statement(replace(value, name=name, width=width), text, (value,), weights)


def _cast(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values)
    dtype = _of(rng, FLOATS)
    return Statement(replace(value, name=name, dtype=dtype), f"tf.cast({{0}}, '{dtype}')", (value,))


def _table(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values, 2)
    look = _of(rng, ("ids", "(ids * 3 + 1) % 10", "tf.minimum(ids, 5)", "tf.abs(ids - 4)"))
    text = f"{{0}} + tf.cast(tf.gather({{w0}}, {look}), '{value.dtype}')"
    return Statement(replace(value, name=name), text, (value,), ((10, value.width),))


def _reshape(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values)
    texts: tuple[str, ...]
    if value.rank == 3:
        made = replace(value, name=name, rank=2)
        texts = ("tf.reduce_sum({0}, 1)", "{0}[:, 0] - {0}[:, 1]", "tf.reduce_max({0}, 1)")
        return Statement(made, _of(rng, texts), (value,))
    made = replace(value, name=name, rank=3)
    texts = (
        "tf.stack([{0}, tf.square({0}) * 0.3], 1)", "tf.tile({0}[:, None], [1, 2, 1])",
        "tf.transpose(tf.stack([{0}, 0.3 - {0} * 0.7]), [1, 0, 2])",
        f"tf.reshape(tf.concat([{{0}}, {{0}} * 0.5], -1), [-1, 2, {value.width}])",
        "tf.stack(tf.unstack(tf.stack([{0}, {0} * 0.1], 1), axis=1)[::-1], 1)",
    )  # fmt: skip
    return Statement(made, _of(rng, texts), (value,))


def _broadcast(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values)
    other = _pick(rng, [one for one in values if one.dtype == value.dtype])
    reduce = _of(rng, ("mean", "max", "min"))
    if other.rank != value.rank or other.width != value.width:
        reduced = "tf.reduce_mean({1})"
    elif reduce == "mean":
        reduced = "tf.reduce_mean({1}, -1, keepdims=True)"
    else:
        reduced = f"tf.reduce_{reduce}({{1}} + {_ramp(other)}, -1, keepdims=True)"
    text = f"{{0}} * 0.5 + {reduced}"
    return Statement(replace(value, name=name), text, (value, other))


def _ramp(value: Value) -> str:
    """Parts elements of a row before their largest is sought: of saturated ones (tanh beyond 8)
    rounding decides which are equal, and so which has the gradient."""
    return f"tf.cast(tf.linspace(0.0, 0.5, {value.width}), '{value.dtype}')"


def _scaled(rng: np.random.Generator, name: str, values: Sequence[Value]) -> Statement:
    value = _pick(rng, values)
    text = f"{{0}} * tf.cast({{w0}}, '{value.dtype}') + tf.cast({{w1}}, '{value.dtype}')"
    return Statement(replace(value, name=name), text, (value,), ((value.width,), (value.width,)))


# ---- text ----------------------------------------------------------------------------------------
def text(program: Program) -> str:
    """The program as tensorflow_job.py runs it: `weights`, `forward` and how it is trained."""
    shapes: list[tuple[int, ...]] = []
    body: list[str] = []
    for statement in program.statements:
        named = {f"w{n}": f"w[{len(shapes) + n}]" for n in range(len(statement.weights))}
        shapes += statement.weights
        made = statement.text.format(*(value.name for value in statement.uses), **named)
        body.append(f"    {statement.value.name} = {made}")
    losses = " + ".join(  # away from zero: of normalized values the squares alone never change
        f"tf.reduce_mean(tf.square(tf.cast({value.name}, 'float32')"
        f" - tf.linspace(-0.5, 0.7, {value.width})))"
        for value in program.results
    )
    return "\n".join(
        [
            f"shapes = {shapes}",
            f"optimizer = keras.optimizers.{program.optimizer}",
            f"batches, unknown, width = {program.batches}, {program.unknown}, {program.width}",
            "def forward(x, ids, mask, w):",
            *body,
            f"    return {losses}, {program.results[-1].name}",
            "",
        ]
    )


def in_float32(program: Program) -> str:
    """The program without short types: how far it lies from the program is what their rounding
    costs. Empty where it has none, or draws numbers, which are others in another type."""
    source = text(program)
    if program.short == "float32" or "stateless" in source:
        return ""
    return source.replace("'bfloat16'", "'float32'").replace("'float16'", "'float32'")


# ---- reduction -----------------------------------------------------------------------------------
def smaller(program: Program) -> list[Program]:
    """Programs with less in them, the smallest first."""
    found = []
    for position in reversed(range(len(program.statements))):
        gone = program.statements[position].value
        before = [Value("x", "float32", program.width)]
        before += [statement.value for statement in program.statements[:position]]
        for other in reversed([value for value in before if value.like(gone)]):
            found.append(_without(program, position, other))
            break
        else:
            rest = program.statements[:position]
            if rest and program.results[-1] == gone:
                results = tuple(v for v in program.results if v != gone) or (rest[-1].value,)
                used = {v for s in program.statements[position + 1 :] for v in s.uses}
                if gone not in used:
                    kept = (*rest, *program.statements[position + 1 :])
                    found.append(replace(program, statements=kept, results=results))
    if len(program.results) > 1:
        found += [replace(program, results=(result,)) for result in program.results]
    if program.optimizer != OPTIMIZERS[0]:
        found.append(replace(program, optimizer=OPTIMIZERS[0]))
    if program.unknown:
        first = program.batches[0]
        found.append(replace(program, unknown=False, batches=(first,) * len(program.batches)))
    return [_used(one) for one in found if one.statements]


def _without(program: Program, position: int, other: Value) -> Program:
    gone = program.statements[position].value

    def of(value: Value) -> Value:
        return other if value == gone else value

    statements = tuple(
        replace(statement, uses=tuple(map(of, statement.uses)))
        for number, statement in enumerate(program.statements)
        if number != position
    )
    results = tuple(dict.fromkeys(map(of, program.results)))
    return replace(program, statements=statements, results=results)


def _used(program: Program) -> Program:
    """Without statements that nothing needs."""
    needed = set(program.results)
    kept: list[Statement] = []
    for statement in reversed(program.statements):
        if statement.value in needed:
            kept.append(statement)
            needed |= set(statement.uses)
    return replace(program, statements=tuple(reversed(kept)))
