"""MultiWorkerMirroredStrategy: this process is worker 0, and starts worker 1 beside it."""

import json
import os
import socket
import subprocess
import sys

if "TF_CONFIG" not in os.environ:
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()

    def place(rank):
        return json.dumps(
            {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        )

    environment = {k: v for k, v in os.environ.items() if k != "ZOO_OUT"}
    other = subprocess.Popen(
        [sys.executable, *sys.argv], env={**environment, "TF_CONFIG": place(1)}
    )
    os.environ["TF_CONFIG"] = place(0)

import numpy as np
import tensorflow as tf
import watch

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id
numbers = np.random.default_rng(35 + rank)
with strategy.scope():
    weight = tf.Variable(np.random.default_rng(35).normal(0, 0.2, (24, 24)).astype("float32"))


def replica(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.nn.gelu(x @ weight) + tf.nn.softmax(x) - 0.5 * x))
    gradient = tape.gradient(loss, weight)
    gradient = tf.distribute.get_replica_context().all_reduce("mean", gradient)
    weight.assign_sub(0.2 * gradient)
    return loss


@tf.function
def train(x):
    return strategy.reduce("mean", strategy.run(replica, (x,)), axis=None)


watch.start(weight)
for step in range(24):
    loss = train(tf.constant(numbers.normal(size=(16, 24)), tf.float32))
    watch.step(weight, loss=loss)
    if step % 6 == 5 and rank == 0:
        print("step", step, f"{float(loss):.5f}", flush=True)
if rank == 0:
    print("worker 1", other.wait(timeout=60))
