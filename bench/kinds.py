"""Kinds of regions that models are made of, each a TensorFlow function and what it is given.

Shapes are those of layers of usual models, small enough that one takes milliseconds. Where a
gradient is asked for, the function returns the value and the gradients of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

Array = np.ndarray[Any, np.dtype[Any]]
Draw = Callable[[np.random.Generator], Array]
Function = Callable[..., list[Any]]


@dataclass(frozen=True)
class Kind:
    """`function` of tensors, and one draw for each of them."""

    function: Function
    draws: tuple[Draw, ...]

    def inputs(self, random: np.random.Generator) -> list[Array]:
        return [draw(random) for draw in self.draws]


KINDS: dict[str, Kind] = {}
"""By the function's name."""


def _kind(*draws: Draw) -> Callable[[Function], Function]:
    def enter(function: Function) -> Function:
        KINDS[function.__name__] = Kind(function, draws)
        return function

    return enter


def _normal(*shape: int) -> Draw:
    return lambda random: random.standard_normal(shape).astype(np.float32)


def _integers(high: int, *shape: int) -> Draw:
    return lambda random: random.integers(0, high, shape).astype(np.int32)


def _gradients(fn: Callable[..., Any], xs: list[Any], dy: Any) -> list[Any]:
    with tf.GradientTape() as t:
        for x in xs:
            t.watch(x)
        y = fn(*xs)
    return [y, *t.gradient(y, xs, dy)]


def _batch_norm(x: Any, g: Any, b: Any) -> Any:
    if x.dtype == tf.float64:  # the fused operation has no float64
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        return tf.nn.batch_normalization(x, mean, variance, b, g, 1e-3)
    return tf.compat.v1.nn.fused_batch_norm(x, g, b, epsilon=1e-3, is_training=True)[0]


@_kind(_normal(16, 56, 56, 64), _normal(64), _normal(64), _normal(16, 28, 28, 64))
def bn_relu_maxpool_grad(x: Any, g: Any, b: Any, dy: Any) -> list[Any]:
    return _gradients(
        lambda x, g, b: tf.nn.max_pool2d(tf.nn.relu(_batch_norm(x, g, b)), 2, 2, "VALID"),
        [x, g, b],
        dy,
    )


@_kind(_normal(16, 56, 56, 64), _normal(64), _normal(64), _normal(16, 28, 28, 64))
def bn_relu_maxpool3_grad(x: Any, g: Any, b: Any, dy: Any) -> list[Any]:
    return _gradients(
        lambda x, g, b: tf.nn.max_pool2d(tf.nn.relu(_batch_norm(x, g, b)), 3, 2, "SAME"),
        [x, g, b],
        dy,
    )


@_kind(_normal(16, 56, 56, 64), _normal(16, 28, 28, 64))
def maxpool_grad(x: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), [x], dy)


@_kind(_normal(16, 56, 56, 64), _normal(16, 28, 28, 64))
def maxpool3_grad(x: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), [x], dy)


@_kind(_normal(16, 28, 28, 64), _normal(16, 28, 28, 64))
def maxpool3_dense_grad(x: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x: tf.nn.max_pool2d(x, 3, 1, "SAME"), [x], dy)


@_kind(_normal(16, 28, 28, 64), _normal(16, 28, 28, 64))
def maxpool3_dense_grad_alone(x: Any, dy: Any) -> list[Any]:
    return maxpool3_dense_grad(x, dy)[1:]


@_kind(_normal(16, 64, 56, 56), _normal(16, 64, 28, 28))
def maxpool3_grad_turned(x: Any, dy: Any) -> list[Any]:
    last = (0, 2, 3, 1)
    gradient = maxpool3_grad(tf.transpose(x, last), tf.transpose(dy, last))[1]
    return [tf.transpose(gradient, (0, 3, 1, 2))]


