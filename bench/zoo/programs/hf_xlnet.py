"""transformers: XLNet's relative attention, `fit` for regression with dropout."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
import watch
from transformers import TFXLNetForSequenceClassification, XLNetConfig

keras.utils.set_random_seed(76)
numbers = np.random.default_rng(76)
config = XLNetConfig(vocab_size=120, d_model=32, n_layer=2, n_head=4, d_inner=64, num_labels=1)
model = TFXLNetForSequenceClassification(config)
model(tf.ones([1, 10], tf.int32))
optimizer = keras.optimizers.RMSprop(5e-4)
optimizer.build(model.trainable_variables)


@tf.function(input_signature=[tf.TensorSpec([None, 10], tf.int32), tf.TensorSpec([None])])
def train(ids, y):
    with tf.GradientTape() as tape:
        made = model(input_ids=ids, training=True).logits[:, 0]
        loss = tf.reduce_mean(tf.square(made - y))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


watch.start(model)
for step in range(20):
    ids = numbers.integers(1, 120, (8, 10))
    loss = train(tf.constant(ids, tf.int32), tf.constant(ids.mean(1) / 60 - 1, tf.float32))
    watch.step(model, optimizer, loss=loss)
    if step % 5 == 4:
        print("step", step, f"{float(loss):.4f}")
