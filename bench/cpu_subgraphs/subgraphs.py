"""The eight subgraphs: their TensorFlow definition and their inputs.

`function` takes tensors in the order of `inputs` and returns a list of tensors; run on float64
inputs it is the reference. `updates` maps the position of an input that is a variable in training
to the position of the result it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

Array = np.ndarray[Any, np.dtype[Any]]
Tensors = list[Any]


@dataclass(frozen=True)
class Subgraph:
    name: str
    title: str
    inputs: Mapping[str, Array]
    function: Callable[..., Tensors]
    results: tuple[str, ...]
    updates: Mapping[int, int] = field(default_factory=dict)
    also: Callable[..., object] | None = None  # TF's own fused way, where it has one


def _normal(random: np.random.Generator, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def _gradients(function: Callable[..., Any], inputs: Tensors, upstream: Any) -> Tensors:
    with tf.GradientTape() as tape:
        for tensor in inputs:
            tape.watch(tensor)
        result = function(*inputs)
    return [result, *tape.gradient(result, inputs, upstream)]


def _layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    epsilon = tf.cast(1e-5, x.dtype)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)


def layer_norm(random: np.random.Generator) -> Subgraph:
    rows, columns = 4096, 768
    inputs = {
        "x": _normal(random, rows, columns) * 2 + 1,
        "gamma": _normal(random, columns) + 1,
        "beta": _normal(random, columns),
        "dy": _normal(random, rows, columns),
    }

    def function(x: Any, gamma: Any, beta: Any, dy: Any) -> Tensors:
        return _gradients(_layer_norm, [x, gamma, beta], dy)

    title = "LayerNorm fwd+bwd [4096x768]"
    return Subgraph("layer_norm", title, inputs, function, ("y", "dx", "dgamma", "dbeta"))


def gelu_chain(random: np.random.Generator) -> Subgraph:
    rows, columns = 4096, 768
    inputs = {
        "h": _normal(random, rows, columns) * 1.5,
        "bias": _normal(random, columns),
        "mask": (random.random((rows, columns)) < 0.9).astype(np.uint8),
        "residual": _normal(random, rows, columns),
        "gamma": _normal(random, columns) + 1,
        "beta": _normal(random, columns),
        "dy": _normal(random, rows, columns),
    }

    def function(
        h: Any, bias: Any, mask: Any, residual: Any, gamma: Any, beta: Any, dy: Any
    ) -> Tensors:
        def forward(h: Any, bias: Any, residual: Any, gamma: Any, beta: Any) -> Any:
            kept = tf.cast(mask, h.dtype) * tf.cast(1 / 0.9, h.dtype)
            return _layer_norm(tf.nn.gelu(h + bias) * kept + residual, gamma, beta)

        return _gradients(forward, [h, bias, residual, gamma, beta], dy)

    results = ("y", "dh", "dbias", "dresidual", "dgamma", "dbeta")
    title = "bias+GELU+dropout mask+residual+LayerNorm fwd+bwd"
    return Subgraph("gelu_chain", title, inputs, function, results)


def softmax(random: np.random.Generator) -> Subgraph:
    batch, heads, queries, keys = 8, 12, 256, 256
    masked = np.where(random.random((batch, keys)) < 0.15, -10000.0, 0.0)
    inputs = {
        "x": _normal(random, batch, heads, queries, keys) * 8,
        "mask": masked.astype(np.float32),
        "dp": _normal(random, batch, heads, queries, keys),
    }

    def function(x: Any, mask: Any, dp: Any) -> Tensors:
        def forward(x: Any) -> Any:
            return tf.nn.softmax(x * tf.cast(0.125, x.dtype) + mask[:, None, None, :])

        return _gradients(forward, [x], dp)

    title = "scaled masked softmax fwd+bwd [8x12x256x256]"
    return Subgraph("softmax", title, inputs, function, ("p", "dx"))


def adam(random: np.random.Generator) -> Subgraph:
    sizes = [768] * 50 + [499_200] * 50
    inputs = {f"p{i:02d}": _normal(random, size) for i, size in enumerate(sizes)}
    inputs |= {f"m{i:02d}": _normal(random, size) * 0.01 for i, size in enumerate(sizes)}
    inputs |= {f"v{i:02d}": np.square(_normal(random, size)) * 0.01 for i, size in enumerate(sizes)}
    inputs |= {f"g{i:02d}": _normal(random, size) * 0.1 for i, size in enumerate(sizes)}
    inputs["rate"] = np.asarray(1e-3, np.float32)
    count = len(sizes)

    def function(*tensors: Any) -> Tensors:
        p, m, v, g = (tensors[k * count : (k + 1) * count] for k in range(4))
        first = [a + (b - a) * (1 - 0.9) for a, b in zip(m, g, strict=True)]
        second = [a + (tf.square(b) - a) * (1 - 0.999) for a, b in zip(v, g, strict=True)]
        moments = zip(p, first, second, strict=True)
        new = [a - f * tensors[-1] / (tf.sqrt(s) + 1e-7) for a, f, s in moments]
        return [*new, *first, *second]

    def fused(*tensors: Any) -> None:
        """TF's own ResourceApplyAdam, one an update."""
        p, m, v, g = (tensors[k * count : (k + 1) * count] for k in range(4))
        for a, b, c, d in zip(p, m, v, g, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=a.handle, m=b.handle, v=c.handle, beta1_power=0.0, beta2_power=0.0,
                lr=tensors[-1], beta1=0.9, beta2=0.999, epsilon=1e-7, grad=d,
            )  # fmt: skip

    results = tuple(f"{kind}{i:02d}" for kind in ("new_p", "new_m", "new_v") for i in range(count))
    title = "Adam, 100 tensors, 25M parameters"
    updates = {i: i for i in range(3 * count)}
    return Subgraph("adam", title, inputs, function, results, updates, fused)


