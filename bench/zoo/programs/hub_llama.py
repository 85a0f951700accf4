"""keras-hub: a small Llama by GradientTape: rotary positions, grouped queries, gated layers."""

import keras
import keras_hub
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(81)
numbers = np.random.default_rng(81)
backbone = keras_hub.models.LlamaBackbone(
    vocabulary_size=100, num_layers=2, num_query_heads=4, num_key_value_heads=2, hidden_dim=32,
    intermediate_dim=64,
)  # fmt: skip
optimizer = keras.optimizers.AdamW(2e-3, weight_decay=0.1, beta_2=0.95, global_clipnorm=1.0)
optimizer.build(backbone.trainable_variables)


@tf.function
def train(ids):
    with tf.GradientTape() as tape:
        x = {"token_ids": ids[:, :-1], "padding_mask": tf.ones_like(ids[:, :-1])}
        logits = backbone.token_embedding(backbone(x, training=True), reverse=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(ids[:, 1:], logits)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, backbone.trainable_variables)
    optimizer.apply_gradients(zip(gradients, backbone.trainable_variables))
    return loss


watch.start(backbone)
for step in range(20):
    loss = train(tf.constant(numbers.integers(0, 100, (6, 13)), tf.int32))
    watch.step(backbone, optimizer, loss=loss)
    if step % 5 == 4:
        print("step", step, f"{float(loss):.4f}")