@_kind(_normal(16, 56, 56, 64), _normal(16, 28, 28, 64))
def avgpool3_strided_grad(x: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME"), [x], dy)


@_kind(_normal(16, 56, 56, 64), _normal(16, 28, 28, 64))
def avgpool_grad(x: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x: tf.nn.avg_pool2d(x, 2, 2, "VALID"), [x], dy)


@_kind(_normal(16, 56, 56, 64), _normal(16, 56, 56, 64))
def avgpool3_grad(x: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x: tf.nn.avg_pool2d(x, 3, 1, "SAME"), [x], dy)


@_kind(_normal(16, 56, 56, 64))
def maxpool_relu(x: Any) -> list[Any]:
    return [tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID")]


@_kind(_normal(16, 28, 28, 256), _normal(16, 256))
def global_pool_grad(x: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x: tf.reduce_mean(tf.nn.relu(x), [1, 2]), [x], dy)


@_kind(_normal(16, 28, 28, 256), _normal(16, 256), _normal(16, 28, 28, 256))
def squeeze_excite_grad(x: Any, s: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x, s: x * tf.sigmoid(s)[:, None, None, :] + x, [x, s], dy)


@_kind(_normal(16, 28, 28, 256), _normal(256), _normal(256), _normal(16, 28, 28, 256))
def bn_swish_grad(x: Any, g: Any, b: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x, g, b: tf.nn.swish(_batch_norm(x, g, b)), [x, g, b], dy)


@_kind(_normal(16, 64, 28, 28), _normal(64), _normal(64), _normal(16, 64, 28, 28))
def bn_nchw_grad(x: Any, g: Any, b: Any, dy: Any) -> list[Any]:
    def fwd(x: Any, g: Any, b: Any) -> Any:
        m, v = tf.nn.moments(x, [0, 2, 3], keepdims=True)
        return tf.nn.relu(
            (x - m) * tf.math.rsqrt(v + 1e-3) * g[None, :, None, None] + b[None, :, None, None]
        )

    return _gradients(fwd, [x, g, b], dy)


@_kind(_normal(16, 28, 28, 64))
def pad(x: Any) -> list[Any]:
    return [tf.nn.relu(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]))]


@_kind(_normal(16, 28, 28, 64))
def resize_nearest(x: Any) -> list[Any]:
    return [tf.repeat(tf.repeat(tf.nn.relu(x), 2, 1), 2, 2)]


@_kind(_normal(16, 56, 56, 64))
def space_to_depth(x: Any) -> list[Any]:
    return [tf.nn.space_to_depth(tf.nn.relu(x), 2)]


@_kind(_normal(16, 28, 28, 64), _normal(16, 28, 28, 64), _normal(16, 28, 28, 64))
def concat_relu_grad(x: Any, y: Any, z: Any) -> list[Any]:
    return [tf.nn.relu(tf.concat([x, y, z], -1)), tf.split(tf.concat([x, y, z], -1) * 2, 2, -1)[1]]


@_kind(*[_normal(4096, 16) for _ in range(26)])
def concat_many(*x: Any) -> list[Any]:
    return [tf.concat(x, 1) * 2.0]


@_kind(_normal(4096, 26, 16))
def fm_interaction(x: Any) -> list[Any]:
    s = tf.reduce_sum(x, 1)
    return [0.5 * (s * s - tf.reduce_sum(x * x, 1))]


@_kind(_integers(100, 4096), _normal(4096, 100))
def one_hot_mul(i_: Any, x: Any) -> list[Any]:
    return [tf.one_hot(i_, 100, dtype=x.dtype) * x]


@_kind(_normal(50000, 16), _integers(50000, 4096, 26))
def embedding(t: Any, ids: Any) -> list[Any]:
    return [tf.reduce_sum(tf.gather(t, ids), 1)]


@_kind(_normal(64, 1000, 80))
def cumsum(x: Any) -> list[Any]:
    return [tf.cumsum(tf.nn.relu(x), 1)]


