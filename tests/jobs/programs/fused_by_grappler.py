"""What Grappler fuses for oneDNN: normalized and cut off while training, swish, layer norm."""

import numpy as np
import tensorflow as tf

numbers = np.random.default_rng(4)


def weight(*shape):
    return tf.Variable(numbers.normal(0, 0.3, shape).astype("float32"))


kernel, dense = weight(3, 3, 4, 16), weight(16, 8)
scale, offset, gain, bias = (tf.Variable(tf.ones([n])) for n in (16, 16, 16, 16))
mean, variance = tf.Variable(tf.zeros([16])), tf.Variable(tf.ones([16]))
weights = [kernel, dense, scale, offset, gain, bias]


@tf.function(input_signature=[tf.TensorSpec([8, 12, 12, 4])])
def train(images):
    with tf.GradientTape() as tape:
        h = tf.nn.conv2d(images, kernel, 1, "SAME")
        h, mean_now, variance_now = tf.compat.v1.nn.fused_batch_norm(
            h, scale, offset, is_training=True
        )
        h = tf.reduce_mean(tf.nn.relu(h), [1, 2])
        loss = tf.reduce_mean(tf.square(tf.matmul(h, dense) - 1.0))
    for variable, gradient in zip(
        weights, tape.gradient(loss, weights, unconnected_gradients="zero")
    ):
        variable.assign_sub(0.1 * gradient)
    mean.assign_add(0.1 * (mean_now - mean))
    variance.assign_add(0.1 * (variance_now - variance))
    return loss


@tf.function(input_signature=[tf.TensorSpec([None, 12, 12, 4])])
def predict(images):
    h = tf.nn.conv2d(images, kernel, 1, "SAME")
    h, _, _ = tf.compat.v1.nn.fused_batch_norm(h, scale, offset, mean, variance, is_training=False)
    h = h * tf.sigmoid(h) + tf.roll(h, 2, 1)
    centre = tf.reduce_mean(h, -1, keepdims=True)
    spread = tf.reduce_mean(
        tf.math.squared_difference(h, tf.stop_gradient(centre)), -1, keepdims=True
    )
    inverse = tf.math.rsqrt(spread + 1e-3) * gain
    h = h * inverse + (bias - centre * inverse)
    return tf.nn.softmax(tf.matmul(tf.reduce_max(h, [1, 2]), dense))


for step in range(24):
    images = numbers.normal(size=(8, 12, 12, 4)).astype("float32")
    loss = train(tf.constant(images))
    shares = predict(tf.constant(images))
    if step % 4 == 3:
        print(
            "step",
            step,
            f"{float(loss):.5f}",
            f"{float(tf.reduce_max(shares)):.5f}",
            *variance.numpy()[:2],
        )
