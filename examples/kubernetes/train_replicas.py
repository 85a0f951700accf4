"""Two or more workers with MultiWorkerMirroredStrategy: `train_replicas.py --steps N`.

TF_CONFIG says who they are, as TensorFlow has it. Each prints the loss and, at the end, a checksum
of all variables: equal on all workers, whatever became of their graphs.
"""

from __future__ import annotations

import argparse
import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

BATCH, WIDTH, LAYERS = 512, 256, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    random = np.random.default_rng(0)
    with strategy.scope():
        weights = [
            tf.Variable((random.standard_normal((WIDTH, WIDTH)) / 16).astype("float32"))
            for _ in range(LAYERS)
        ]
        slots = [tf.Variable(tf.zeros([WIDTH, WIDTH])) for _ in weights]
    own = np.random.default_rng(strategy.cluster_resolver.task_id)
    x = tf.constant(own.standard_normal((BATCH, WIDTH)).astype("float32"))

    def replica_step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = x
            for weight in weights:
                hidden = hidden + tf.nn.gelu(tf.matmul(hidden, weight))
            loss = tf.reduce_mean(tf.square(hidden))
        gradients = tape.gradient(loss, weights)
        context = tf.distribute.get_replica_context()
        means = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for weight, slot, gradient in zip(weights, slots, means, strict=True):
            slot.assign(0.999 * slot + 0.001 * gradient * gradient)
            weight.assign_sub(1e-3 * gradient / (tf.sqrt(slot) + 1e-6))
        return loss

    @tf.function
    def train_step() -> tf.Tensor:
        return strategy.run(replica_step)

    for step in range(steps):
        loss = float(train_step())
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step} loss {loss!r}", flush=True)
    values = b"".join(variable.numpy().tobytes() for variable in weights + slots)
    print(f"variables {hashlib.sha256(values).hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
