"""Streaming metrics, histograms and losses written to a summary file from inside the step."""

import tempfile

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(24)
numbers = np.random.default_rng(24)
model = keras.Sequential(
    [keras.Input((30,)), keras.layers.Dense(40, "relu"), keras.layers.Dense(4)]
)
optimizer = keras.optimizers.Adamax(0.01)
optimizer.build(model.trainable_variables)
metrics = [
    keras.metrics.SparseCategoricalAccuracy(), keras.metrics.SparseTopKCategoricalAccuracy(2),
    keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
]  # fmt: skip
mean = keras.metrics.Mean()
folder = tempfile.mkdtemp()
writer = tf.summary.create_file_writer(folder)


@tf.function
def train(x, y, number):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    for metric in metrics:
        metric.update_state(y, logits)
    mean.update_state(loss)
    with writer.as_default(step=number), tf.summary.record_if(number % 5 == 0):
        tf.summary.write("loss", loss)
        tf.summary.write("gradient", tf.histogram_fixed_width(gradients[0], [-1.0, 1.0], 20))
    return loss


watch.start(model)
for step in range(40):
    x = numbers.normal(size=(16, 30)).astype("float32")
    y = np.argmax(x[:, :4], 1)
    loss = train(tf.constant(x), tf.constant(y), tf.constant(step, tf.int64))
    watch.step(model, optimizer, *metrics, loss=loss)
    if step % 10 == 9:
        print("step", step, *(f"{float(m.result()):.4f}" for m in (*metrics, mean)))
writer.close()
events = [
    e for f in tf.io.gfile.glob(folder + "/*") for e in tf.compat.v1.train.summary_iterator(f)
]
print("events", len(events), sum(len(e.summary.value) for e in events))