@_kind(_normal(64, 1000, 80))
def cumsum_last(x: Any) -> list[Any]:
    return [tf.cumsum(tf.nn.relu(x), 2)]


@_kind(_normal(64, 1000, 80))
def reverse(x: Any) -> list[Any]:
    return [tf.reverse(tf.nn.relu(x), [1])]


@_kind(_normal(64, 1000, 80))
def reverse_last(x: Any) -> list[Any]:
    return [tf.reverse(tf.nn.relu(x), [2])]


@_kind(_normal(64, 512, 512))
def transpose_last(x: Any) -> list[Any]:
    return [tf.transpose(x * 2.0, [0, 2, 1])]


@_kind(_normal(64, 300, 200))
def transpose_uneven(x: Any) -> list[Any]:
    return [tf.transpose(x * 2.0, [0, 2, 1])]


@_kind(_normal(16, 256, 256))
def transpose_half(x: Any) -> list[Any]:
    return [tf.transpose(tf.cast(x, tf.float16) * 2, [0, 2, 1])]


@_kind(_normal(16, 256, 256))
def scale_half(x: Any) -> list[Any]:
    return [tf.cast(x, tf.float16) * 2]


@_kind(_normal(16, 256, 256))
def transpose_bfloat16(x: Any) -> list[Any]:
    return [tf.transpose(tf.cast(x, tf.bfloat16) * 2, [0, 2, 1])]


@_kind(_integers(1000, 64, 256, 256))
def transpose_integers(x: Any) -> list[Any]:
    return [tf.transpose(x + 1, [0, 2, 1])]


@_kind(_normal(8, 128, 12, 64))
def transpose_heads(x: Any) -> list[Any]:
    return [tf.transpose(x * 2.0, [0, 2, 1, 3])]


@_kind(_normal(64, 1000, 80), _normal(80), _normal(80))
def instance_norm(x: Any, g: Any, b: Any) -> list[Any]:
    m, v = tf.nn.moments(x, [1], keepdims=True)
    return [(x - m) * tf.math.rsqrt(v + 1e-5) * g + b]


@_kind(_normal(8, 32, 32, 256), _normal(256), _normal(256))
def group_norm(x: Any, g: Any, b: Any) -> list[Any]:
    y = tf.reshape(x, [8, 32, 32, 32, 8])
    m, v = tf.nn.moments(y, [1, 2, 4], keepdims=True)
    return [tf.reshape((y - m) * tf.math.rsqrt(v + 1e-5), [8, 32, 32, 256]) * g + b]


@_kind(_normal(4096, 10), _integers(10, 4096))
def small_xent(logits: Any, y: Any) -> list[Any]:
    with tf.GradientTape() as t:
        t.watch(logits)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        )
    return [loss, t.gradient(loss, logits)]


@_kind(_normal(16384, 4))
def softmax4(x: Any) -> list[Any]:
    return [tf.nn.softmax(x)]


@_kind(_normal(16384, 8))
def softmax8(x: Any) -> list[Any]:
    return [tf.nn.softmax(x)]


@_kind(_integers(1000, 64, 4096))
def int_hash(x: Any) -> list[Any]:
    y = x * 1103515245 + 12345
    y = tf.bitwise.bitwise_xor(y, tf.bitwise.right_shift(y, 7))
    return [tf.math.floormod(y, 997), tf.cast(y, tf.float32) * 0.5]


@_kind(_integers(1000, 64, 4096))
def int_reduce(x: Any) -> list[Any]:
    return [tf.reduce_sum(x, 1), tf.reduce_max(x, 0), tf.reduce_sum(tf.cast(x > 500, tf.int32), 1)]


@_kind(_normal(4096, 1000))
def argmax(x: Any) -> list[Any]:
    return [tf.argmax(x, 1, output_type=tf.int32)]


@_kind(_normal(1000, 4096))
def argmax_first(x: Any) -> list[Any]:
    return [tf.argmax(x, 0, output_type=tf.int32)]


