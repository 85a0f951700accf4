"""A user's program in a pod: a hand-written Adam step of a small network. STEPS [PAUSE_SECONDS]"""

import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

ROWS, FEATURES, WIDTH, CLASSES = 1024, 64, 256, 10
random = np.random.RandomState(0)


def matrix(*shape: int) -> Any:
    return tf.Variable((random.randn(*shape) / np.sqrt(shape[0])).astype("f"))


weights = [
    matrix(FEATURES, WIDTH), tf.Variable(tf.zeros([WIDTH])), tf.Variable(tf.ones([WIDTH])),
    matrix(WIDTH, WIDTH), tf.Variable(tf.zeros([WIDTH])), matrix(WIDTH, CLASSES),
]  # fmt: skip
first = [tf.Variable(tf.zeros_like(w)) for w in weights]
second = [tf.Variable(tf.zeros_like(w)) for w in weights]
passed = tf.Variable(0.0)


def model(x: Any) -> Any:
    w1, b1, gain, w2, b2, w3 = weights
    x = tf.nn.gelu(tf.matmul(x, w1) + b1)
    mean = tf.reduce_mean(x, -1, keepdims=True)
    spread = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
    x = (x - mean) * tf.math.rsqrt(spread + 1e-6) * gain
    return tf.matmul(tf.nn.gelu(tf.matmul(x, w2) + b2), w3)


@tf.function  # type: ignore[untyped-decorator]
def train_step(x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
        loss = tf.reduce_mean(losses)
    passed.assign_add(1.0)
    for w, m, s, g in zip(weights, first, second, tape.gradient(loss, weights), strict=True):
        m.assign(0.9 * m + 0.1 * g)
        s.assign(0.999 * s + 0.001 * g * g)
        scale = tf.sqrt(s / (1 - 0.999**passed)) + 1e-8
        w.assign_sub(1e-3 * (m / (1 - 0.9**passed)) / scale)
    return loss


x = tf.constant(random.randn(ROWS, FEATURES).astype("f"))
y = tf.constant(random.randint(0, CLASSES, ROWS))
steps, pause = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
for step in range(steps):
    print(f"loss {step} {float(train_step(x, y))!r}", flush=True)
    time.sleep(pause)
