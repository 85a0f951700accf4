"""MirroredStrategy over two logical CPUs: `strategy.run` in a step, losses reduced."""

import keras
import numpy as np
import tensorflow as tf
import watch

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
keras.utils.set_random_seed(12)
numbers = np.random.default_rng(12)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    first = tf.Variable(numbers.normal(0, 0.2, (24, 48)).astype("float32"))
    second = tf.Variable(numbers.normal(0, 0.2, (48, 1)).astype("float32"))
    moments = [tf.Variable(tf.zeros_like(v)) for v in (first, second)]


def replica(x, y):
    with tf.GradientTape() as tape:
        h = tf.nn.gelu(x @ first)
        h = (h - tf.reduce_mean(h, -1, keepdims=True)) * 0.9
        loss = tf.reduce_mean(tf.square(h @ second - y)) / 2
    gradients = tape.gradient(loss, [first, second])
    gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
    for variable, moment, gradient in zip((first, second), moments, gradients):
        moment.assign(0.9 * moment + gradient)
        variable.assign_sub(0.01 * moment)
    return loss


@tf.function
def train(x, y):
    return strategy.reduce("sum", strategy.run(replica, (x, y)), axis=None)


watch.start([first, second])
for step in range(30):
    x = numbers.normal(size=(2, 16, 24)).astype("float32")
    y = x.sum(-1, keepdims=True)

    def part(context, of=(x, y)):
        return tuple(tf.constant(one[context.replica_id_in_sync_group]) for one in of)

    parts = strategy.experimental_distribute_values_from_function(part)
    loss = train(*parts) if isinstance(parts, tuple) else train(parts[0], parts[1])
    watch.step([first, second], moments, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f}")