def batch_norm(random: np.random.Generator) -> Subgraph:
    shape, channels = (32, 56, 56, 64), 64
    inputs = {
        "x": _normal(random, *shape) * 2 + 3,
        "gamma": _normal(random, channels) + 1,
        "beta": _normal(random, channels),
        "dy": _normal(random, *shape),
    }

    def forward(x: Any, gamma: Any, beta: Any) -> Any:
        if x.dtype == tf.float64:  # the fused operation has no float64
            mean, variance = tf.nn.moments(x, [0, 1, 2])
            y = tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)
        else:
            fused = tf.compat.v1.nn.fused_batch_norm
            y = fused(x, gamma, beta, epsilon=1e-3, is_training=True)[0]
        return tf.nn.relu(y)

    def function(x: Any, gamma: Any, beta: Any, dy: Any) -> Tensors:
        return _gradients(forward, [x, gamma, beta], dy)

    title = "BatchNorm+ReLU fwd+bwd NHWC [32x56x56x64]"
    return Subgraph("batch_norm", title, inputs, function, ("y", "dx", "dgamma", "dbeta"))


def cross_entropy(random: np.random.Generator) -> Subgraph:
    rows, classes = 2048, 8192
    inputs = {
        "logits": _normal(random, rows, classes) * 3,
        "labels": random.integers(0, classes, rows).astype(np.int64),
    }

    def function(logits: Any, labels: Any) -> Tensors:
        with tf.GradientTape() as tape:
            tape.watch(logits)
            operation = tf.nn.sparse_softmax_cross_entropy_with_logits
            losses = operation(labels=labels, logits=logits)
            mean = tf.reduce_mean(losses)
        return [losses, tape.gradient(mean, logits)]

    title = "softmax cross-entropy fwd+bwd [2048x8192]"
    return Subgraph("cross_entropy", title, inputs, function, ("losses", "dlogits"))


def lstm_cell(random: np.random.Generator) -> Subgraph:
    rows, hidden = 256, 512
    inputs = {
        "gates": _normal(random, rows, 4 * hidden),
        "c": _normal(random, rows, hidden),
        "dh": _normal(random, rows, hidden),
        "dnext": _normal(random, rows, hidden),
    }

    def function(gates: Any, c: Any, dh: Any, dnext: Any) -> Tensors:
        with tf.GradientTape() as tape:
            tape.watch([gates, c])
            i, j, f, o = tf.split(gates, 4, 1)
            following = c * tf.sigmoid(f + 1) + tf.sigmoid(i) * tf.tanh(j)
            h = tf.tanh(following) * tf.sigmoid(o)
        return [following, h, *tape.gradient([h, following], [gates, c], [dh, dnext])]

    title = "LSTM cell pointwise fwd+bwd [256x512]"
    return Subgraph("lstm_cell", title, inputs, function, ("next_c", "h", "dgates", "dc"))


def dien_chain(random: np.random.Generator) -> Subgraph:
    steps, rows, columns = 24, 128, 36
    inputs = {
        "x": _normal(random, steps, 3, rows, columns),
        "attention": random.random((steps, rows, 1)).astype(np.float32),
        "update": _normal(random, columns),
        "reset": _normal(random, columns),
        "h0": _normal(random, rows, columns),
    }

    def function(x: Any, attention: Any, update: Any, reset: Any, h: Any) -> Tensors:
        parts = [tf.unstack(step) for step in tf.unstack(x)]
        weights = tf.unstack(attention)
        for t in range(steps):
            u = weights[t] * tf.sigmoid(parts[t][0] + h * update)
            r = tf.sigmoid(parts[t][1] + h * reset)
            h = (1 - u) * h + u * tf.tanh(parts[t][2] + r * h)
        return [h]

    title = "chain of tiny ops (DIEN-like), 24 steps [128x36]"
    return Subgraph("dien_chain", title, inputs, function, ("h",))


BUILDERS: dict[str, Callable[[np.random.Generator], Subgraph]] = {
    builder.__name__: builder
    for builder in (
        layer_norm,
        gelu_chain,
        softmax,
        adam,
        batch_norm,
        cross_entropy,
        lstm_cell,
        dien_chain,
    )
}


def build(name: str) -> Subgraph:
    return BUILDERS[name](np.random.default_rng(1))
