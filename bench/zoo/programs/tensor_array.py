"""A recurrent cell by hand: `tf.while_loop` over a TensorArray, unknown length, peephole gates."""

import numpy as np
import tensorflow as tf
import watch

numbers = np.random.default_rng(21)
kernel = tf.Variable(numbers.normal(0, 0.2, (40, 96)).astype("float32"))
peep = tf.Variable(numbers.normal(0, 0.2, (24,)).astype("float32"))
head = tf.Variable(numbers.normal(0, 0.2, (24, 2)).astype("float32"))
weights = [kernel, peep, head]


@tf.function(input_signature=[tf.TensorSpec([None, None, 16]), tf.TensorSpec([None], tf.int32)])
def train(x, labels):
    with tf.GradientTape() as tape:
        steps, batch = tf.shape(x)[0], tf.shape(x)[1]
        inputs = tf.TensorArray(tf.float32, steps).unstack(x)
        outputs = tf.TensorArray(tf.float32, steps)

        def body(t, h, c, outputs):
            i, f, o, g = tf.split(tf.concat([inputs.read(t), h], 1) @ kernel, 4, 1)
            c = tf.sigmoid(f + 1.0 + peep * c) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            return t + 1, h, c, outputs.write(t, h)

        zeros = tf.zeros([batch, 24])
        *_, outputs = tf.while_loop(lambda t, *_: t < steps, body, (0, zeros, zeros, outputs))
        logits = tf.reduce_mean(outputs.stack(), 0) @ head
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    for weight, gradient in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(0.3 * gradient)
    return loss


watch.start(weights)
for step in range(24):
    x = numbers.normal(size=(5 + step % 3, 8, 16)).astype("float32")
    labels = (x.sum((0, 2)) > 0).astype("int32")
    loss = train(tf.constant(x), tf.constant(labels))
    watch.step(weights, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.5f}")
