"""Steps that fail are caught: bad labels, a failed assertion, an invalid reshape; training goes on."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(28)
numbers = np.random.default_rng(28)
model = keras.Sequential(
    [keras.Input((16,)), keras.layers.Dense(32, "swish"), keras.layers.Dense(6)]
)
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)


@tf.function(
    input_signature=[
        tf.TensorSpec([None, 16]),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([], tf.int32),
    ]
)
def train(x, y, groups):
    tf.debugging.assert_less(tf.reduce_max(tf.abs(x)), 50.0, message="too large")
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        loss = tf.reduce_max(tf.reduce_mean(tf.reshape(losses, [groups, -1]), 1))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


watch.start(model)
for step in range(40):
    x, y = numbers.normal(size=(12, 16)).astype("float32"), numbers.integers(0, 6, 12)
    groups = 3
    if step % 10 == 5:
        y[2] = 6
    if step % 10 == 7:
        x[1, 1] = 99.0
    if step % 10 == 9:
        groups = 5
    try:
        loss = train(tf.constant(x), tf.constant(y), tf.constant(groups))
        watch.step(model, optimizer, loss=loss)
        print("step", step, f"{float(loss):.5f}")
    except tf.errors.InvalidArgumentError as error:
        print("step", step, type(error).__name__, "too large" in str(error))
print("iterations", int(optimizer.iterations))
