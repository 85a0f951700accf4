"""Estimator-like, TensorFlow 1: `MonitoredTrainingSession`, hooks, a checkpoint, a queue-free input."""

import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
import watch

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)
tf.set_random_seed(42)
folder = tempfile.mkdtemp()


def inputs():
    numbers = np.random.default_rng(42)
    x = numbers.normal(size=(64, 16)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, np.sin(x[:, :1]))).repeat().batch(16)
    return tf.data.make_one_shot_iterator(data).get_next()


def model(x, y):
    for number, width in enumerate((32, 24)):
        w = tf.get_variable(
            f"w{number}", [x.shape[1], width], initializer=tf.glorot_normal_initializer(number)
        )
        x = tf.nn.leaky_relu(tf.matmul(x, w))
        x -= tf.reduce_mean(x, 1, keepdims=True)
    w = tf.get_variable("out", [24, 1], initializer=tf.glorot_normal_initializer(9))
    return tf.losses.huber_loss(y, tf.matmul(x, w), delta=0.5)


def run(until):
    with tf.Graph().as_default():
        tf.set_random_seed(42)
        steps = tf.train.get_or_create_global_step()
        loss = model(*inputs())
        train = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=steps)
        hooks = [tf.train.StopAtStepHook(last_step=until), tf.train.NanTensorHook(loss)]
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=hooks, save_checkpoint_steps=10, log_step_count_steps=None
        ) as session:
            while not session.should_stop():
                number, value, _ = session.run([steps, loss, train])
                watch.step(loss=value)
                if number % 8 == 0:
                    print("step", number, f"{value:.6f}")


run(20)
run(40)
print(*sorted(name for name, _ in tf.train.list_variables(folder) if "Adam" not in name))
