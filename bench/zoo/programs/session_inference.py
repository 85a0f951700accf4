"""TensorFlow 1: a frozen inference graph, imported, and `Session.run` on it again and again."""

import numpy as np
import tensorflow.compat.v1 as tf
import watch

tf.disable_v2_behavior()
numbers = np.random.default_rng(40)
with tf.Graph().as_default() as made:
    x = tf.placeholder(tf.float32, [None, 12, 12, 3], name="image")
    k = tf.constant(numbers.normal(0, 0.2, (3, 3, 3, 16)).astype("float32"))
    h = tf.nn.relu6(tf.nn.conv2d(x, k, 2, "SAME") + 0.1)
    h = (h - 0.3) * tf.rsqrt(tf.constant(numbers.random(16).astype("float32")) + 1e-3)
    h = tf.reduce_mean(tf.nn.swish(h), [1, 2])
    w = tf.constant(numbers.normal(0, 0.3, (16, 8)).astype("float32"))
    tf.nn.softmax(tf.tanh(tf.matmul(h, w)) * 4.0, name="shares")
with tf.Graph().as_default(), tf.Session() as session:
    tf.import_graph_def(made.as_graph_def(), name="net")
    for call in range(40):
        image = numbers.normal(size=(6, 12, 12, 3)).astype("float32")
        shares = session.run("net/shares:0", {"net/image:0": image})
        watch.step(shares)
        if call % 8 == 7:
            print("call", call, f"{shares.max():.5f}", *shares.argmax(1))
