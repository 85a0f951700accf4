"""Keras BinaryCrossentropy with an unknown batch: the patch has a cycle, and random numbers repeat.

Seen: bad_artifact, "the graph has a cycle outside loops" (constants that Grappler folded carry
control edges; copied into a region they lead back into it). And, because the refusal comes while
the first call is built, the second call builds the step anew and draws the first call's random
numbers again: the last column shows the same figure twice, which it never does without the product.
Expected: the last column of the run without the product.
"""

import keras
import tensorflow as tf

tf.random.set_seed(1)
net = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(64),
        keras.layers.LeakyReLU(negative_slope=0.2),
        keras.layers.Dense(1),
    ]
)
loss_fn, opt = keras.losses.BinaryCrossentropy(from_logits=True), keras.optimizers.Adam(1e-3)
opt.build(net.trainable_variables)


@tf.function(input_signature=[tf.TensorSpec([None, 64])])
def step(x):
    n = tf.shape(x)[0]
    z = tf.random.normal([n, 64])
    with tf.GradientTape() as tape:
        loss = loss_fn(tf.zeros((n, 1)), net(x + z))
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    return loss, tf.reduce_mean(z)


for i in range(6):
    print("step", i, *[float(v) for v in step(tf.ones([32, 64]))])
