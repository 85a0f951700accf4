"""A user's program: TF1 graph and Session, dropout with a seed. STEPS [PAUSE_SECONDS]"""

import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
random = np.random.RandomState(0)
x, y = tf.placeholder(tf.float32, [32, 64]), tf.placeholder(tf.int64, [32])


def variable(name, *shape):
    value = (random.randn(*shape) / np.sqrt(shape[0])).astype("f")
    return tf.get_variable(name, initializer=value, use_resource=True)


w1, w2, w3 = variable("w1", 64, 128), variable("w2", 128, 128), variable("w3", 128, 10)
h = tf.nn.dropout(tf.nn.relu(tf.matmul(x, w1)), rate=0.1, seed=7)
h = tf.nn.relu(tf.matmul(h, w2))
loss = tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(h, w3))
)
updates = []
for w, g in zip((w1, w2, w3), tf.gradients(loss, (w1, w2, w3))):
    norm = tf.sqrt(tf.reduce_sum(tf.square(g), axis=0, keepdims=True) + 1.0)
    updates.append(tf.assign_sub(w, 0.05 * g / norm))
train = tf.group(*updates)
data, labels = random.randn(640, 64).astype("f"), random.randint(0, 10, 640)
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for i in range(int(sys.argv[1])):
        k = (i % 20) * 32
        feed = {x: data[k : k + 32], y: labels[k : k + 32]}
        print(f"{float(session.run([loss, train], feed)[0])!r}", flush=True)
        time.sleep(pause)