@_kind(_normal(64, 100, 256))
def argmax_mid(x: Any) -> list[Any]:
    return [tf.argmax(x, 1, output_type=tf.int32)]


@_kind(_normal(16, 56, 56, 64), _normal(16, 56, 56, 64))
def l2_norm_all(x: Any, y: Any) -> list[Any]:
    return [tf.reduce_sum(x * x) + tf.reduce_sum(y * y), x * 0.1 + y]


@_kind(_normal(32, 100, 100), _normal(32, 100, 100))
def masked_attention_small(x: Any, dy: Any) -> list[Any]:
    m = tf.linalg.band_part(tf.ones([100, 100]), -1, 0)
    return _gradients(lambda x: tf.nn.softmax(x * 0.1 + (1 - m) * -1e9), [x], dy)


@_kind(_normal(64, 28, 28, 3))
def augment(x: Any) -> list[Any]:
    return [tf.clip_by_value((tf.image.flip_left_right(x) - 0.5) * 1.2 + 0.5, 0, 1)]


@_kind(_normal(64, 96, 96, 3), _normal(3))
def flip_and_standardize(x: Any, mean: Any) -> list[Any]:
    return [(tf.reverse(x, [2]) - mean) * 0.017]


@_kind(_normal(64, 96, 96, 3), _normal(3))
def standardize_and_flip(x: Any, mean: Any) -> list[Any]:
    return [tf.reverse((x - mean) * 0.017, [2])]


@_kind(_normal(64, 96, 96, 3), _normal(3))
def crop_and_flip(x: Any, mean: Any) -> list[Any]:
    return [(tf.reverse(x[:, 4:92, 4:92, :], [2]) - mean) * 0.017]


@_kind(_integers(1000, 64, 96, 96, 3))
def flip_integers(x: Any) -> list[Any]:
    return [tf.reverse(x, [2])]


@_kind(_normal(64, 56, 56, 16))
def flip_features(x: Any) -> list[Any]:
    return [tf.nn.relu(tf.reverse(x, [2]))]


@_kind(_normal(128, 20, 64), _normal(128, 20, 1))
def attention_pool(x: Any, w: Any) -> list[Any]:
    return [tf.reduce_sum(x * tf.nn.softmax(w, 1), 1)]


@_kind(
    _normal(16, 28, 28, 64),
    _normal(16, 28, 28, 64),
    _normal(64),
    _normal(64),
    _normal(64),
    _normal(64),
    _normal(16, 28, 28, 64),
)
def residual_two_batch_norms(x: Any, y: Any, g: Any, b: Any, h: Any, c: Any, dy: Any) -> list[Any]:
    return _gradients(
        lambda x, y, g, b, h, c: tf.nn.relu(_batch_norm(x, g, b) + _batch_norm(y, h, c)),
        [x, y, g, b, h, c],
        dy,
    )


@_kind(_normal(8, 112, 112, 32), _normal(32), _normal(32), _normal(8, 112, 112, 32))
def bn_relu6_grad(x: Any, g: Any, b: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x, g, b: tf.nn.relu6(_batch_norm(x, g, b)), [x, g, b], dy)


@_kind(_normal(16, 56, 56, 64), _normal(16, 112, 112, 64))
def upsample_grad(x: Any, dy: Any) -> list[Any]:
    return _gradients(lambda x: tf.repeat(tf.repeat(x, 2, 1), 2, 2), [x], dy)


@_kind(_normal(256, 512), _normal(512), _normal(512), _normal(256, 512))
def rms_norm_grad(x: Any, g: Any, b: Any, dy: Any) -> list[Any]:
    return _gradients(
        lambda x, g, b: x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-6) * g + b,
        [x, g, b],
        dy,
    )


