"""A user's program: a step under XLA, called by a tf.function or bare. STEPS [PAUSE] [bare]"""

import sys
import time

import numpy as np
import tensorflow as tf

random = np.random.RandomState(0)
w1 = tf.Variable((random.randn(64, 128) / 8).astype("f"))
w2 = tf.Variable((random.randn(128, 10) / 11).astype("f"))
weights = [w1, w2]


@tf.function(jit_compile=True)
def step(x, y):
    with tf.GradientTape() as tape:
        h = tf.nn.gelu(tf.matmul(x, w1))
        h = h - tf.reduce_mean(h, -1, keepdims=True)
        logits = tf.matmul(h, w2)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        )
    for w, g in zip(weights, tape.gradient(loss, weights)):
        norm = tf.sqrt(tf.reduce_sum(tf.square(g), axis=0, keepdims=True) + 1.0)
        w.assign_sub(0.05 * g / norm)
    return loss


@tf.function
def nested(x, y):
    return step(x, y)


train = step if "bare" in sys.argv else nested
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
x, y = random.randn(640, 64).astype("f"), random.randint(0, 10, 640)
for i in range(int(sys.argv[1])):
    k = (i % 20) * 32
    print(f"{float(train(tf.constant(x[k : k + 32]), tf.constant(y[k : k + 32])))!r}", flush=True)
    time.sleep(pause)
