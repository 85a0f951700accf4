"""transformers: ELECTRA's discriminator tells replaced words, by GradientTape with accumulation."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
import watch
from transformers import ElectraConfig, TFElectraForPreTraining

keras.utils.set_random_seed(72)
numbers = np.random.default_rng(72)
config = ElectraConfig(
    vocab_size=150, embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=64, max_position_embeddings=20,
)  # fmt: skip
model = TFElectraForPreTraining(config)
model(tf.ones([1, 12], tf.int32))
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]


@tf.function
def gather(ids, labels):
    with tf.GradientTape() as tape:
        logits = model(ids, training=True).logits
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
    for total, gradient in zip(sums, tape.gradient(loss, model.trainable_variables)):
        total.assign_add(tf.convert_to_tensor(gradient))
    return loss


@tf.function
def apply():
    optimizer.apply_gradients(zip([total / 2.0 for total in sums], model.trainable_variables))
    for total in sums:
        total.assign(tf.zeros_like(total))


watch.start(model)
for step in range(24):
    ids = numbers.integers(1, 150, (8, 12))
    loss = gather(tf.constant(ids, tf.int32), tf.constant(ids % 5 == 0, tf.float32))
    if step % 2:
        apply()
    watch.step(model, optimizer, sums, loss=loss)
    if step % 6 == 5:
        print("step", step, f"{float(loss):.4f}")