@_kind(_normal(4, 128, 8, 64), _normal(128, 32), _normal(128, 32))
def rope(x: Any, c: Any, s: Any) -> list[Any]:
    a, b = tf.split(x, 2, -1)
    c = c[None, :, None, :]
    s = s[None, :, None, :]
    return [tf.concat([a * c - b * s, a * s + b * c], -1)]


@_kind(_normal(2048, 2048))
def bidirectional(x: Any) -> list[Any]:
    return [tf.reduce_sum(x, 0), tf.reduce_sum(x, 1), tf.reduce_max(tf.abs(x))]


@_kind(_normal(2048, 2048), _normal(2048, 2048))
def two_softmax(x: Any, y: Any) -> list[Any]:
    return [tf.nn.softmax(x, 0) * tf.nn.softmax(y, 1)]


@_kind(_normal(64, 64, 64, 32))
def reduce_mid(x: Any) -> list[Any]:
    return [tf.reduce_mean(x, [1]), tf.reduce_max(x, [2]), tf.reduce_sum(x, [0, 3])]


@_kind(_normal(64, 64, 64, 32))
def reduce_first(x: Any) -> list[Any]:
    return [tf.reduce_sum(x, [0])]


@_kind(_normal(64, 64, 64, 32))
def reduce_two(x: Any) -> list[Any]:
    return [tf.reduce_mean(x, [1, 3])]


@_kind(_normal(64, 512, 7, 7))
def channel_moments(x: Any) -> list[Any]:
    mean, variance = tf.nn.moments(x, [0, 2, 3])
    return [mean, variance]


@_kind(*[_normal(1024, 16) for _ in range(26)])
def stack_many(*x: Any) -> list[Any]:
    return [tf.nn.relu(tf.stack(x, 1))]


@_kind(_normal(4096, 16), _integers(500, 4096))
def segment_sums(x: Any, ids: Any) -> list[Any]:
    return [tf.math.unsorted_segment_sum(x, ids, 500)]


@_kind(_normal(16, 30, 30, 64), _normal(3, 3, 64))
def depthwise_by_hand(x: Any, w: Any) -> list[Any]:
    parts = [x[:, i : i + 28, j : j + 28, :] * w[i, j] for i in range(3) for j in range(3)]
    return [tf.add_n(parts)]


@_kind(_normal(16, 4, 64, 32))
def query_bias_grad(dy: Any) -> list[Any]:
    turned = tf.transpose(dy * 0.125, (0, 3, 1, 2))
    return [turned, tf.reduce_sum(turned, (0, 1))]


@_kind(_normal(32, 256, 256))
def softmax_transposed(x: Any) -> list[Any]:
    return [tf.transpose(tf.nn.softmax(x), (0, 2, 1))]


@_kind(_normal(16, 784, 192), _normal(192), _normal(192))
def layer_norm_to_nchw(x: Any, g: Any, b: Any) -> list[Any]:
    mean, variance = tf.nn.moments(x, [2], keepdims=True)
    return [tf.transpose((x - mean) * tf.math.rsqrt(variance + 1e-5) * g + b, (0, 2, 1))]


@_kind(_normal(64, 50, 64), _normal(64, 50, 64))
def l2_normalize_mid(x: Any, y: Any) -> list[Any]:
    return [tf.nn.l2_normalize(x, 1) * y]


@_kind(_normal(16, 112, 112, 3), _normal(3), _normal(3))
def normalize_image(x: Any, mean: Any, deviation: Any) -> list[Any]:
    return [(x / 255.0 - mean) / deviation]


@_kind(_normal(16, 112, 112, 3))
def to_channels_first(x: Any) -> list[Any]:
    return [tf.transpose(x * 2.0 - 1.0, (0, 3, 1, 2))]


@_kind(_normal(64, 900, 4), _normal(64, 900, 4))
def box_loss(x: Any, y: Any) -> list[Any]:
    distance = tf.abs(x - y)
    huber = tf.where(distance < 1.0, 0.5 * distance * distance, distance - 0.5)
    return [tf.reduce_sum(huber, 2)]
