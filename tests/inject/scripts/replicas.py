"""Replicas joined by collectives. STEPS PAUSE [BYTES of gradients in each collective]; prints step,
loss and a checksum of the variables."""

import hashlib
import sys
import time

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
random = np.random.RandomState(0)
with strategy.scope():
    weights = [tf.Variable((random.randn(32, 32) / 6).astype("f")) for _ in range(3)]
    slots = [tf.Variable(tf.zeros([32, 32])) for _ in weights]
packs = tf.distribute.experimental.CommunicationOptions(
    bytes_per_pack=int(sys.argv[3]) if len(sys.argv) > 3 else 0
)
rank = strategy.cluster_resolver.task_id
x = tf.constant(np.random.RandomState(rank).randn(16, 32).astype("f"))


def replica_step():
    with tf.GradientTape() as tape:
        h = x
        for w in weights:
            h = tf.nn.gelu(tf.matmul(h, w)) + h
        loss = tf.reduce_mean(tf.square(h))
    gradients = tape.gradient(loss, weights)
    context = tf.distribute.get_replica_context()
    means = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients, packs)
    for w, s, g in zip(weights, slots, means):
        s.assign(0.999 * s + 0.001 * g * g)
        w.assign_sub(1e-3 * g / (tf.sqrt(s) + 1e-6))
    return loss


@tf.function
def train_step():
    return strategy.run(replica_step)


for step in range(int(sys.argv[1])):
    loss = float(train_step())
    values = b"".join(w.numpy().tobytes() for w in weights + slots)
    print(step, repr(loss), hashlib.sha256(values).hexdigest(), flush=True)
    time.sleep(float(sys.argv[2]))
