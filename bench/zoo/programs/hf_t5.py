"""transformers: T5 learns to copy, by GradientTape; relative positions, RMS norms, tied embeddings."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
import watch
from transformers import T5Config, TFT5ForConditionalGeneration

keras.utils.set_random_seed(71)
numbers = np.random.default_rng(71)
config = T5Config(
    vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=0,
    feed_forward_proj="gated-gelu",
)  # fmt: skip
model = TFT5ForConditionalGeneration(config)
ids = tf.constant(numbers.integers(2, 100, (8, 10)), tf.int32)
model(input_ids=ids, labels=ids)
optimizer = keras.optimizers.AdamW(1e-3)
optimizer.build(model.trainable_variables)


@tf.function
def train(ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(input_ids=ids, labels=ids, training=True).loss)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


watch.start(model)
for step in range(20):
    loss = train(tf.constant(numbers.integers(2, 100, (8, 10)), tf.int32))
    watch.step(model, optimizer, loss=loss)
    if step % 5 == 4:
        print("step", step, f"{float(loss):.4f}")
