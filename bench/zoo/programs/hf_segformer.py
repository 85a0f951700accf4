"""transformers: SegFormer segments small images; overlapping patches, resizing, pixelwise losses."""

import numpy as np
import tensorflow as tf
import tf_keras as keras
import watch
from transformers import SegformerConfig, TFSegformerForSemanticSegmentation

keras.utils.set_random_seed(74)
numbers = np.random.default_rng(74)
config = SegformerConfig(
    num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[16, 32], sr_ratios=[2, 1], patch_sizes=[7, 3],
    strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=32, num_labels=4,
)  # fmt: skip
model = TFSegformerForSemanticSegmentation(config)
image = tf.zeros([4, 3, 32, 32])
model(image)
optimizer = keras.optimizers.AdamW(1e-3)
optimizer.build(model.trainable_variables)


@tf.function
def train(image, labels):
    with tf.GradientTape() as tape:
        logits = model(image, training=True).logits
        logits = tf.image.resize(tf.transpose(logits, [0, 2, 3, 1]), [32, 32])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


watch.start(model)
for step in range(16):
    image = tf.constant(numbers.normal(size=(4, 3, 32, 32)), tf.float32)
    loss = train(image, tf.constant(numbers.integers(0, 4, (4, 32, 32)), tf.int32))
    watch.step(model, optimizer, loss=loss)
    if step % 4 == 3:
        print("step", step, f"{float(loss):.4f}")
